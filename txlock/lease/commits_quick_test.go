package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// openCommits are the errors of a commit that a cluster may have nevertheless, and calls that
// are answered so, executed or not.
func openCommits(t *testing.T, test func(t *testing.T, db *memory, refused error, answers memstore.Fault)) {
	for _, number := range []uint16{1180, 3100, 3101} {
		for _, executed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, executed %t", number, executed), func(t *testing.T) {
				refused := &mysql.MySQLError{Number: number, Message: "Got error 5 during COMMIT"}
				inMemory(t, func(t *testing.T, db *memory) {
					test(t, db, refused, func(_ context.Context, _ string, _ store.Row, call func() error) error {
						if executed {
							_ = call() // nobody is told
						}
						return refused
					})
				})
			})
		}
	}
}

// TestAcquireOfAnOpenCommit proves that an Acquire whose commit a cluster has refused, and may
// have nevertheless, leaves nothing that is held: neither where it fails, nor where a wait
// goes on.
func TestAcquireOfAnOpenCommit(t *testing.T) {
	openCommits(t, func(t *testing.T, db *memory, refused error, answers memstore.Fault) {
		m, wire := db.process()
		release(t, acquire(t, m, job)) // so that there is a row
		wire.fault("Take", answers)
		l, err := m.TryAcquire(t.Context(), job)
		wants(t, "TryAcquire", err, refused)
		if l != nil {
			t.Error("a lease beside an error")
		}
		wire.Up()
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		nothingHeld(t, m)

		held := acquire(t, db.manager(), job)
		time.AfterFunc(5*time.Second, func() { wire.fault("Take", times(1, answers)) })
		time.AfterFunc(10*time.Second, func() { release(t, held) })
		waited := acquire(t, m, job)
		db.within("granted", 10*time.Second, 12*time.Second)
		wants(t, "TryAcquire of another", second(db.manager().TryAcquire(t.Context(), job)), txlock.ErrBusy)
		release(t, waited)
		synctest.Wait()
		nothingHeld(t, m)
	})
}

// TestRenewalOfAnOpenCommit proves that a renewal with such an answer neither loses nor
// extends a lease, which is lost in time if none succeeds.
func TestRenewalOfAnOpenCommit(t *testing.T) {
	openCommits(t, func(t *testing.T, db *memory, refused error, answers memstore.Fault) {
		m, wire := db.process(lease.TTL(30 * time.Second))
		l := acquire(t, m, job)
		left := l.Remaining()
		wire.fault("Renew", times(1, answers))
		wants(t, "Renew", l.Renew(t.Context()), refused)
		if l.Remaining() > left || l.Err() != nil {
			t.Errorf("%v left after %v, %v", l.Remaining(), left, l.Err())
		}
		must(t, l.Renew(t.Context()))
		for _, op := range []string{"Renew", "RenewMany"} {
			wire.fault(op, answers)
		}
		<-l.Done()
		db.within("lost", 0, 30*time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost)
	})
}

// TestReleaseOfAnOpenCommit proves that a release with such an answer is sent again, and that
// nobody minds that the first was executed.
func TestReleaseOfAnOpenCommit(t *testing.T) {
	openCommits(t, func(t *testing.T, db *memory, _ error, answers memstore.Fault) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("Release", times(2, answers))
		release(t, l)
		if n := len(wire.calls("Release")); n != 3 {
			t.Errorf("%d releases", n)
		}
		nothingHeld(t, m)
	})
}
