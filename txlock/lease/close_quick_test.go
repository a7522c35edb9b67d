package lease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// TestCloseWaitsForReleases proves that Close waits for a Release which has begun before
// it, is cut short by its context, and goes on in the background.
func TestCloseWaitsForReleases(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other := db.manager()
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("Release", times(1, hangs))
		released := make(chan error)
		go func() {
			ctx := limited(t, time.Second)
			released <- l.Release(ctx)
		}()
		time.Sleep(500 * time.Millisecond)
		closed := later(func() error { return m.Close(context.WithoutCancel(t.Context())) })
		wants(t, "Release", <-released, context.DeadlineExceeded)
		must(t, <-closed)
		db.within("Close", time.Second, 2*time.Second)
		nothingHeld(t, other)
	})
}

// TestCloseEndsATry proves that a try whose answer is not there yet ends with Close, which
// waits for what it may have been granted.
func TestCloseEndsATry(t *testing.T) {
	for name, fault := range map[string]string{"before the lease is asked for": "Look", "while it is": "Take"} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, db *memory) {
				other := db.manager()
				m, wire := db.process()
				release(t, acquire(t, other, job))
				wire.fault(fault, answersLate(2*time.Second))
				if fault == "Look" { // which follows a refusal
					held := acquire(t, other, job)
					defer release(t, held)
				}
				tried := later(func() error { return second(m.TryAcquire(t.Context(), job)) })
				time.Sleep(time.Second)
				closed := later(func() error { return m.Close(context.WithoutCancel(t.Context())) })
				if err := <-tried; err == nil {
					t.Error("a try is granted what Close releases")
				}
				must(t, <-closed)
				if fault == "Take" {
					nothingHeld(t, other)
				}
			})
		})
	}
}

// TestCloseWhileATransactionGuards proves that Close waits for the end of a transaction
// that guards a lease, or was granted one, and that nothing is held then; and that it says
// so where its context ends first.
func TestCloseWhileATransactionGuards(t *testing.T) {
	for _, granted := range []bool{false, true} {
		for name, within := range map[string]time.Duration{"in time": 10 * time.Second, "too late": time.Second} {
			t.Run(name, func(t *testing.T) {
				inMemory(t, func(t *testing.T, db *memory) {
					other := db.manager()
					m, wire := db.process()
					tx := wire.Begin()
					if granted {
						acquireTx(t, m, tx, job)
					} else {
						must(t, acquire(t, m, job).Guard(t.Context(), tx))
					}
					closed := make(chan error)
					go func() {
						ctx := limited(t, within)
						closed <- m.Close(ctx)
					}()
					if within > 3*time.Second {
						time.Sleep(3 * time.Second)
						must(t, tx.Commit())
						must(t, <-closed)
						nothingHeld(t, other)
						return
					}
					err := <-closed
					wants(t, "Close", err, context.DeadlineExceeded)
					if err != nil && !strings.Contains(err.Error(), `1 lease was not released, and ends after its TTL: "job"`) {
						t.Error(err)
					}
					must(t, tx.Commit())
					wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
				})
			})
		}
	}
}
