package quorum_test

import (
	"context"
	"database/sql"
	"net"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// hanging is a manager whose database never answers.
func hanging(t *testing.T) *lease.Manager {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.Logger = &mysql.NopLogger{}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	m, err := lease.NewManager(pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeIt(t, m)
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestHanging proves that databases that don't answer are not waited for by an Acquire
// that has a majority without them, and for no longer than NodeTimeout by one that has
// none, whose error names them.
func TestHanging(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if err := newQuorum(t, nodes).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	const limit = 10 * time.Second
	m := newManager(t, append(newLeases(t, nodes), hanging(t), hanging(t)), quorum.NodeTimeout(limit))
	key, began := named(), time.Now()
	l := acquire(t, m, key)
	release(t, l)
	if took := time.Since(began); took >= limit/2 {
		t.Errorf("Acquire and Release took %v with a majority that answers", took)
	}

	m = newManager(t, append(newLeases(t, nodes[:2]), hanging(t), hanging(t), hanging(t)), quorum.NodeTimeout(200*time.Millisecond))
	began = time.Now()
	_, err := m.TryAcquire(t.Context(), key)
	wants(t, "TryAcquire", err, txlock.ErrNoQuorum)
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("TryAcquire has given up after %v", took)
	}
	wants(t, "Install", m.Install(closed(t)), txlock.ErrNoQuorum)
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
}

// closed is a context that has ended.
func closed(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
