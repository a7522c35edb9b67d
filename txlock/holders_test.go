package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// holders asks for the holders on pools of its own with one connection, at whatever level.
func holders(t *testing.T, db *testdb.DB, keys ...txlock.Key) (all []txlock.Holder) {
	t.Helper()
	for i, level := range []string{"READ-UNCOMMITTED", "REPEATABLE-READ"} {
		pool := newPool(t, db, false, func(cfg *mysql.Config) {
			cfg.Params = map[string]string{db.Engine().LevelVariable(): "'" + level + "'"}
		})
		pool.SetMaxOpenConns(1)
		found, err := txlock.Holders(t.Context(), pool, keys...)
		noError(t, err)
		if i > 0 && !slices.Equal(found, all) {
			t.Errorf("at %s the holders are %+v, at another level %+v", level, found, all)
		}
		all = found
	}
	return all
}

// holds demands that h is the holder of a grant.
func (s *session) holds(t *testing.T, h txlock.Holder, grant txlock.Grant) {
	t.Helper()
	if h.Key != grant.Key() || h.Token != grant.Token() || h.Session != uint64(s.id) {
		t.Errorf("the holder is %+v, want %+v on connection %d", h, grant, s.id)
	}
	if age := time.Since(h.Locked); age < -time.Minute || age > time.Minute {
		t.Errorf("it was locked %v ago", age)
	}
}

func TestHolders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		fresh, old, lot, ensured, free, never := named(), named(), hashed(), named(), named(), named()
		committed(t, db, old)
		committed(t, db, free)
		noError(t, txlock.Ensure(t.Context(), db.Admin(), ensured))
		for _, guarded := range []bool{false, true} {
			s := begin(t, newPool(t, db, guarded), nil)
			grants, err := s.LockAll(txlock.WithLabel(t.Context(), "till 7"), lot, old, fresh, ensured)
			noError(t, err)
			all := holders(t, db, free, lot, never, old, fresh, ensured, lot)
			if len(all) != 5 {
				t.Fatalf("%d holders: %+v", len(all), all)
			}
			for i, h := range all {
				s.holds(t, h, grants[i%4]) // the last is the first again
				equal(t, "the label", h.Label, "till 7")
			}
			other := neighbour(lot) // another key of the same center lock
			if all := holders(t, db, other); len(all) != 1 || all[0].Key != other || all[0].Session != uint64(s.id) {
				t.Errorf("the holders of its neighbour: %+v", all)
			}
			wants(t, "Rollback", s.tx.Rollback(), nil)
			equal(t, "holders after the rollback", len(holders(t, db, lot, old, fresh, ensured)), 0)
		}
		for _, key := range []txlock.Key{old, lot} { // a waiter is none, and nobody waits for it
			s, waiter := holder(t, db, key), begin(t, newPool(t, db, true), nil)
			answered := db.Waiting(t, waiter.id, func() error { return second(waiter.Lock(t.Context(), key)) })
			for _, session := range []*session{s, waiter} {
				if all := holders(t, db, key); len(all) != 1 || all[0].Session != uint64(session.id) {
					t.Errorf("holders %+v, want the one on connection %d alone", all, session.id)
				}
				if session == s {
					s.commit(t)
					wants(t, "the waiter", <-answered, nil)
				}
			}
			waiter.commit(t)
			equal(t, "holders after the commit", len(holders(t, db, key)), 0)
		}
	})
}

func TestOwner(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		host, err := os.Hostname()
		noError(t, err)
		for owner, want := range map[string]string{
			"": host + "/" + strconv.Itoa(os.Getpid()), "Kasse für Zürich": "Kasse für Zürich",
			strings.Repeat("o", 300): strings.Repeat("o", 80), strings.Repeat("o", 79) + "ü": strings.Repeat("o", 79),
		} {
			for _, key := range []txlock.Key{named(), hashed()} {
				s := begin(t, newPool(t, db, true), nil)
				noError(t, second(s.Lock(txlock.WithLabel(t.Context(), owner), key)))
				if all := holders(t, db, key); len(all) != 1 || all[0].Label != want {
					t.Errorf("the owner %q is shown as %+v", owner, all)
				}
			}
		}
	})
}

// questions counts the statements that a session has sent, by the server's own count.
func questions(t *testing.T, tx *sql.Tx) (n int64) {
	t.Helper()
	noError(t, tx.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(new(string), &n))
	return n
}

// TestAssertLocked asserts locks that are held, and not, shared, undone and over, without a statement.
func TestAssertLocked(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ctx, key, shared := t.Context(), named(), named()
		s := begin(t, newPool(t, db, true), nil)
		wants(t, "before the lock", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		noError(t, second(s.RLock(ctx, shared)))
		exec(t, s.tx, "SAVEPOINT before_lock")
		s.lock(t, key)
		before := questions(t, s.tx)
		const times = 20
		for range times {
			wants(t, "under the lock", txlock.AssertLocked(ctx, s.tx, key), nil)
			wants(t, "shared by an exclusive one", txlock.AssertRLocked(ctx, s.tx, key), nil)
			wants(t, "shared", txlock.AssertRLocked(ctx, s.tx, shared), nil)
			wants(t, "exclusively by a shared one", txlock.AssertLocked(ctx, s.tx, shared), txlock.ErrNotHeld)
		}
		if sent := questions(t, s.tx) - before; sent >= times {
			t.Errorf("%d assertions have sent %d statements", 4*times, sent)
		}
		wants(t, "of a zero key", txlock.AssertLocked(ctx, s.tx, txlock.Key{}), txlock.ErrInvalidKey)
		wants(t, "of no transaction", txlock.AssertLocked(ctx, nil, key), txlock.ErrNoTransaction)

		rows, err := s.tx.QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2")
		noError(t, err)
		rows.Next()
		wants(t, "while rows are open", txlock.AssertLocked(ctx, s.tx, key), nil)
		noError(t, errors.Join(rows.Err(), rows.Close()))

		exec(t, s.tx, "ROLLBACK TO SAVEPOINT before_lock")
		wants(t, "after a rollback to a savepoint", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		s.lock(t, key)
		wants(t, "locked again", txlock.AssertLocked(ctx, s.tx, key), nil)
		s.commit(t)
		wants(t, "after the commit", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNoTransaction)
		s = begin(t, newPool(t, db, true), nil)
		s.lock(t, key)
		exec(t, s.tx, "COMMIT")
		wants(t, "after a COMMIT as text", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrTxDoomed)

		s = begin(t, newPool(t, db, false), nil) // on which nobody knows
		s.lock(t, key)
		leasetest.Fails(t, "on a plain pool", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld.Error(), "not guarded")
		wants(t, "the transaction after it", s.Verify(ctx), nil)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wants(t, "under a context that has ended", txlock.AssertLocked(ended, s.tx, key), context.Canceled)
		s.commit(t)
		wants(t, "after the commit of a plain pool", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNoTransaction)
	})
}
