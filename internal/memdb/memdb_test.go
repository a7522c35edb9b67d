package memdb_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/memdb"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	db = memdb.DB[string, int]
	tx = memdb.Tx[string, int]
)

var (
	errLate     = errors.New("late")
	errDeadlock = errors.New("deadlock")
	errKilled   = errors.New("killed")
)

// in runs a test in a bubble, with a DB that is locked while it runs.
func in(t *testing.T, test func(t *testing.T, db *db)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := memdb.New[string, int](errDeadlock)
		db.Mu.Lock()
		defer db.Mu.Unlock()
		test(t, db)
		for of := range db.Open {
			of.End(errKilled)
		}
	})
}

// waiting begins to lock a row, which isn't free, and returns what that ends with.
func waiting(t *testing.T, db *db, of *tx, key string, shared bool, atMost time.Duration) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		db.Mu.Lock()
		defer db.Mu.Unlock()
		ended <- of.Lock(context.Background(), key, shared, atMost, errLate)
	}()
	db.Mu.Unlock()
	synctest.Wait()
	db.Mu.Lock()
	testdb.FatalIf(t, !of.Waits(), "%q is free", key)
	return ended
}

// result returns what a wait has ended with.
func result(db *db, ended <-chan error) error {
	db.Mu.Unlock()
	defer db.Mu.Lock()
	return <-ended
}

func want(t *testing.T, what string, err, wanted error) {
	t.Helper()
	testdb.ErrorIf(t, !errors.Is(err, wanted), "%s: %v, want %v", what, err, wanted)
}

// TestQueue shares a row until somebody waits for it, and then goes by the order of the queue.
func TestQueue(t *testing.T) {
	in(t, func(t *testing.T, db *db) {
		a, b, c, d := db.Begin(1), db.Begin(2), db.Begin(3), db.Begin(4)
		testdb.ErrorIf(t, !a.TryLock("k", true) || !b.TryLock("k", true) || !a.TryLock("k", true) || c.TryLock("k", false) || c.Free("k") || !c.Free("other"),
			"a row is not shared as it should be")
		writer := waiting(t, db, c, "k", false, 0)
		reader := waiting(t, db, d, "k", true, 0) // behind the writer
		a.End(errKilled)
		testdb.ErrorIf(t, !c.Waits(), "granted beside a reader")
		b.Release()
		want(t, "the writer", result(db, writer), nil)
		testdb.ErrorIf(t, !c.TryLock("k", true) || !c.Free("k") || !d.Waits(), "the writer lets others in")
		c.Share("k")
		want(t, "the reader", result(db, reader), nil)
	})
}

// TestTwoCircles has a wait that closes two circles at once, of which both end.
func TestTwoCircles(t *testing.T) {
	in(t, func(t *testing.T, db *db) {
		a, b, last := db.Begin(1), db.Begin(2), db.Begin(3)
		db.Victim = func(circle []*tx) *tx { return circle[1] } // not the last
		a.TryLock("shared", true)
		b.TryLock("shared", true)
		last.TryLock("k", false)
		last.TryLock("l", false)
		waits, others := waiting(t, db, a, "k", false, 0), waiting(t, db, b, "l", false, 0)
		want(t, "who has closed them", last.Lock(context.Background(), "shared", false, time.Hour, errLate), nil)
		want(t, "the first", result(db, waits), errDeadlock)
		want(t, "the second", result(db, others), errDeadlock)
	})
}

// TestEndOfWaits ends waits by a limit, by the context and from outside. What a waiter was ahead of
// goes on.
func TestEndOfWaits(t *testing.T) {
	in(t, func(t *testing.T, db *db) {
		holder, writer, reader := db.Begin(1), db.Begin(2), db.Begin(3)
		holder.TryLock("k", true)
		late := waiting(t, db, writer, "k", false, time.Second)
		behind := waiting(t, db, reader, "k", true, 0)
		want(t, "a wait that is too long", result(db, late), errLate)
		want(t, "the one behind it", result(db, behind), nil)
		killed := waiting(t, db, writer, "k", false, 0)
		writer.End(errKilled)
		want(t, "a wait whose transaction is ended", result(db, killed), errKilled)
		want(t, "COMMIT", writer.Commit(), errKilled)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		want(t, "a wait without a context", db.Begin(4).Lock(ctx, "k", false, 0, errLate), context.Canceled)
	})
}
