package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock/lease"
)

// judge reads what there is and checks it.
func (s *site) judge(ctx context.Context, lasted time.Duration) error {
	if err := errors.Join(s.revive(), s.settle(ctx)); err != nil {
		return err
	}
	if err := s.sweep(ctx); err != nil {
		return err
	}
	if err := s.crowd(ctx); err != nil {
		return err
	}
	d, err := readData(ctx, s.admin)
	if err != nil {
		return err
	}
	if s.history, err = readHistory(filepath.Join(s.dir, string(s.engine)+"*.jsonl")); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	found := (&verdict{leaps: s.leaps(), lingers: s.engine == testdb.TiDB}).check(s.history, d)
	found.checkLeases(s.history, s.seen, s.ttl)
	s.v.violations = append(s.v.violations, found.violations...)
	s.v.overlaps, s.v.lostUpdates = found.overlaps, found.lostUpdates
	if lasted >= enough && s.without == "" {
		s.checkEnough()
	}
	return nil
}

// listen reads what the clients have said, which is nothing: of a data race, for example,
// the race detector would tell.
func (s *site) listen() error {
	paths, err := filepath.Glob(filepath.Join(s.dir, string(s.engine)+"*.stderr"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(text) > 0 {
			s.add(broken, "%s: %s", filepath.Base(path), clipped(text))
		}
	}
	return nil
}

// leaps are the times at which the server's clock was set.
func (s *site) leaps() []leap {
	if s.clock == nil {
		return nil
	}
	return s.clock.leaps
}

// enough is how long a run lasts that should prove something.
const enough = 30 * time.Second

// attempts is how many must fail until it is no chance, on a server that has many faults.
const attempts = 40

// refusedKinds are the kinds that must not succeed.
var refusedKinds = []string{coreEnds, coreEnds + ", then"}

// isShared reports whether a kind shares a key, or waits in turn: TiDB refuses both.
func isShared(kind string) bool {
	return strings.Contains(kind, "permit") || strings.Contains(kind, "share") || kind == "read" || kind == "acquire fair"
}

// checkEnough checks that something of each kind has succeeded.
func (s *site) checkEnough() {
	succeededOf, tried := make(map[string]int), make(map[string]int)
	for _, o := range s.history {
		n := 0
		if o.Outcome == succeeded {
			n = 1
		}
		succeededOf[o.Kind] += n
		tried[o.Kind]++
	}
	for _, kind := range sortedKeys(succeededOf) {
		if s.engine == testdb.TiDB && isShared(kind) {
			if succeededOf[kind] > 0 {
				s.add(broken, "%d %q have succeeded, which TiDB can't", succeededOf[kind], kind)
			}
			continue
		}
		if succeededOf[kind] == 0 && tried[kind] >= attempts && !slices.Contains(refusedKinds, kind) {
			s.add(stuck, "no %q has ever succeeded", kind)
		}
	}
}

// settle ends all sessions of clients that are gone, so that what they have sent last is
// committed or rolled back.
func (s *site) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	transactions := "innodb_trx"
	if s.engine == testdb.TiDB {
		transactions = "cluster_tidb_trx WHERE session_id <> CONNECTION_ID()"
	}
	for {
		sessions, err := s.sessions(ctx)
		if err != nil {
			return err
		}
		open := 0
		if err := s.admin.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema."+transactions).Scan(&open); err != nil {
			return err
		}
		if len(sessions) == 0 && open == 0 {
			return nil
		}
		for _, id := range sessions {
			if s.engine != testdb.TiDB { // which finds out by itself
				_, _ = s.admin.ExecContext(ctx, fmt.Sprintf("KILL %d", id)) // it may have ended by itself
			}
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil { // the list of transactions is refreshed
			return fmt.Errorf("%d sessions and %d transactions don't end: %w", len(sessions), open, err)
		}
	}
}

// sweep takes everything once more: nothing may be held by those who are gone.
func (s *site) sweep(ctx context.Context) error {
	cfg := s.config()
	if s.engine == testdb.TiDB { // it keeps the locks of a session that was killed for 20 s
		cfg.Params = map[string]string{"innodb_lock_wait_timeout": "60"}
	}
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	pool := sql.OpenDB(locksqlc.Connector(base))
	defer func() { _ = pool.Close() }()
	leases, err := lease.NewManager(pool, lease.TTL(s.ttl), lease.WaitAtMost(10*s.ttl+opLimit))
	if err != nil {
		return err
	}
	defer func() { _ = leases.Close(ctx) }()
	for _, key := range slices.Concat(leaseKeys, sharedKeys, outerKeys, innerKeys, tickKeys, electionKeys, allKeys, keptKeys, askedLeases) {
		if err := leases.Do(ctx, keyOf(key), func(context.Context, *lease.Lease) error { return nil }); err != nil {
			s.add(stuck, "%s can't be had at the end: %v", key, err)
		}
	}
	for _, key := range slices.Concat(permitKeys, []string{askedPermits}) {
		if s.engine == testdb.TiDB {
			break // it has none
		}
		semaphore, err := leases.Semaphore(keyOf(key), permits)
		if err != nil {
			return err
		}
		for range permits {
			if _, err := semaphore.Acquire(ctx); err != nil {
				s.add(stuck, "%s can't be had at the end: %v", key, err)
			}
		}
	}
	err = locksqlc.Run(ctx, pool, keysOf(slices.Concat(lockKeys, carelessKeys)), func(*sql.Tx) error { return nil })
	if err != nil {
		s.add(stuck, "the locks can't be had at the end: %v", err)
	}
	return s.sweepMajority(ctx)
}
