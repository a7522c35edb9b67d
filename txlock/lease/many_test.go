package lease_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// makeEntryRows makes the rows of keys that were shared before, or of semaphores of one
// permit, by few statements.
func makeEntryRows(t testing.TB, db *testdb.DB, keys []txlock.Key, permits bool) {
	t.Helper()
	const batch = 500
	for from := 0; from < len(keys); from += batch {
		var values []string
		var names []any
		for _, key := range keys[from:min(from+batch, len(keys))] {
			if permits {
				values, names = append(values, "(?, 0, '-', '', 0, 0, 0, -1, 0)", "(?, 1, '-', '', 0, 0, 0, 0, 0)"), append(names, key.String(), key.String())
			} else {
				values, names = append(values, "(?, 0, '-', '', 0, 0, 0, 1, 0)"), append(names, key.String())
			}
		}
		exec(t, db, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES "+strings.Join(values, ", "), names...)
	}
}

// takeMixed takes n leases side by side: readers, two of each key, and permits in equal parts.
func takeMixed(t testing.TB, db *testdb.DB, m *lease.Manager, n int, options ...lease.AcquireOption) []*lease.Lease {
	t.Helper()
	keys := make([]txlock.Key, n)
	var shared []txlock.Key
	for i := range keys {
		if keys[i] = named(); i < n/2 && i%2 == 0 {
			shared = append(shared, keys[i])
		} else if i < n/2 {
			keys[i] = keys[i-1]
		}
	}
	makeEntryRows(t, db, shared, false)
	makeEntryRows(t, db, keys[n/2:], true)
	held := make([]*lease.Lease, n)
	var group sync.WaitGroup
	const workers = 8
	for w := range workers {
		group.Go(func() {
			for i := w; i < n; i += workers {
				take := m.AcquireShared
				if i >= n/2 {
					take = func(ctx context.Context, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
						return permitOf(ctx, m, key, options...)
					}
				}
				var err error
				if held[i], err = take(context.Background(), keys[i], options...); err != nil {
					t.Errorf("lease %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return held
}

// lostOf counts those that are not held any more.
func lostOf(held []*lease.Lease) (n int, why error) {
	for _, l := range held {
		if err := l.Err(); err != nil {
			n, why = n+1, err
		}
	}
	return n, why
}

// TestManyKeysAreRenewedTogether proves that readers and permits of hundreds of keys, and
// of thousands with LOCKSTEP_LONG=1, starve no renewal, neither their own nor that of an
// exclusive lease with a shorter TTL; and that a round of all takes few statements.
// See TestMixedKeysAreRenewedTogether.
func TestManyKeysAreRenewedTogether(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for name, text := range map[string]bool{"prepared": false, "interpolated": true} {
			run(name, func(t *testing.T) {
				const ttl, every = 30 * time.Second, time.Second
				leases := testdb.Long(200, 3000)
				tap := new(wiretap)
				pool := newPool(t, db, !text, tap.install, func(c *mysql.Config) { c.InterpolateParams = text })
				m := newManager(t, pool, lease.TTL(ttl), lease.RenewEvery(every))
				held := takeMixed(t, db, m, leases)
				soonest := unhurried(t, m, 4*time.Second)
				urgent := acquire(t, m, named(), lease.TTL(soonest))
				before, begun := tap.count(), time.Now()
				lasts(soonest*5/4, func() bool { return leastLeft(held) > ttl-ttl/100-time.Since(begun) })
				if left, passed := leastLeft(held), time.Since(begun); left < ttl-ttl/100-passed {
					t.Errorf("%v are left of one after %v: not all were renewed", left, passed)
				}
				held = append(held, urgent)
				if n, why := lostOf(held); n > 0 {
					t.Errorf("%d of %d are lost: %v", n, len(held), why)
				}
				sent := tap.count() - before
				// A round takes a few batches of two statements, and the urgent one 2 of its own. Where
				// the server is slow, batches fail, are read again, and the rounds drift apart; but
				// none becomes a lease by itself.
				renewals := leases * int(time.Since(begun)/every)
				if most := renewals / 20; sent > most {
					t.Errorf("%d statements in %v, want at most %d: %.500q", sent, time.Since(begun), most, tap.last(3))
				}
				t.Logf("%d statements in %v", sent, time.Since(begun))
				release(t, urgent)
				releaseMany(t, held[:leases])
			})
		}
	})
}

// TestManyGuardedLeases proves that a transaction that guards many leases past their
// renewals makes the manager open no more connections than one that guards few: one waits
// for all of them. The manager's other leases are renewed meanwhile, and all of the
// guarded ones when the transaction has ended, long before their time is over.
func TestManyGuardedLeases(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for kind, guarded := range map[string]bool{"guarded": true, "plain": false} {
			const ttl, leases, most = 5 * soon, 60, 3
			tap := new(wiretap)
			pool, programs := newPool(t, db, guarded, tap.install), newPool(t, db, guarded)
			pool.SetMaxIdleConns(1)
			m := newManager(t, pool, lease.TTL(ttl), lease.RenewEvery(50*time.Millisecond))
			held, other := make([]*lease.Lease, leases), acquire(t, m, named())
			for i := range held {
				held[i] = acquire(t, m, named())
			}
			waitUntil(t, "the connections of before are closed", func() bool { return sessions(t, db) <= 2 })
			waiting := make(chan struct{}, leases)
			tap.hook(func(statement string, _ <-chan struct{}) error {
				if strings.Contains(statement, "name: LockLease ") {
					select {
					case waiting <- struct{}{}:
					default:
					}
				}
				return nil
			})
			tx := begin(t, programs, sql.LevelDefault)
			before := sessions(t, db)
			for _, l := range held {
				guard(t, l, tx)
			}
			within(t, kind+": a wait for a row", waiting)
			seen := int64(0)
			for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(10 * time.Millisecond) {
				seen = max(seen, sessions(t, db))
			}
			t.Logf("%s: %d sessions before, %d with %d guarded leases", kind, before, seen, leases)
			if seen > before+most {
				t.Errorf("%s: %d sessions with %d guarded leases, %d before", kind, seen, leases, before)
			}
			from := leastLeft(held)
			waitUntil(t, kind+": the other one is renewed", func() bool { return other.Remaining() > from+time.Second })
			commit(t, tx)
			ended := time.Now()
			waitUntil(t, kind+": all are renewed", func() bool { return leastLeft(held) > from+time.Second })
			t.Logf("%s: renewed after %v", kind, time.Since(ended))
			releaseMany(t, append(held, other))
			leaveNothing(t, db, []*lease.Manager{m, newManager(t, programs)}, []*sql.DB{pool, programs})
		}
	})
}

// TestWaitsLeaveSmallPools proves that a manager that waits for a row leaves the program
// its plain pool of few connections: its statements go through while a transaction of
// another pool guards the leases.
func TestWaitsLeaveSmallPools(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, size := range []int{1, 2, 3, 4} {
			pool, others := newPool(t, db, false), newPool(t, db, false)
			pool.SetMaxOpenConns(size)
			m := newManager(t, pool, lease.TTL(5*soon), lease.RenewEvery(50*time.Millisecond))
			held := make([]*lease.Lease, 5)
			for i := range held {
				held[i] = acquire(t, m, named())
			}
			tx := begin(t, others, sql.LevelDefault)
			for _, l := range held {
				guard(t, l, tx)
			}
			for begun := time.Now(); time.Since(begun) < 500*time.Millisecond; time.Sleep(10 * time.Millisecond) {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				if _, err := pool.ExecContext(ctx, "DO 1"); err != nil {
					t.Errorf("a pool of %d: a statement after %v: %v", size, time.Since(begun), err)
				}
				cancel()
			}
			from := leastLeft(held)
			commit(t, tx)
			waitUntil(t, "all are renewed", func() bool { return leastLeft(held) > from+500*time.Millisecond })
			releaseMany(t, held)
		}
	})
}

// TestLabelsOfAllSizes hands a lease on in a fair queue whose waiters have labels of all
// sizes: what InnoDB keeps for those who wait must not grow with the hand-overs, as it does
// where the queue row changes its size.
func TestLabelsOfAllSizes(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).Open(t)
		const waiters = 6
		key, granted := named(), make(chan *lease.Lease)
		held := acquire(t, newManager(t, newPool(t, db, true)), key)
		for i := range waiters {
			m := newManager(t, newPool(t, db, true))
			go func() {
				l, err := m.Acquire(t.Context(), key, lease.Fair(), lease.WithLabel(strings.Repeat("n", 1+40*i)))
				if err != nil {
					t.Error(err)
				}
				granted <- l
			}()
			// The first has the queue row, and looks again and again.
			if !testdb.Await(time.Minute, func() bool { waiting, _ := db.RowLocks(t); return len(waiting) == i }) {
				t.Fatalf("not %d wait", i)
			}
		}
		most := func() (n int) {
			waiting, _ := db.RowLocks(t)
			for _, id := range waiting {
				n = max(n, db.LockStructs(t, id))
			}
			return n
		}
		before := most()
		for i := range waiters {
			if n := most(); before == 0 || n > before {
				t.Errorf("who waits has %d structures of locks, and %d after %d holders", before, n, i)
			}
			release(t, held)
			if held = <-granted; held == nil {
				t.FailNow()
			}
		}
		release(t, held)
	})
}

// gathering is how many calls meet: more than are sent by a statement for each.
const gathering = 48

// gather makes keys with their rows.
func gather(t *testing.T, db *testdb.DB) []txlock.Key {
	t.Helper()
	keys := make([]txlock.Key, gathering)
	for i := range keys {
		keys[i] = named()
	}
	makeRows(t, db, keys)
	return keys
}

// atOnce calls f for each key, all at once.
func atOnce(keys []txlock.Key, f func(i int, key txlock.Key)) {
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { f(i, key) })
	}
	all.Wait()
}

// acquireAtOnce acquires all keys at once, each in its own way.
func acquireAtOnce(keys []txlock.Key, f func(i int, key txlock.Key) (*lease.Lease, error)) ([]*lease.Lease, []error) {
	held, errs := make([]*lease.Lease, len(keys)), make([]error, len(keys))
	atOnce(keys, func(i int, key txlock.Key) { held[i], errs[i] = f(i, key) })
	return held, errs
}

// cutWire is the network of a pool that counts the statements which acquire or release several
// leases, and breaks some after their answer, which the pool never hears.
type cutWire struct {
	name  string       // of the statements that are broken
	cuts  atomic.Int32 // how many are left to be broken
	count atomic.Int32 // of all
	mu    sync.Mutex
	cut   []string // those that were broken
}

func (w *cutWire) install(c *mysql.Config) {
	testdb.Losing(func(packet string) (lost, arrives bool) {
		if strings.Contains(packet, "name: AcquireMany ") || strings.Contains(packet, "name: ReleaseMany ") {
			w.count.Add(1)
		}
		if w.name == "" || !strings.Contains(packet, w.name) || w.cuts.Add(-1) < 0 {
			return false, true
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cut = append(w.cut, packet)
		return true, true
	})(c)
}

// has reports whether a broken statement was about the key.
func (w *cutWire) has(key txlock.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, statement := range w.cut {
		if strings.Contains(statement, hex.EncodeToString([]byte(key.String()))) {
			return true
		}
	}
	return false
}

// TestBatch proves that where many calls meet, each has the answer that it would have
// alone, whatever the others ask for: of its own TTL, of a key that somebody else has or
// whose row is locked, of one that is asked for twice, of a lease that is entered again, and
// of one that stays held for a while.
func TestBatch(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		wire := new(cutWire)
		pool := newPool(t, db, true, wire.install)
		pool.SetMaxIdleConns(gathering)
		m, other := newManager(t, pool), newManager(t, newPool(t, db, false))
		const busy, locked, twice, again, least = 0, 10, 20, 30, 40 // the one after twice is the same key
		for round := 0; round < 2 || wire.count.Load() < 4 && round < 100; round++ {
			keys := gather(t, db)
			keys[twice+1] = keys[twice]
			theirs := acquire(t, other, keys[busy])
			entered, err := other.Acquire(lease.WithOwner(t.Context(), "again"), keys[again])
			must(t, err)
			blocker := begin(t, db.Admin(), sql.LevelDefault)
			if _, err := blocker.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", keys[locked].String()); err != nil {
				t.Error(err)
			}
			held, errs := acquireAtOnce(keys, func(i int, key txlock.Key) (*lease.Lease, error) {
				ctx, options := t.Context(), []lease.AcquireOption{lease.TTL(time.Duration(i+60) * time.Second)}
				switch i {
				case again:
					ctx = lease.WithOwner(ctx, "again")
				case least:
					options = append(options, lease.HoldAtLeast(time.Hour))
				}
				return m.TryAcquire(ctx, key, options...)
			})
			wantsNone(t, "Rollback", blocker.Rollback())
			for i, err := range errs {
				refused := i == busy || i == locked || (i == twice || i == twice+1) && errs[twice+twice+1-i] == nil
				if refused != errors.Is(err, txlock.ErrBusy) || !refused && err != nil {
					t.Errorf("call %d: %v", i, err)
				}
				if err == nil && i != again {
					if ttl := number(t, db, "SELECT ttl_us FROM lockstep_leases WHERE name = ?", keys[i].String()); ttl != int64(i+60)*1e6 {
						t.Errorf("call %d: a TTL of %d us", i, ttl)
					}
				}
			}
			if l := held[again]; l != nil && l.Token() != entered.Token() {
				t.Errorf("entered again with token %d, not %d", l.Token(), entered.Token())
			}
			atOnce(keys, func(i int, _ txlock.Key) {
				if held[i] == nil {
					return
				}
				wantsNone(t, fmt.Sprintf("release %d", i), held[i].Release(t.Context()))
			})
			release(t, theirs)
			release(t, entered)
			for i, key := range keys {
				l, err := other.TryAcquire(t.Context(), key)
				if (i == least) != errors.Is(err, txlock.ErrBusy) || i != least && err != nil {
					t.Errorf("afterwards %d: %v", i, err)
				}
				if err == nil {
					release(t, l)
				}
			}
		}
		if n := wire.count.Load(); n < 4 {
			t.Errorf("%d statements for several are too few to prove anything", n)
		}
	})
}

// TestBatchCut proves that if the answer to a statement for several leases is lost, those
// that it acquires fail as one alone does, and are free again soon, and that those which it
// releases are released without an error.
func TestBatchCut(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for _, name := range []string{"AcquireMany", "ReleaseMany"} {
			run(name, func(t *testing.T) {
				wire := &cutWire{name: "name: " + name + " "}
				wire.cuts.Store(2)
				pool := newPool(t, db, true, wire.install)
				pool.SetMaxIdleConns(gathering)
				m, other := newManager(t, pool, lease.TTL(time.Hour)), newManager(t, newPool(t, db, false))
				for round := 0; wire.cuts.Load() > 0 && round < 100; round++ {
					keys := gather(t, db)
					held, errs := acquireAtOnce(keys, func(_ int, key txlock.Key) (*lease.Lease, error) { return m.TryAcquire(t.Context(), key) })
					for i, err := range errs {
						if lost := name == "AcquireMany" && wire.has(keys[i]); lost != (err != nil) {
							t.Errorf("acquire %d: %v, the answer is lost: %v", i, err, lost)
						}
					}
					atOnce(keys, func(i int, _ txlock.Key) {
						if held[i] == nil {
							return
						}
						wantsNone(t, fmt.Sprintf("release %d", i), held[i].Release(t.Context()))
					})
					for _, key := range keys {
						free(t, other, key)
					}
				}
				if len(wire.cut) == 0 {
					t.Error("no answer was lost")
				}
			})
		}
	})
}

// TestBatchAtRandom proves that many calls at once of several processes, some of which
// give up, while connections are killed, never make two holders nor a token that falls, and
// that all is free in the end.
func TestBatchAtRandom(t *testing.T) {
	lasting := testdb.Long(2*time.Second, 30*time.Second)
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		keys, holders, tokens := gather(t, db), make([]atomic.Int32, gathering), make([]atomic.Uint64, gathering)
		var managers []*lease.Manager
		var pools []*sql.DB
		wire := new(cutWire)
		for range 2 {
			pools = append(pools, newPool(t, db, true, wire.install))
			pools[len(pools)-1].SetMaxOpenConns(25)
			managers = append(managers, newManager(t, pools[len(pools)-1], lease.TTL(time.Hour)))
		}
		var over atomic.Bool
		var kills, grants atomic.Int64
		var work sync.WaitGroup
		for i := range 60 {
			work.Go(func() {
				for !over.Load() {
					at := rand.IntN(len(keys))
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(2000))*time.Millisecond)
					l, err := managers[i%2].TryAcquire(ctx, keys[at])
					cancel()
					if err != nil {
						continue
					}
					if n := holders[at].Add(1); n != 1 {
						t.Errorf("%d holders", n)
					}
					if last := tokens[at].Swap(l.Token()); last >= l.Token() {
						t.Errorf("token %d after %d", l.Token(), last)
					}
					grants.Add(1)
					holders[at].Add(-1)
					if err := l.Release(context.Background()); err != nil && !errors.Is(err, lease.ErrGuarded) && !errors.Is(err, context.DeadlineExceeded) { // it goes on
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		work.Go(func() {
			for !over.Load() {
				time.Sleep(rand.N(200 * time.Millisecond))
				kills.Add(killOne(t, db))
			}
		})
		enough := func() bool { return kills.Load() >= 10 && grants.Load() >= 50 && wire.count.Load() >= 4 }
		lasts(lasting, enough)
		over.Store(true)
		work.Wait()
		said := fmt.Sprintf("%d kills, %d grants, %d statements for several", kills.Load(), grants.Load(), wire.count.Load())
		if t.Log(said); !enough() {
			t.Errorf("too few to prove anything: %s", said)
		}
		pools = append(pools, newPool(t, db, false)) // without connections that are being killed
		managers = append(managers, newManager(t, pools[2]))
		for _, key := range keys {
			free(t, managers[2], key)
		}
		leaveNothing(t, db, managers, pools)
	})
}
