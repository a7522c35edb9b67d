package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestQueuedBehindALock proves that who has waited for a row in vain is told that it is locked, and not
// also that the server hasn't answered.
func TestQueuedBehindALock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s, name := newStore(t, db), rand.Text()
		makeRow(t, db, name, "owner = 'me'")
		tx, err := db.Admin().BeginTx(t.Context(), nil)
		must(t, err)
		defer func() { must(t, tx.Rollback()) }()
		must(t, tx.QueryRow("SELECT owner FROM lockstep_leases WHERE name = ? FOR UPDATE", name).Scan(new(string)))
		err = s.Queued(t.Context(), store.Row{Key: name}, 50*time.Millisecond, func(store.Session) error { return nil })
		if !errors.Is(err, store.ErrLocked) || errors.Is(err, txlock.ErrWaitTimeout) {
			t.Errorf("Queued: %v", err)
		}
	})
}

// TestDeniedPastTheLimit proves that a wait whose SELECT MySQL denies after its limit, as it does while users
// are changed, is told that the row is locked, and one whose SELECT is denied before it is not.
func TestDeniedPastTheLimit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		_, denied := testdb.Rewritten(t, func(text string) string {
			if !strings.Contains(text, "-- name: LockLease ") {
				return text
			}
			time.Sleep(20 * time.Millisecond) // of a slow server
			return strings.Replace(text, "FROM lockstep_leases", "FROM mysql.user", 1)
		})
		s := newStore(t, db, denied)
		for limit, locked := range map[time.Duration]bool{10 * time.Millisecond: true, time.Minute: false} {
			err := s.Queued(t.Context(), store.Row{Key: "denied"}, limit, func(store.Session) error { return nil })
			if errors.Is(err, store.ErrLocked) != locked || !locked && !fault.Is(err, 1142) {
				t.Errorf("denied with a limit of %v: %v", limit, err)
			}
		}
	})
}

// TestTurnBesides proves that who asks for the session of a place, to end it by KILL or to learn that it
// is gone, asks its own server, and takes no other session of the same number for it.
func TestTurnBesides(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s, name := newStore(t, db), rand.Text()
		place, err := s.Turn(t.Context(), name, "me", "", func() error { makeRow(t, db, name, "slot = -1"); return nil })
		must(t, err)
		turn := place.(*turn)
		defer turn.Leave()
		for name, c := range map[string]struct {
			server, host string
			alive        bool
			err          error
		}{
			"it":                                   {turn.server, turn.host, true, nil},
			"another session of the number":        {turn.server, "other:1", false, nil},
			"the session of a number elsewhere":    {"other/3306", turn.host, false, errElsewhere},
			"another session of the number, there": {"other/3306", "other:1", false, errElsewhere},
		} {
			asked, called := *turn, false
			asked.server, asked.host = c.server, c.host
			alive, err := asked.beside(t.Context(), func(context.Context, *sql.Conn) error { called = true; return nil })
			if alive != c.alive || called != c.alive || !errors.Is(err, c.err) {
				t.Errorf("%s: alive %v, called %v: %v", name, alive, called, err)
			}
		}
	})
}

// TestConnBudget proves how many connections of a pool are kept, and queue, at most: half of it for each, and
// one fewer than all for both, so that one is left to the program.
func TestConnBudget(t *testing.T) {
	t.Parallel()
	for most, want := range map[int][3]int{1: {0, 0, 0}, 2: {1, 0, 1}, 3: {1, 1, 1}, 4: {2, 1, 2}, 6: {3, 2, 3}, 7: {3, 3, 3}} {
		pool := sql.OpenDB(nil)
		pool.SetMaxOpenConns(most)
		taken := func(take func() bool) (n int) {
			for take() {
				n++
			}
			return n
		}
		got := [3]int{taken(func() bool { return budgets.keep(pool) }), taken(func() bool { return budgets.queue(pool, 0) })}
		for range got[0] {
			budgets.unkeep(pool)
		}
		for range got[1] {
			budgets.unqueue(pool)
		}
		if got[2] = taken(func() bool { return budgets.queue(pool, 0) }); got != want {
			t.Errorf("of %d connections %d are kept, %d queue beside them and %d without, want %v", most, got[0], got[1], got[2], want)
		}
		must(t, pool.Close())
	}
}
