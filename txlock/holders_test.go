package txlock_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// holders asks for the holders on a pool of its own with one connection.
func holders(t *testing.T, db *testdb.DB, keys ...txlock.Key) []txlock.Holder {
	t.Helper()
	pool := newPool(t, db, false)
	pool.SetMaxOpenConns(1)
	all, err := txlock.Holders(t.Context(), pool, keys...)
	noError(t, err)
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
				if h.Label != "till 7" {
					t.Errorf("the owner is %q", h.Label)
				}
			}
			wants(t, "Rollback", s.tx.Rollback(), nil)
			if all := holders(t, db, lot, old, fresh, ensured); len(all) != 0 {
				t.Errorf("holders after the rollback: %+v", all)
			}
		}
		s := begin(t, newPool(t, db, true), nil)
		s.lock(t, old)
		s.commit(t)
		if all := holders(t, db, old); len(all) != 0 {
			t.Errorf("holders after the commit: %+v", all)
		}
	})
}

// TestHolderOfSameSlot names who holds another key of the same center lock.
func TestHolderOfSameSlot(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		mine := hashed()
		other, s := neighbour(mine), holder(t, db, mine)
		all := holders(t, db, other)
		if len(all) != 1 || all[0].Key != other || all[0].Session != uint64(s.id) {
			t.Errorf("holders %+v", all)
		}
	})
}

// TestHoldersWaitForNobody asks while one holds and another waits: the waiter is
// no holder, and neither keeps the answer back.
func TestHoldersWaitForNobody(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, key := range []txlock.Key{named(), hashed()} {
			committed(t, db, key)
			s := holder(t, db, key)
			waiter := begin(t, newPool(t, db, true), nil)
			answered := db.Waiting(t, waiter.id, func() error { return second(waiter.Lock(t.Context(), key)) })
			all := holders(t, db, key)
			if len(all) != 1 || all[0].Session != uint64(s.id) {
				t.Errorf("holders %+v, want the one on connection %d alone", all, s.id)
			}
			s.commit(t)
			wants(t, "the waiter", <-answered, nil)
			if all := holders(t, db, key); len(all) != 1 || all[0].Session != uint64(waiter.id) {
				t.Errorf("holders %+v, want the one that has waited, on connection %d", all, waiter.id)
			}
		}
	})
}

// TestHolderCanBeKilled is what the connection is told for. A user may end the
// sessions of his own.
func TestHolderCanBeKilled(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		s := holder(t, db, key)
		all := holders(t, db, key)
		if len(all) != 1 {
			t.Fatalf("holders %+v", all)
		}
		noError(t, second(newPool(t, db, false).ExecContext(t.Context(), "KILL "+strconv.FormatUint(all[0].Session, 10))))
		db.WaitGone(t, s.id)
		if all := holders(t, db, key); len(all) != 0 {
			t.Errorf("holders %+v after the KILL", all)
		}
		wants(t, "Verify", s.Verify(t.Context()), txlock.ErrTxDoomed)
	})
}

func TestOwner(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		host, err := os.Hostname()
		noError(t, err)
		process := host + "/" + strconv.Itoa(os.Getpid())
		for _, c := range []struct{ owner, want string }{
			{"till 7", "till 7"},
			{"", process},
			{"Kasse für Zürich", "Kasse für Zürich"},
			{strings.Repeat("o", 300), strings.Repeat("o", 80)},
			{strings.Repeat("o", 79) + "ü", strings.Repeat("o", 79)},
		} {
			for _, key := range []txlock.Key{named(), hashed()} {
				s := begin(t, newPool(t, db, true), nil)
				if _, err := s.Lock(txlock.WithLabel(t.Context(), c.owner), key); err != nil {
					t.Fatalf("the owner %q: %v", c.owner, err)
				}
				if all := holders(t, db, key); len(all) != 1 || all[0].Label != c.want {
					t.Errorf("the owner %q is shown as %+v", c.owner, all)
				}
			}
		}
		key := named()
		holder(t, db, key)
		if all := holders(t, db, key); len(all) != 1 || all[0].Label != process {
			t.Errorf("without an owner: %+v, want %q", all, process)
		}
	})
}

func TestHoldersOfManyKeys(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		keys := make([]txlock.Key, 2500)
		for i := range keys {
			keys[i] = named()
		}
		s := begin(t, newPool(t, db, true), nil)
		first, last := s.lock(t, keys[0]), s.lock(t, keys[2499])
		all := holders(t, db, keys...)
		if len(all) != 2 {
			t.Fatalf("holders %+v", all)
		}
		s.holds(t, all[0], first)
		s.holds(t, all[1], last)
	})
}
