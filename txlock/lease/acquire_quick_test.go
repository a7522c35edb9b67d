package lease_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// nothingHeld checks that nobody holds anything.
func nothingHeld(t *testing.T, m *lease.Manager) {
	t.Helper()
	all := list(t, m)
	testdb.ErrorIf(t, len(all) > 0, "held: %+v", all)
}

// TestNothingIsHeldAfterAnError proves that what an Acquire was granted that has returned
// an error is released in the background, long before its time is over; and that a statement
// which reaches the server after the deadline of the call changes nothing.
func TestNothingIsHeldAfterAnError(t *testing.T) {
	for name, acquire := range map[string]verb{"lease": exclusive, "permit": permitOf, "reader": shared} {
		for _, c := range []struct {
			name  string
			fault memstore.Fault
			ended error         // by whom the call is ended, after a second
			took  time.Duration // until it returns
			free  time.Duration // until it is released
			want  error
		}{
			{"the answer is lost", loses, nil, 0, 20 * time.Millisecond, mysql.ErrInvalidConn},
			{"the commit is open", openCommit(true), nil, 0, 20 * time.Millisecond, openCommitted},
			{"the commit is open, and was refused", openCommit(false), nil, 0, 0, openCommitted},
			{"the statement is lost", fails, nil, 0, 0, mysql.ErrInvalidConn},
			{"the answer comes after the end", answersLate(5 * time.Second), context.Canceled, time.Second, 5 * time.Second, context.Canceled},
			{"the statement comes after the end", slow(5 * time.Second), context.Canceled, time.Second, 5 * time.Second, context.Canceled},
			{"the statement comes after the deadline", slow(5 * time.Second), context.DeadlineExceeded, time.Second, 0, context.DeadlineExceeded},
			{"the answer comes after the deadline", answersLate(2 * time.Second), context.DeadlineExceeded, time.Second, 2 * time.Second, context.DeadlineExceeded},
			{"there is no answer at the deadline", hangs, context.DeadlineExceeded, time.Second, 0, context.DeadlineExceeded},
		} {
			runInMemory(t, name+"/"+c.name, func(t *testing.T, db *memory) {
				m, wire := db.process()
				l, err := acquire(t.Context(), m, job) // so that there are rows
				must(t, err)
				release(t, l)

				ctx, cancel := context.WithCancel(t.Context())
				if errors.Is(c.ended, context.DeadlineExceeded) {
					ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				} else if c.ended != nil {
					time.AfterFunc(time.Second, cancel)
				}
				defer cancel()
				wire.fault("Take", times(1, c.fault))
				before, _ := db.Rows()
				l, err = acquire(ctx, m, job)
				db.at("the end of the call", c.took)
				wants(t, "the call", err, c.want)
				testdb.ErrorIf(t, l != nil || c.ended == nil && errors.Is(err, context.DeadlineExceeded), "lease %v, error %v", l, err)
				db.after(max(c.free, c.took))
				synctest.Wait()
				nothingHeld(t, m)
				db.after(10 * time.Second)
				after, _ := db.Rows()
				testdb.ErrorIf(t, c.free == 0 && !maps.Equal(before, after), "the rows are %+v, they were %+v", after, before)
				l, err = acquire(t.Context(), m, job) // also by a manager that has asked in vain
				must(t, err)
				release(t, l)
			})
		}
	}
}

// openCommitted is how a cluster refuses a commit that it may have nevertheless.
var openCommitted = &mysql.MySQLError{Number: 1180, Message: "Got error 5 during COMMIT"}

// openCommit answers so, whether the call was executed or not.
func openCommit(executed bool) memstore.Fault {
	return func(_ context.Context, _ string, _ store.Row, call func() error) error {
		if executed {
			_ = call() // nobody is told
		}
		return openCommitted
	}
}

// TestLateStatements proves that a lease is not granted later than it is good for: the
// server refuses such a statement, once the manager reads the server's clock, and then says
// so.
func TestLateStatements(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.TTL(3 * time.Second)) // of which two thirds are left for the way
		release(t, acquire(t, m, job))
		wire.fault("Take", slow(2500*time.Millisecond))
		_, err := m.TryAcquire(t.Context(), job)
		wants(t, "TryAcquire", err, txlock.ErrWaitTimeout)
		text := err.Error()
		testdb.ErrorIf(t, text != `try to acquire lease "job": the server answered too late`, "%v", text)
		db.at("the end of the call", 5*time.Second)
		if took, read := len(wire.calls("Take")), len(wire.calls("ReadClock")); took != 4 || read != 2 { // one made the rows
			t.Errorf("%d statements, the clock was read %d times", took, read)
		}
		wire.fault("Take", slow(1500*time.Millisecond))
		l := acquire(t, m, job)
		if left := l.Remaining(); left != 3*time.Second-32*time.Millisecond-1500*time.Millisecond {
			t.Errorf("%v are left", left) // it counts from before the request
		}
		release(t, l)
	})
}

// TestFirstTryHasNoLimit proves that the first try is outside of the limit, whatever is waited for,
// without a row and with one, and however slow the server is; and that those after it are inside.
func TestFirstTryHasNoLimit(t *testing.T) {
	for name, wait := range waitsWithoutLimit {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			m, wire := db.process(lease.WaitAtMost(1))
			for _, op := range []string{"Take", "Make", "Use", "Look", "ReadClock"} {
				wire.fault(op, slow(time.Second))
			}
			must(t, wait(t.Context(), m, job))
			must(t, wait(t.Context(), m, job))
			wire.Up()
			ctx, hold := lease.WithOwner(t.Context(), "me"), permitOf
			if !strings.HasSuffix(name, "a permit") {
				hold = exclusive
			}
			l := got(hold(ctx, db.manager(), job))(t)
			if !strings.HasSuffix(name, "a permit") {
				must(t, wait(ctx, m, job)) // of an owner who has it
			}
			wants(t, "what is held", wait(t.Context(), m, job), txlock.ErrWaitTimeout)
			release(t, l)
		})
	}
}

// taking is a transaction that takes a lease away when it is committed, and has its row locked.
func taking(t *testing.T, s *memstore.Store) *memstore.Tx {
	t.Helper()
	tx := s.Begin()
	joined := testdb.Got(s.Join(t.Context(), tx))(t)
	must(t, joined.Include(t.Context(), "take", job, func(ctx context.Context, in *store.In) error {
		return testdb.Err(in.Force(ctx, store.Row{Key: job.String()}, 0))
	}))
	return tx
}

// TestWaitSurvivesFailures proves that a wait goes on after failures of the connection, up
// to two in a row, and ends with the third, or with an error that asking again won't mend.
func TestWaitSurvivesFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault memstore.Fault
		want  error
	}{
		{"two", times(2, fails), nil},
		{"three", times(3, fails), mysql.ErrInvalidConn},
		{"other", times(1, func(context.Context, string, store.Row, func() error) error { return &mysql.MySQLError{Number: 1142} }), &mysql.MySQLError{Number: 1142}},
	} {
		runInMemory(t, c.name, func(t *testing.T, db *memory) {
			other := db.manager()
			m, wire := db.process()
			held := acquire(t, other, job)
			time.AfterFunc(5*time.Second, func() { wire.fault("Look", c.fault) })
			time.AfterFunc(10*time.Second, func() { release(t, held) })
			l, err := m.Acquire(t.Context(), job)
			wants(t, "Acquire", err, c.want)
			if err == nil {
				db.within("granted", 10*time.Second, 11*time.Second)
				release(t, l)
				return
			}
			db.within("failed", 5*time.Second, 7*time.Second)
		})
	}
}

// TestWaiterSeesADeadHolder proves that a waiter is there when the time of a dead holder, or reader, is over, and
// no later, however rarely it looks.
func TestWaiterSeesADeadHolder(t *testing.T) {
	for name, c := range map[string]struct {
		hold, wait, try verb
		late            time.Duration
	}{
		"lease":  {exclusive, exclusive, tryExclusive, 2 * time.Millisecond},
		"permit": {permitOf, permitOf, tryPermit, 2 * time.Millisecond},
		"reader": {shared, exclusive, tryExclusive, 30 * time.Millisecond},
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			dead, wire := db.process(lease.TTL(3 * time.Second))
			must(t, testdb.Err(c.hold(t.Context(), dead, job)))
			wire.Down(nil)
			m := db.manager(lease.Poll(time.Millisecond, time.Hour))
			wants(t, "a try before", testdb.Err(c.try(t.Context(), m, job)), txlock.ErrBusy)
			l := got(c.wait(t.Context(), m, job))(t)
			db.within("granted", 3*time.Second, 3*time.Second+c.late)
			release(t, l)
			must(t, acquired(c.try(t.Context(), db.manager(), job)))
			wire.Up()
		})
	}
}

// TestMakingEnds proves that a row that somebody else makes at the same moment will do; and that one that can't be
// made, because somebody has it or its gap locked, is tried again for a quarter of a second, and is busy then.
func TestMakingEnds(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, w := db.process()
		w.fault("Make", func(_ context.Context, _ string, _ store.Row, call func() error) error {
			return errors.Join(call(), store.ErrLocked)
		})
		must(t, acquired(m.TryAcquire(t.Context(), job)))
		db.at("TryAcquire of a row that others make", 0)
		w.sends(t, "Make", 1)
		another := txlock.Named("another")
		w.fault("Make", func(context.Context, string, store.Row, func() error) error { return store.ErrLocked })
		wants(t, "TryAcquire", testdb.Err(m.TryAcquire(t.Context(), another)), txlock.ErrBusy)
		db.within("TryAcquire", 200*time.Millisecond, 350*time.Millisecond)
		w.sends(t, "Make", 1+17)
		w.Up()
		must(t, acquired(m.TryAcquire(t.Context(), another)))
	})
}

// TestLockedRowPastTheLimit proves that a lease which nobody holds is granted past the
// limit where its row is locked for a moment, and not where it is locked for long.
func TestLockedRowPastTheLimit(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.WaitAtMost(1))
		release(t, acquire(t, m, job))
		wire.fault("Look", slow(time.Millisecond)) // meanwhile the limit passes
		locked := db.Store()
		for _, c := range []struct {
			locked time.Duration
			want   error
		}{{20 * time.Millisecond, nil}, {time.Minute, txlock.ErrWaitTimeout}} {
			tx := taking(t, locked)
			unlocked := time.AfterFunc(c.locked, func() { _ = tx.Rollback() })
			before := wire.total()
			l, err := m.Acquire(t.Context(), job)
			testdb.ErrorIf(t, !errors.Is(err, c.want), "locked for %v: %v, want %v", c.locked, err, c.want)
			if err == nil {
				release(t, l)
			}
			n := wire.total() - before
			testdb.ErrorIf(t, n > 40, "locked for %v: %d calls", c.locked, n)
			if unlocked.Stop() {
				must(t, tx.Rollback())
			}
		}
	})
}

// queueUp has so many come to a lease one after the other, each of whom holds it for a second. What it
// returns waits for all, and checks that the first to come was granted first.
func queueUp(t *testing.T, m *lease.Manager, n int) (inOrder func()) {
	var granted []int
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			l := acquire(t, m, job)
			granted = append(granted, i)
			time.Sleep(time.Second)
			release(t, l)
		})
		synctest.Wait()
	}
	return func() {
		t.Helper()
		all.Wait()
		testdb.ErrorIf(t, len(granted) != n || !slices.IsSorted(granted), "granted to %v in the order in which they came", granted)
	}
}

// TestPlacesAreInOrder proves that of one manager those who came first have their places
// first, also where the first one waits for a connection.
func TestPlacesAreInOrder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		m, wire := db.process(lease.Fair(), lease.Observe(seen.observe))
		held := acquire(t, m, job)
		connection := make(chan struct{}, 1)
		connection <- struct{}{}
		wire.fault("Turn", func(ctx context.Context, op string, at store.Row, call func() error) error {
			select {
			case <-connection: // the first one waits for it, while the second one comes
				return slow(1500*time.Millisecond)(ctx, op, at, call)
			default: // on its way to the server nobody overtakes who went before
				return slow(time.Millisecond)(ctx, op, at, call)
			}
		})
		inOrder := queueUp(t, m, 3)
		time.Sleep(5 * time.Second)
		release(t, held)
		inOrder()
		fair := seen.fair()
		testdb.ErrorIf(t, !slices.Equal(fair, []bool{true, true, true}), "fair: %v", fair)
	})
}

// TestPlacesAreBounded proves how many of a manager's waiters have a place in the queue of
// all processes, and that the observer is told who had none.
func TestPlacesAreBounded(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		m, wire := db.process(lease.Fair(), lease.Observe(seen.observe))
		inOrder := queueUp(t, m, 21) // the first gets it
		wire.sends(t, "Turn", 16)
		inOrder()
		wire.sends(t, "Turn", 20)
		fair := seen.fair()
		testdb.ErrorIf(t, len(fair) != 20 || slices.Contains(fair[:16], false) || slices.Contains(fair[16:], true), "fair: %v", fair)
	})
}

// TestWithoutAPlace proves that a wait goes on by looking where there is no connection for
// a place, and takes one as soon as there is.
func TestWithoutAPlace(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		other := db.manager()
		m, wire := db.process(lease.Fair(), lease.Observe(seen.observe))
		held := acquire(t, other, job)
		wire.fault("Turn", func(context.Context, string, store.Row, func() error) error { return store.ErrNoTurn })
		time.AfterFunc(5*time.Second, func() { release(t, held) })
		l := acquire(t, m, job)
		db.within("granted", 5*time.Second, 5500*time.Millisecond)
		if n := len(wire.calls("Turn")); n < 4 || n > 6 { // it asks for a place every second
			t.Errorf("asked for a place %d times", n)
		}
		fair := seen.fair()
		testdb.ErrorIf(t, len(fair) != 1 || fair[0], "fair: %v", fair)
		release(t, l)
	})
}

// TestReleaseNeedsNoLook proves that a waiter who is told of a release in its manager takes
// the lease by one statement, without a look before.
func TestReleaseNeedsNoLook(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		for _, options := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
			m, wire := db.process()
			held := acquire(t, m, job)
			waiter := later(func() error { return acquired(m.Acquire(t.Context(), job, options...)) })
			synctest.Wait()
			looks := len(wire.calls("Look"))
			release(t, held)
			must(t, <-waiter)
			testdb.Equal(t, "looks after the release", len(wire.calls("Look"))-looks, 0)
		}
	})
}
