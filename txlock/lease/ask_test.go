package lease_test

import (
	"context"
	"database/sql"
	"runtime"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// awaitAsked returns when a holder was told, and checks why.
func awaitAsked(t *testing.T, l *lease.Lease, want string) {
	t.Helper()
	select {
	case <-l.ReleaseRequested():
	case <-time.After(time.Minute):
		t.Fatalf("the holder of %q is not asked", l.Key())
	}
	if why, _ := l.ReleaseReason(); why != want {
		t.Errorf("the holder of %q is asked because of %q, want %q", l.Key(), why, want)
	}
}

// TestAskOnServers proves that the statement which renews many leases tells of the questions,
// wherever the row that is asked for stands; and that nothing is read while nobody asks, nor once
// a holder was told.
func TestAskOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		tap := new(wiretap)
		renewals, reads := tap.counter("name: RenewMany "), tap.counter("cur.release_reason")
		m := newManager(t, newPool(t, db, true, tap.install), lease.RenewEvery(50*time.Millisecond))
		operator := newManager(t, newPool(t, db, false))
		held := several(8, func(int) *lease.Lease { return acquire(t, m, named()) })
		readsNothing := func() {
			t.Helper()
			read, before := reads.Load(), renewals.Load()
			waitUntil(t, "some renewals", func() bool { return renewals.Load() > before+5 })
			if n := reads.Load() - read; n > 0 {
				t.Errorf("%d reads while nobody asks", n)
			}
		}
		readsNothing()
		for i, l := range held {
			must(t, operator.RequestRelease(t.Context(), l.Key(), "first"))
			before := renewals.Load()
			awaitAsked(t, l, "first")
			if n := renewals.Load() - before; n > 3 { // one may have begun before, and one have met the row locked
				t.Errorf("lease %d is told after %d renewals", i, n)
			}
			for _, other := range held[i+1:] {
				if _, asked := other.ReleaseReason(); asked {
					t.Fatalf("%q is asked, too", other.Key())
				}
			}
		}
		readsNothing()
		releaseMany(t, held)
	})
}

// TestQuestionsAfterRelease proves that a lease which is kept after its release isn't asked
// what its holder was, and that a reader who was the writer is.
func TestQuestionsAfterRelease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, operator := db.manager(), db.manager()
		ask := func(l *lease.Lease, why string) {
			wantsNone(t, "Ask", operator.RequestRelease(t.Context(), l.Key(), why))
		}
		inspect := func(key txlock.Key) lease.Info {
			info, err := operator.Inspect(t.Context(), key)
			wantsNone(t, "Inspect", err)
			return info
		}
		kept := acquire(t, m, named(), lease.HoldAtLeast(time.Hour))
		ask(kept, "why")
		if info := inspect(kept.Key()); info.ReleaseReason != "why" || info.ReleaseRequestedAt.IsZero() {
			t.Errorf("before the release: %+v", info)
		}
		release(t, kept)
		if info := inspect(kept.Key()); !info.Held || info.ReleaseReason != "" || !info.ReleaseRequestedAt.IsZero() {
			t.Errorf("after the release: %+v", info)
		}
		for _, told := range []bool{true, false} {
			writer := acquire(t, m, named())
			ask(writer, "why")
			if told {
				wantsNone(t, "Renew", writer.Renew(t.Context()))
			}
			reader := mustLease(t)(writer.Downgrade(t.Context()))
			awaitAsked(t, reader, "why")
			ask(reader, "again")
			wantsNone(t, "Renew", reader.Renew(t.Context()))
			awaitAsked(t, reader, "again")
			release(t, reader)
		}
		unasked := mustLease(t)(acquire(t, m, named()).Downgrade(t.Context()))
		if why, asked := unasked.ReleaseReason(); asked {
			t.Errorf("nobody has asked, and it was asked %q", why)
		}
		release(t, unasked)
	})
}

// askBeside lets another manager ask for a lease whose row is locked, returns when it has looked for
// that twice, and sends what it is told.
func askBeside(t *testing.T, db *testdb.DB, l *lease.Lease) <-chan error {
	t.Helper()
	tap := new(wiretap)
	looks := tap.counter("HeldRows")
	m := newManager(t, newPool(t, db, false, tap.install))
	answer := later(func() error { return m.RequestRelease(context.Background(), l.Key(), "give it up") })
	waitUntil(t, "a look", func() bool { return looks.Load() > 1 })
	return answer
}

// TestAskBesideOthers proves that of several who ask at the same time, while the row is
// locked, none is told that nobody holds the lease.
func TestAskBesideOthers(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		l := acquire(t, newManager(t, pool), named())
		tx := begin(t, pool, sql.LevelDefault)
		guard(t, l, tx)
		const askers = 4
		var answers [askers]<-chan error
		for i := range answers { // one after the other, so that each has seen the row locked at another moment
			answers[i] = askBeside(t, db, l)
		}
		commit(t, tx)
		for _, answer := range answers {
			wantsNone(t, "Ask", <-answer)
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
		runInMemory(t, name, func(t *testing.T, db *memory) {
			db.SetClock(back)
			m, wire := db.process()
			l := acquire(t, m, job)
			db.SetClock(0)
			tx := wire.guarding(t, l)
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
	}
}

// TestAskAfterTheClockWentBack proves that the servers ask a holder whose token is ahead of
// the clock, after its row was locked.
func TestAskAfterTheClockWentBack(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, _ *sql.DB) {
		ahead := newPool(t, db, true, testdb.ClockAt(time.Now().Add(time.Hour).UnixMicro()))
		l := acquire(t, newManager(t, ahead, lease.TTL(time.Hour)), named())
		tx := begin(t, ahead, sql.LevelDefault)
		guard(t, l, tx)
		answer := askBeside(t, db, l)
		commit(t, tx)
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
		says(t, err, `(zwölf\nlevel=ERROR\x1b[0m)`)
		release(t, l)
	})
}
