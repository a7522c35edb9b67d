package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// holdLeases makes leases that are held for a day, the first of which are named lease:0 and lease:1.
func holdLeases(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	const clock = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
	db.Exec(t, fmt.Sprintf(`INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)
		SELECT CONCAT('lease:', n), 0, 'web-1/4711', RPAD(';', 23, 'x'), %[1]s, 86400000000, %[1]s + 86400000000, 0, 0, 'web-1' FROM %[2]s`, clock, numbers(n)))
}

// rowsRead returns how many rows the session of a pool of one connection has read.
func rowsRead(t *testing.T, pool *sql.DB) (all int) {
	t.Helper()
	rows, err := pool.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'")
	must(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var n int
		must(t, rows.Scan(&name, &n))
		all += n
	}
	must(t, rows.Err())
	return all
}

// TestManyLeases proves that looks read the table of leases as rarely as its size demands, that
// they say how old what they show is, and that what they show is right for that age: leases that
// are late or asked for. Who is the first in a queue is right for the look itself.
func TestManyLeases(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		n := testdb.Long(4_000, 20_000)
		holdLeases(t, db, n)
		leave := waitInLine(t, db.Connect(t))
		admin, _ := watched(t, db)
		room := ops.New(admin)
		look := func() (p *ops.Picture, rows int) {
			began := rowsRead(t, admin)
			p, err := room.Look(t.Context())
			must(t, err)
			return p, rowsRead(t, admin) - began
		}
		waits := func(p *ops.Picture) bool {
			return slices.ContainsFunc(p.Waits, func(w ops.Wait) bool { return w.Key == "queue" })
		}
		p, all := look()
		if len(p.Leases) != n+2 || p.LeasesAge != 0 || !waits(p) || all < n {
			t.Fatalf("the first look shows %d leases, %v old, a waiter %v, and reads %d rows", len(p.Leases), p.LeasesAge, waits(p), all)
		}
		leave()
		changed, shown := false, false // two leases, and whether they were read since
		read := p.Taken
		for reads := 1; reads < 3; {
			testdb.Refresh()
			p, rows := look()
			if p.LeasesAge == 0 {
				if paused := p.Taken.Sub(read); paused < time.Duration(n)*500*time.Microsecond {
					t.Errorf("the leases were read again after %v", paused)
				}
				shown, read = changed, p.Taken
				reads++
			} else if rows > all/5 {
				t.Errorf("a look that shows leases %v old reads %d rows, and one that reads them %d", p.LeasesAge, rows, all)
			}
			if waits(p) {
				t.Error("who has left a queue is shown in it")
			}
			if late, asked := p.Leases[0].Late(), p.Leases[1].Asked == "maintenance"; late != shown || asked != shown {
				t.Errorf("leases that are %v old show that one is late %t and one asked for %t, want %t", p.LeasesAge, late, asked, shown)
			}
			if p.Leases[0].Key != "lease:0" {
				t.Errorf("the first lease is %q: a viewer has masked it in another picture", p.Leases[0].Key)
			}
			p.Leases[0].Key = "masked"
			if !changed {
				db.Exec(t, "UPDATE lockstep_leases SET expires_us = expires_us - ttl_us * 3 DIV 4 WHERE name = 'lease:0'")
				db.Exec(t, "UPDATE lockstep_leases SET asked_us = expires_us, release_reason = 'maintenance' WHERE name = 'lease:1'")
				changed = true
			}
		}
		db.Exec(t, "DELETE FROM lockstep_leases WHERE name = 'lease:0'")
		room.Forget()
		if p, _ := look(); p.Leases[0].Key != "lease:1" || p.LeasesAge != 0 {
			t.Errorf("after Forget the first lease is %+v, %v old", p.Leases[0], p.LeasesAge)
		}
	})
}

// manager is a manager of leases, which is closed at the end of the test.
func manager(t *testing.T, pool *sql.DB, opts ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(pool, append(opts, lease.PurgeEvery(0, time.Hour))...)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.WithoutCancel(t.Context()))) })
	return m
}

// TestLeaders proves that each candidate of an election is shown, also of those that have one name.
func TestLeaders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		names := []string{"web-1", "web-1", "web-1", "web-2"}
		ended := make(chan error, len(names))
		for _, name := range names {
			e, err := elect.New(manager(t, pool), txlock.Named("scheduler"), elect.InstanceName(name))
			must(t, err)
			go func() {
				ended <- e.Run(ctx, func(ctx context.Context, _ *elect.Term) error { <-ctx.Done(); return ctx.Err() })
			}()
		}
		var shown []string
		for deadline := time.Now().Add(30 * time.Second); len(shown) < len(names) && time.Now().Before(deadline); testdb.Refresh() {
			p, err := ops.New(db.Admin()).Look(t.Context())
			must(t, err)
			for _, l := range p.Leaders() {
				shown = append([]string{l.By}, l.Standby...)
			}
		}
		slices.Sort(shown)
		if !slices.Equal(shown, names) {
			t.Errorf("the candidates are %q, want %q", shown, names)
		}
		cancel()
		for range names {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// waitInLine lets a waiter wait for a lease that is held, until leave is called.
func waitInLine(t *testing.T, pool *sql.DB) (leave func()) {
	t.Helper()
	m, key := manager(t, pool, lease.Fair()), txlock.Named("queue")
	must(t, second(m.Acquire(lease.WithOwner(t.Context(), "holder"), key)))
	ctx, cancel := context.WithCancel(lease.WithOwner(t.Context(), "waiter"))
	ended := make(chan error, 1)
	go func() { _, err := m.Acquire(ctx, key); ended <- err }()
	inLine := func(p *ops.Picture) bool {
		return slices.ContainsFunc(p.Leases, func(l ops.Lease) bool { return l.Kind == "waiter" && l.Owner == "waiter" })
	}
	lookUntil(t, ops.New(pool), inLine)
	return func() {
		cancel()
		if err := <-ended; err == nil {
			t.Error("the waiter was granted the lease")
		}
		lookUntil(t, ops.New(pool), func(p *ops.Picture) bool { return !inLine(p) })
	}
}

// TestLate proves that a lease whose holder hasn't renewed it is late, and that one which isn't renewed
// by design never is: that of the cleanup, and one that is kept for a while after its release.
func TestLate(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m, err := lease.NewManager(db.Connect(t), lease.TTL(time.Hour), lease.PurgeEvery(500*time.Millisecond, time.Hour))
		must(t, err)
		t.Cleanup(func() { must(t, m.Close(context.WithoutCancel(t.Context()))) })
		must(t, second(m.Acquire(t.Context(), txlock.Named("crashed"))))
		kept, err := m.Acquire(t.Context(), txlock.Named("kept"), lease.HoldAtLeast(time.Hour))
		must(t, err)
		must(t, kept.Release(t.Context()))
		must(t, second(m.Acquire(t.Context(), txlock.Named("spared"))))
		own := func(p *ops.Picture) bool {
			return slices.ContainsFunc(p.Leases, func(l ops.Lease) bool { return l.Key == "lockstep:cleanup" })
		}
		lookUntil(t, ops.New(db.Admin()), own)
		db.Exec(t, "UPDATE lockstep_leases SET ttl_us = 300000000, expires_us = UNIX_TIMESTAMP() * 1000000 + 300000000 WHERE name = 'lockstep:cleanup'") // so that the test may be slow
		for _, passed := range []string{"1 DIV 2", "3 DIV 4", "99 DIV 100"} {
			db.Exec(t, "UPDATE lockstep_leases SET expires_us = UNIX_TIMESTAMP() * 1000000 + ttl_us - ttl_us * "+passed+" WHERE name <> 'spared'")
			p, err := ops.New(db.Admin()).Look(t.Context())
			must(t, err)
			if len(p.Leases) != 4 {
				t.Errorf("the leases are %+v", p.Leases)
			}
			for _, l := range p.Leases {
				renews := l.Key == "crashed" || l.Key == "spared"
				if late := l.Key == "crashed" && passed != "1 DIV 2"; l.Late() != late || l.Renewed.Known() != renews || strings.Contains(l.Describe(), "renewed") != renews || strings.Contains(l.Renewal(), "late") != late {
					t.Errorf("when %s of its TTL have passed, a lease is %s: late %v", passed, l.Describe(), l.Late())
				}
			}
		}
	})
}
