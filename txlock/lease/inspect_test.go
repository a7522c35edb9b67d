package lease_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// seen is what List or Inspect tells of one thing that is held.
type seen struct {
	kind  lease.Kind
	owner string
	token uint64
	held  bool
}

func seenOf(infos []lease.Info) (all []seen) {
	for _, i := range infos {
		all = append(all, seen{i.Kind, i.Owner, i.Token, i.Held})
	}
	return all
}

// TestEverythingHeldIsVisible proves that List and Inspect show the writer, the readers,
// the permits and the first waiter of a key, each with its owner and since when, and that
// ForceRelease takes all of them away, or one.
func TestEverythingHeldIsVisible(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		quiet := lease.PurgeEvery(0, time.Hour) // whose cleanups hold a lease after a minute
		m, operator := newManager(t, newPool(t, db, true), quiet), newManager(t, newPool(t, db, false), quiet)
		same := func(what string, got []lease.Info, want ...seen) {
			t.Helper()
			if s := seenOf(got); !slices.Equal(s, want) {
				t.Errorf("%s shows %+v, want %+v", what, s, want)
			}
			for _, i := range got {
				if age := time.Since(i.Since); age < -5*time.Minute || age > 5*time.Minute {
					t.Errorf("%s: %s since %v", what, i.Kind, i.Since)
				}
			}
		}
		of := func(kind lease.Kind, l *lease.Lease) seen { return seen{kind, l.Owner(), l.Token(), true} }
		started := time.Now()

		a, b, c := txlock.Named("a"), txlock.Named("b"), txlock.Named("c")
		writer := acquire(t, m, a)
		readers := []*lease.Lease{share(t, m, b), share(t, m, b)}
		semaphore := semaphore(t, m, c, 3)
		permits := []*lease.Lease{permit(t, semaphore), permit(t, semaphore)}
		waiting := fairAcquire(t, fairManager(t, db, quiet), a)
		(&line{db: db, key: a}).first(t)
		first := seen{kind: lease.Waiter, owner: list(t, operator)[0].Owner}
		same("List", list(t, operator), first, of(lease.Exclusive, writer), of(lease.Reader, readers[0]), of(lease.Reader, readers[1]),
			of(lease.Permit, permits[0]), of(lease.Permit, permits[1]))
		for _, i := range list(t, operator) {
			if i.Kind == lease.Waiter && (i.Session == 0 || i.Since.After(time.Now().Add(time.Minute)) || i.Since.Before(started.Add(-time.Minute))) {
				t.Errorf("the waiter has session %d and waits since %v", i.Session, i.Since)
			}
		}
		info := inspect(t, operator, a)
		same("Inspect of a lease", []lease.Info{info}, of(lease.Exclusive, writer))
		if info.TTL != 5*soon || info.Holders != 1 || info.Remaining < 4*soon {
			t.Errorf("Inspect of a lease: %+v", info)
		}
		same("its others", info.Others, first)
		same("Inspect of readers", inspect(t, operator, b).Others, of(lease.Reader, readers[0]), of(lease.Reader, readers[1]))
		if i := inspect(t, operator, c); i.Permits != 3 || i.Held {
			t.Errorf("Inspect of a semaphore: %+v", i)
		}
		same("Inspect of permits", inspect(t, operator, c).Others, of(lease.Permit, permits[0]), of(lease.Permit, permits[1]))
		if i := inspect(t, operator, txlock.Named("d")); i.Held || i.Key != txlock.Named("d") || len(i.Others) != 0 {
			t.Errorf("Inspect of a key that was never leased: %+v", i)
		}

		// One permit by its slot, and the rest by their keys.
		must(t, operator.ForceRelease(t.Context(), c, inspect(t, operator, c).Others[0].Slot))
		wants(t, "the permit that was taken away", permits[0].Renew(t.Context()), txlock.ErrLost)
		wantsNone(t, "the other permit", permits[1].Renew(t.Context()))
		wants(t, "ForceRelease of a slot that is free", operator.ForceRelease(t.Context(), c, 1), txlock.ErrNotHeld)
		wants(t, "ForceRelease of a waiter", operator.ForceRelease(t.Context(), a, -1), txlock.ErrInvalidOption)
		for _, key := range []txlock.Key{c, b, a} {
			must(t, operator.ForceRelease(t.Context(), key))
		}
		for _, l := range []*lease.Lease{writer, readers[0], readers[1], permits[1]} {
			wants(t, "what was taken away", l.Renew(t.Context()), txlock.ErrLost)
		}
		release(t, waiting.lease(t))
		release(t, acquire(t, m, b))
		waitUntil(t, "the waiter's place is gone, too", func() bool { return len(list(t, operator)) == 0 })
		for _, key := range []txlock.Key{a, b, c} {
			wants(t, "ForceRelease of what is free", operator.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
		}
	})
}

// TestListPages proves that List shows all of more rows than one statement reads.
func TestListPages(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		const rows = 2500
		readers(t, db, txlock.Named("readers"), rows, ";held", "9000000000000000000")
		all, err := newManager(t, newPool(t, db, true)).List(t.Context())
		if err != nil || len(all) != rows {
			t.Errorf("List shows %d of %d: %v", len(all), rows, err)
		}
	})
}

// TestDeadReadersBesideALock proves that the rows of dead readers, whether they had ended or not, are
// removed while the row of another key is locked: in a table that is all but empty, too, they are
// looked up one by one.
func TestDeadReadersBesideALock(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		first, last := txlock.Named("a"), txlock.Named("z")
		m := newManager(t, newPool(t, db, true))
		open := begin(t, db.Admin(), sql.LevelReadCommitted)
		for _, other := range []txlock.Key{first, last} {
			release(t, acquire(t, m, other))
			must(t, second(open.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? AND slot = 0 FOR UPDATE", other.String())))
		}
		for _, holds := range []string{"", ";who is dead"} {
			key := txlock.Named("key" + holds)
			release(t, share(t, m, key)) // which marks the key as shared
			readers(t, db, key, 1_000, holds, "1000")
			exec(t, db, "ANALYZE TABLE lockstep_leases") // a scan would be cheap
			release(t, acquire(t, m, key))
			waitUntil(t, "the rows are removed", func() bool {
				return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot > 0", key.String()) < 100
			})
		}
		rollback(t, open)
	})
}

// readers makes rows of readers as they are, or were, with the list of holds and the
// expiry given.
func readers(t testing.TB, db *testdb.DB, key txlock.Key, n int, holds, expires string) {
	t.Helper()
	for from := 0; from < n; from += 500 {
		var values []string
		for i := range min(500, n-from) {
			values = append(values, fmt.Sprintf("('%s', %d, 'owner', '%s', 1, 1000000, %s, 0, 0)", key, 1<<40+from+i, holds, expires))
		}
		exec(t, db, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES "+strings.Join(values, ", "))
	}
}

// TestCleanRemovesEntryRows proves that what says that a key was shared, or is a semaphore,
// goes with the last of its readers and permits, and stays while there are any.
func TestCleanRemovesEntryRows(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true), lease.PurgeEvery(0, time.Second))
		rows := func(key txlock.Key) int64 {
			return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String())
		}
		shared, permits, busy := txlock.Named("shared"), txlock.Named("permits"), txlock.Named("busy")
		release(t, share(t, m, shared))
		reader := share(t, m, busy)
		for _, n := range []int{3, 2} { // another number, when the first is forgotten
			s := semaphore(t, m, permits, n)
			p := permit(t, s)
			release(t, p)
			waitUntil(t, "the rows are removed", func() bool {
				must(t, second(m.Purge(t.Context())))
				return rows(shared)+rows(permits) == 0
			})
		}
		equal(t, "rows of a key with a reader", rows(busy), 2)
		wants(t, "a writer beside the reader", second(m.TryAcquire(t.Context(), busy)), txlock.ErrBusy)
		wantsNone(t, "the reader", reader.Renew(t.Context()))
		release(t, reader)
		release(t, acquire(t, m, permits)) // the key is nobody's now
	})
}

// TestPurgeTakesAllRowsOfAKey proves that the entry row of a key goes with the rows of its permits
// and readers, also where these are more than one transaction removes.
func TestPurgeTakesAllRowsOfAKey(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true), lease.PurgeEvery(0, time.Second))
		all := []*lease.Lease{}
		for _, key := range []txlock.Key{txlock.Named("a"), txlock.Named("b")} {
			of := semaphore(t, m, key, 30)
			for range 30 {
				permit, err := of.Acquire(t.Context())
				wantsNone(t, "Acquire", err)
				all = append(all, permit)
			}
		}
		for range 30 {
			all = append(all, share(t, m, txlock.Named("c")))
		}
		releaseMany(t, all)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1")
		rows := number(t, db, "SELECT COUNT(*) FROM lockstep_leases")
		n, err := m.Purge(t.Context())
		wantsNone(t, "Purge", err)
		if left := number(t, db, "SELECT COUNT(*) FROM lockstep_leases"); left != 0 || int64(n) != rows || rows < 62 {
			t.Errorf("of %d rows %d are said to be deleted, %d are left", rows, n, left)
		}
	})
}

// TestCleanLooksAgainUnderTheLock proves that a lease that is acquired between the look
// for idle rows and the lock of its row keeps its row, and is nobody else's.
func TestCleanLooksAgainUnderTheLock(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		tap := new(wiretap)
		cleaner := newManager(t, newPool(t, db, true, tap.install(t)), lease.PurgeEvery(0, time.Second))
		m, other := newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, true))
		keys := []txlock.Key{named(), named(), named()}
		makeRows(t, db, keys)
		var once sync.Once
		held := make([]*lease.Lease, len(keys))
		tap.before("name: IdleLease ", func(string) { once.Do(func() { acquireMany(t, m, keys, held) }) })
		must(t, second(cleaner.Purge(t.Context())))
		for i, l := range held {
			if l == nil {
				t.Fatal("it has not looked again: this test can't tell")
			}
			wants(t, "TryAcquire of a lease that is held", second(other.TryAcquire(t.Context(), keys[i])), txlock.ErrBusy)
			wantsNone(t, "Renew", l.Renew(t.Context()))
		}
		releaseMany(t, held)
	})
}
