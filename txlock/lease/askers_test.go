package lease_test

import (
	"context"
	"database/sql"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestAskBesideOthers proves that of several who ask at the same time, while the row is
// locked, none is told that nobody holds the lease.
func TestAskBesideOthers(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		l := acquire(t, newManager(t, pool), named())
		tx, err := pool.BeginTx(t.Context(), nil)
		if err == nil {
			err = l.Guard(t.Context(), tx)
		}
		must(t, err)
		const askers = 4
		answers := make(chan error, askers)
		for range askers { // one after the other, so that each has seen the row locked at another moment
			var looks atomic.Int64
			tap := new(wiretap)
			tap.hook(func(statement string, _ <-chan struct{}) error {
				if strings.Contains(statement, "HeldRows") {
					looks.Add(1)
				}
				return nil
			})
			m := newManager(t, newPool(t, db, false, tap.install))
			go func() { answers <- m.RequestRelease(context.Background(), l.Key(), "give it up") }()
			waitUntil(t, "a look", func() bool { return looks.Load() > 1 })
		}
		wantsNone(t, "Commit", tx.Commit())
		for range askers {
			wantsNone(t, "Ask", <-answers)
		}
		wantsNone(t, "Renew", l.Renew(t.Context()))
		awaitAsked(t, l, "give it up")
		release(t, l)
	})
}

// TestAskBesideOthersInMemory proves the same of the store in memory, and that a holder is
// asked whose token is ahead of the server's clock, because that was set back.
func TestAskBesideOthersInMemory(t *testing.T) {
	for name, back := range map[string]time.Duration{"the clock goes on": 0, "the clock was set back": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, db *memory) {
				db.SetClock(back)
				m, wire := db.process()
				l := acquire(t, m, job)
				db.SetClock(0)
				tx := wire.Begin()
				must(t, l.Guard(t.Context(), tx))
				answers := make(chan error, 3)
				for range 3 {
					operator := db.manager()
					go func() { answers <- operator.RequestRelease(t.Context(), job, "why") }()
					time.Sleep(time.Second)
				}
				must(t, tx.Commit())
				for range 3 {
					must(t, <-answers)
				}
				must(t, l.Renew(t.Context()))
				if why, _ := revoked(t, l); why != "why" {
					t.Errorf("asked because of %q", why)
				}
				release(t, l)
			})
		})
	}
}

// TestAskAfterTheClockWentBack proves that the servers ask a holder whose token is ahead of
// the clock, after its row was locked.
func TestAskAfterTheClockWentBack(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, _ *sql.DB) {
		ahead := clockAt(t, db, time.Now().Add(time.Hour))
		l := acquire(t, newManager(t, ahead, lease.TTL(time.Hour)), named())
		tx, err := ahead.BeginTx(t.Context(), nil)
		if err == nil {
			err = l.Guard(t.Context(), tx)
		}
		must(t, err)
		var looks atomic.Int64
		tap := new(wiretap)
		tap.hook(func(statement string, _ <-chan struct{}) error {
			if strings.Contains(statement, "HeldRows") {
				looks.Add(1)
			}
			return nil
		})
		m := newManager(t, newPool(t, db, false, tap.install))
		answer := later(func() error { return m.RequestRelease(context.Background(), l.Key(), "give it up") })
		waitUntil(t, "a look", func() bool { return looks.Load() > 1 })
		wantsNone(t, "Commit", tx.Commit())
		wantsNone(t, "Ask", <-answer)
		wantsNone(t, "Renew", l.Renew(t.Context()))
		awaitAsked(t, l, "give it up")
		release(t, l)
	})
}

// TestDroppedWithAnEndedContext proves that a context that ended by its parent doesn't keep
// a handle that the program has dropped, though nobody has called the context's function.
func TestDroppedWithAnEndedContext(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(recorder)
		m := db.manager(lease.Observe(told.observe))
		dropWith(t, m, job)
		told.collect(t, 1)
		release(t, acquire(t, m, job))
	})
}

//go:noinline
func dropWith(t *testing.T, m *lease.Manager, key txlock.Key) {
	l := acquire(t, m, key)
	ctx, cancel := context.WithCancel(t.Context())
	working, _ := l.Context(ctx) // its parent ends it
	cancel()
	<-working.Done()
	must(t, l.Err())
	runtime.KeepAlive(l)
}

// TestNoteInAnError proves that an error which names the holder is one line, whatever that
// tells of itself.
func TestNoteInAnError(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		l := acquire(t, m, job, lease.WithLabel("zwölf\nlevel=ERROR\x1b[0m"))
		_, err := db.manager().Acquire(t.Context(), job, lease.WaitAtMost(time.Second))
		wants(t, "Acquire", err, txlock.ErrWaitTimeout)
		if !strings.Contains(err.Error(), `(zwölf\nlevel=ERROR\x1b[0m)`) {
			t.Errorf("%q", err)
		}
		release(t, l)
	})
}
