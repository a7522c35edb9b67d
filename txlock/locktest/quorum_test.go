package locktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestQuorumLoses lets databases fail and come back: a minority does no harm, and without a
// majority nothing is granted, renewed or released, and a lease is lost when its time is over.
func TestQuorumLoses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var kits []*locktest.Kit
		var managers []*lease.Manager
		for range 3 {
			k := locktest.Open(t, nil)
			kits, managers = append(kits, k), append(managers, leasesOf(t, k.DB()))
		}
		q, err := quorum.New(managers)
		must(t, err)
		t.Cleanup(func() { must(t, q.Close(context.Background())) })
		must(t, q.Install(t.Context()))
		key := txlock.Named("job")
		l, err := q.Acquire(t.Context(), key)
		must(t, err)
		kits[0].Disconnect()
		time.Sleep(time.Hour)
		must(t, l.Err())
		kits[1].Disconnect()
		wants(t, "Install", q.Install(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNoQuorum)
		wants(t, "TryAcquire", second(q.TryAcquire(t.Context(), txlock.Named("another"))), txlock.ErrNoQuorum)
		must(t, l.Err()) // until its time is over
		<-l.Done()
		wants(t, "Err", l.Err(), txlock.ErrLost)
		kits[0].Reconnect()
		kits[1].Reconnect()
		l, err = q.Acquire(t.Context(), key)
		must(t, err)
		time.Sleep(time.Minute) // all of them hold it
		kits[1].Disconnect()
		kits[2].Disconnect()
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNoQuorum)
		kits[2].Reconnect()
		must(t, q.Do(t.Context(), key, func(context.Context, *quorum.Lease) error { return nil }))
	})
}
