package locktest_test

import (
	"strings"
	"testing"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// askingBehaves shows what who asks for a lease and who holds it tell each other.
func askingBehaves(show show) {
	show("a holder is asked, and decides", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		wants(t, "Ask for what is free", other.RequestRelease(t.Context(), key, "early"), txlock.ErrNotHeld)
		l := acquire(t.Context(), t, one, key)
		again := acquire(lease.WithOwner(t.Context(), l.Owner()), t, one, key)
		must(t, l.Renew(t.Context()))
		if why, asked := l.ReleaseReason(); asked {
			t.Errorf("asked because of %q", why)
		}
		must(t, other.RequestRelease(t.Context(), key, "first"))
		must(t, other.RequestRelease(t.Context(), key, "the night shift"))
		must(t, l.Renew(t.Context()))
		for _, held := range []*lease.Lease{l, again} {
			<-held.ReleaseRequested()
			if why, asked := held.ReleaseReason(); !asked || why != "the night shift" {
				t.Errorf("asked %t because of %q", asked, why)
			}
			must(t, held.Err())
			must(t, held.Release(t.Context()))
		}
		next := acquire(t.Context(), t, other, key)
		must(t, next.Renew(t.Context()))
		if why, asked := next.ReleaseReason(); asked {
			t.Errorf("the next holder is asked because of %q", why)
		}
		must(t, next.Release(t.Context()))
	})
	show("all readers are asked, and all holders of permits", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		shared := txlock.Named(key.String() + ":shared")
		var held []*lease.Lease
		for _, m := range []*lease.Manager{one, other} {
			l, err := m.AcquireShared(t.Context(), shared)
			must(t, err)
			s, err := m.Semaphore(key, 2)
			must(t, err)
			permit, err := s.Acquire(t.Context())
			must(t, err)
			held = append(held, l, permit)
		}
		must(t, one.RequestRelease(t.Context(), shared, "why"))
		must(t, one.RequestRelease(t.Context(), key, "why"))
		for _, l := range held {
			must(t, l.Renew(t.Context()))
			<-l.ReleaseRequested()
			must(t, l.Release(t.Context()))
		}
		wants(t, "Ask", one.RequestRelease(t.Context(), shared, ""), txlock.ErrNotHeld)
		wants(t, "Ask", one.RequestRelease(t.Context(), key, ""), txlock.ErrNotHeld)
	})
	show("who looks sees the note and the question", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		l, err := one.Acquire(t.Context(), key, lease.WithLabel("the nightly report"))
		must(t, err)
		must(t, other.RequestRelease(t.Context(), key, "why"))
		info, err := other.Inspect(t.Context(), key)
		must(t, err)
		if info.Label != "the nightly report" || info.ReleaseReason != "why" || info.ReleaseRequestedAt.Before(info.Since) {
			t.Errorf("Inspect shows %+v", info)
		}
		_, err = other.Acquire(t.Context(), key, lease.WaitAtMost(1))
		if err == nil || !strings.Contains(err.Error(), "(the nightly report)") && !strings.Contains(err.Error(), "another owner held it") {
			t.Error(err)
		}
		must(t, l.Release(t.Context()))
		wants(t, "a note that is too long", other.RequestRelease(t.Context(), key, strings.Repeat("x", 256)), txlock.ErrInvalidOption)
	})
}
