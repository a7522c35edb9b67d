package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// ofMajority begins the keys of leases that a majority of three databases grants. These are
// of one server, each behind a network of its own.
const ofMajority = "majority:"

var majorityKeys = []string{ofMajority + "1"}

// nodes is how many databases there are.
const nodes = 3

func nodeDatabase(i int) string { return fmt.Sprintf("%s_node%d", database, i) }

// makeNodes makes the databases and their networks.
func (s *site) makeNodes(ctx context.Context) error {
	for i := range nodes {
		name := nodeDatabase(i)
		for _, statement := range []string{
			"CREATE DATABASE " + name,
			fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, EXECUTE ON %s.* TO %s@'%%'", name, clientUser),
		} {
			if _, err := s.admin.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		cfg := s.server.Config()
		cfg.DBName = name
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			return err
		}
		db := sql.OpenDB(connector)
		if err := errors.Join(schema.Install(ctx, db), db.Close()); err != nil {
			return err
		}
		n, err := faults.NewNetwork(cfg.Addr)
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, n)
	}
	m, err := openMajority(s.nodeDSNs(), s.ttl, true)
	if err != nil {
		return err
	}
	return errors.Join(m.Install(ctx), m.close(ctx)) // new databases count at once
}

// nodeDSNs are how clients reach the databases.
func (s *site) nodeDSNs() (dsns []string) {
	for i, n := range s.nodes {
		cfg := s.config()
		cfg.Addr, cfg.DBName = n.Addr(), nodeDatabase(i)
		dsns = append(dsns, cfg.FormatDSN())
	}
	return dsns
}

// majority is a manager over the databases, with all that it needs.
type majority struct {
	*quorum.Manager
	nodes []*lease.Manager
	pools []*sql.DB
}

// openMajority opens it.
func openMajority(dsns []string, ttl time.Duration, guarded bool) (m *majority, err error) {
	m = new(majority)
	for _, dsn := range dsns {
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, err
		}
		cfg.Logger, cfg.Timeout = &mysql.NopLogger{}, opLimit/2
		base, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		pool := sql.OpenDB(wrapper{}.connector(base, guarded))
		pool.SetMaxOpenConns(poolSize)
		node, err := lease.NewManager(pool, lease.TTL(2*ttl), lease.WaitAtMost(10*ttl+opLimit))
		if err != nil {
			return nil, err
		}
		m.pools, m.nodes = append(m.pools, pool), append(m.nodes, node)
	}
	m.Manager, err = quorum.New(m.nodes)
	return m, err
}

// close ends all of it.
func (m *majority) close(ctx context.Context) error {
	err := m.Close(ctx)
	for i := range m.nodes {
		err = errors.Join(err, m.nodes[i].Close(ctx), m.pools[i].Close())
	}
	return err
}

// granted is a lease of a majority, or of one database.
type granted interface {
	Err() error
	Token() uint64
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

// unguarded is such a lease as what is watched. No transaction is of all databases.
type unguarded struct{ granted }

func (unguarded) Guard(context.Context, txlock.Tx, ...txlock.JoinOption) error { return nil }

// majority takes the lease of a majority, uses it and releases it.
func (w *worker) majority() outcome {
	key := w.one(majorityKeys)
	acquire := func(ctx context.Context) (granted, error) { return w.most.Acquire(ctx, keyOf(key)) }
	switch {
	case w.Without == "majority": // a minority
		acquire = func(ctx context.Context) (granted, error) {
			return w.most.nodes[w.IntN(nodes)].Acquire(ctx, keyOf(key))
		}
	case w.IntN(2) == 0:
		acquire = func(ctx context.Context) (granted, error) { return w.most.TryAcquire(ctx, keyOf(key)) }
	}
	o := w.begin("majority", key)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	l, err := acquire(ctx)
	got := op{ID: o.ID, Return: w.now(), Outcome: succeeded}
	if err != nil {
		got.Outcome, got.Err = unknown, err.Error()
		if refused(err) || errors.Is(err, txlock.ErrNoQuorum) {
			got.Outcome = failed
		}
		w.journal.write(got)
		return got.Outcome
	}
	got.Token = l.Token()
	w.journal.write(got)
	h := &holding{w: w, fenced: unguarded{l}, id: o.ID, key: key}
	h.watched(func() {
		for range 1 + w.IntN(4) {
			h.pause()
			if w.stopped() || h.Err() != nil {
				return
			}
			if w.IntN(4) == 0 {
				limited, cancel := context.WithTimeout(context.Background(), opLimit)
				renew := w.begin("renew a majority", key)
				w.journal.write(told(op{ID: renew.ID, Return: w.now(), Of: o.ID}, l.Renew(limited)))
				cancel()
			}
		}
	})
	w.journal.write(op{ID: o.ID, Valid: h.valid.Load()})
	release := w.begin("release", key)
	err = l.Release(ctx)
	w.journal.write(told(op{ID: release.ID, Return: w.now(), Of: o.ID}, err))
	return succeeded
}

// sweepMajority takes the leases of the majority once more.
func (s *site) sweepMajority(ctx context.Context) error {
	m, err := openMajority(s.nodeDSNs(), s.ttl, true)
	if err != nil {
		return err
	}
	for _, key := range majorityKeys {
		if _, err := m.Acquire(ctx, keyOf(key)); err != nil {
			s.add(stuck, "%s can't be had at the end: %v", key, err)
		}
	}
	return m.close(ctx)
}
