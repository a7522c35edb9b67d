package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"testing"
	"time"

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
