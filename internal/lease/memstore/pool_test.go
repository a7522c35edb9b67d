package memstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var must = leasetest.Must

var ctx = context.Background()

const key = "job"

var leaseRow = store.Row{Key: key}

// TestPool proves that a pool leads to its store, is the same each time, and takes no SQL.
func TestPool(t *testing.T) {
	s := memstore.New().Store()
	pool := s.Pool()
	if store.Of(pool) != store.Store(s) || s.Pool() != pool {
		t.Error("the pool has another store, or the store another pool")
	}
	must(t, pool.PingContext(ctx))
	s.Down(nil)
	leasetest.Wants(t, "a ping of a server that is down", pool.PingContext(ctx), mysql.ErrInvalidConn)
	s.Up()
	_, err := pool.ExecContext(ctx, "DO 1")
	leasetest.Fails(t, "a statement", err, "no SQL")
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	must(t, err)
	leasetest.Fails(t, "a statement in a transaction", tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)), "no SQL")
	must(t, tx.Rollback())
	for _, o := range []sql.TxOptions{{ReadOnly: true}, {Isolation: sql.LevelSerializable}} {
		if _, err := pool.BeginTx(ctx, &o); err == nil {
			t.Errorf("there is a transaction with %+v", o)
		}
	}
	must(t, pool.Close())
}

// TestReadersAndSnapshots proves what the statements say that a server's wouldn't be asked for so exactly: of
// readers and their times, and to a transaction that has read before others wrote.
func TestReadersAndSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		s, holds := memstore.New().Store(), 0
		must(t, s.Make(ctx, leaseRow))
		take := func(x store.Session, slot int64) store.Claim {
			t.Helper()
			holds++
			c := store.Claim{Row: store.Row{Key: key, Slot: slot}, Owner: "a", Hold: "." + strings.Repeat("a", store.HoldBegins-1) + fmt.Sprintf("%014d", holds)}
			a, err := x.Take(ctx, store.Ask{Row: c.Row, Owner: c.Owner, Hold: c.Hold, TTL: ttl, NotAfter: store.Never})
			if err != nil || a.Reply != store.Done {
				t.Fatalf("Take at %d: %+v, %v", slot, a, err)
			}
			c.Token = a.Token
			return c
		}
		include := func(tx *memstore.Tx, send func(in *store.In) error) error {
			j, err := s.Join(ctx, tx)
			must(t, err)
			return j.Include(ctx, "use", txlock.Named(key), func(_ context.Context, in *store.In) error { return send(in) })
		}
		changes := func(what string, change func(), want error) {
			t.Helper()
			tx := s.Begin()
			tx.Read()
			change()
			if err := include(tx, func(in *store.In) error { return in.UnchangedSinceSnapshot(ctx, key) }); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
			must(t, tx.Rollback())
		}
		var writer store.Claim
		changes("nothing", func() {}, nil)
		changes("a grant", func() { writer = take(s, 0) }, txlock.ErrStaleSnapshot)
		changes("an entry in the same moment", func() { take(s, 0) }, txlock.ErrStaleSnapshot)
		time.Sleep(time.Second)
		changes("a renewal", func() { _, _ = s.Renew(ctx, writer) }, txlock.ErrStaleSnapshot)
		own := s.Begin()
		own.Read()
		for _, fenced := range []bool{false, true} {
			must(t, include(own, func(in *store.In) error {
				c := take(in, 0)
				seen, err := in.Stored(ctx, leaseRow)
				if in.Fenced != fenced || !in.Snapshot || !strings.Contains(seen.Holders, c.Hold) {
					t.Errorf("fenced %t, of a snapshot %t, it sees %+v without %s", in.Fenced, in.Snapshot, seen, c.Hold)
				}
				in.Fence = true
				return err
			}))
		}
		must(t, own.Rollback())

		_, err := s.Force(ctx, leaseRow, 0)
		must(t, err)
		_, err = s.Use(ctx, key, store.Shared)
		must(t, err)
		reads := func(want store.Readers) {
			t.Helper()
			if n, err := s.Readers(ctx, key); err != nil || n != want {
				t.Errorf("%+v, %v, want %+v", n, err, want)
			}
		}
		take(s, 5000)
		time.Sleep(time.Second)
		take(s, 5001)
		reads(store.Readers{Held: 2, Left: ttl})
		time.Sleep(ttl - time.Second)
		reads(store.Readers{Held: 2, Expired: 1, Left: time.Second})
		time.Sleep(ttl + time.Microsecond)
		reads(store.Readers{Held: 2, Expired: 2, Left: time.Second - ttl - time.Microsecond, Idle: 1})
		s.SetFault(func(_ context.Context, _ string, _ store.Row, call func() error) error {
			return errors.Join(call(), mysql.ErrInvalidConn)
		})
		if n, err := s.Readers(ctx, key); err == nil || n != (store.Readers{}) {
			t.Errorf("an answer that is lost is %+v, %v", n, err)
		}
	})
}
