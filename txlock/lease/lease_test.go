package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
		wantsNone(t, "Err", l.Err())
		release(t, l)
		wants(t, "Err after the release", l.Err(), txlock.ErrNotHeld)
		wantsNone(t, "second Release", l.Release(t.Context()))
		next := mustLease(t)(other.TryAcquire(t.Context(), key))
		higher(t, next, l)
		release(t, next)
		permits := named()
		release(t, permit(t, semaphore(t, one, permits, 1)))
		wants(t, "TryAcquire of a semaphore", second(one.TryAcquire(t.Context(), permits)), txlock.ErrInvalidKey)
	})
}

// oftenRenewed is a lease that no busy machine lets expire, and whose renewals come soon.
var oftenRenewed = []lease.ManagerOption{lease.TTL(time.Minute), lease.RenewEvery(50 * time.Millisecond)}

// renewed returns when the rows say that a lease of a key was renewed.
func renewed(t *testing.T, db *testdb.DB, l *lease.Lease) {
	t.Helper()
	last := func() int64 {
		return number(t, db, "SELECT MAX(expires_us) FROM lockstep_leases WHERE name = ?", l.Key().String())
	}
	before := last()
	if !testdb.Await(soon, func() bool { return last() > before }) {
		t.Errorf("the lease of %v is not renewed", l.Key())
	}
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
			{second(other.Acquire(t.Context(), job, limit)), `after 1s owner "somebody" (zwölf\nlevel=ERROR\x1b[0m) had it`}, // in one line
			{second(other.AcquireShared(t.Context(), job, limit)), `after 1s owner "somebody" (`},
			{second(other.Acquire(t.Context(), shared, limit)), "readers had it"},
			{second(permits.Acquire(t.Context(), limit)), "no permit was free"},
		} {
			wants(t, "the limit", c.err, txlock.ErrWaitTimeout)
			says(t, c.err, c.says)
		}
		must(t, reader.Renew(t.Context()))
	})
}

// nowhere is a pool that would fail if anything was sent.
func nowhere(t *testing.T) *sql.DB {
	t.Helper()
	pool, err := sql.Open("mysql", "nobody@tcp(127.0.0.1:1)/none")
	must(t, err)
	t.Cleanup(func() {
		wantsNone(t, "Close", pool.Close())
	})
	return pool
}

// TestBadManagerOptions proves that a manager with an option out of its range is
// refused.
func TestBadManagerOptions(t *testing.T) {
	t.Parallel()
	pool := nowhere(t)
	for name, options := range map[string][]lease.ManagerOption{
		"TTL too short":                  {lease.TTL(lease.MinTTL - 1)},
		"TTL of nothing":                 {lease.TTL(0)},
		"TTL below nothing":              {lease.TTL(-time.Second)},
		"TTL too long":                   {lease.TTL(lease.MaxTTL + 1)},
		"MaxLifetime under the TTL":      {lease.TTL(time.Minute), lease.MaxLifetime(time.Minute - 1)},
		"MaxLifetime below nothing":      {lease.MaxLifetime(-1)},
		"GuardGrace below nothing":       {lease.GuardGrace(-1)},
		"WaitAtMost nothing":             {lease.WaitAtMost(0)},
		"WaitAtMost below nothing":       {lease.WaitAtMost(-1)},
		"RenewEvery nothing":             {lease.RenewEvery(0)},
		"RenewEvery below nothing":       {lease.RenewEvery(-1)},
		"RenewEvery over half a TTL":     {lease.TTL(time.Minute), lease.RenewEvery(30*time.Second + 1)},
		"RenewEvery, and a late TTL":     {lease.RenewEvery(10 * time.Second), lease.TTL(time.Second)},
		"Poll of nothing":                {lease.Poll(0, time.Second)},
		"Poll that shrinks":              {lease.Poll(2, 1)},
		"PurgeEvery below nothing":       {lease.PurgeEvery(-1, time.Hour)},
		"PurgeEvery without a pause":     {lease.PurgeEvery(lease.MinTTL-1, time.Hour)},
		"PurgeEvery after too long":      {lease.PurgeEvery(lease.MaxTTL+1, time.Hour)},
		"PurgeEvery without a retention": {lease.PurgeEvery(time.Minute, time.Second-1)},
	} {
		wants(t, name, second(lease.NewManager(pool, options...)), txlock.ErrInvalidOption)
	}
	if _, err := lease.NewManager(nil); err == nil {
		t.Error("NewManager takes a nil pool")
	}
	for name, options := range map[string][]lease.ManagerOption{
		"shortest":     {lease.TTL(lease.MinTTL)},
		"longest":      {lease.TTL(lease.MaxTTL), lease.MaxLifetime(lease.MaxTTL), lease.RenewEvery(lease.MaxTTL / 2)},
		"no cleanup":   {lease.PurgeEvery(0, time.Second)},
		"steady polls": {lease.Poll(1, 1), lease.WaitAtMost(1), lease.RenewEvery(1)},
	} {
		if _, err := lease.NewManager(pool, options...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBadRequests proves that a call with an argument out of its range is refused
// before anything is sent.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	m := newManager(t, nowhere(t), lease.RenewEvery(5*time.Second))
	owner := func(name string) context.Context { return lease.WithOwner(t.Context(), name) }
	for name, bad := range map[string]struct {
		ctx     context.Context
		key     txlock.Key
		options []lease.AcquireOption
		want    error
	}{
		"no key":                    {t.Context(), txlock.Key{}, nil, txlock.ErrInvalidKey},
		"an empty key":              {t.Context(), txlock.Named(""), nil, txlock.ErrInvalidKey},
		"an oversized key":          {t.Context(), txlock.Named(strings.Repeat("k", 256)), nil, txlock.ErrInvalidKey},
		"an empty owner":            {owner(""), named(), nil, txlock.ErrInvalidOption},
		"an oversized owner":        {owner(strings.Repeat("o", 256)), named(), nil, txlock.ErrInvalidOption},
		"TTL too short":             {t.Context(), named(), []lease.AcquireOption{lease.TTL(lease.MinTTL - 1)}, txlock.ErrInvalidOption},
		"TTL too long":              {t.Context(), named(), []lease.AcquireOption{lease.TTL(lease.MaxTTL + 1)}, txlock.ErrInvalidOption},
		"TTL under two renewals":    {t.Context(), named(), []lease.AcquireOption{lease.TTL(10*time.Second - 1)}, txlock.ErrInvalidOption},
		"MaxLifetime under the TTL": {t.Context(), named(), []lease.AcquireOption{lease.MaxLifetime(29 * time.Second)}, txlock.ErrInvalidOption},
		"WaitAtMost nothing":        {t.Context(), named(), []lease.AcquireOption{lease.WaitAtMost(0)}, txlock.ErrInvalidOption},
	} {
		for call, err := range allCalls(bad.ctx, m, nil, bad.key, bad.options...) {
			wants(t, call+" with "+name, err, bad.want)
		}
	}
	for call, err := range keyCalls(t.Context(), m, txlock.Key{}) {
		wants(t, call+" without a key", err, txlock.ErrInvalidKey)
	}
	if m.Do(t.Context(), named(), nil) == nil || m.TryDo(t.Context(), named(), nil) == nil {
		t.Error("Do, or TryDo, takes a nil function")
	}
}

// allCalls makes all the calls that acquire.
func allCalls(ctx context.Context, m *lease.Manager, tx *sql.Tx, key txlock.Key, options ...lease.AcquireOption) map[string]error {
	_, acquire := m.Acquire(ctx, key, options...)
	_, try := m.TryAcquire(ctx, key, options...)
	_, inTx := m.AcquireTx(ctx, tx, key, options...)
	do := m.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil }, options...)
	return map[string]error{"Acquire": acquire, "TryAcquire": try, "AcquireTx": inTx, "Do": do}
}

// keyCalls makes all other calls that need a key.
func keyCalls(ctx context.Context, m *lease.Manager, key txlock.Key) map[string]error {
	_, inspect := m.Inspect(ctx, key)
	return map[string]error{"Inspect": inspect, "ForceRelease": m.ForceRelease(ctx, key)}
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
		wantsNone(t, "Rollback", tx.Rollback())
		maps.Copy(calls, keyCalls(t.Context(), m, named()))
		calls["List"], calls["Purge"] = second(m.List(t.Context())), second(m.Purge(t.Context()))
		for call, err := range calls {
			wants(t, call, err, txlock.ErrSchema)
		}
	})
}

// TestRaiseToken proves that a lease goes on with the token that it was raised to: it
// is renewed, guarded and released, and the next one is higher.
func TestRaiseToken(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		first := l.Token()
		raised := first + 1_000_000_000_000
		raises := func(to, want uint64) {
			t.Helper()
			if err := inner.RaiseToken(t.Context(), l, to); err != nil || l.Token() != want {
				t.Errorf("RaiseToken to %d: token %d, want %d, %v", to, l.Token(), want, err)
			}
			if seen, err := wire.Stored(t.Context(), store.Row{Key: job.String()}); err != nil || seen.Token != want {
				t.Errorf("the row has %+v, want token %d, %v", seen, want, err)
			}
		}
		raises(first-1, first)
		raises(raised, raised)
		time.Sleep(2 * ttl)
		must(t, l.Renew(t.Context()))
		tx := wire.guarding(t, l)
		// The row is locked: it waits for the end of the transaction.
		done := later(func() error { return inner.RaiseToken(t.Context(), l, raised+1) })
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("RaiseToken of a row that is locked: %v", err)
		default:
		}
		must(t, tx.Commit())
		must(t, <-done)
		raises(raised+1, raised+1)
		release(t, l)
		wants(t, "RaiseToken of what was released", inner.RaiseToken(t.Context(), l, raised+2), txlock.ErrNotHeld)
		next := acquire(t, m, job)
		higher(t, next, l)
		wants(t, "RaiseToken to a number that is no token", inner.RaiseToken(t.Context(), next, math.MaxUint64), txlock.ErrInvalidOption)
		release(t, next)
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
		acquires, releases := tap.counter("name: AcquireMany "), tap.counter("name: ReleaseMany ")
		together := func() int64 { return acquires.Load() + releases.Load() }
		for range 2 {
			pools = append(pools, newPool(t, db, true, tap.install))
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
					equal(t, "holders", holders[at].Add(1), 1)
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
		enough := func() bool { return kills.Load() >= 10 && grants.Load() >= 50 && together() >= 4 }
		lasts(lasting, enough)
		over.Store(true)
		work.Wait()
		said := fmt.Sprintf("%d kills, %d grants, %d statements for several", kills.Load(), grants.Load(), together())
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

// killOne kills one of the application's sessions, if there is any, and returns how
// many it has killed.
func killOne(t *testing.T, db *testdb.DB) int64 {
	rows, err := db.Admin().Query("SELECT id FROM "+db.Engine().Processes()+" WHERE user = ?", db.Config().User)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		wantsNone(t, "Scan", rows.Scan(&id))
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return 0
	}
	// It may have gone by itself meanwhile.
	if _, err := db.Admin().Exec(fmt.Sprintf("KILL CONNECTION %d", ids[rand.IntN(len(ids))])); err != nil {
		return 0
	}
	return 1
}
