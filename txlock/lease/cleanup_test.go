package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// refusals hands on what was asked for in vain.
type refusals chan txlock.Event

func (o refusals) observe(_ context.Context, e txlock.Event) {
	if e.Kind == txlock.Refused {
		o <- e
	}
}

// TestCleanupEndsBeforeItsLease proves that a cleanup which is too slow for its lease ends
// with it, so that the next is not beside it, and goes on the next time where it was.
func TestCleanupEndsBeforeItsLease(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) { // one manager cleans up in each
		var delay atomic.Int64
		o := make(refusals, 1000)
		every := unhurried(t, newManager(t, newPool(t, db, true)), time.Second)
		m := newManager(t, newPool(t, db, true, slowly(&delay)), lease.PurgeEvery(time.Second, every), lease.Observe(o.observe))
		const rows = 5 // a slow cleanup takes 1.5 of its interval for them
		for range rows {
			release(t, acquire(t, m, named()))
		}
		delay.Store(int64(every * 15 / 100)) // at two answers for each row
		tooLate := time.After(soon)
		for ended := false; !ended; {
			select {
			case e := <-o:
				ended = errors.Is(e.Err, context.DeadlineExceeded) && e.Key.String() == "lockstep:cleanup"
			case <-tooLate:
				t.Fatal("it has not ended with its lease")
			}
		}
		delay.Store(0)
		lasts(0, func() bool {
			select {
			case <-o:
			default:
			}
			return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name LIKE 'test:%'") == 0
		})
		if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name LIKE 'test:%'"); n != 0 {
			t.Errorf("%d rows are left of %d", n, rows)
		}
	})
}
