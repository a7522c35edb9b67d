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

// TestAskOnServers proves that the statement which renews many leases tells of the
// questions, wherever the row that is asked for stands, and beside one that is locked; that
// nothing is read while nobody asks, and once for each question.
func TestAskOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			run(name, func(t *testing.T) {
				tap := new(wiretap)
				var renewals, reads atomic.Int64
				tap.hook(func(statement string, _ <-chan struct{}) error {
					switch {
					case strings.Contains(statement, "cur.release_reason"):
						reads.Add(1)
					case strings.Contains(statement, "name: RenewMany"):
						renewals.Add(1)
					}
					return nil
				})
				pool := newPool(t, db, guarded)
				m := newManager(t, newPool(t, db, guarded, tap.install), lease.RenewEvery(50*time.Millisecond))
				operator := newManager(t, pool)
				var held []*lease.Lease
				for _, key := range askedKeys(20) {
					held = append(held, acquire(t, m, key))
				}
				waitUntil(t, "some renewals", func() bool { return renewals.Load() > 5 })
				if n := reads.Load(); n > 0 {
					t.Errorf("%d reads while nobody has asked", n)
				}
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
				read, before := reads.Load(), renewals.Load()
				waitUntil(t, "more renewals", func() bool { return renewals.Load() > before+5 })
				if n := reads.Load() - read; n > 0 || read > 40 { // a renewal that met the row locked has read before
					t.Errorf("%d reads for 20 questions, and %d after them", read, n)
				}
				locked := acquire(t, m, named()) // whose row is read in each renewal from now on
				tx, err := pool.BeginTx(t.Context(), nil)
				if err == nil {
					err = locked.Guard(t.Context(), tx)
				}
				if err == nil {
					err = operator.RequestRelease(t.Context(), held[2].Key(), "second")
				}
				must(t, err)
				waitUntil(t, "the second reason", func() bool { why, _ := held[2].ReleaseReason(); return why == "second" })
				must(t, tx.Commit())
				releaseMany(t, append(held, locked))
			})
		}
	})
}

// TestAskHoldersOnServers proves who is asked: writer, readers and permits of the key, not
// those of another key, and not the next holder.
func TestAskHoldersOnServers(t *testing.T) {
	onPoolsOfServers(t, func(t *testing.T, m, operator *lease.Manager) {
		key, permits, other := named(), named(), acquire(t, m, named())
		wants(t, "Ask for what is free", operator.RequestRelease(t.Context(), key, "x"), txlock.ErrNotHeld)
		held := []*lease.Lease{share(t, m, key), share(t, m, key)}
		for range 2 {
			s := semaphore(t, m, permits, 3)
			held = append(held, permit(t, s, lease.WithLabel("a permit")))
		}
		for _, key := range []txlock.Key{key, permits} {
			must(t, operator.RequestRelease(t.Context(), key, "all of you"))
		}
		for _, l := range append(held, other) {
			must(t, l.Renew(t.Context()))
		}
		for _, l := range held {
			awaitAsked(t, l, "all of you")
		}
		if _, asked := other.ReleaseReason(); asked {
			t.Error("the holder of another key is asked")
		}
		info, err := operator.Inspect(t.Context(), permits)
		if err != nil || len(info.Others) != 2 || info.Others[1].Label != "a permit" || info.Others[1].ReleaseReason != "all of you" || info.ReleaseReason != "" {
			t.Errorf("%+v, %v", info, err)
		}
		releaseMany(t, append(held, other))
		for _, take := range []func() *lease.Lease{
			func() *lease.Lease { return share(t, m, key) },
			func() *lease.Lease { return acquire(t, m, key) },
		} {
			next := take()
			must(t, next.Renew(t.Context()))
			if _, asked := next.ReleaseReason(); asked {
				t.Error("the next holder is asked")
			}
			release(t, next)
		}
		kept := acquire(t, m, key, lease.HoldAtLeast(time.Minute))
		release(t, kept)
		wants(t, "Ask for what is released, and held for a while", operator.RequestRelease(t.Context(), key, "x"), txlock.ErrNotHeld)
	})
}

// TestLabelsOnServers proves that the servers keep labels: of a new holder, not of one that
// enters again, and of one who finds the lease taken.
func TestLabelsOnServers(t *testing.T) {
	onPoolsOfServers(t, func(t *testing.T, m, other *lease.Manager) {
		key := named()
		label := func(want string) {
			t.Helper()
			info, err := m.Inspect(t.Context(), key)
			if err != nil || info.Label != want {
				t.Errorf("the label is %q, want %q, %v", info.Label, want, err)
			}
		}
		l := acquire(t, m, key, lease.WithLabel("zwölf'); -- \\"))
		label("zwölf'); -- \\")
		again, err := other.Acquire(lease.WithOwner(t.Context(), l.Owner()), key, lease.WithLabel("again"))
		must(t, err)
		label("zwölf'); -- \\")
		release(t, again)
		release(t, l)
		for range 2 { // the first makes the row shared
			shared := share(t, m, key)
			release(t, shared)
			l = acquire(t, m, key, lease.WithLabel(""))
			label("")
			release(t, l)
		}
		l = acquire(t, m, key)
		if info, err := m.Inspect(t.Context(), key); err != nil || !strings.Contains(l.Owner(), strings.ReplaceAll(info.Label, ":", "/")+"/") {
			t.Errorf("%+v, %v", info, err)
		}
		release(t, l)
	})
}

// TestDroppedOnServers proves that a lease whose handle is dropped is somebody else's after
// its TTL.
func TestDroppedOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		told, key, other := new(recorder), named(), newManager(t, newPool(t, db, true))
		m := newManager(t, newPool(t, db, true), lease.Observe(told.observe), lease.TTL(unhurried(t, other, 2*time.Second)))
		drop(t, m, key)
		waitUntil(t, "the handle is noticed", func() bool { runtime.GC(); return told.count("dropped") == 1 })
		release(t, acquire(t, other, key, lease.WaitAtMost(soon)))
		told.waitFor(t, "lost")
	})
}

// onPoolsOfServers runs a test on every server with two managers, over guarded and over
// plain pools.
func onPoolsOfServers(t *testing.T, test func(t *testing.T, m, other *lease.Manager)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			run(name, func(t *testing.T) {
				test(t, newManager(t, newPool(t, db, guarded)), newManager(t, newPool(t, db, guarded)))
			})
		}
	})
}

// TestQuestionsAfterRelease proves that a lease which is kept after its release isn't asked
// what its holder was, and that a reader who was the writer is.
func TestQuestionsAfterRelease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) { questionsAfterRelease(t, db.manager(), db.manager()) })
}

// TestQuestionsAfterReleaseOnServers proves it of servers.
func TestQuestionsAfterReleaseOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		questionsAfterRelease(t, newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, false)))
	})
}

func questionsAfterRelease(t *testing.T, m, operator *lease.Manager) {
	t.Helper()
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
		reader, err := writer.Downgrade(t.Context())
		must(t, err)
		awaitAsked(t, reader, "why")
		ask(reader, "again")
		wantsNone(t, "Renew", reader.Renew(t.Context()))
		awaitAsked(t, reader, "again")
		release(t, reader)
	}
	unasked, err := acquire(t, m, named()).Downgrade(t.Context())
	must(t, err)
	if why, asked := unasked.ReleaseReason(); asked {
		t.Errorf("nobody has asked, and it was asked %q", why)
	}
	release(t, unasked)
}

// askBeside lets another manager ask for a lease whose row is locked, returns when it has looked for
// that twice, and sends what it is told.
func askBeside(t *testing.T, db *testdb.DB, l *lease.Lease) <-chan error {
	t.Helper()
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
	return answer
}

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
		var answers [askers]<-chan error
		for i := range answers { // one after the other, so that each has seen the row locked at another moment
			answers[i] = askBeside(t, db, l)
		}
		wantsNone(t, "Commit", tx.Commit())
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
		answer := askBeside(t, db, l)
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
