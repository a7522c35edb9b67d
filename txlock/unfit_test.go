package txlock_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestUnfitSessions proves that sessions which begin transactions by themselves, convert the
// names of keys, or garble the replies, are refused before anything is locked.
func TestUnfitSessions(t *testing.T) {
	for name, c := range map[string]struct {
		variable, value string
		want            error
	}{
		"autocommit": {"autocommit", "0", schema.ErrAutocommit},
		"utf16":      {"character_set_connection", "utf16", schema.ErrCharset},
		"utf32":      {"collation_connection", "utf32_bin", schema.ErrCharset},
		"latin1":     {"character_set_connection", "latin1", schema.ErrCharset},
		"results":    {"character_set_results", "utf16", schema.ErrCharset},
		"chain":      {"completion_type", "CHAIN", schema.ErrSession},
		"timestamp":  {"timestamp", "1700000000", schema.ErrSession},
	} {
		t.Run(name, func(t *testing.T) { refusesSession(t, c.variable, c.value, c.want) })
	}
}

func refusesSession(t *testing.T, variable, value string, want error) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{false, true} {
			pool, key := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{variable: value} }), named()
			tx, err := pool.BeginTx(t.Context(), nil)
			noError(t, err)
			_, err = txlock.Join(t.Context(), tx)
			wants(t, "Join", err, want)
			if guarded {
				_, err = txlock.Join(t.Context(), tx)
				wants(t, "Join again", err, want)
			}
			wants(t, "Rollback", tx.Rollback(), nil)
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, key), want)
			wants(t, "Check", schema.Check(t.Context(), pool), want)

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // else a lease might be waited for
			defer cancel()
			leases, err := lease.NewManager(pool)
			noError(t, err)
			for what, err := range map[string]error{
				"Acquire":        second(leases.Acquire(ctx, key)),
				"TryAcquire":     second(leases.TryAcquire(ctx, key)),
				"AcquireShared":  second(leases.AcquireShared(ctx, key)),
				"Do":             leases.Do(ctx, key, func(context.Context, *lease.Lease) error { return errors.New("was called") }),
				"Acquire, again": second(leases.Acquire(ctx, key)),
			} {
				wants(t, what, err, want)
			}
			// Each by a manager of its own, which has asked nothing before.
			for what, call := range map[string]func(m *lease.Manager) error{
				"ForceRelease": func(m *lease.Manager) error { return m.ForceRelease(t.Context(), key) },
				"Resize": func(m *lease.Manager) error {
					s, err := m.Semaphore(key, 2)
					if err == nil {
						_, err = s.Resize(t.Context(), 3)
					}
					return err
				},
				"List":    func(m *lease.Manager) error { return second(m.List(t.Context())) },
				"Inspect": func(m *lease.Manager) error { return second(m.Inspect(t.Context(), key)) },
				"Purge":   func(m *lease.Manager) error { return second(m.Purge(t.Context())) },
			} {
				m, err := lease.NewManager(pool)
				noError(t, err)
				wants(t, what, call(m), want)
				wants(t, "Close", m.Close(context.WithoutCancel(t.Context())), nil)
			}
			wants(t, "Close", leases.Close(context.WithoutCancel(t.Context())), nil)
			if rowsOf(t, db, key) != 0 || number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()) != 0 {
				t.Error("a call that was refused has made a row")
			}
		}

		// By a SET of the session, which a plain pool sees at Join.
		for _, guarded := range []bool{false, true} {
			conn, err := newPool(t, db, guarded).Conn(t.Context())
			noError(t, err)
			exec(t, conn, "SET "+variable+" = "+value)
			tx, err := conn.BeginTx(t.Context(), nil)
			noError(t, err)
			scope, err := txlock.Join(t.Context(), tx)
			if err == nil {
				_, err = scope.Lock(t.Context(), named())
			}
			wants(t, "a lock after SET", err, want)
			wants(t, "end", errors.Join(tx.Rollback(), conn.Close()), nil)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestNilTransaction proves that a nil transaction is no open one, whatever its type.
func TestNilTransaction(t *testing.T) {
	for _, tx := range []txlock.Tx{nil, (*sql.Tx)(nil)} {
		wants(t, "Join", second(txlock.Join(t.Context(), tx)), txlock.ErrNoTransaction)
		wants(t, "AssertLocked", txlock.AssertLocked(t.Context(), tx, named()), txlock.ErrNoTransaction)
	}
}

// TestNoRows proves that sessions whose SELECTs show no row are refused by what they are.
func TestNoRows(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "0"} })
			err := pool.PingContext(t.Context())
			if err == nil {
				var tx *sql.Tx
				if tx, err = pool.BeginTx(t.Context(), nil); err == nil {
					_, err = txlock.Join(t.Context(), tx)
					wants(t, "Rollback", tx.Rollback(), nil)
				}
			}
			wants(t, fmt.Sprintf("guarded=%t", guarded), err, schema.ErrSession)
		}
	})
}

// TestSelectLimit locks several keys on sessions whose SELECTs show one row (sql_select_limit),
// and finds out that the last of them has changed since the snapshot.
func TestSelectLimit(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		lots := []txlock.Key{hashed(), hashed(), hashed()}
		db := testdb.Shared(t, engine).OpenNamed(t, lots[0].Slot(), lots[1].Slot(), lots[2].Slot())
		oneRow := func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "1"} }
		for _, v := range []struct{ guarded, procedures bool }{{true, true}, {true, false}, {false, false}} {
			if v.guarded && !v.procedures && db.Engine() == testdb.MySQL {
				db.DropProcedures(t)
			}
			for _, keys := range [][]txlock.Key{{named(), named(), named()}, lots} {
				pool := newPool(t, db, v.guarded, oneRow)
				slices.SortFunc(keys, func(a, b txlock.Key) int { // as LockAll does
					if a.Hashed() {
						return cmp.Compare(a.Slot(), b.Slot())
					}
					return cmp.Compare(a.String(), b.String())
				})
				wants(t, "Ensure", txlock.Ensure(t.Context(), pool, keys...), nil)
				s := begin(t, pool, nil)
				wants(t, "LockAll", second(s.LockAll(t.Context(), keys...)), nil)
				holders, err := txlock.Holders(t.Context(), pool, keys...)
				if err != nil || len(holders) != len(keys) {
					t.Errorf("Holders: %d of %d keys, %v", len(holders), len(keys), err)
				}
				wants(t, "Ensure of keys that are locked", txlock.Ensure(t.Context(), pool, keys...), nil)
				s.commit(t)

				s = begin(t, pool, nil)
				number(t, s.tx, "SELECT COUNT(*) FROM lockstep_locks")
				committed(t, db, keys[2])
				scope, err := txlock.Join(t.Context(), s.tx) // which knows of a read
				wants(t, "Join", err, nil)
				_, err = scope.LockAll(t.Context(), keys...)
				wants(t, fmt.Sprintf("guarded=%t, procedures=%t: LockAll after the last key has changed", v.guarded, v.procedures), err, txlock.ErrStaleSnapshot)
				wants(t, "Rollback", s.tx.Rollback(), nil)
			}
		}
	})
}
