package tests

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReleasesOverNewConnection proves that an acquire whose caller and whose
// connection are gone is released over a network so slow that a new connection
// takes longer than a release that has one.
func TestReleasesOverNewConnection(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		g := leave(t, db, 2500*time.Millisecond)
		granted := time.Now()
		g.network.Cut(1)
		g.isReleased(t, db)
		t.Logf("released after %v", time.Since(granted).Round(time.Millisecond))
	})
}

// TestReleasesToServerThatRefuses proves that an acquire whose caller and whose
// connection are gone is released, also where the server answers with errors for a
// while, as one does that has too many connections or changes its passwords.
func TestReleasesToServerThatRefuses(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		g := leave(t, db, time.Second)
		account := func(state string) {
			user := "'" + db.Config().User + "'"
			db.Exec(t, "ALTER USER "+user+"@'%', "+user+"@'localhost' ACCOUNT "+state)
		}
		account("LOCK")
		g.network.Cut(1)
		if dials := g.network.Dials.Load(); !testdb.Await(time.Minute, func() bool { return g.network.Dials.Load() > dials+4 }) {
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
