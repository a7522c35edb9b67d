package tests

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
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
				n := newNetwork(t, db)
				holder := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(holderTTL))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				key := txlock.Named("validity:" + rand.Text())
				l := leasetest.Got(holder.Acquire(t.Context(), key))(t)
				awaitRenewal(t, db, key)
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
				ctx, timeout := context.WithTimeout(t.Context(), time.Minute)
				defer timeout()
				next, err := acquirePatiently(ctx, other, key)
				granted := time.Now()
				fatal(t, err)
				last := <-lastValid
				t.Logf("valid until %v before the next grant", granted.Sub(last).Round(time.Microsecond))
				if !last.Before(granted) {
					t.Errorf("valid %v after somebody else was granted the lease", last.Sub(granted))
				}
				if next.Token() <= l.Token() {
					t.Errorf("token %d after %d", next.Token(), l.Token())
				}
				for what, done := range map[string]<-chan struct{}{"Done": l.Done(), "Context": working.Done()} {
					select {
					case <-done:
					case <-time.After(5 * time.Second):
						t.Errorf("%s does not end", what)
					}
				}
				for what, err := range map[string]error{"Err": l.Err(), "cause": context.Cause(working)} {
					if !errors.Is(err, txlock.ErrLost) || !strings.Contains(err.Error(), "its TTL expired and it was not renewed") {
						t.Errorf("%s: %v, want ErrLost and why", what, err)
					}
				}
			})
		}
	}
}

const holderTTL = 6 * time.Second

// awaitRenewal waits until the lease was renewed once.
func awaitRenewal(t *testing.T, db *testdb.DB, key txlock.Key) {
	t.Helper()
	const expiry = "SELECT expires_us FROM lockstep_leases WHERE name = ?"
	before := count(t, db, expiry, key.String())
	if !testdb.Await(time.Minute, func() bool { return count(t, db, expiry, key.String()) > before }) {
		t.Fatal("the lease is not renewed")
	}
}

// acquirePatiently waits over errors of a server that doesn't answer.
func acquirePatiently(ctx context.Context, m *lease.Manager, key txlock.Key) (l *lease.Lease, err error) {
	for ctx.Err() == nil {
		if l, err = m.Acquire(ctx, key); err == nil {
			return l, nil
		}
	}
	return nil, err
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
				table := db.CreateTable(t, "vanished", "id BIGINT PRIMARY KEY")
				n := newNetwork(t, db)
				pool := faultPool(t, db, n, wrap)
				holder := faultManager(t, pool, lease.TTL(10*time.Second))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				key := txlock.Named("vanished:" + rand.Text())
				tx := leasetest.Got(pool.BeginTx(context.Background(), nil))(t)
				fatal(t, second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")))
				l := leasetest.Got(holder.Acquire(t.Context(), key))(t)
				fatal(t, l.Guard(t.Context(), tx))
				fatal(t, n.Hang())
				start := time.Now()
				next, err := other.Acquire(t.Context(), key, lease.WaitAtMost(60*time.Second))
				if err != nil {
					t.Errorf("the lease of a client that has vanished: %v", err)
				} else {
					t.Logf("free after %v", time.Since(start))
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
		g := leave(t, db, 2500*time.Millisecond)
		account := func(state string) {
			user := "'" + db.Config().User + "'"
			db.Exec(t, "ALTER USER "+user+"@'%', "+user+"@'localhost' ACCOUNT "+state)
		}
		account("LOCK")
		g.network.Cut(1)
		if dials := g.network.Dials.Load(); !testdb.Await(time.Minute, func() bool { return g.network.Dials.Load() > dials+2 }) {
			t.Error("nobody tries to release the lease any more")
		}
		account("UNLOCK")
		g.isReleased(t, db)
	})
}

// ghost is a lease that was granted to a caller who had left.
type ghost struct {
	key     txlock.Key
	network network
}

// leave makes an attempt whose caller leaves when the server has granted the lease, and before
// that is known: what comes from the server is slow.
func leave(t *testing.T, db *testdb.DB, slow time.Duration) ghost {
	t.Helper()
	n := newNetwork(t, db)
	m := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(5*time.Minute))
	l, err := m.Acquire(t.Context(), txlock.Named("warm:"+rand.Text())) // which reads the server's clock and prepares the statements
	fatal(t, err)
	fatal(t, l.Release(t.Context()))
	fatal(t, n.Slow("downstream", slow, slow))
	for range 5 { // where the machine is slower than the network, it is known
		g := ghost{txlock.Named("ghost:" + rand.Text()), n}
		fatal(t, second(db.Admin().Exec("INSERT INTO lockstep_leases VALUES (?, 0, '-', '', 0, 0, 0, 0, 0, 0, '', 0, '', 0)", g.key.String())))
		ctx, cancel := context.WithCancel(t.Context())
		var l *lease.Lease
		answered := make(chan error, 1)
		go func() {
			var err error
			l, err = m.TryAcquire(ctx, g.key)
			answered <- err
		}()
		granted := testdb.Await(time.Minute, func() bool { return g.isHeld(t, db) })
		cancel()
		err := <-answered
		if !granted {
			t.Fatalf("the lease was not granted: %v", err)
		}
		if errors.Is(err, context.Canceled) {
			return g
		}
		fatal(t, err)
		fatal(t, l.Release(t.Context()))
	}
	t.Fatal("each answer has come before its caller left")
	return ghost{}
}

func (g ghost) isHeld(t *testing.T, db *testdb.DB) bool {
	t.Helper()
	return count(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND holders <> ''", g.key.String()) > 0
}

// isReleased waits until the lease is free, and heals the network.
func (g ghost) isReleased(t *testing.T, db *testdb.DB) {
	t.Helper()
	if !testdb.Await(time.Minute, func() bool { return !g.isHeld(t, db) }) {
		t.Error("the lease is held by nobody")
	}
	g.network.Heal()
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
			recovered(t, db)
			asks, end = tellers(t, db)
			for i, keys := range told {
				lost := 0
				for _, key := range keys {
					first := leasetest.Got(asks[i](t.Context(), key))(t)
					if first {
						lost++
					}
				}
				t.Logf("%d callers were told that another one was the first; of %d that is lost", len(keys), lost)
				if lost > 0 || len(keys) == 0 {
					t.Errorf("%d of %d answers are lost", lost, len(keys))
				}
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
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var asking sync.WaitGroup
	for i := range 90 {
		asking.Go(func() {
			for n, kind := 0, i%len(asks); ctx.Err() == nil; n++ {
				key := txlock.Named(fmt.Sprintf("told:%d:%d:%d", kill, i/6, n))
				if first, err := asks[kind](ctx, key); err == nil && !first {
					mu.Lock()
					told[kind] = append(told[kind], key)
					mu.Unlock()
				}
			}
		})
	}
	for enough := false; !enough; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		enough = len(told[0]) >= 150 && len(told[1]) >= 150
		mu.Unlock()
	}
	err := db.Server().Kill()
	stop()
	asking.Wait()
	if err != nil {
		t.Logf("kill: %v", err)
	}
	return told
}

// recovered kills the server, and starts it again on the same data. MariaDB 10.11 aborts
// at times while it recovers, in its purge: then it is started once more.
func recovered(t *testing.T, db *testdb.DB) {
	t.Helper()
	err := db.Server().Restart(context.Background())
	for range 2 {
		if err != nil {
			t.Log(err)
			err = db.Server().Restart(context.Background())
		}
	}
	if err != nil {
		t.Error(err)
	}
}
