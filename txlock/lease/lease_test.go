package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestAcquireExcludes proves that one holds a lease at a time, that a refusal names the holder, that
// the next has a higher token, and that the key of a semaphore is no lease's.
func TestAcquireExcludes(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		one, other := newManager(t, pool), newManager(t, pool)
		key := named()
		l := acquire(t, one, key)
		for _, m := range []*lease.Manager{one, other} {
			_, err := m.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire of a held lease", err, txlock.ErrBusy)
			namesHolder(t, "TryAcquire of a held lease", err, key, infoOf(t, l, m))
		}
		wants(t, "Err", l.Err(), nil)
		release(t, l)
		wants(t, "Err after the release", l.Err(), txlock.ErrNotHeld)
		wants(t, "second Release", l.Release(t.Context()), nil)
		next := got(other.TryAcquire(t.Context(), key))(t)
		higher(t, next, l)
		release(t, next)
		permits := named()
		release(t, permit(t, semaphore(t, one, permits, 1)))
		wants(t, "TryAcquire of a semaphore", testdb.Err(one.TryAcquire(t.Context(), permits)), txlock.ErrInvalidKey)
	})
}

// oftenRenewed is a lease that no busy machine lets expire, and whose renewals come soon.
var oftenRenewed = []lease.ManagerOption{lease.TTL(time.Minute), lease.RenewEvery(50 * time.Millisecond)}

// renewed returns when the rows say that a lease of a key was renewed.
func renewed(t *testing.T, db *testdb.DB, l *lease.Lease) {
	t.Helper()
	last := func() int64 {
		return db.Number(t, "SELECT MAX(expires_us) FROM lockstep_leases WHERE name = ?", l.Key().String())
	}
	before := last()
	testdb.ErrorIf(t, !testdb.Await(soon, func() bool { return last() > before }), "the lease of %v is not renewed", l.Key())
}

// TestLimitSaysWhatWasSeen proves that the error of a limit names what was in the way.
func TestLimitSaysWhatWasSeen(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other, limit := db.manager(), db.manager(), lease.WaitAtMost(time.Second)
		shared, permits := txlock.Named("shared"), semaphore(t, m, txlock.Named("permits"), 1)
		acquireIn(lease.WithOwner(t.Context(), "somebody"), t, m, job, lease.WithLabel("zwölf\nlevel=ERROR\x1b[0m"))
		reader := share(t, m, shared)
		permit(t, permits)
		for _, c := range []struct {
			err  error
			says string
		}{
			{testdb.Err(other.Acquire(t.Context(), job, limit)), `after 1s owner "somebody" (zwölf\nlevel=ERROR\x1b[0m) had it`}, // in one line
			{testdb.Err(other.AcquireShared(t.Context(), job, limit)), `after 1s owner "somebody" (`},
			{testdb.Err(other.Acquire(t.Context(), shared, limit)), "readers had it"},
			{testdb.Err(permits.Acquire(t.Context(), limit)), "no permit was free"},
		} {
			wants(t, "the limit", c.err, txlock.ErrWaitTimeout)
			testdb.Fails(t, "the limit", c.err, c.says)
		}
		must(t, reader.Renew(t.Context()))
	})
}

// TestBadInput proves that options, keys, owners and texts out of their ranges are refused before anything is sent.
func TestBadInput(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.RenewEvery(5 * time.Second))
		pool, long := wire.Pool(), strings.Repeat("ä", 127)
		texts := []string{long + "ä", "\xff"}
		for i, options := range [][]lease.ManagerOption{
			{lease.TTL(lease.MinTTL - 1)}, {lease.TTL(0)}, {lease.TTL(-time.Second)}, {lease.TTL(lease.MaxTTL + 1)},
			{lease.TTL(time.Minute), lease.MaxLifetime(time.Minute - 1)}, {lease.MaxLifetime(-1)}, {lease.GuardGrace(-1)},
			{lease.WaitAtMost(0)}, {lease.WaitAtMost(-1)}, {lease.Poll(0, time.Second)}, {lease.Poll(2, 1)},
			{lease.RenewEvery(0)}, {lease.RenewEvery(-1)}, {lease.TTL(time.Minute), lease.RenewEvery(30*time.Second + 1)},
			{lease.RenewEvery(10 * time.Second), lease.TTL(time.Second)}, {lease.PurgeEvery(-1, time.Hour)}, {lease.PurgeEvery(lease.MinTTL-1, time.Hour)},
			{lease.PurgeEvery(lease.MaxTTL+1, time.Hour)}, {lease.PurgeEvery(time.Minute, time.Second-1)}, {lease.WithLabel(texts[0])}, {lease.WithLabel(texts[1])},
		} {
			wants(t, fmt.Sprint("NewManager with options ", i), testdb.Err(lease.NewManager(pool, options...)), txlock.ErrInvalidOption)
		}
		if _, err := lease.NewManager(nil); err == nil {
			t.Error("NewManager takes a nil pool")
		}
		for i, options := range [][]lease.ManagerOption{
			{lease.TTL(lease.MinTTL)}, {lease.TTL(lease.MaxTTL), lease.MaxLifetime(lease.MaxTTL), lease.RenewEvery(lease.MaxTTL / 2)},
			{lease.PurgeEvery(0, time.Second)}, {lease.Poll(1, 1), lease.WaitAtMost(1), lease.RenewEvery(1)},
		} {
			wants(t, fmt.Sprint("NewManager with good options ", i), testdb.Err(lease.NewManager(pool, options...)), nil)
		}

		refused := func(what string, calls map[string]error, want error) {
			t.Helper()
			for call, err := range calls {
				wants(t, call+" with "+what, err, want)
			}
		}
		for i, option := range []lease.AcquireOption{
			lease.TTL(-1), lease.TTL(lease.MinTTL - 1), lease.TTL(lease.MaxTTL + 1), lease.TTL(10*time.Second - 1), lease.MaxLifetime(29 * time.Second), lease.WaitAtMost(0),
			lease.HoldAtLeast(0), lease.HoldAtLeast(-1), lease.HoldAtLeast(-time.Hour), lease.HoldAtLeast(lease.MaxTTL + 1), lease.WithLabel(texts[0]), lease.WithLabel(texts[1]),
		} {
			refused(fmt.Sprint("option ", i), allCalls(t.Context(), m, nil, job, option), txlock.ErrInvalidOption)
		}
		for _, owner := range []string{"", strings.Repeat("o", 256), store.Released + "ann"} {
			refused("owner "+owner, allCalls(lease.WithOwner(t.Context(), owner), m, nil, job), txlock.ErrInvalidOption)
		}
		for _, key := range []txlock.Key{{}, txlock.Named(""), txlock.Named(strings.Repeat("k", 256))} {
			refused("key "+key.String(), allCalls(t.Context(), m, nil, key), txlock.ErrInvalidKey)
		}
		refused("no key", keyCalls(t.Context(), m, txlock.Key{}), txlock.ErrInvalidKey)
		wants(t, "AcquireAll of none", testdb.Err(m.AcquireAll(t.Context(), nil)), txlock.ErrInvalidKey)
		wants(t, "AcquireShared", testdb.Err(m.AcquireShared(t.Context(), job, lease.HoldAtLeast(time.Second))), txlock.ErrInvalidOption)
		wants(t, "TryAcquireShared", testdb.Err(m.TryAcquireShared(t.Context(), job, lease.HoldAtLeast(time.Second))), txlock.ErrInvalidOption)
		for _, text := range texts {
			wants(t, "RequestRelease", m.RequestRelease(t.Context(), job, text), txlock.ErrInvalidOption)
		}
		testdb.ErrorIf(t, m.Do(t.Context(), job, nil) == nil || m.TryDo(t.Context(), job, nil) == nil, "Do, or TryDo, takes a nil function")
		testdb.Equal(t, "calls that were sent", wire.total(), 0)

		l := acquire(t, m, job, lease.WithLabel(long+"x"))
		must(t, m.RequestRelease(t.Context(), job, long+"y"))
		info := inspect(t, m, job)
		testdb.ErrorIf(t, info.Label != long+"x" || info.ReleaseReason != long+"y" || info.ReleaseRequestedAt.IsZero(), "%+v", info)
		release(t, l)
	})
}

// allCalls makes all the calls that acquire.
func allCalls(ctx context.Context, m *lease.Manager, tx *sql.Tx, key txlock.Key, options ...lease.AcquireOption) map[string]error {
	return map[string]error{
		"Acquire":       testdb.Err(m.Acquire(ctx, key, options...)),
		"TryAcquire":    testdb.Err(m.TryAcquire(ctx, key, options...)),
		"AcquireTx":     testdb.Err(m.AcquireTx(ctx, tx, key, options...)),
		"Do":            m.Do(ctx, key, noWork, options...),
		"AcquireAll":    testdb.Err(m.AcquireAll(ctx, []txlock.Key{named(), key}, options...)),
		"TryAcquireAll": testdb.Err(m.TryAcquireAll(ctx, []txlock.Key{named(), key}, options...)),
	}
}

// keyCalls makes all other calls that need a key.
func keyCalls(ctx context.Context, m *lease.Manager, key txlock.Key) map[string]error {
	return map[string]error{
		"Inspect": testdb.Err(m.Inspect(ctx, key)), "ForceRelease": m.ForceRelease(ctx, key), "RequestRelease": m.RequestRelease(ctx, key, ""),
	}
}

// TestTablesMissing proves that without the tables every call says so, and how to
// make them, and that nothing goes on in the background.
func TestTablesMissing(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		db.Grant(t, db.CreateTable(t, "other", "id INT PRIMARY KEY"))
		pool := newPool(t, db, true)
		db.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON `"+db.Name()+"`.* TO '"+db.Config().User+"'@'%', '"+db.Config().User+"'@'localhost'")
		m := newManager(t, pool)
		tx := begin(t, pool, sql.LevelDefault)
		calls := allCalls(t.Context(), m, tx, named())
		wants(t, "Rollback", tx.Rollback(), nil)
		maps.Copy(calls, keyCalls(t.Context(), m, named()))
		calls["List"], calls["Purge"] = testdb.Err(m.List(t.Context())), testdb.Err(m.Purge(t.Context()))
		for call, err := range calls {
			wants(t, call, err, txlock.ErrSchema)
		}
	})
}

// TestBatchAtRandom proves that many calls at once of several processes, some of which
// give up, while connections are killed, never make two holders nor a token that falls, and
// that all is free in the end.
func TestBatchAtRandom(t *testing.T) {
	lasting := testdb.Long(2*time.Second, 30*time.Second)
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		const n = 48
		keys, holders, tokens := manyNamed(n), make([]atomic.Int32, n), make([]atomic.Uint64, n)
		makeRows(t, db, keys)
		var managers []*lease.Manager
		var pools []*sql.DB
		tap := new(wiretap)
		var kills, grants, together atomic.Int64
		for _, several := range []string{"name: AcquireMany ", "name: ReleaseMany "} {
			tap.before(several, func(string) { together.Add(1) })
		}
		for range 2 {
			pools = append(pools, newPool(t, db, true, tap.install(t)))
			pools[len(pools)-1].SetMaxOpenConns(25)
			managers = append(managers, newManager(t, pools[len(pools)-1], lease.TTL(time.Hour)))
		}
		var over atomic.Bool
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
					testdb.Equal(t, "holders", holders[at].Add(1), 1)
					last := tokens[at].Swap(l.Token())
					testdb.ErrorIf(t, last >= l.Token(), "token %d after %d", l.Token(), last)
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
		enough := func() bool { return kills.Load() >= 10 && grants.Load() >= 50 && together.Load() >= 4 }
		lasts(lasting, enough)
		over.Store(true)
		work.Wait()
		said := fmt.Sprintf("%d kills, %d grants, %d statements for several", kills.Load(), grants.Load(), together.Load())
		t.Log(said)
		testdb.ErrorIf(t, !enough(), "too few to prove anything: %s", said)
		pools = append(pools, newPool(t, db, false)) // without connections that are being killed
		managers = append(managers, newManager(t, pools[2]))
		for _, key := range keys {
			free(t, managers[2], key)
		}
		leaveNothing(t, db, managers, pools)
	})
}

// killOne kills one of the application's sessions, if there is any that hasn't gone by itself, and returns how many it has killed.
func killOne(t *testing.T, db *testdb.DB) int64 {
	var id int64
	err := db.Admin().QueryRow("SELECT id FROM "+db.Engine().Processes()+" WHERE user = ? ORDER BY RAND() LIMIT 1", db.Config().User).Scan(&id)
	testdb.ErrorIf(t, err != nil && !errors.Is(err, sql.ErrNoRows), "%v", err)
	if err == nil {
		_, err = db.Admin().Exec(fmt.Sprintf("KILL CONNECTION %d", id))
	}
	if err != nil {
		return 0
	}
	return 1
}

// bounded is how long a transaction that stands still may keep a lease of a second, on a
// machine that delays nothing: its time, the grace, and ten times what the rest needs.
const bounded = time.Second + 5*time.Second + 10*time.Second

// TestOpenTransactionsAreBounded proves that a transaction that stays open keeps a lease no longer
// than its TTL and the grace, by every row that it can keep locked: of a reader, of a permit, and
// of a lease that it has acquired itself, also for the first time in the life of the key. Then its
// session is ended, and its Commit fails.
func TestOpenTransactionsAreBounded(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for name, c := range map[string]struct{ holds, wants verb }{ // nil: by AcquireTx
			"reader": {shared, exclusive}, "permit": {permitOf, permitOf}, "AcquireTx": {nil, exclusive}, "AcquireTx and readers": {nil, shared},
		} {
			run(name, func(t *testing.T) {
				key := named()
				holder, other := newManager(t, pool, lease.TTL(time.Second)), newManager(t, newPool(t, db, false))
				if name == "AcquireTx" {
					release(t, acquire(t, holder, key))
				}
				var tx *sql.Tx
				holds := func() error {
					tx = begin(t, pool, sql.LevelDefault)
					if c.holds == nil {
						return testdb.Err(holder.AcquireTx(t.Context(), tx, key))
					}
					l, err := c.holds(t.Context(), holder, key)
					if err == nil {
						err = l.Guard(t.Context(), tx)
					}
					return err
				}
				err := holds()
				for ; errors.Is(err, txlock.ErrLost); err = holds() { // a busy machine has let its second pass
					rollback(t, tx)
				}
				must(t, err)
				ctx, delays, start := limited(t, soon), testdb.Delays(t), time.Now()
				l := got(c.wants(ctx, other, key))(t)
				took := time.Since(start)
				testdb.ErrorIf(t, took > bounded+delays(), "free after %v", took)
				testdb.ErrorIf(t, tx.Commit() == nil, "the transaction was committed all the same")
				release(t, l)
			})
		}
	})
}

// TestGuardInTimeIsLeftAlone proves that a transaction that is open for less than the
// grace after its lease commits, while somebody waits.
func TestGuardInTimeIsLeftAlone(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key, table := named(), counter(t, db)
		pool.SetMaxOpenConns(1) // whatever follows is in the session that has guarded
		m := newManager(t, pool)
		l := acquire(t, m, key, lease.TTL(unhurried(t, m, 2*time.Second)))
		tx := begin(t, pool, sql.LevelDefault)
		add(t, tx, table)
		guard(t, l, tx)
		waiting := fairAcquire(t, newManager(t, newPool(t, db, true)), key)
		within(t, "the end of the lease", l.Done())
		// The time is what is tested: that of a transaction which is a little late.
		<-time.After(2 * time.Second)
		commit(t, tx)
		release(t, waiting.lease(t))
		counts(t, db, table, 1)
	})
}

// TestBlockedBySession proves that the session in the way is named where it can't be ended
// yet, and where it can't be ended by this user: by the errors of those who wait, who try, and
// who release by force.
func TestBlockedBySession(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		holder := newManager(t, db.Admin())
		l := acquire(t, holder, key, lease.TTL(unhurried(t, holder, 2*time.Second)))
		tx := begin(t, db.Admin(), sql.LevelDefault)
		var session uint64
		must(t, tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&session))
		guard(t, l, tx)
		within(t, "the end of the lease", l.Done())
		m := newManager(t, newPool(t, db, true))
		waitUntil(t, "the lease is over by the server's clock", func() bool {
			info, err := m.Inspect(t.Context(), key)
			return err == nil && !info.Held
		})
		who, killIt := fmt.Sprintf("session %d ", session), fmt.Sprintf("KILL %d", session)
		wait := func(limit time.Duration) error {
			return testdb.Err(m.Acquire(t.Context(), key, lease.WaitAtMost(limit)))
		}
		force := func(limit time.Duration) error { return m.ForceRelease(limited(t, limit), key) }
		// What a call has to see before its limit takes as long as the machine needs.
		for _, c := range []struct {
			what string
			call func(limit time.Duration) error
			from time.Duration
			want error // nil for any
			says string
		}{
			{"TryAcquire", func(time.Duration) error { return testdb.Err(m.TryAcquire(t.Context(), key)) }, soon / 2, txlock.ErrBusy, who},
			{"Acquire", wait, 500 * time.Millisecond, txlock.ErrWaitTimeout, who},
			{"ForceRelease that is cancelled", force, 500 * time.Millisecond, context.DeadlineExceeded, who},
			{"Acquire after the grace", wait, 2 * time.Second, txlock.ErrWaitTimeout, killIt},
			{"ForceRelease", force, soon / 2, nil, killIt},
		} {
			err := c.call(c.from)
			for limit := 2 * c.from; err != nil && !strings.Contains(err.Error(), c.says) && limit < soon; limit *= 2 {
				err = c.call(limit)
			}
			testdb.Fails(t, c.what, err, who, c.says)
			testdb.ErrorIf(t, c.want != nil && !errors.Is(err, c.want), "%s: %v, want %v", c.what, err, c.want)
		}
		db.Kill(t, int64(session))
		release(t, fairAcquire(t, m, key).lease(t))
	})
}

// TestGuardOfAnotherDatabase proves that Guard in a transaction of another database says so, and that the
// lease stays held and guards a transaction of its own database afterwards.
func TestGuardOfAnotherDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, foreign := newPool(t, db, true), newPool(t, testdb.Shared(t, db.Engine()).OpenLeases(t), true)
		for name, acquire := range map[string]verb{"lease": exclusive, "reader": shared} {
			l := got(acquire(t.Context(), newManager(t, pool), named()))(t)
			tx := begin(t, foreign, sql.LevelDefault)
			wants(t, name, l.Guard(t.Context(), tx), lease.ErrOtherDatabase)
			rollback(t, tx)
			tx = begin(t, pool, sql.LevelDefault)
			guard(t, l, tx)
			commit(t, tx)
			wants(t, "Guard of a transaction that is over", l.Guard(t.Context(), tx), txlock.ErrNoTransaction)
			wants(t, "Guard of nil", l.Guard(t.Context(), nil), txlock.ErrNoTransaction)
			release(t, l)
		}
	})
}

// TestGuardLostOnFullPool proves that a Guard that has failed says so also where the pool
// has no connection left to look at the lease by, and that the handle hears of the loss
// when there is one again.
func TestGuardLostOnFullPool(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		pool.SetMaxOpenConns(1)
		l := acquire(t, newManager(t, pool), key)
		must(t, newManager(t, newPool(t, db, true)).ForceRelease(t.Context(), key))
		tx := begin(t, pool, sql.LevelDefault)
		wants(t, "Guard of a lease that was taken away", l.Guard(t.Context(), tx), txlock.ErrLost)
		rollback(t, tx)
		within(t, "the loss", l.Done())
		wants(t, "the handle", l.Err(), txlock.ErrLost)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestNoInnocentSessionIsEnded proves that nobody's session is ended whose transaction has
// nothing to do with the lease: its holder's, which was never guarded and is long over,
// goes on with other work on the connection that has acquired it, while others try to take
// the lease, and an AcquireTx that was refused has its row locked.
func TestNoInnocentSessionIsEnded(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		key, table := named(), counter(t, db)
		pool, holders := newPool(t, db, guarded), newPool(t, db, guarded)
		holders.SetMaxOpenConns(1) // whatever follows is in the session that has acquired
		l := acquire(t, newManager(t, holders, lease.TTL(time.Second)), key, lease.MaxLifetime(time.Second))
		session := testdb.ConnID(t, holders)
		within(t, "the end of the lease", l.Done())
		working := begin(t, holders, sql.LevelDefault)
		add(t, working, table)

		others := newManager(t, newPool(t, db, true))
		refused := newManager(t, pool)
		var tries atomic.Int64
		for range 5 {
			tx := begin(t, pool, sql.LevelRepeatableRead)
			reads(t, tx, table)
			db.Exec(t, "UPDATE lockstep_leases SET owner = 'over', holders = ';over', token = token + 1, expires_us = 1, conn_id = ? WHERE name = ? AND slot = 0",
				session, key.String())
			wants(t, "AcquireTx after the snapshot", testdb.Err(refused.AcquireTx(t.Context(), tx, key)), txlock.ErrStaleSnapshot)
			ctx, stop := context.WithCancel(t.Context())
			var trying sync.WaitGroup
			for range 8 {
				trying.Go(func() {
					for ctx.Err() == nil {
						tries.Add(1)
						l, err := others.TryAcquire(t.Context(), key)
						if err == nil {
							err = l.Release(t.Context())
						}
						// To a busy machine the row may look locked all the time. It is released later then.
						testdb.ErrorIf(t, err != nil && !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, lease.ErrGuarded), "TryAcquire: %v", err)
					}
				})
			}
			before := tries.Load()
			lasts(60*time.Millisecond, func() bool { return tries.Load() > before+16 })
			rollback(t, tx)
			before = tries.Load()
			lasts(20*time.Millisecond, func() bool { return tries.Load() > before+8 })
			stop()
			trying.Wait()
		}
		commit(t, working)
		counts(t, db, table, 1)
	})
}
