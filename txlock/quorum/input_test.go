package quorum_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// noDatabases makes managers whose databases don't exist: what is refused before
// anything is sent doesn't need them.
func noDatabases(t *testing.T, n int, options ...lease.ManagerOption) []*lease.Manager {
	t.Helper()
	var managers []*lease.Manager
	for range n {
		db, err := sql.Open("mysql", "nobody@tcp(127.0.0.1:1)/nothing")
		must(t, err)
		m, err := lease.NewManager(db, options...)
		must(t, err)
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
	samePool, err := lease.NewManager(poolOf(three[0]))
	must(t, err)
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
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.says)
		}
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
		wants(t, name+": TryAcquire", second(m.TryAcquire(c.ctx, c.key, c.options...)), c.want)
		wants(t, name+": Acquire", second(m.Acquire(c.ctx, c.key, c.options...)), c.want)
	}
	if err := m.Do(t.Context(), key, nil); err == nil {
		t.Error("Do takes nil")
	}
	closeIt(t, managers[1])
	wants(t, "TryAcquire with a closed manager", second(m.TryAcquire(t.Context(), key)), lease.ErrClosed)
	closeIt(t, m)
	wants(t, "Install of what is closed", m.Install(t.Context()), quorum.ErrClosed)
}
