package quorum_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// noDatabases makes managers whose databases don't exist: what is refused before anything is sent doesn't need them.
func noDatabases(t *testing.T, n int, options ...lease.ManagerOption) []*lease.Manager {
	t.Helper()
	var managers []*lease.Manager
	for range n {
		db := testdb.Got(sql.Open("mysql", "nobody@tcp(127.0.0.1:1)/nothing"))(t)
		m := testdb.Got(lease.NewManager(db, options...))(t)
		t.Cleanup(func() {
			closeIt(t, m)
			_ = db.Close()
		})
		managers = append(managers, m)
	}
	return managers
}

// TestNew proves that New says what is wrong with what it is given.
func TestNew(t *testing.T) {
	t.Parallel()
	three := noDatabases(t, 3)
	samePool := testdb.Got(lease.NewManager(poolOf(three[0])))(t)
	closed := noDatabases(t, 1)[0]
	closeIt(t, closed)
	for name, c := range map[string]struct {
		managers []*lease.Manager
		options  []quorum.Option
		want     error
		says     string
	}{
		"none":             {nil, nil, txlock.ErrInvalidOption, "got 0"},
		"one":              {three[:1], nil, txlock.ErrInvalidOption, "got 1"},
		"an even number":   {noDatabases(t, 4), nil, txlock.ErrInvalidOption, "got 4"},
		"eleven":           {noDatabases(t, 11), nil, txlock.ErrInvalidOption, "got 11"},
		"nil":              {[]*lease.Manager{three[0], nil, three[2]}, nil, txlock.ErrInvalidOption, "manager 1 is nil"},
		"the same manager": {[]*lease.Manager{three[0], three[1], three[0]}, nil, txlock.ErrInvalidOption, "managers 0 and 2"},
		"the same pool":    {[]*lease.Manager{three[0], three[1], samePool}, nil, txlock.ErrInvalidOption, "managers 0 and 2"},
		"closed":           {[]*lease.Manager{three[0], closed, three[2]}, nil, lease.ErrClosed, "manager 1"},
		"other terms":      {append(noDatabases(t, 1, lease.TTL(time.Second)), three[:2]...), nil, txlock.ErrInvalidOption, "same options"},
		"TTL":              {noDatabases(t, 3, lease.TTL(2*time.Minute)), nil, txlock.ErrInvalidOption, "MaxTTL of 1m0s"},
		"fair":             {noDatabases(t, 3, lease.Fair()), nil, txlock.ErrInvalidOption, "Fair"},
		"MaxTTL of 0":      {three, []quorum.Option{quorum.MaxTTL(0)}, txlock.ErrInvalidOption, "MaxTTL(0s)"},
		"MaxTTL of a year": {three, []quorum.Option{quorum.MaxTTL(365 * 24 * time.Hour)}, txlock.ErrInvalidOption, "MaxTTL"},
		"ClockSkew":        {three, []quorum.Option{quorum.ClockSkew(-1)}, txlock.ErrInvalidOption, "ClockSkew(-1ns)"},
		"NodeTimeout":      {three, []quorum.Option{quorum.NodeTimeout(0)}, txlock.ErrInvalidOption, "NodeTimeout"},
		"NodeTimeout long": {three, []quorum.Option{quorum.NodeTimeout(time.Minute)}, txlock.ErrInvalidOption, "NodeTimeout(1m0s)"},
	} {
		_, err := quorum.New(c.managers, c.options...)
		wants(t, name, err, c.want)
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), c.says), "%s: %v, want it to say %q", name, err, c.says)
	}
	closeIt(t, samePool)
}

// TestInput proves that calls say what is wrong with what they are given, before
// anything is sent: there is no database.
func TestInput(t *testing.T) {
	t.Parallel()
	managers := noDatabases(t, 3)
	m := newManager(t, managers)
	key := named()
	for name, c := range map[string]struct {
		ctx     context.Context
		key     txlock.Key
		options []lease.AcquireOption
		want    error
	}{
		"no key":         {t.Context(), txlock.Key{}, nil, txlock.ErrInvalidKey},
		"TTL of 0":       {t.Context(), key, []lease.AcquireOption{lease.TTL(0)}, txlock.ErrInvalidOption},
		"TTL too long":   {t.Context(), key, []lease.AcquireOption{lease.TTL(time.Hour)}, txlock.ErrInvalidOption},
		"WaitAtMost":     {t.Context(), key, []lease.AcquireOption{lease.WaitAtMost(0)}, txlock.ErrInvalidOption},
		"fair":           {t.Context(), key, []lease.AcquireOption{lease.Fair()}, txlock.ErrInvalidOption},
		"held at least":  {t.Context(), key, []lease.AcquireOption{lease.HoldAtLeast(time.Second)}, txlock.ErrInvalidOption},
		"owner":          {lease.WithOwner(t.Context(), ""), key, nil, txlock.ErrInvalidOption},
		"nobody answers": {t.Context(), key, nil, txlock.ErrNoQuorum},
	} {
		wants(t, name+": TryAcquire", testdb.Err(m.TryAcquire(c.ctx, c.key, c.options...)), c.want)
		wants(t, name+": Acquire", testdb.Err(m.Acquire(c.ctx, c.key, c.options...)), c.want)
	}
	err := m.Do(t.Context(), key, nil)
	testdb.ErrorIf(t, err == nil, "Do takes nil")
	closeIt(t, managers[1])
	wants(t, "TryAcquire with a closed manager", testdb.Err(m.TryAcquire(t.Context(), key)), lease.ErrClosed)
	closeIt(t, m)
	wants(t, "Install of what is closed", m.Install(t.Context()), quorum.ErrClosed)
}

// lose makes a database come back empty.
func lose(t testing.TB, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "DROP TABLE lockstep_leases")
	createLeases(t, db)
}

// TestInstall proves that new databases count at once only by Install, and only where all answer and none has been
// used before; those that come back empty let nobody in, and count again after MaxTTL and ClockSkew.
func TestInstall(t *testing.T) {
	t.Parallel()
	const skew = time.Hour // by which a test may be late
	nodes, key := newNodes(t, 3), named()
	m, other := newManager(t, newLeases(t, nodes), quorum.NodeTimeout(10*time.Second)), newManager(t, newLeases(t, nodes), quorum.ClockSkew(skew), quorum.NodeTimeout(10*time.Second))
	nodes[1].Exec(t, "RENAME TABLE lockstep_leases TO gone")
	wants(t, "Install", m.Install(t.Context()), txlock.ErrNoQuorum, txlock.ErrSchema)
	for _, i := range []int{0, 2} {
		testdb.Equal(t, "rows of a node", nodes[i].Number(t, "SELECT COUNT(*) FROM lockstep_leases"), 0)
	}
	nodes[1].Exec(t, "RENAME TABLE gone TO lockstep_leases")
	must(t, m.Install(t.Context()))

	lose(t, nodes[2])
	must(t, m.Install(t.Context()))
	l := acquire(t, m, key)
	if _, err := l.Node(2); err == nil {
		t.Error("a node that has lost its data counts after Install")
	}
	lose(t, nodes[1]) // the holder can't know before its next renewal
	refused := func() error {
		t.Helper()
		early, err := other.TryAcquire(t.Context(), key)
		if err == nil {
			release(t, early)
			t.Error("granted by nodes whose data are younger than MaxTTL and ClockSkew")
		}
		return err
	}
	if err := refused(); !errors.Is(err, txlock.ErrNoQuorum) || errors.Is(err, txlock.ErrBusy) || !strings.Contains(err.Error(), "its data are new") {
		t.Errorf("%v, want that the nodes' data are new", err)
	}
	wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
	ages := func(by time.Duration) { // instead of waiting
		for _, db := range nodes[1:] {
			db.Exec(t, fmt.Sprintf("UPDATE lockstep_leases SET expires_us = expires_us - %d WHERE name = 'lockstep:epoch'", by.Microseconds()))
		}
	}
	ages(skew) // old enough but for a minute
	wants(t, "TryAcquire", refused(), txlock.ErrNoQuorum)
	ages(time.Minute)
	next := acquire(t, other, key)
	higher(t, next, l)
	release(t, next)
}

// TestSameDatabase proves that two pools of one database are not counted as two.
func TestSameDatabase(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 2)
	managers := newLeases(t, append(nodes, nodes[0]))
	m := newManager(t, managers)
	wants(t, "Install", m.Install(t.Context()), txlock.ErrInvalidOption)
	l, err := m.TryAcquire(t.Context(), named())
	if err == nil {
		release(t, l)
		t.Error("granted by one database twice")
	}
}

// BenchmarkAcquireRelease takes and releases a lease of five databases, in turns with five leases of one each. It
// reports the time of each, their ratio, and the goroutines that are there while the lease is held.
func BenchmarkAcquireRelease(b *testing.B) {
	nodes := newNodes(b, 5)
	m, singles := newQuorum(b, nodes), newLeases(b, nodes)
	key, ctx := named(), context.Background()
	var quorumTook, singlesTook time.Duration
	took := func(sum *time.Duration, do func()) {
		began := time.Now()
		do()
		*sum += time.Since(began)
	}
	several := func() *quorum.Lease { return acquire(b, m, key) }
	single := func() {
		for _, s := range singles {
			l, err := s.Acquire(ctx, key)
			if err != nil {
				b.Fatal(err)
			}
			release(b, l)
		}
	}
	free := func() { await(b, "all nodes are free", func() bool { return held(b, nodes, key) == 0 }) }
	release(b, several())
	free()
	single()
	before, during := runtime.NumGoroutine(), 0
	b.ReportAllocs()
	for b.Loop() {
		took(&quorumTook, func() {
			l := several()
			during += runtime.NumGoroutine() - before
			release(b, l)
		})
		free() // what is released in the background must not delay the others
		took(&singlesTook, single)
	}
	n := float64(b.N)
	b.ReportMetric(float64(quorumTook.Microseconds())/n, "quorum-µs/op")
	b.ReportMetric(float64(singlesTook.Microseconds())/n, "singles-µs/op")
	b.ReportMetric(float64(quorumTook)/float64(singlesTook), "quorum/singles")
	b.ReportMetric(float64(during)/n, "goroutines")
}
