package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// wiretap has functions called before a pool sends statements that contain a text.
type wiretap struct{ on sync.Map }

func (w *wiretap) before(text string, call func(statement string)) { w.on.Store(text, call) }

// install makes it the network of a pool.
func (w *wiretap) install(t testing.TB) func(*mysql.Config) {
	_, network := testdb.Rewritten(t, func(statement string) string {
		w.on.Range(func(text, call any) bool {
			if strings.Contains(statement, text.(string)) {
				call.(func(string))(statement)
			}
			return true
		})
		return statement
	})
	return network
}

// waitUntil waits for a state.
func waitUntil(t testing.TB, what string, is func() bool) {
	t.Helper()
	testdb.FatalIf(t, !testdb.Await(soon, is), "waited in vain until %s", what)
}

// renewedFromNow returns what reports whether the lease was renewed since then. What is left
// may be nearly all now and whenever it is asked: its end alone shows it.
func renewedFromNow(l *lease.Lease) func() bool {
	left := l.Remaining()
	end := time.Now().Add(left)
	return func() bool { return time.Now().Add(l.Remaining()).After(end) }
}

// TestRenewalsLeaveStrangersAlone proves that a renewal of many leases locks no row of another manager that
// lies in between theirs, nor a gap in which others make rows.
func TestRenewalsLeaveStrangersAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const leases = 60
		ctx, tap, pool := t.Context(), new(wiretap), newPool(t, db, true)
		ours, theirs := newManager(t, newPool(t, db, true, tap.install(t)), lease.RenewEvery(250*time.Millisecond)), newManager(t, pool)
		var mine, strange []*lease.Lease
		for range leases { // their names are random
			mine, strange = append(mine, acquire(t, ours, named())), append(strange, acquire(t, theirs, named()))
		}
		renewal := make(chan string, 1)
		tap.before("name: RenewMany ", func(statement string) {
			select {
			case renewal <- statement:
			default:
			}
		})
		statement := within(t, "a renewal", renewal)
		locked := func(in *sql.Tx, l *lease.Lease) bool {
			err := in.QueryRowContext(ctx, "SELECT 1 FROM lockstep_leases WHERE name = ? AND slot = 0 FOR UPDATE SKIP LOCKED", l.Key().String()).Scan(new(int))
			return errors.Is(err, sql.ErrNoRows)
		}
		var open *sql.Tx
		waitUntil(t, "the renewal has locked rows", func() (some bool) { // it skips those that the manager renews just then
			open = begin(t, pool, sql.LevelReadCommitted)
			must(t, testdb.Err(open.ExecContext(ctx, statement)))
			look := begin(t, pool, sql.LevelReadCommitted)
			some = slices.ContainsFunc(mine, func(l *lease.Lease) bool { return locked(look, l) })
			if rollback(t, look); !some {
				rollback(t, open)
			}
			return some
		})
		probe := begin(t, pool, sql.LevelReadCommitted)
		for _, l := range strange {
			testdb.ErrorIf(t, locked(probe, l), "a renewal has locked the stranger's %v", l.Key())
		}
		must(t, testdb.Err(probe.ExecContext(ctx, "SET innodb_lock_wait_timeout = 1")))
		for range leases {
			run(t, probe, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES ('"+named().String()+"', 0, '-', '', 0, 0, 0, 0, 0)")
		}
		rollback(t, probe)
		must(t, testdb.Err(pool.ExecContext(ctx, "SET innodb_lock_wait_timeout = DEFAULT")))
		rollback(t, open)
		releaseMany(t, append(mine, strange...))
	})
}

// releaseMany releases leases side by side.
func releaseMany(t testing.TB, leases []*lease.Lease) {
	t.Helper()
	var group sync.WaitGroup
	const workers = 8
	for w := range workers {
		group.Go(func() {
			for i := w; i < len(leases); i += workers {
				wants(t, "Release", leases[i].Release(context.Background()), nil)
			}
		})
	}
	group.Wait()
}

// makeRows makes the rows of leases that were leased before, by few statements.
func makeRows(t testing.TB, db *testdb.DB, keys []txlock.Key) {
	t.Helper()
	const batch = 1000
	for from := 0; from < len(keys); from += batch {
		part := keys[from:min(from+batch, len(keys))]
		values, names := make([]string, len(part)), make([]any, len(part))
		for i, key := range part {
			values[i], names[i] = "(?, 0, '-', '', 0, 0, 0, 0, 0)", key.String()
		}
		db.Exec(t, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES "+strings.Join(values, ", "), names...)
	}
}

// acquireMany acquires leases side by side.
func acquireMany(t testing.TB, m *lease.Manager, keys []txlock.Key, held []*lease.Lease) {
	t.Helper()
	const workers = 8
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := w; i < len(keys); i += workers {
				var err error
				if held[i], err = m.TryAcquire(context.Background(), keys[i]); err != nil {
					errs <- fmt.Errorf("lease %d: %w", i, err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		must(t, <-errs)
	}
}

// leastLeft is the least that is left of any.
func leastLeft(held []*lease.Lease) time.Duration {
	least := lease.MaxTTL
	for _, l := range held {
		least = min(least, l.Remaining())
	}
	return least
}

const (
	ttl   = 30 * time.Second
	valid = ttl - ttl/100 - 2*time.Millisecond // for how long it counts without a renewal
)

// TestRenewalsAreDue proves when leases are renewed: after a third of their TTL,
// or at the interval that is set, and those that are due soon with those that are due now.
func TestRenewalsAreDue(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []lease.ManagerOption
		ttls    []time.Duration // one lease every 4 seconds
		until   time.Duration
		want    []time.Duration // in seconds
	}{
		{"a third of the time to live", nil, []time.Duration{ttl}, 45 * time.Second, []time.Duration{10, 20, 30, 40}},
		{"the interval that is set", []lease.ManagerOption{lease.RenewEvery(2 * time.Second)}, []time.Duration{ttl}, 7 * time.Second, []time.Duration{2, 4, 6}},
		{"together", nil, []time.Duration{ttl, ttl}, 35 * time.Second, []time.Duration{10, 20, 30}},
		{"a long time to live", nil, []time.Duration{10 * time.Minute}, 9 * time.Minute, []time.Duration{200, 400}},
		{"together from the second time", nil, []time.Duration{ttl, 2 * ttl, ttl}, 39 * time.Second, []time.Duration{10, 18, 28, 38}},
	} {
		runInMemory(t, c.name, func(t *testing.T, db *memory) {
			m, wire := db.process(c.options...)
			for i, ttl := range c.ttls {
				db.after(time.Duration(i) * 4 * time.Second)
				defer release(t, acquire(t, m, txlock.Named(fmt.Sprint(i)), lease.TTL(ttl)))
			}
			db.after(c.until)
			wire.seconds(t, "RenewMany", c.want...)
		})
	}
}

// TestUrgentRenewalFirst proves that what is urgent is renewed before what is due with it,
// and by a statement of its own.
func TestUrgentRenewalFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		patient, urgent := txlock.Named("a"), txlock.Named("b")
		defer release(t, acquire(t, m, patient, lease.TTL(30*time.Second)))
		db.after(9 * time.Second)
		defer release(t, acquire(t, m, urgent, lease.TTL(3*time.Second)))
		wire.fault("RenewMany", slow(100*time.Millisecond))
		db.after(10*time.Second + 500*time.Millisecond)
		var keys []string
		for _, s := range wire.calls("RenewMany") {
			keys = append(keys, s.at.Key)
		}
		want := []string{urgent.String(), patient.String()}
		testdb.ErrorIf(t, !slices.Equal(keys, want), "renewed %v, want %v", keys, want)
	})
}

// TestFailedRenewalIsTriedAgain proves that a renewal which has failed is tried again
// sooner, and the sooner the less is left, and that one that succeeds is enough.
func TestFailedRenewalIsTriedAgain(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("RenewMany", fails)
		db.after(12500 * time.Millisecond)
		wire.fault("RenewMany", nil)
		db.after(24 * time.Second)
		wire.seconds(t, "RenewMany", 10, 11, 12, 13, 23)
		wire.fault("RenewMany", fails)
		<-l.Done()
		db.at("lost", 23*time.Second+valid)
		all := wire.times("RenewMany")
		left := 23*time.Second + valid - all[len(all)-1]
		testdb.ErrorIf(t, left > 10*time.Millisecond, "the last attempt was %v before the loss", left)
		for i := 6; i < len(all); i++ {
			testdb.ErrorIf(t, all[i]-all[i-1] > time.Second || all[i]-all[i-1] < time.Millisecond, "an attempt %v after the one before it", all[i]-all[i-1])
		}
	})
}

// TestLossAtTheDeadline proves that a lease that can't be renewed is lost a little before
// the server lets anybody else in, whatever its handle is asked, and says why.
func TestLossAtTheDeadline(t *testing.T) {
	for _, ttl := range []time.Duration{lease.MinTTL, 100 * time.Millisecond, time.Second, 30 * time.Second, time.Hour} {
		runInMemory(t, ttl.String(), func(t *testing.T, db *memory) {
			m, wire := db.process(lease.TTL(ttl))
			l := acquire(t, m, job)
			working := contextOf(t, l)
			wire.fault("RenewMany", func(ctx context.Context, _ string, _ store.Row, _ func() error) error {
				if l.Remaining() < ttl/10 {
					<-ctx.Done() // which says less than what the server has told before
					return ctx.Err()
				}
				return mysql.ErrInvalidConn
			})
			valid := ttl - ttl/100 - 2*time.Millisecond
			db.after(valid - 1)
			err := errors.Join(l.Err(), working.Err())
			testdb.ErrorIf(t, err != nil || done(l) || l.Remaining() != 1, "just before the deadline: %v, left %v, done %t", err, l.Remaining(), done(l))
			<-working.Done()
			db.at("lost", valid)
			wants(t, "Err", l.Err(), txlock.ErrLost, mysql.ErrInvalidConn)
			wants(t, "the cause", context.Cause(working), l.Err())
			testdb.ErrorIf(t, !done(l) || l.Remaining() != 0 || l.Valid(), "done %t, left %v, valid %t", done(l), l.Remaining(), l.Valid())
			wire.Up()
			wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
			time.Sleep(ttl)
			wire.sends(t, "Release", 1)
		})
	}
}

// TestDeadlineCountsFromTheRequest proves that the time of a renewed lease counts from when the
// renewal was sent: the server may have executed it then, however late it answers.
func TestDeadlineCountsFromTheRequest(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("RenewMany", answersLate(5*time.Second)) // sent after 10 s
		db.after(16 * time.Second)
		wire.Down(nil)
		defer wire.Up()
		<-l.Done()
		db.at("lost", 10*time.Second+valid)
	})
}

// TestAnswerAtTheDeadline proves that a renewal that is answered at the very deadline leaves
// the lease lost, whoever notes it first.
func TestAnswerAtTheDeadline(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		for n := range 50 {
			wire.Up()
			l := acquire(t, m, txlock.Named(fmt.Sprint(n)))
			wire.fault("RenewMany", answersLate(valid-10*time.Second)) // sent after 10 s
			time.Sleep(valid)
			synctest.Wait()
			wants(t, "after the answer", l.Err(), txlock.ErrLost)
			wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		}
	})
}

// TestLifetimeEnds proves that a lease ends at its maximum lifetime, although it is renewed,
// with ErrLost and the reason, and is free then; and that it is not renewed further.
func TestLifetimeEnds(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job, lease.MaxLifetime(100*time.Second))
		next := later(func() *lease.Lease { return acquire(t, db.manager(), job, lease.Fair()) })
		db.after(99 * time.Second)
		must(t, l.Renew(t.Context()))
		<-l.Done()
		db.at("over", 100*time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		err := l.Err()
		testdb.ErrorIf(t, !strings.Contains(err.Error(), "maximum lifetime"), "%v", err)
		wire.seconds(t, "RenewMany", 10, 20, 30, 40, 50, 60, 70, 80) // with which it has its lifetime
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
		release(t, <-next)
		db.within("free", 100*time.Second, 101*time.Second)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestRenewalFindsTheLoss proves that the next renewal finds that a lease was taken away,
// and that Renew finds it at once.
func TestRenewalFindsTheLoss(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, operator := db.manager(), db.manager()
		l := acquire(t, m, job)
		working := contextOf(t, l)
		must(t, operator.ForceRelease(t.Context(), job))
		must(t, l.Err())
		<-l.Done()
		db.at("found", 10*time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		wants(t, "the cause", context.Cause(working), lease.ErrReplaced)

		l = acquire(t, m, job)
		must(t, operator.ForceRelease(t.Context(), job))
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost, lease.ErrReplaced)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestRenewBehindALongRenewal: who waits for the renewal that is under way sends its own behind it,
// even if that is after the moment at which the lease would have ended.
func TestRenewBehindALongRenewal(t *testing.T) {
	for op, send := range map[string]func(ctx context.Context, l *lease.Lease) error{
		"Renew": func(ctx context.Context, l *lease.Lease) error { return l.Renew(ctx) },
		"Raise": func(ctx context.Context, l *lease.Lease) error { return inner.RaiseToken(ctx, l, l.Token()+7) },
	} {
		runInMemory(t, op, func(t *testing.T, db *memory) {
			m, wire := db.process(lease.Observe(func(_ context.Context, e txlock.Event) {
				if e.Kind == txlock.Renewed {
					db.after(32 * time.Second) // so long it hears of the first
				}
			}))
			l := acquire(t, m, job)
			wire.fault("RenewMany", times(1, answersLate(5*time.Second))) // at 10 s, for 30 s
			db.after(12 * time.Second)
			err := send(t.Context(), l)
			testdb.ErrorIf(t, err != nil, "%v", err)
			wire.seconds(t, op, 32)
			release(t, l)
		})
	}
}

// TestLoadOfWaiters proves that of 50 goroutines of a manager that wait for one lease one asks the server.
func TestLoadOfWaiters(t *testing.T) {
	for how, c := range map[string]struct {
		acquire verb
		most    int // calls in a minute
	}{"fair": {fairly, 3600}, "poll": {exclusive, 300}} {
		runInMemory(t, how, func(t *testing.T, db *memory) {
			held := acquire(t, db.manager(), job)
			m, wire := db.process()
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { wants(t, "a waiter", c.acquire.released(ctx, m, job), context.Canceled) })
			}
			time.Sleep(10 * time.Second) // the pauses have grown
			before := wire.total()
			time.Sleep(time.Minute)
			n := wire.total() - before
			testdb.ErrorIf(t, n > c.most || n < 60, "%d calls in a minute", n)
			cancel()
			all.Wait()
			release(t, held)
		})
	}
}
