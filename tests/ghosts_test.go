package tests

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// mostDelay is how late a bad network delivers what it is given.
const mostDelay = 3 * time.Second

// TestNoGhosts proves that a lease whose acquire has failed is free soon after,
// however late the network and the row let the statement, its reply and what
// undoes it come: 80 callers, 500 with LOCKSTEP_LONG=1, give up at random, over
// networks that delay every packet by up to 3 seconds and break connections, on rows
// that others lock. A lease that nobody releases would be held for 5 minutes. In the
// end nothing of it waits on the server.
func TestNoGhosts(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine).OpenLeases(t)
		granted, late := 0, 0
		for range 5 { // a busy machine grants few in time
			g, l := noGhosts(t, db)
			if granted, late = granted+g, late+l; granted >= 3 && late >= 3 {
				return
			}
		}
		t.Errorf("%d attempts were granted, %d too late: too few to prove anything", granted, late)
	})
}

// noGhosts haunts a server once, and returns how many attempts were granted, and how many
// to callers who had left.
func noGhosts(t *testing.T, db *testdb.DB) (granted, late int) {
	t.Helper()
	h := haunt(t, db, 10, testdb.Long(8, 50), func(i int) func(driver.Connector) driver.Connector {
		if i%2 == 0 {
			return guarded
		}
		return plain
	})
	// What is on its way when the last caller leaves may take the row once
	// more. A statement is cut off after 20 s, and to release what it took
	// may need two new connections, of 30 s each.
	settled := time.Now().Add(mostDelay)
	free := testdb.Await(2*time.Minute, func() bool {
		return time.Now().After(settled) && len(h.ghosts(t, db)) == 0
	})
	if ghosts := h.ghosts(t, db); !free {
		t.Errorf("%d leases are held by nobody, among them %v", len(ghosts), ghosts[0])
	}
	h.end(t, db)
	granted, late = h.granted(), h.late(t, db)
	t.Logf("%d granted, %d to callers who had left, the last released after %v",
		granted, late, time.Since(settled.Add(-mostDelay)).Round(time.Millisecond))
	return granted, late
}

// TestGhostsAreSeen proves that TestNoGhosts would see ghosts: it finds them where
// the statement has no deadline and nothing is released.
func TestGhostsAreSeen(t *testing.T) {
	const deadline, found = "WHEN VALUES(token) > CAST(? AS SIGNED) THEN", "WHEN LOCATE(VALUES(holders), lockstep_leases.holders) = 0 THEN"
	careless := rewritten(func(query string) string {
		query = strings.Replace(query, deadline, "WHEN 0 > CAST(? AS SIGNED) THEN", 1)
		return strings.Replace(query, found, "WHEN 1 = 1 THEN", 1)
	})
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		h := haunt(t, db, 3, 20, func(int) func(driver.Connector) driver.Connector { return careless })
		if !testdb.Await(4*mostDelay, func() bool { return len(h.ghosts(t, db)) > 0 }) {
			t.Error("no ghost is seen")
		}
		t.Logf("%d of 60 are ghosts", len(h.ghosts(t, db)))
		h.heal()
	})
}

// TestReleasesOverNewConnection proves that an acquire whose caller and whose
// connection are gone is released over a network so slow that a new connection
// takes longer than a release that has one.
func TestReleasesOverNewConnection(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		h, n := left(t, db, 5*mostDelay/6)
		granted := time.Now()
		n.Cut(1)
		h.released(t, db)
		t.Logf("released after %v", time.Since(granted).Round(time.Millisecond))
	})
}

// left makes an attempt whose caller has left, over a slow network.
func left(t *testing.T, db *testdb.DB, slow time.Duration) (*haunting, network) {
	t.Helper()
	n := newNetwork(t, db)
	m := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(5*time.Minute))
	warm(t, m, 1)
	n.slow(t, "downstream", slow, slow)
	h := &haunting{networks: []network{n}, managers: []*lease.Manager{m}}
	h.leave(t, db, m)
	return h, n
}

// released waits until no attempt holds a lease, and heals the networks.
func (h *haunting) released(t *testing.T, db *testdb.DB) {
	t.Helper()
	if !testdb.Await(time.Minute, func() bool { return len(h.ghosts(t, db)) == 0 }) {
		t.Error("the lease is held by nobody")
	}
	h.heal()
}

// TestReleasesToServerThatRefuses proves that an acquire whose caller and whose
// connection are gone is released, also where the server answers with errors for a
// while, as one does that has too many connections or changes its passwords.
func TestReleasesToServerThatRefuses(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		h, n := left(t, db, time.Second)
		account := func(state string) {
			user := "'" + db.Config().User + "'"
			db.Exec(t, "ALTER USER "+user+"@'%', "+user+"@'localhost' ACCOUNT "+state)
		}
		account("LOCK")
		n.Cut(1)
		if dials := n.Dials.Load(); !testdb.Await(time.Minute, func() bool { return n.Dials.Load() > dials+4 }) {
			t.Error("nobody tries to release the lease any more")
		}
		account("UNLOCK")
		h.released(t, db)
	})
}

// haunting is a run of attempts to acquire whose callers give up.
type haunting struct {
	networks []network
	pools    []*sql.DB
	managers []*lease.Manager
	tries    []*try
}

// try is one attempt, with a key of its own.
type try struct {
	key txlock.Key
	err error
}

// haunt runs attempts over a number of networks until the last caller has gone.
func haunt(t *testing.T, db *testdb.DB, networks, tries int, wrap func(i int) func(driver.Connector) driver.Connector) *haunting {
	t.Helper()
	h := new(haunting)
	var running sync.WaitGroup
	for i := range networks {
		n := newNetwork(t, db)
		pool := faultPool(t, db, n, wrap(i))
		pool.SetMaxOpenConns(tries / 2)
		pool.SetMaxIdleConns(tries / 2)
		m := faultManager(t, pool, lease.TTL(5*time.Minute))
		h.networks, h.pools, h.managers = append(h.networks, n), append(h.pools, pool), append(h.managers, m)
		warm(t, m, tries/2)
		if i%3 != 0 {
			n.slow(t, "upstream", 0, mostDelay)
		}
		if i%3 != 1 {
			n.slow(t, "downstream", 0, mostDelay)
		}
		for range tries {
			a := h.try(t, db)
			running.Go(func() { a.run(t, db, m) })
			if mathrand.IntN(3) == 0 {
				running.Go(func() {
					pause(2 * mostDelay)
					lockForAWhile(t, db, a.key)
				})
			}
		}
		running.Go(func() {
			for range 4 {
				pause(mostDelay)
				n.Cut(0.2)
			}
		})
	}
	running.Wait()
	return h
}

// try prepares an attempt: its row is there, with token 0.
func (h *haunting) try(t *testing.T, db *testdb.DB) *try {
	t.Helper()
	a := &try{key: txlock.Named("ghost:" + rand.Text())}
	h.tries = append(h.tries, a)
	if _, err := db.Admin().Exec("INSERT INTO lockstep_leases VALUES (?, 0, '-', '', 0, 0, 0, 0, 0, 0, '', 0, '', 0)", a.key.String()); err != nil {
		t.Fatal(err)
	}
	return a
}

// leave makes an attempt whose caller leaves when the server has granted the lease, and before
// that is known: what comes from the server is slow.
func (h *haunting) leave(t *testing.T, db *testdb.DB, m *lease.Manager) {
	t.Helper()
	for range 5 { // where the machine is slower than the network, it is known
		a := h.try(t, db)
		ctx, cancel := context.WithCancel(t.Context())
		var l *lease.Lease
		answered := make(chan error, 1)
		go func() {
			var err error
			l, err = m.TryAcquire(ctx, a.key)
			answered <- err
		}()
		granted := testdb.Await(time.Minute, func() bool { return h.rows(t, db, "holders <> ''")[a.key.String()] })
		cancel()
		a.err = <-answered
		if !granted {
			t.Fatalf("the lease was not granted: %v", a.err)
		}
		if a.err != nil {
			if !errors.Is(a.err, context.Canceled) {
				t.Fatalf("TryAcquire: %v", a.err)
			}
			return
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatalf("Release: %v", err)
		}
	}
	t.Fatal("each answer has come before its caller left")
}

// run makes the attempt. What is granted to a caller that is still there is held
// by it, as the row says too, until the end.
func (a *try) run(t *testing.T, db *testdb.DB, m *lease.Manager) {
	pause(mostDelay)
	ctx, cancel := context.WithCancel(context.Background())
	patience := mathrand.N(mostDelay)
	if mathrand.IntN(4) == 0 {
		defer time.AfterFunc(patience, cancel).Stop()
	} else {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	acquire := m.Acquire
	if mathrand.IntN(2) == 0 {
		acquire = m.TryAcquire
	}
	var l *lease.Lease
	if l, a.err = acquire(ctx, a.key); a.err != nil {
		return
	}
	var owner string
	var token uint64
	err := db.Admin().QueryRow("SELECT owner, token FROM lockstep_leases WHERE name = ? AND holders <> ''", a.key.String()).Scan(&owner, &token)
	if err != nil || owner != l.Owner() || token != l.Token() {
		t.Errorf("lease of %q with token %d was granted; the row has %q, %d, %v", l.Owner(), l.Token(), owner, token, err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("Err of a fresh lease: %v", err)
	}
}

// ghosts returns the keys that are held although their attempt has failed.
func (h *haunting) ghosts(t *testing.T, db *testdb.DB) (keys []string) {
	t.Helper()
	held := h.rows(t, db, "holders <> ''")
	for _, a := range h.tries {
		if a.err != nil && held[a.key.String()] {
			keys = append(keys, a.key.String())
		}
	}
	return keys
}

// late counts the attempts that were granted although they have failed.
func (h *haunting) late(t *testing.T, db *testdb.DB) (n int) {
	t.Helper()
	granted := h.rows(t, db, "token > 0")
	for _, a := range h.tries {
		if a.err != nil && granted[a.key.String()] {
			n++
		}
	}
	return n
}

// rows returns the keys whose row is such.
func (h *haunting) rows(t *testing.T, db *testdb.DB, where string) map[string]bool {
	t.Helper()
	rows, err := db.Admin().Query("SELECT name FROM lockstep_leases WHERE name LIKE 'ghost:%' AND " + where)
	fatal(t, err)
	defer rows.Close()
	keys := map[string]bool{}
	for rows.Next() {
		var name string
		fatal(t, rows.Scan(&name))
		keys[name] = true
	}
	fatal(t, rows.Err())
	return keys
}

func (h *haunting) granted() (n int) {
	for _, a := range h.tries {
		if a.err == nil {
			n++
		}
	}
	return n
}

// end heals the networks and closes the managers: every lease is free then, and
// no session of theirs is left on the server, which is ours alone.
func (h *haunting) end(t *testing.T, db *testdb.DB) {
	t.Helper()
	h.heal()
	quiet := func() bool {
		// What InnoDB says is made again for a session that hasn't asked for a while.
		testdb.Refresh()
		return count(t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx") == 0
	}
	if !testdb.Await(time.Minute, quiet) {
		t.Error("a transaction stays open on the server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, m := range h.managers {
		if err := m.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if held := h.rows(t, db, "holders <> ''"); len(held) > 0 {
		t.Errorf("%d leases are held after Close", len(held))
	}
	for _, pool := range h.pools {
		pool.SetMaxIdleConns(-1) // closes those that are idle
	}
	if !testdb.Await(time.Minute, func() bool {
		return count(t, db, "SELECT COUNT(*) FROM "+db.Engine().Processes()+" WHERE user = ?", db.Config().User) == 0
	}) || !testdb.Await(time.Minute, quiet) {
		t.Error("a session is left on the server")
	}
}

func (h *haunting) heal() {
	for _, n := range h.networks {
		n.Heal()
	}
}

// warm opens connections, reads the server's clock and prepares the statements.
func warm(t *testing.T, m *lease.Manager, n int) {
	t.Helper()
	var warming sync.WaitGroup
	for range n {
		warming.Go(func() {
			l, err := m.Acquire(t.Context(), txlock.Named("warm:"+rand.Text()))
			if err != nil {
				t.Errorf("warm up: %v", err)
				return
			}
			_ = l.Release(t.Context()) // may be out of order on purpose
		})
	}
	warming.Wait()
}

// lockForAWhile locks the row of a lease as a stranger's transaction does.
func lockForAWhile(t *testing.T, db *testdb.DB, key txlock.Key) {
	tx, err := db.Admin().Begin()
	if err == nil {
		_, err = tx.Exec("SELECT token FROM lockstep_leases WHERE name = ? FOR UPDATE", key.String())
		pause(2 * time.Second)
		err = errors.Join(err, tx.Rollback())
	}
	if err != nil {
		t.Errorf("lock the row: %v", err)
	}
}

// pause lasts up to the time given.
func pause(most time.Duration) { time.Sleep(mathrand.N(most)) }
