package tests

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestHolderIsToldFirst proves that a holder whose server can't be reached, or doesn't
// answer, is told that its lease is lost before anybody else gets it:
// by Err at every moment, by Done and Context soon after.
func TestHolderIsToldFirst(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, begin := range map[string]func(network) error{"unreachable": network.Down, "hung": network.Hang} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				n, key := newNetwork(t, db), txlock.Named("validity:"+rand.Text())
				holder := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(6*time.Second))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				l := leasetest.Got(holder.Acquire(t.Context(), key))(t)
				expiry := func() int64 {
					return count(t, db, "SELECT expires_us FROM lockstep_leases WHERE name = ?", key.String())
				}
				if before := expiry(); !testdb.Await(time.Minute, func() bool { return expiry() > before }) {
					t.Fatal("the lease is not renewed")
				}
				working, cancel := l.Context(t.Context())
				defer cancel()
				lastValid := make(chan time.Time, 1)
				go func() {
					asked := time.Now()
					for valid := asked; ; valid = asked {
						if asked = time.Now(); l.Err() != nil {
							lastValid <- valid
							return
						}
						time.Sleep(10 * time.Microsecond)
					}
				}()
				fatal(t, begin(n))
				ctx := leasetest.Limited(t, time.Minute)
				next, err := other.Acquire(ctx, key)
				for err != nil && ctx.Err() == nil { // of a server that doesn't answer
					next, err = other.Acquire(ctx, key)
				}
				granted := time.Now()
				fatal(t, err)
				if last := <-lastValid; !last.Before(granted) {
					t.Errorf("valid %v after somebody else was granted the lease", last.Sub(granted))
				}
				leasetest.Higher(t, next, l)
				for what, done := range map[string]<-chan struct{}{"Done": l.Done(), "Context": working.Done()} {
					select {
					case <-done:
					case <-time.After(5 * time.Second):
						t.Errorf("%s does not end", what)
					}
				}
				for what, err := range map[string]error{"Err": l.Err(), "cause": context.Cause(working)} {
					wants(t, what, err, txlock.ErrLost)
					leasetest.Fails(t, what, err, "its TTL expired and it was not renewed")
				}
			})
		}
	}
}

// TestVanishedGuard proves that a client that vanishes between Guard and COMMIT, so that
// its connection stays open and says nothing, keeps the lease no longer than its time to
// live and the grace of 5 seconds, and that its transaction is rolled back.
func TestVanishedGuard(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, wrap := range map[string]func(driver.Connector) driver.Connector{"guarded": guarded, "plain": func(c driver.Connector) driver.Connector { return c }} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				table, key := db.CreateTable(t, "vanished", "id BIGINT PRIMARY KEY"), txlock.Named("vanished:"+rand.Text())
				n := newNetwork(t, db)
				pool := faultPool(t, db, n, wrap)
				holder := faultManager(t, pool, lease.TTL(10*time.Second))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				tx := leasetest.Got(pool.BeginTx(context.Background(), nil))(t)
				fatal(t, second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")))
				l := leasetest.Got(holder.Acquire(t.Context(), key))(t)
				fatal(t, errors.Join(l.Guard(t.Context(), tx), n.Hang()))
				next, err := other.Acquire(t.Context(), key, lease.WaitAtMost(60*time.Second))
				if wants(t, "the lease of a client that has vanished", err, nil); err == nil {
					wants(t, "Release", next.Release(t.Context()), nil)
				}
				fatal(t, n.Down())
				leasetest.Fails(t, "Commit", tx.Commit())
				leasetest.Equal(t, "rows that were committed", count(t, db, "SELECT COUNT(*) FROM "+table), 0)
			})
		}
	}
}

// TestReleasesOverNewConnection proves that an acquire whose caller and whose connection are gone
// is released, over a network so slow that a new connection takes longer than a release that has
// one, and also where the server answers with errors for a while, as one does that has too many
// connections or changes its passwords.
func TestReleasesOverNewConnection(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		n := newNetwork(t, db)
		held := leave(t, db, n)
		account := func(state string) {
			user := "'" + db.Config().User + "'"
			db.Exec(t, "ALTER USER "+user+"@'%', "+user+"@'localhost' ACCOUNT "+state)
		}
		account("LOCK")
		n.Cut(1)
		dials := n.Dials.Load()
		testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool { return n.Dials.Load() > dials+2 }), "nobody tries to release the lease any more")
		account("UNLOCK")
		testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool { return !held() }), "the lease is held by nobody")
		n.Heal()
	})
}

// leave makes an attempt whose caller leaves when the server has granted the lease, and before
// that is known: what comes from the server is slow. It returns what tells whether it is held.
func leave(t *testing.T, db *testdb.DB, n network) (held func() bool) {
	t.Helper()
	m := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(5*time.Minute))
	l := leasetest.Got(m.Acquire(t.Context(), txlock.Named("warm:"+rand.Text())))(t) // which reads the server's clock and prepares the statements
	fatal(t, l.Release(t.Context()))
	fatal(t, n.Slow("downstream", 2500*time.Millisecond, 2500*time.Millisecond))
	for range 5 { // where the machine is slower than the network, it is known
		key := txlock.Named("ghost:" + rand.Text())
		fatal(t, second(db.Admin().Exec("INSERT INTO lockstep_leases VALUES (?, 0, '-', '', 0, 0, 0, 0, 0, 0, '', 0, '', 0)", key.String())))
		held = func() bool {
			return count(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND holders <> ''", key.String()) > 0
		}
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			var err error
			l, err = m.TryAcquire(ctx, key)
			answered <- err
		}()
		granted := testdb.Await(time.Minute, held)
		cancel()
		err := <-answered
		if !granted {
			t.Fatalf("the lease was not granted: %v", err)
		}
		if errors.Is(err, context.Canceled) {
			return held
		}
		fatal(t, err)
		fatal(t, l.Release(t.Context()))
	}
	t.Fatal("each answer has come before its caller left")
	return nil
}

// TestToldIsDurable proves that what a second caller was told, of a key of Once and of a tick
// that was done, is there after the server was killed. A MariaDB without a binary log shows a
// transaction to others before its COMMIT is written: without a seal, something that was told
// is lost at every third kill, and of ticks at every tenth.
func TestToldIsDurable(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Durable()).OpenLeases(t)
		for kill := range testdb.Long(1, 20) {
			asks, end := tellers(t, db)
			told := toldUntilKilled(t, db, kill, asks)
			end()
			// MariaDB 10.11 aborts at times while it recovers, in its purge: then it is started once more.
			err := db.Server().Restart(context.Background())
			for i := 0; i < 2 && err != nil; i++ {
				t.Log(err)
				err = db.Server().Restart(context.Background())
			}
			fatal(t, err)
			asks, end = tellers(t, db)
			for i, keys := range told {
				lost := 0
				for _, key := range keys {
					if leasetest.Got(asks[i](t.Context(), key))(t) {
						lost++
					}
				}
				testdb.ErrorIf(t, lost > 0 || len(keys) == 0, "%d of %d answers are lost", lost, len(keys))
			}
			end()
		}
	})
}

// teller tells who asks whether it is the first that does what a key stands for.
type teller func(ctx context.Context, key txlock.Key) (first bool, err error)

// tellers tell of keys of Once and of ticks, by a pool of their own.
func tellers(t *testing.T, db *testdb.DB) (asks [2]teller, end func()) {
	t.Helper()
	pool := faultPool(t, db, network{}, guarded)
	pool.SetMaxIdleConns(90)
	leases := faultManager(t, pool, lease.PurgeEvery(0, time.Hour))
	jobs := leasetest.Got(job.New(pool, leases))(t)
	once := func(ctx context.Context, key txlock.Key) (bool, error) {
		return locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })
	}
	tick := func(ctx context.Context, key txlock.Key) (bool, error) {
		return jobs.TickTx(ctx, key, time.Unix(1, 0), func(context.Context, *sql.Tx, time.Time) error { return nil })
	}
	return [2]teller{once, tick}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := errors.Join(jobs.Close(ctx), leases.Close(ctx))
		if closed := pool.Close(); errors.Join(err, closed) != nil {
			t.Logf("close: %v", errors.Join(err, closed)) // of a server that was killed
		}
	}
}

// toldUntilKilled asks for many keys, three times each at once, until 150 callers of each kind
// were told that another one was the first. Then it kills the server, and returns the keys of
// all who were told so.
func toldUntilKilled(t *testing.T, db *testdb.DB, kill int, asks [2]teller) (told [2][]txlock.Key) {
	t.Helper()
	var mu sync.Mutex
	next := [90]int{}
	load.Beside(len(next), func(i int) {
		kind := i % len(asks)
		key := txlock.Named(fmt.Sprintf("told:%d:%d:%d", kill, i/6, next[i]))
		next[i]++
		if first, err := asks[kind](t.Context(), key); err == nil && !first {
			mu.Lock()
			told[kind] = append(told[kind], key)
			mu.Unlock()
		}
	}, func() {
		for enough := false; !enough; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			enough = len(told[0]) >= 150 && len(told[1]) >= 150
			mu.Unlock()
		}
		wants(t, "kill", db.Server().Kill(), nil)
	})
	return told
}
