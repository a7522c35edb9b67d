package lease_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// isAsked checks whether the holder was asked, and why.
func isAsked(t *testing.T, l *lease.Lease, want ...string) {
	t.Helper()
	closed := false
	select {
	case <-l.ReleaseRequested():
		closed = true
	default:
	}
	if why, asked := l.ReleaseReason(); asked != closed || asked != (len(want) > 0) || asked && why != want[0] {
		t.Errorf("ReleaseRequested is closed: %t, asked: %t because of %q, want %q", closed, asked, why, want)
	}
}

// TestAskedWithTheRenewal proves that a holder is told of a question with its next renewal, also of a newer one,
// that the lease goes on meanwhile, that it costs one statement more only then, and that all readers and holders
// of permits are asked, and neither the next holder nor one whose lease is kept after its release.
func TestAskedWithTheRenewal(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		operator := db.manager()
		l := acquire(t, m, job)
		time.Sleep(15 * time.Second)
		before := l.ReleaseRequested()
		must(t, operator.RequestRelease(t.Context(), job, "a new version"))
		isAsked(t, l)
		<-before
		db.at("told", 20*time.Second)
		isAsked(t, l, "a new version")
		must(t, operator.RequestRelease(t.Context(), job, ""))
		must(t, l.Renew(t.Context()))
		isAsked(t, l, "")
		again := acquireIn(lease.WithOwner(t.Context(), l.Owner()), t, m, job)
		isAsked(t, again, "")
		time.Sleep(25 * time.Second)
		must(t, l.Err())
		wire.sends(t, "Question", 1) // of Renew; RenewMany has told the first
		release(t, again, l)
		next := acquire(t, operator, job, lease.HoldAtLeast(time.Hour))
		time.Sleep(ttl)
		isAsked(t, next)
		must(t, m.RequestRelease(t.Context(), job, "why"))
		release(t, next)
		if info := inspect(t, m, job); !info.Held || info.ReleaseReason != "" || !info.ReleaseRequestedAt.IsZero() {
			t.Errorf("after the release: %+v", info)
		}

		shared, permits := txlock.Named("shared"), txlock.Named("permits")
		held := map[*lease.Lease]string{share(t, m, shared): "readers", share(t, m, shared): "readers", share(t, operator, shared): "readers"}
		for range 3 {
			held[permit(t, semaphore(t, m, permits, 4))] = "permits"
		}
		must(t, errors.Join(m.RequestRelease(t.Context(), shared, "readers"), operator.RequestRelease(t.Context(), permits, "permits")))
		for l, why := range held {
			<-l.ReleaseRequested()
			isAsked(t, l, why)
			release(t, l)
		}
		for _, key := range []txlock.Key{job, shared, permits, txlock.Named("nothing")} {
			wants(t, "Ask for what nobody holds", m.RequestRelease(t.Context(), key, ""), txlock.ErrNotHeld)
		}
		wire.fault("AskHolders", fails)
		if err := m.RequestRelease(t.Context(), job, ""); err == nil || errors.Is(err, txlock.ErrNotHeld) {
			t.Error(err)
		}
	})
}

// TestAskWaitsForAGuard proves that requests wait for a transaction that guards the lease, however many, and
// although the token is ahead of the server's clock; that a later holder isn't asked; and that the context and
// Close end the wait.
func TestAskWaitsForAGuard(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		db.SetClock(time.Hour)
		m, wire := db.process()
		l := acquire(t, m, job)
		db.SetClock(0)
		tx := wire.guarding(t, l)
		wants(t, "Ask", m.RequestRelease(limited(t, time.Second), job, ""), context.DeadlineExceeded)
		closing := db.manager()
		ends := later(func() error { return closing.RequestRelease(t.Context(), job, "") })
		var answers []chan error
		for range 3 {
			answers = append(answers, later(func() error { return db.manager().RequestRelease(t.Context(), job, "why") }))
			time.Sleep(time.Second)
		}
		must(t, closing.Close(t.Context()))
		wants(t, "Ask of a manager that is closed meanwhile", <-ends, lease.ErrClosed)
		must(t, tx.Commit())
		for _, answer := range answers {
			must(t, <-answer)
		}
		must(t, l.Renew(t.Context()))
		isAsked(t, l, "why")

		tx = wire.guarding(t, l)
		late := later(func() error { return m.RequestRelease(t.Context(), job, "late") })
		time.Sleep(time.Second)
		wants(t, "Release", l.Release(t.Context()), lease.ErrGuarded)
		must(t, tx.Commit())
		next := acquire(t, m, job)
		if err := <-late; err != nil && !errors.Is(err, txlock.ErrNotHeld) {
			t.Error(err)
		}
		must(t, next.Renew(t.Context()))
		isAsked(t, next)
		release(t, next)
	})
}

// TestQuestionsAfterDowngrade proves that a reader who was the writer is asked what that was, told or not.
func TestQuestionsAfterDowngrade(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, operator := db.manager(), db.manager()
		for _, asked := range []string{"never", "and told", "and not told"} {
			writer := acquire(t, m, named())
			if asked != "never" {
				must(t, operator.RequestRelease(t.Context(), writer.Key(), "why"))
			}
			if asked == "and told" {
				must(t, writer.Renew(t.Context()))
			}
			reader := mustLease(t)(writer.Downgrade(t.Context()))
			if asked == "never" {
				isAsked(t, reader)
			} else {
				<-reader.ReleaseRequested()
				isAsked(t, reader, "why")
			}
			must(t, operator.RequestRelease(t.Context(), writer.Key(), "again"))
			must(t, reader.Renew(t.Context()))
			isAsked(t, reader, "again")
			release(t, reader)
		}
	})
}

// TestLabels proves who is listed with which label: that of the manager, of the call, and of who came first.
func TestLabels(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(lease.WithLabel("ours")), db.manager()
		l := acquire(t, m, job)
		again := acquireIn(lease.WithOwner(t.Context(), l.Owner()), t, other, job, lease.WithLabel("later")) // a statement, which re-enters
		plain, reader := acquire(t, other, txlock.Named("plain")), share(t, m, txlock.Named("read"), lease.WithLabel(""))
		next := fairAcquireUnder(t.Context(), other, job, lease.Fair(), lease.WithLabel("next"))
		synctest.Wait()
		var notes []string
		for _, info := range list(t, m) {
			notes = append(notes, string(info.Kind)+" "+info.Label[strings.LastIndex(info.Label, ":")+1:])
		}
		if want := []string{"waiter next", "exclusive ours", "exclusive " + strings.Split(l.Owner(), "/")[1], "reader "}; !slices.Equal(notes, want) {
			t.Errorf("List has the notes %q, want %q", notes, want)
		}
		release(t, again, l, plain, reader)
		release(t, next.lease(t))
	})
}
