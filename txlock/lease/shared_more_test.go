package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// share is acquire for a reader.
func share(t testing.TB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	return mustLease(t)(m.AcquireShared(t.Context(), key, options...))
}

// heldRows counts the rows of a key that are held: the entry row, and above it readers or
// permits, those whose time is over too.
func heldRows(t testing.TB, db *testdb.DB, key txlock.Key) (entry, above int64) {
	t.Helper()
	return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot = 0 AND holders <> ''", key.String()),
		number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot > 0 AND holders <> ''", key.String())
}

// mortal is a manager that can die. What it holds is never released.
func mortal(t testing.TB, db *testdb.DB, options ...lease.ManagerOption) (m *lease.Manager, die func()) {
	t.Helper()
	var network leasetest.Network
	m, err := lease.NewManager(newPool(t, db, true, func(c *mysql.Config) { c.DialFunc = network.Dial }), options...)
	must(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = m.Close(ended) // it can't give anything back
	})
	return m, network.Cut
}

// TestDowngrade proves that no other writer comes between a writer and the reader that
// it becomes, although several wait, and that readers come in at once.
func TestDowngrade(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		var inside, overlaps, turns atomic.Int32
		var waiting sync.WaitGroup
		const rounds = 10
		writer := acquire(t, m, key)
		for range 2 {
			waiting.Go(func() {
				for range rounds / 2 {
					l, err := other.Acquire(t.Context(), key)
					if err != nil {
						t.Errorf("Acquire of a waiting writer: %v", err)
						return
					}
					if inside.Load() != 0 {
						overlaps.Add(1)
					}
					turns.Add(1)
					release(t, l)
				}
			})
		}
		for i := range rounds {
			if i > 0 {
				writer = acquire(t, m, key)
			}
			inside.Add(1)
			before := turns.Load()
			token := writer.Token()
			var reader *lease.Lease
			waitUntil(t, "the writer is a reader", func() (done bool) {
				var err error
				reader, err = writer.Downgrade(t.Context())
				if err == nil {
					return true
				}
				// Somebody had the row locked for a moment: the lease is as before.
				wants(t, "Downgrade", err, txlock.ErrBusy)
				must(t, writer.Err())
				return false
			})
			if !reader.Shared() || reader.Err() != nil || reader.Owner() != writer.Owner() {
				t.Errorf("the reader: shared %t, %v, owner %q, that of the writer %q", reader.Shared(), reader.Err(), reader.Owner(), writer.Owner())
			}
			wants(t, "Err of the writer", writer.Err(), txlock.ErrNotHeld)
			wants(t, "Downgrade of a reader", second(reader.Downgrade(t.Context())), txlock.ErrInvalidOption)
			if turns.Load() != before {
				t.Errorf("%d writers after token %d came before its reader had ended", turns.Load()-before, token)
			}
			inside.Add(-1)
			release(t, reader)
		}
		waiting.Wait()
		if overlaps.Load() != 0 {
			t.Errorf("%d writers came beside the reader", overlaps.Load())
		}
		wants(t, "Downgrade of what was released", second(writer.Downgrade(t.Context())), txlock.ErrNotHeld)
	})
}

// spell is how long somebody knew that it held a lease, by the clock of the test.
type spell struct {
	writer      bool
	from, until time.Duration
}

// spells are those of one key.
type spells struct {
	begun time.Time
	mu    sync.Mutex
	all   []spell
	dead  int
}

// hold keeps a lease for a time, or until it is lost, and notes for how long that was
// known.
func (s *spells) hold(l *lease.Lease, d time.Duration) { s.holdAs(l, d, !l.Shared()) }

func (s *spells) holdAs(l *lease.Lease, d time.Duration, writer bool) {
	held := spell{writer: writer, from: time.Since(s.begun)}
	for end := held.from + d; ; time.Sleep(100 * time.Microsecond) {
		asked := time.Since(s.begun)
		if l.Err() != nil {
			break
		}
		held.until = asked
		if asked > end {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, held)
}

// died counts a holder that did not release.
func (s *spells) died() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead++
}

// counts returns how many have held, and how many of them have died.
func (s *spells) counts() (readers, writers, dead int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.writer {
			writers++
		}
	}
	return len(s.all) - writers, writers, s.dead
}

// most returns how many of the spells there were at once, at most, and how many times
// a writer was not alone.
func (s *spells) most() (most, overlaps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, one := range s.all {
		at := 1
		for j, other := range s.all {
			if i == j || other.from > one.from || other.until <= one.from {
				continue
			}
			at++
			if one.writer || other.writer {
				overlaps++
			}
		}
		most = max(most, at)
	}
	return most, overlaps
}

// bruteTime is how long the workers of a brute force test work.
func bruteTime() time.Duration { return testdb.Long(3*time.Second, 30*time.Second) }

// dieOrRelease ends a spell: by a release, or now and then as that of a process that
// has died, and whose time is over.
func (s *spells) dieOrRelease(t *testing.T, db *testdb.DB, l *lease.Lease, cut func() bool) {
	if rand.N(10) == 0 {
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ? AND owner = ? AND token = ?", l.Key().String(), l.Owner(), l.Token())
		s.died()
	}
	err := l.Release(context.Background())
	if err != nil && !cut() && !errors.Is(err, txlock.ErrNotHeld) && !errors.Is(err, lease.ErrGuarded) {
		t.Errorf("Release: %v", err)
	}
}

// never is for managers that are not cut off.
func never() bool { return false }

// TestReadersAndWritersNeverOverlap proves, with holders that die, and with processes
// that are cut off while they hold and learn of the end from their own clock alone, that
// at no time a writer and anybody else know that they hold the lease.
func TestReadersAndWritersNeverOverlap(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		s := &spells{begun: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var work sync.WaitGroup
		worker := func(m *lease.Manager, exclusive bool, ttl time.Duration, cut func() bool) {
			take := m.AcquireShared
			if exclusive {
				take = m.Acquire
			}
			for ctx.Err() == nil && !cut() {
				l, err := take(ctx, key, lease.TTL(ttl))
				switch {
				case err == nil:
				case ctx.Err() != nil || cut():
					return
				case errors.Is(err, txlock.ErrWaitTimeout), errors.Is(err, txlock.ErrLost): // it came too late
					continue
				default:
					t.Errorf("acquire: %v", err)
					return
				}
				s.hold(l, rand.N(8*time.Millisecond)*time.Duration(1+9*rand.N(2)))
				if cut() { // it knows until its deadline that it holds the lease
					s.hold(l, time.Minute)
					s.died()
					return
				}
				s.dieOrRelease(t, db, l, cut)
				if exclusive {
					time.Sleep(rand.N(20 * time.Millisecond))
				}
			}
		}
		for i := range 4 {
			m := newManager(t, newPool(t, db, i%2 == 0))
			for j := range 4 {
				work.Go(func() { worker(m, j == 0, time.Second, never) })
			}
		}
		work.Go(func() { // processes that are cut off one after the other
			for ctx.Err() == nil {
				m, die := mortal(t, db)
				var dead atomic.Bool
				var life sync.WaitGroup
				for j := range 3 {
					life.Go(func() { worker(m, j == 0, 200*time.Millisecond, dead.Load) })
				}
				time.Sleep(rand.N(200 * time.Millisecond))
				dead.Store(true)
				die()
				life.Wait()
			}
		})
		enough := func() bool {
			readers, writers, dead := s.counts()
			return writers >= 5 && readers >= 20 && dead > 0
		}
		lasts(bruteTime(), enough)
		cancel()
		work.Wait()
		readers, writers, dead := s.counts()
		most, overlaps := s.most()
		t.Logf("%d readers, %d writers, of which %d have died; at most %d at once; %d overlaps", readers, writers, dead, most, overlaps)
		if overlaps != 0 {
			t.Errorf("%d times a writer was not alone", overlaps)
		}
		if !enough() || most < 2 {
			t.Errorf("%d readers, %d writers, %d dead, at most %d at once: that proves nothing", readers, writers, dead, most)
		}
	})
}

// TestNoReadersOnClusters proves that shared leases are refused on a server of a
// multi-primary cluster, before anything is written, and that the others are not. It
// needs no cluster: a MariaDB whose wsrep_on is ON without a provider works as a single
// server.
func TestNoReadersOnClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).OpenLeases(t)
		m := newManager(t, newPool(t, db, true))
		key := named()
		for call, take := range map[string]func() (*lease.Lease, error){
			"AcquireShared":    func() (*lease.Lease, error) { return m.AcquireShared(t.Context(), key) },
			"TryAcquireShared": func() (*lease.Lease, error) { return m.TryAcquireShared(t.Context(), key) },
		} {
			_, err := take()
			wants(t, call, err, schema.ErrMultiPrimary)
			if err == nil || !strings.Contains(err.Error(), "acquire the lease exclusively instead") {
				t.Errorf("%s says %v", call, err)
			}
		}
		if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases"); n != 0 {
			t.Errorf("%d rows were written", n)
		}
		l := acquire(t, m, key)
		wants(t, "Downgrade", second(l.Downgrade(t.Context())), schema.ErrMultiPrimary)
		wantsNone(t, "after Downgrade", l.Err())
		release(t, l)
	}
}
