package tests

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
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
				l, err := holder.Acquire(t.Context(), key)
				fatal(t, err)
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
				tx, err := pool.BeginTx(context.Background(), nil)
				fatal(t, err)
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)"); err != nil {
					t.Fatal(err)
				}
				l, err := holder.Acquire(t.Context(), key)
				fatal(t, err)
				fatal(t, l.Guard(t.Context(), tx))
				fatal(t, n.Hang())
				start := time.Now()
				next, err := other.Acquire(t.Context(), key, lease.WaitAtMost(60*time.Second))
				if err != nil {
					t.Errorf("the lease of a client that has vanished: %v", err)
				} else {
					t.Logf("free after %v", time.Since(start))
					if err := next.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
				fatal(t, n.Down())
				if err := tx.Commit(); err == nil {
					t.Error("Commit says that it has committed")
				}
				if rows := count(t, db, "SELECT COUNT(*) FROM "+table); rows != 0 {
					t.Errorf("%d rows were committed", rows)
				}
			})
		}
	}
}
