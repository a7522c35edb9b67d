//go:build !race

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/dca00107/lockstep/cmd/lockgen/testdata/hidden"
	"github.com/dca00107/lockstep/cmd/lockgen/testdata/shopdb/shopdb"
	"github.com/dca00107/lockstep/cmd/lockgen/testdata/types/types"
	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// counter is a table of testdata/types, with the queries for a row of it.
type counter struct {
	key txlock.Key
	add func(ctx context.Context, q types.Querier) error
	get func(ctx context.Context, q types.Querier) (int64, error)
	set func(ctx context.Context, q types.Querier, n int64) error
}

// counterOf makes a counter of the methods of a table. What they are given is made by
// literals, since the structs have no names in common.
func counterOf[A, G, S any](key txlock.Key, a A, g G, s func(n int64) S,
	add func(types.Querier, context.Context, A) error, get func(types.Querier, context.Context, G) (int64, error), set func(types.Querier, context.Context, S) error,
) counter {
	return counter{key,
		func(ctx context.Context, q types.Querier) error { return add(q, ctx, a) },
		func(ctx context.Context, q types.Querier) (int64, error) { return get(q, ctx, g) },
		func(ctx context.Context, q types.Querier, n int64) error { return set(q, ctx, s(n)) },
	}
}

func counters() []counter {
	type q = types.Querier
	id := uuid.New()
	return []counter{
		counterOf(types.TinyintsKeys.Key(-128), types.AddTinyintsParams{K: -128}, types.GetTinyintsParams{K: -128}, func(n int64) types.SetTinyintsParams { return types.SetTinyintsParams{N: n, K: -128} }, q.AddTinyints, q.GetTinyints, q.SetTinyints),
		counterOf(types.UtinyintsKeys.Key(255), types.AddUtinyintsParams{K: 255}, types.GetUtinyintsParams{K: 255}, func(n int64) types.SetUtinyintsParams { return types.SetUtinyintsParams{N: n, K: 255} }, q.AddUtinyints, q.GetUtinyints, q.SetUtinyints),
		counterOf(types.SmallintsKeys.Key(-32768), types.AddSmallintsParams{K: -32768}, types.GetSmallintsParams{K: -32768}, func(n int64) types.SetSmallintsParams { return types.SetSmallintsParams{N: n, K: -32768} }, q.AddSmallints, q.GetSmallints, q.SetSmallints),
		counterOf(types.UsmallintsKeys.Key(65535), types.AddUsmallintsParams{K: 65535}, types.GetUsmallintsParams{K: 65535}, func(n int64) types.SetUsmallintsParams { return types.SetUsmallintsParams{N: n, K: 65535} }, q.AddUsmallints, q.GetUsmallints, q.SetUsmallints),
		counterOf(types.MediumintsKeys.Key(-8388608), types.AddMediumintsParams{K: -8388608}, types.GetMediumintsParams{K: -8388608}, func(n int64) types.SetMediumintsParams { return types.SetMediumintsParams{N: n, K: -8388608} }, q.AddMediumints, q.GetMediumints, q.SetMediumints),
		counterOf(types.IntsKeys.Key(-1), types.AddIntsParams{K: -1}, types.GetIntsParams{K: -1}, func(n int64) types.SetIntsParams { return types.SetIntsParams{N: n, K: -1} }, q.AddInts, q.GetInts, q.SetInts),
		counterOf(types.UintsKeys.Key(1<<32-1), types.AddUintsParams{K: 1<<32 - 1}, types.GetUintsParams{K: 1<<32 - 1}, func(n int64) types.SetUintsParams { return types.SetUintsParams{N: n, K: 1<<32 - 1} }, q.AddUints, q.GetUints, q.SetUints),
		counterOf(types.BigintsKeys.Key(-1<<63), types.AddBigintsParams{K: -1 << 63}, types.GetBigintsParams{K: -1 << 63}, func(n int64) types.SetBigintsParams { return types.SetBigintsParams{N: n, K: -1 << 63} }, q.AddBigints, q.GetBigints, q.SetBigints),
		counterOf(types.UbigintsKeys.Key(1<<64-1), types.AddUbigintsParams{K: 1<<64 - 1}, types.GetUbigintsParams{K: 1<<64 - 1}, func(n int64) types.SetUbigintsParams { return types.SetUbigintsParams{N: n, K: 1<<64 - 1} }, q.AddUbigints, q.GetUbigints, q.SetUbigints),
		counterOf(types.CharsKeys.Key("EUR"), types.AddCharsParams{K: "EUR"}, types.GetCharsParams{K: "eur"}, func(n int64) types.SetCharsParams { return types.SetCharsParams{N: n, K: "Eur "} }, q.AddChars, q.GetChars, q.SetChars),
		counterOf(types.VarcharsKeys.Key("Jörg"), types.AddVarcharsParams{K: "Jörg"}, types.GetVarcharsParams{K: "Jörg "}, func(n int64) types.SetVarcharsParams { return types.SetVarcharsParams{N: n, K: "Jörg  "} }, q.AddVarchars, q.GetVarchars, q.SetVarchars),
		counterOf(types.EnumsKeys.Key("a"), types.AddEnumsParams{K: "a"}, types.GetEnumsParams{K: "a"}, func(n int64) types.SetEnumsParams { return types.SetEnumsParams{N: n, K: "A"} }, q.AddEnums, q.GetEnums, q.SetEnums),
		counterOf(types.VarbinariesKeys.Key("a "), types.AddVarbinariesParams{K: []byte("a ")}, types.GetVarbinariesParams{K: []byte("a ")}, func(n int64) types.SetVarbinariesParams { return types.SetVarbinariesParams{N: n, K: []byte("a ")} }, q.AddVarbinaries, q.GetVarbinaries, q.SetVarbinaries),
		counterOf(types.UuidsKeys.Key(id), types.AddUuidsParams{K: id}, types.GetUuidsParams{K: id}, func(n int64) types.SetUuidsParams { return types.SetUuidsParams{N: n, K: id} }, q.AddUuids, q.GetUuids, q.SetUuids),
		counterOf(types.BuuidsKeys.Key(id), types.AddBuuidsParams{K: id[:]}, types.GetBuuidsParams{K: id[:]}, func(n int64) types.SetBuuidsParams { return types.SetBuuidsParams{N: n, K: id[:]} }, q.AddBuuids, q.GetBuuids, q.SetBuuids),
	}
}

// TestEveryType writes and reads rows with keys of every type, which are locked by each query, and a row that
// has all types.
func TestEveryType(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := newDatabase(t, engine, "types/schema.sql")
		must(t, schema.Install(t.Context(), db)) // with the rows for keys that are hashed
		q := types.New(db)
		for _, c := range counters() {
			held := func(what string, send func(q *types.Locked) error) {
				must(t, q.Run(t.Context(), db, nil, func(q *types.Locked) error {
					err := send(q)
					if _, held := q.Locks().Held(c.key); !held {
						t.Errorf("%s is not locked by %s", c.key, what)
					}
					return err
				}))
			}
			held("add", func(q *types.Locked) error { return c.add(t.Context(), q) })
			held("get", func(q *types.Locked) error { _, err := c.get(t.Context(), q); return err })
			held("set", func(q *types.Locked) error { return c.set(t.Context(), q, 7) })
			if n, err := c.get(t.Context(), q); err != nil || n != 7 {
				t.Errorf("%s: %d, %v", c.key, n, err)
			}
		}
		must(t, q.Run(t.Context(), db, nil, func(q *types.Locked) error { return everything(t, q) }))
	})
}

func everything(t *testing.T, q *types.Locked) error {
	t.Helper()
	ctx := t.Context()
	day := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	id, err := q.AddEverything(ctx, types.AddEverythingParams{
		ABool: true, ABit: []byte{1}, ADecimal: "1.50", AFloat: 0.5, ADate: day, AChar: "a", ABinary: []byte("abc"), AText: "text",
		AnEnum: types.EverythingAnEnumLarge, AJson: json.RawMessage(`{}`),
	})
	if err != nil {
		return err
	}
	if row, err := q.GetEverything(ctx, types.GetEverythingParams{ID: uint64(id)}); err != nil || row.ADecimal != "1.50" || !row.ADate.Equal(day) {
		t.Errorf("the row is %+v, %v", row, err)
	}
	set, err := q.SetEverything(ctx, types.SetEverythingParams{
		ABit: []byte{0}, ADecimal: "2.50", ADate: day, ABinary: []byte("xyz"), AnEnum: types.EverythingAnEnumSmall, AJson: json.RawMessage(`[1]`),
		AVarchar: sql.NullString{String: "varchar", Valid: true}, ID: uint64(id),
	})
	if err != nil {
		return err
	}
	leasetest.Equal(t, "rows that are set", set, 1)
	if _, held := q.Locks().Held(types.EverythingKeys.Key(uint64(id))); !held {
		t.Error("the row is not locked")
	}
	dropped, err := q.DropEverything(ctx, types.DropEverythingParams{ID: uint64(id)})
	if err != nil {
		return err
	}
	if n, err := dropped.RowsAffected(); n != 1 || err != nil {
		t.Errorf("%d rows are removed, %v", n, err)
	}
	return nil
}

// traced is a transaction of a program's own, as tracers make them.
type traced struct {
	*sql.Tx
	sent atomic.Int64
}

func (t *traced) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.sent.Add(1)
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *traced) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.sent.Add(1)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// TestOwnTransactions locks by a transaction of a type that sqlc doesn't know, with Commit and
// Rollback, and where its methods take a DBTX also without. A pool is none.
func TestOwnTransactions(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db, q := newShop(t, engine)
		type locker interface{ Locks() *txlock.Scope }
		locks := func(t *testing.T, with func(tx *traced) (locker, error)) {
			t.Helper()
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			defer func() { must(t, tx.Rollback()) }()
			own := &traced{Tx: tx}
			locked, err := with(own)
			must(t, err)
			if _, held := locked.Locks().Held(shopdb.Accounts.Key(1)); !held {
				t.Error("the account is not locked")
			}
			if own.sent.Load() < 2 { // the question whether a transaction is open, and the query
				t.Errorf("%d statements went through the transaction", own.sent.Load())
			}
		}
		locks(t, func(tx *traced) (locker, error) {
			q, err := q.WithLocks(t.Context(), tx)
			must(t, err)
			_, err = q.GetAccount(t.Context(), 1)
			return q, err
		})
		locks(t, func(tx *traced) (locker, error) {
			q, err := hidden.WithLocks(t.Context(), struct{ gen.DBTX }{tx})
			must(t, err)
			_, err = q.GetAccount(t.Context(), 1)
			return q, err
		})
		conn, err := db.Conn(t.Context())
		must(t, err)
		defer func() { must(t, conn.Close()) }()
		for _, none := range []gen.DBTX{db, conn, struct{ gen.DBTX }{db}, nil, (*sql.Tx)(nil)} {
			_, err := hidden.WithLocks(t.Context(), none)
			wants(t, fmt.Sprintf("%T", none), err, txlock.ErrNoTransaction)
		}
	})
}

// TestTwoTrips proves that a query which reads takes its lock with it, and the last one commits:
// a transaction that reads an account and writes it has two round trips.
func TestTwoTrips(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		trips, count := testdb.CountTrips(t)
		db := newDatabaseOf(t, engine, func(cfg *mysql.Config) {
			count(cfg)
			cfg.InterpolateParams = true
		}, "schema.sql")
		db.SetMaxOpenConns(1)
		q := shopdb.New(db)
		add := func(q *shopdb.Locked) error {
			return q.CommitWith(1).AddAccount(t.Context(), shopdb.AddAccountParams{ID: 1, Owner: "somebody", Balance: money})
		}
		must(t, q.Run(t.Context(), db, nil, add))
		for range 3 {
			before := trips.Count()
			must(t, q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error {
				account, err := q.GetAccount(t.Context(), 1)
				if err != nil {
					return err
				}
				if _, held := q.Locks().Held(shopdb.Accounts.Key(1)); !held {
					t.Error("it is not locked")
				}
				return q.CommitWith(1).SetBalance(t.Context(), shopdb.SetBalanceParams{ID: 1, Balance: account.Balance - 1})
			}))
			leasetest.Equal(t, "round trips", trips.Count()-before, 2)
		}
		account, err := q.GetAccount(t.Context(), 1)
		must(t, err)
		leasetest.Equal(t, "the balance", account.Balance, money-3)
		err = q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error {
			_, err := q.CommitWith(1).GetAccount(t.Context(), 1)
			return err
		})
		leasetest.Fails(t, "a read that is to commit", err, "single INSERT, UPDATE, DELETE or REPLACE")
	})
}
