package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestPermitWithoutARow proves that who waits for a permit takes one whose row is gone: Clean
// removes rows of permits that nobody has.
func TestPermitWithoutARow(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const permits = 3
		m, key := newManager(t, newPool(t, db, true)), named()
		s := semaphore(t, m, key, permits)
		held := several(permits, func(int) *lease.Lease { return permit(t, s) })
		waiting := semaphore(t, newManager(t, newPool(t, db, true)), key, permits)
		got := later(func() error { return acquired(waiting.Acquire(t.Context())) })
		time.Sleep(100 * time.Millisecond)                                                     // who has not looked yet proves less, and is granted, too
		db.Exec(t, "DELETE FROM lockstep_leases WHERE name = '"+key.String()+"' AND slot = 3") // as if released elsewhere, and cleaned
		wants(t, "Acquire", within(t, "the grant", got), nil)
		for _, l := range held[:permits-1] {
			release(t, l)
		}
		_ = held[permits-1].Release(t.Context()) // which is lost
	})
}

// readAndWrite acquires a lease for an owner twice and downgrades one of the two.
func readAndWrite(ctx context.Context, t *testing.T, m *lease.Manager, key txlock.Key) (reader, writer *lease.Lease) {
	t.Helper()
	first, writer := acquireIn(ctx, t, m, key), acquireIn(ctx, t, m, key)
	return got(first.Downgrade(ctx))(t), writer
}

// TestDowngrade proves that no other writer comes between a writer and the reader that it becomes,
// although one waits, also in the queue of Fair, which keeps no writer from becoming a reader; that
// readers come in at once, and the waiter when they have gone; and what the handles say.
func TestDowngrade(t *testing.T) {
	for how, options := range map[string][]lease.ManagerOption{"poll": nil, "fair": {lease.Fair()}} {
		runInMemory(t, how, func(t *testing.T, db *memory) {
			other := db.manager(options...)
			writer := acquire(t, db.manager(options...), job)
			waits := later(func() *lease.Lease { return acquire(t, other, job) })
			db.after(time.Second)
			reader := got(writer.Downgrade(t.Context()))(t)
			testdb.ErrorIf(t, !reader.Shared() || reader.Err() != nil || reader.Owner() != writer.Owner(),
				"the reader: shared %t, %v, owner %q, that of the writer %q", reader.Shared(), reader.Err(), reader.Owner(), writer.Owner())
			wants(t, "Err of the writer", writer.Err(), txlock.ErrNotHeld)
			wants(t, "Downgrade of what was released", testdb.Err(writer.Downgrade(t.Context())), txlock.ErrNotHeld)
			wants(t, "Downgrade of a reader", testdb.Err(reader.Downgrade(t.Context())), txlock.ErrInvalidOption)
			beside := got(db.manager().TryAcquireShared(t.Context(), job))(t)
			db.after(10 * time.Second)
			release(t, reader, beside)
			release(t, <-waits)
			db.within("the waiting writer", 10*time.Second, 11*time.Second)
		})
	}
}

// TestDowngradeInVain proves that Downgrade ends with its context where a transaction guards what the owner reads by
// already, and that all is held as before; that a writer who has lost its lease without knowing has nothing after it,
// since another may have come between; and that an owner whose reader is lost reads again after it, at once, and is
// told that the first is lost.
func TestDowngradeInVain(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		operator, ann := db.manager(), lease.WithOwner(t.Context(), "ann")
		reader, writer := readAndWrite(ann, t, m, job)
		tx := wire.guarding(t, reader)
		limited, cancel := context.WithTimeout(ann, 100*time.Millisecond)
		defer cancel()
		wants(t, "Downgrade", testdb.Err(writer.Downgrade(limited)), context.DeadlineExceeded)
		wants(t, "the writer, the reader, and the transaction that it guards", errors.Join(writer.Err(), reader.Err(), tx.Commit()), nil)
		time.Sleep(time.Second) // what it was granted is released in the background
		testdb.Equal(t, "held after it", len(list(t, m)), 2)
		release(t, reader, writer)

		writer = acquire(t, m, job)
		must(t, operator.ForceRelease(t.Context(), job))
		none, err := writer.Downgrade(t.Context())
		wants(t, "Downgrade", err, txlock.ErrNotHeld)
		testdb.ErrorIf(t, none != nil, "there is a reader beside the error")
		nothingHeld(t, m)

		lost, writer := readAndWrite(ann, t, m, job)
		must(t, operator.ForceRelease(t.Context(), job, inspect(t, m, job).Others[0].Slot))
		reader = got(writer.Downgrade(ann))(t)
		wants(t, "the reader that was lost", lost.Err(), txlock.ErrLost)
		wants(t, "its Release", lost.Release(ann), txlock.ErrNotHeld)
		all := list(t, m)
		testdb.ErrorIf(t, len(all) != 1 || all[0].Kind != lease.Reader, "held after it: %+v", all)
		release(t, reader)
	})
}

// share is acquire for a reader.
func share(t testing.TB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	return got(m.AcquireShared(t.Context(), key, options...))(t)
}

// mortal is a manager that can die. What it holds is never released.
func mortal(t testing.TB, db *testdb.DB, options ...lease.ManagerOption) (m *lease.Manager, die func()) {
	t.Helper()
	var network leasetest.Network
	m = testdb.Got(lease.NewManager(newPool(t, db, true, func(c *mysql.Config) { c.DialFunc = network.Dial }), options...))(t)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = m.Close(ended) // it can't give anything back
	})
	return m, network.Cut
}

// TestNoReadersOnClusters proves that shared leases are refused on a server of a
// multi-primary cluster, before anything is written, and that the others are not. It
// needs no cluster: a MariaDB whose wsrep_on is ON without a provider works as a single
// server.
func TestNoReadersOnClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).OpenLeases(t)
		m := newManager(t, newPool(t, db, true))
		key := named()
		for call, take := range map[string]verb{"AcquireShared": shared, "TryAcquireShared": tryShared} {
			_, err := take(t.Context(), m, key)
			wants(t, call, err, schema.ErrMultiPrimary)
			testdb.Fails(t, call, err, "acquire the lease exclusively instead")
		}
		testdb.Equal(t, "rows written", db.Number(t, "SELECT COUNT(*) FROM lockstep_leases"), 0)
		l := acquire(t, m, key)
		wants(t, "Downgrade", testdb.Err(l.Downgrade(t.Context())), schema.ErrMultiPrimary)
		wants(t, "after Downgrade", l.Err(), nil)
		release(t, l)
	}
}

func semaphore(t testing.TB, m *lease.Manager, key txlock.Key, permits int) *lease.Semaphore {
	t.Helper()
	return testdb.Got(m.Semaphore(key, permits))(t)
}

func permit(t testing.TB, s *lease.Semaphore) *lease.Lease {
	t.Helper()
	return got(s.Acquire(t.Context()))(t)
}

// TestSemaphoreBesideALockedRow proves that permits don't wait for a transaction that has
// locked the row of the key, or that of a permit: what is free is granted, or busy.
func TestSemaphoreBesideALockedRow(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		for name, c := range map[string]struct {
			made    bool
			lock    string
			granted bool
		}{
			"of the lease":        {false, "slot = 0", false},
			"of the semaphore":    {true, "slot = 0", false},
			"of the first permit": {true, "slot = 1", true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key := keyOf(t, m, true)
				s := semaphore(t, m, key, 2)
				if c.made {
					release(t, permit(t, s))
				}
				tx := begin(t, newPool(t, db, false), sql.LevelRepeatableRead)
				rows, err := tx.Query("SELECT token FROM lockstep_leases WHERE name = ? AND "+c.lock+" FOR UPDATE", key.String())
				wants(t, "the lock", err, nil)
				wants(t, "the lock", rows.Close(), nil)
				ctx := limited(t, 5*time.Minute)
				l, err := s.TryAcquire(ctx)
				switch {
				case c.granted && err == nil:
					release(t, l)
				case c.granted:
					t.Errorf("TryAcquire: %v", err)
				default:
					wants(t, "TryAcquire", err, txlock.ErrBusy)
					wants(t, "Acquire", testdb.Err(s.Acquire(ctx, lease.WaitAtMost(100*time.Millisecond))), txlock.ErrWaitTimeout)
				}
				testdb.ErrorIf(t, ctx.Err() != nil, "it has waited for the end of its context")
				rollback(t, tx)
				release(t, permit(t, s))
			})
		}
	})
}

// TestResizeBesideTraffic proves that Resize succeeds while eight acquire and release
// permits and another resizes, to numbers that need new rows and to smaller ones, and that
// nobody is told anything but that the number has changed.
func TestResizeBesideTraffic(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		managers := []*lease.Manager{newManager(t, pool), newManager(t, pool)}
		for range testdb.Long(1, 2) {
			resizeBesideTraffic(t, managers, named())
		}
	})
}

func resizeBesideTraffic(t *testing.T, managers []*lease.Manager, key txlock.Key) {
	current := func() int {
		info, err := managers[0].Inspect(t.Context(), key)
		wants(t, "Inspect", err, nil)
		return max(info.Permits, 1)
	}
	release(t, permit(t, semaphore(t, managers[0], key, 2)))
	ctx, stop := context.WithCancel(t.Context())
	var work, resizing sync.WaitGroup
	var grants atomic.Int64
	for i := range 8 {
		m := managers[i%2]
		work.Go(func() {
			s := semaphore(t, m, key, current())
			for ctx.Err() == nil {
				err := s.Do(t.Context(), func(context.Context, *lease.Lease) error {
					grants.Add(1)
					return nil
				})
				switch {
				case errors.Is(err, txlock.ErrInvalidOption):
					s = semaphore(t, m, key, current())
				case err != nil:
					t.Errorf("Do: %v", err)
				}
			}
		})
	}
	for i, m := range managers {
		resizing.Go(func() {
			s := semaphore(t, m, key, 2)
			for round := range 6 {
				before := grants.Load()
				testdb.Await(20*time.Second, func() bool { return grants.Load() > before+4 })
				n := 6*(round+1) + 3*i
				if round%3 == 2 {
					n = 1 + i
				}
				wants(t, fmt.Sprintf("Resize to %d", n), testdb.Err(s.Resize(t.Context(), n)), nil)
			}
		})
	}
	resizing.Wait()
	stop()
	work.Wait()
	last, err := semaphore(t, managers[0], key, 2).Resize(t.Context(), 3)
	wants(t, "the last Resize", err, nil)
	held := several(3, func(int) *lease.Lease { return got(last.TryAcquire(t.Context()))(t) })
	wants(t, "a fourth", testdb.Err(last.TryAcquire(t.Context())), txlock.ErrBusy)
	release(t, held...)
}

// TestResizeThatFailsChangesNothing proves that the number is that of before where Resize
// fails before it is set, here since the row of a new permit can't be made.
func TestResizeThatFailsChangesNothing(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		s := semaphore(t, newManager(t, pool), key, 2)
		release(t, permit(t, s))
		tx := begin(t, db.Admin(), sql.LevelReadCommitted)
		run(t, tx, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES ('"+key.String()+"', 4, '-', '', 0, 0, 0, 0, 0)")
		resized, err := s.Resize(limited(t, time.Second), 5)
		wants(t, "Resize", err, context.DeadlineExceeded)
		testdb.ErrorIf(t, resized != nil, "there is a semaphore of the new number")
		release(t, permit(t, s)) // of the number of before
		rollback(t, tx)
		resized, err = s.Resize(t.Context(), 5)
		wants(t, "Resize afterwards", err, nil)
		release(t, permit(t, resized))
	})
}

// TestListPages proves that List shows all of more rows than one statement reads.
func TestListPages(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		const rows = 2500
		readers(t, db, txlock.Named("readers"), rows, ";held", "9000000000000000000")
		all, err := newManager(t, newPool(t, db, true)).List(t.Context())
		testdb.ErrorIf(t, err != nil || len(all) != rows, "List shows %d of %d: %v", len(all), rows, err)
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
			must(t, testdb.Err(open.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? AND slot = 0 FOR UPDATE", other.String())))
		}
		for _, holds := range []string{"", ";who is dead"} {
			key := txlock.Named("key" + holds)
			release(t, share(t, m, key)) // which marks the key as shared
			readers(t, db, key, 1_000, holds, "1000")
			db.Exec(t, "ANALYZE TABLE lockstep_leases") // a scan would be cheap
			release(t, acquire(t, m, key))
			waitUntil(t, "the rows are removed", func() bool {
				return db.Number(t, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot > 0", key.String()) < 100
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
		db.Exec(t, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES "+strings.Join(values, ", "))
	}
}

// TestCleanRemovesEntryRows proves that what says that a key was shared, or is a semaphore,
// goes with the last of its readers and permits, and stays while there are any.
func TestCleanRemovesEntryRows(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true), lease.PurgeEvery(0, time.Second))
		rows := func(key txlock.Key) int64 {
			return db.Number(t, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String())
		}
		shared, permits, busy := txlock.Named("shared"), txlock.Named("permits"), txlock.Named("busy")
		release(t, share(t, m, shared))
		reader := share(t, m, busy)
		for _, n := range []int{3, 2} { // another number, when the first is forgotten
			s := semaphore(t, m, permits, n)
			release(t, permit(t, s))
			waitUntil(t, "the rows are removed", func() bool {
				must(t, testdb.Err(m.Purge(t.Context())))
				return rows(shared)+rows(permits) == 0
			})
		}
		testdb.Equal(t, "rows of a key with a reader", rows(busy), 2)
		wants(t, "a writer beside the reader", testdb.Err(m.TryAcquire(t.Context(), busy)), txlock.ErrBusy)
		wants(t, "the reader", reader.Renew(t.Context()), nil)
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
			all = append(all, several(30, func(int) *lease.Lease { return permit(t, of) })...)
		}
		all = append(all, several(30, func(int) *lease.Lease { return share(t, m, txlock.Named("c")) })...)
		releaseMany(t, all)
		db.Exec(t, "UPDATE lockstep_leases SET expires_us = 1")
		rows := db.Number(t, "SELECT COUNT(*) FROM lockstep_leases")
		n, err := m.Purge(t.Context())
		wants(t, "Purge", err, nil)
		left := db.Number(t, "SELECT COUNT(*) FROM lockstep_leases")
		testdb.ErrorIf(t, left != 0 || int64(n) != rows || rows < 62, "of %d rows %d are said to be deleted, %d are left", rows, n, left)
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
		must(t, testdb.Err(cleaner.Purge(t.Context())))
		for i, l := range held {
			testdb.FatalIf(t, l == nil, "it has not looked again: this test can't tell")
			wants(t, "TryAcquire of a lease that is held", testdb.Err(other.TryAcquire(t.Context(), keys[i])), txlock.ErrBusy)
			wants(t, "Renew", l.Renew(t.Context()), nil)
		}
		releaseMany(t, held)
	})
}
