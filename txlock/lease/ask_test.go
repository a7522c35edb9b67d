package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// TestQuestionsAfterRelease proves that a lease which is kept after its release isn't asked
// what its holder was, and that a reader who was the writer is.
func TestQuestionsAfterRelease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, operator := db.manager(), db.manager()
		ask := func(l *lease.Lease, why string) {
			wantsNone(t, "Ask", operator.RequestRelease(t.Context(), l.Key(), why))
		}
		kept := acquire(t, m, named(), lease.HoldAtLeast(time.Hour))
		ask(kept, "why")
		if info := inspect(t, operator, kept.Key()); info.ReleaseReason != "why" || info.ReleaseRequestedAt.IsZero() {
			t.Errorf("before the release: %+v", info)
		}
		release(t, kept)
		if info := inspect(t, operator, kept.Key()); !info.Held || info.ReleaseReason != "" || !info.ReleaseRequestedAt.IsZero() {
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

// revoked reports whether the holder was asked, and why.
func revoked(t *testing.T, l *lease.Lease) (why string, asked bool) {
	t.Helper()
	select {
	case <-l.ReleaseRequested():
		why, asked = l.ReleaseReason()
		if !asked {
			t.Error("ReleaseRequested is closed, and Asked says that nobody has asked")
		}
	default:
		if why, told := l.ReleaseReason(); told {
			t.Errorf("ReleaseRequested is open, and Asked says %q", why)
		}
	}
	return why, asked
}

// TestAskedWithTheRenewal proves that a holder is told of a question with its next renewal,
// also of a newer one, that the lease goes on meanwhile, and that it costs one statement
// more only then.
func TestAskedWithTheRenewal(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		operator := db.manager()
		l := acquire(t, m, job)
		time.Sleep(15 * time.Second)
		before := l.ReleaseRequested()
		must(t, operator.RequestRelease(t.Context(), job, "a new version"))
		if _, asked := revoked(t, l); asked {
			t.Error("asked before the renewal")
		}
		<-before
		db.at("told", 20*time.Second)
		if why, _ := revoked(t, l); why != "a new version" {
			t.Errorf("asked because of %q", why)
		}
		must(t, operator.RequestRelease(t.Context(), job, ""))
		must(t, l.Renew(t.Context()))
		if why, asked := revoked(t, l); !asked || why != "" {
			t.Errorf("asked %t because of %q", asked, why)
		}
		again := acquireIn(lease.WithOwner(t.Context(), l.Owner()), t, m, job)
		if _, asked := revoked(t, again); !asked {
			t.Error("who enters later isn't asked")
		}
		release(t, again)
		time.Sleep(25 * time.Second)
		must(t, l.Err())
		wire.sends(t, "Question", 1) // of Renew; RenewMany has told the first
		release(t, l)
		next := acquire(t, operator, job)
		time.Sleep(ttl)
		if why, asked := revoked(t, next); asked {
			t.Errorf("the next holder is asked because of %q", why)
		}
		release(t, next)
	})
}

// TestAskEverybody proves that all readers and all holders of permits are asked.
func TestAskEverybody(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		var held []*lease.Lease
		for _, manager := range []*lease.Manager{m, m, other} {
			held = append(held, share(t, manager, job))
		}
		permits := txlock.Named("permits")
		for range 3 {
			s := semaphore(t, m, permits, 4)
			held = append(held, permit(t, s))
		}
		must(t, errors.Join(m.RequestRelease(t.Context(), job, "readers"), other.RequestRelease(t.Context(), permits, "permits")))
		for i, l := range held {
			<-l.ReleaseRequested()
			if why, _ := l.ReleaseReason(); why != []string{"readers", "permits"}[i/3] {
				t.Errorf("%d is asked because of %q", i, why)
			}
			release(t, l)
		}
		db.at("told", 10*time.Second)
		kept := txlock.Named("kept")
		l := acquire(t, m, kept, lease.HoldAtLeast(time.Hour))
		release(t, l)
		for _, key := range []txlock.Key{job, permits, kept} {
			wants(t, "Ask for what nobody holds", m.RequestRelease(t.Context(), key, ""), txlock.ErrNotHeld)
		}
	})
}

// TestAskWaitsForAGuard proves that Ask waits for a transaction that guards the lease, that
// a later holder isn't asked, and that the context ends the wait.
func TestAskWaitsForAGuard(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		tx := wire.guarding(t, l)
		wants(t, "Ask", m.RequestRelease(limited(t, time.Second), job, ""), context.DeadlineExceeded)
		answer := later(func() error { return m.RequestRelease(t.Context(), job, "why") })
		time.Sleep(time.Second)
		must(t, tx.Commit())
		must(t, <-answer)
		must(t, l.Renew(t.Context()))
		if why, _ := revoked(t, l); why != "why" {
			t.Errorf("asked because of %q", why)
		}

		tx = wire.guarding(t, l)
		go func() { answer <- m.RequestRelease(t.Context(), job, "late") }()
		time.Sleep(time.Second)
		wants(t, "Release", l.Release(t.Context()), lease.ErrGuarded)
		must(t, tx.Commit())
		next := acquire(t, m, job)
		err := <-answer
		must(t, next.Renew(t.Context()))
		if _, asked := revoked(t, next); asked || err != nil && !errors.Is(err, txlock.ErrNotHeld) {
			t.Errorf("the next holder is asked: %t, %v", asked, err)
		}
		release(t, next)

		l = acquire(t, m, job)
		tx = wire.guarding(t, l)
		closing := db.manager()
		go func() { answer <- closing.RequestRelease(t.Context(), job, "") }()
		synctest.Wait()
		must(t, closing.Close(t.Context()))
		wants(t, "Ask of a manager that is closed meanwhile", <-answer, lease.ErrClosed)
		must(t, tx.Rollback())
		release(t, l)
	})
}

// TestLabels proves who is shown with which label: by List, Inspect and errors.
func TestLabels(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(lease.WithLabel("ours")), db.manager()
		l := acquire(t, m, job)
		again, err := other.Acquire(lease.WithOwner(t.Context(), l.Owner()), job, lease.WithLabel("later")) // a statement, which re-enters
		must(t, err)
		release(t, again)
		plain := acquire(t, other, txlock.Named("plain"))
		reader := share(t, m, txlock.Named("read"), lease.WithLabel(""))
		next := fairAcquireUnder(t.Context(), other, job, lease.Fair(), lease.WithLabel("next"))
		synctest.Wait()
		all := list(t, m)
		var notes []string
		for _, info := range all {
			notes = append(notes, string(info.Kind)+" "+info.Label)
		}
		if got := strings.Join(notes, ", "); !strings.HasPrefix(got, "waiter next, exclusive ours, exclusive ") || !strings.HasSuffix(got, ", reader ") ||
			!strings.Contains(l.Owner(), "/"+all[2].Label[strings.LastIndex(all[2].Label, ":")+1:]+"/") {
			t.Errorf("List has the notes %q", got)
		}
		_, err = db.manager().Acquire(limited(t, time.Minute), job, lease.WaitAtMost(time.Second))
		says(t, err, `" (ours) had it`)
		release(t, l)
		release(t, next.lease(t))
		release(t, plain, reader)
	})
}
