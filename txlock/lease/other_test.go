//go:build tidb || vitess

package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// onOther returns a guarded pool and a manager over it.
func onOther(t *testing.T) (*sql.DB, *lease.Manager) {
	t.Helper()
	pool := newPool(t, testdb.Open(t, testdb.Engines()[0]), true)
	return pool, newManager(t, pool)
}

// TestOnOtherGuards: a guarded transaction isn't committed after the lease was lost, and TryAcquire
// doesn't wait for it.
func TestOnOtherGuards(t *testing.T) {
	t.Parallel()
	pool, m := onOther(t)
	_, other := onOther(t)
	l := acquire(t, m, named())
	tx := begin(t, pool, sql.LevelDefault)
	guard(t, l, tx)
	wants(t, "TryAcquire", testdb.Err(other.TryAcquire(t.Context(), l.Key())), txlock.ErrBusy)
	commit(t, tx)
	tx = begin(t, pool, sql.LevelDefault)
	wants(t, "ForceRelease", other.ForceRelease(t.Context(), l.Key()), nil)
	higher(t, got(other.TryAcquire(t.Context(), l.Key()))(t), l)
	wants(t, "Guard of a lease that was lost", l.Guard(t.Context(), tx), txlock.ErrLost)
}

// TestOnOtherRefusesLeases: what needs shared locks is refused, and writes nothing.
func TestOnOtherRefusesLeases(t *testing.T) {
	t.Parallel()
	pool, m := onOther(t)
	for name, take := range map[string]verb{"AcquireShared": shared, "TryAcquireShared": tryShared, "Fair": fairly, "Semaphore": tryPermit} {
		key, n := named(), 0
		wants(t, name, testdb.Err(take(t.Context(), m, key)), schema.ErrEngine)
		must(t, pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()).Scan(&n))
		testdb.Equal(t, name+": rows", n, 0)
	}
}

// TestOnOtherRefusesFairWithoutATurn: Fair is refused, too, where the pool has no connection for a place in the
// queue, and the waiter polls.
func TestOnOtherRefusesFairWithoutATurn(t *testing.T) {
	t.Parallel()
	pool, m := onOther(t)
	pool.SetMaxOpenConns(1)
	_, other := onOther(t)
	holder := acquire(t, other, named())
	first := later(func() *lease.Lease { return acquire(t, m, holder.Key()) })
	time.Sleep(300 * time.Millisecond) // it waits in the manager, or this proves less
	fair := later(func() error { return testdb.Err(m.Acquire(t.Context(), holder.Key(), lease.Fair())) })
	time.Sleep(300 * time.Millisecond)
	release(t, holder)
	release(t, <-first)
	wants(t, "Acquire with Fair", <-fair, schema.ErrEngine)
}

// TestOnOtherAcquireTx: a lease that a transaction acquires is held after its COMMIT, and not after its
// rollback.
func TestOnOtherAcquireTx(t *testing.T) {
	t.Parallel()
	pool, m := onOther(t)
	_, other := onOther(t)
	for _, commits := range []bool{true, false} {
		tx := begin(t, pool, sql.LevelDefault)
		l := acquireTx(t, m, tx, named())
		wants(t, "TryAcquire beside it", testdb.Err(other.TryAcquire(t.Context(), l.Key())), txlock.ErrBusy)
		end := tx.Rollback
		if commits {
			end = tx.Commit
		}
		wants(t, "the end", end(), nil)
		err := testdb.Err(other.TryAcquire(t.Context(), l.Key()))
		testdb.ErrorIf(t, errors.Is(err, txlock.ErrBusy) != commits, "TryAcquire after the end, committed %t: %v", commits, err)
		testdb.ErrorIf(t, commits && l.Err() != nil, "%v", l.Err())
	}
}

// TestOnOtherRowThatIsMade: a call that makes the row of a key doesn't wait for who has locked the missing
// row.
func TestOnOtherRowThatIsMade(t *testing.T) {
	t.Parallel()
	if testdb.Engines()[0] != testdb.TiDB {
		return // the missing row that is locked is a gap elsewhere, where other tests have keys
	}
	pool, m := onOther(t)
	key, tx := named(), begin(t, pool, sql.LevelDefault)
	run(t, tx, fmt.Sprintf("SELECT * FROM lockstep_leases WHERE name = '%s' AND slot = 0 FOR UPDATE", key))
	wants(t, "TryAcquire", testdb.Err(m.TryAcquire(t.Context(), key)), txlock.ErrBusy) // the transaction doesn't end before
	wants(t, "Acquire", testdb.Err(m.Acquire(t.Context(), key, lease.WaitAtMost(700*time.Millisecond))), txlock.ErrWaitTimeout)
	rollback(t, tx)
	release(t, acquire(t, m, key))
}

// TestOnOtherStorm proves that no update is lost under leases that guard it and under locks, that no two
// hold a lease at once, and that tokens rise, while connections are cut at random, and while a server is
// killed, with its store kept, or stopped for longer than a TTL. The workers go to two TiDB servers over one
// store by turns. It takes 20 minutes with LOCKSTEP_LONG=1.
func TestOnOtherStorm(t *testing.T) {
	t.Parallel()
	for name, kills := range map[string]bool{"connections are cut": false, "the server is killed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storm(t, kills)
		})
	}
}

// stormServers are those of a storm.
func stormServers(t *testing.T) []*testdb.Server {
	t.Helper()
	if testdb.Engines()[0] != testdb.TiDB {
		return []*testdb.Server{testdb.Dedicated(t, testdb.Engines()[0])}
	}
	servers := testdb.Got(testdb.StartTiDB(t.Context(), 2))(t)
	t.Cleanup(func() { must(t, testdb.StopAll(servers)) })
	return servers
}

func storm(t *testing.T, kills bool) {
	const workers, keys = 6, 2
	servers := stormServers(t)
	db := servers[0].OpenLeases(t)
	table := db.CreateTable(t, "counter", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
	var counters [keys + 1]counters // the last is that of a lock
	for i := range counters {
		db.Exec(t, "INSERT INTO "+table+" VALUES (?, 0)", i)
	}
	end := time.Now().Add(testdb.Long(30*time.Second, 20*time.Minute))
	var all sync.WaitGroup
	var wires wires
	for w := range workers {
		pool := newPool(t, db.At(t, servers[w%len(servers)]), true, func(cfg *mysql.Config) { cfg.DialFunc = wires.dial })
		m := testdb.Got(lease.NewManager(pool, lease.TTL(2*time.Second)))(t)
		all.Go(func() {
			for i := w; time.Now().Before(end) || !proves(counters[:]); i++ {
				c := &counters[i%keys]
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if l, err := c.acquire(ctx, t, m, i%keys); err == nil {
					c.count(ctx, l, pool, table, i%keys)
					_ = l.Release(ctx) // it may be lost
				}
				counters[keys].countLocked(ctx, pool, table, keys)
				cancel()
			}
			_ = m.Close(t.Context()) // connections are cut
		})
	}
	cuts, stops := 0, 0
	for next := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if kills && time.Now().After(next) {
			server := servers[stops/2%len(servers)]
			if stops++; stops%2 == 0 {
				must(t, server.Signal(syscall.SIGSTOP))
				time.Sleep(3 * time.Second) // longer than a TTL
				must(t, server.Signal(syscall.SIGCONT))
			} else {
				must(t, server.Restart(t.Context())) // which kills it
			}
			next = time.Now().Add(7 * time.Second)
		}
		cuts += wires.cut()
	}
	all.Wait()
	for i := range counters {
		c, n := &counters[i], db.Number(t, fmt.Sprintf("SELECT n FROM %s WHERE id = %d", table, i))
		t.Logf("%d grants, %d commits acknowledged, %d unknown, the counter is %d; %d connections cut, the server killed or stopped %d times", c.grants, c.acknowledged, c.unknown, n, cuts, stops)
		testdb.ErrorIf(t, n < c.acknowledged || n > c.acknowledged+c.unknown,
			"of %d commits, and %d whose outcome is unknown, %d are there", c.acknowledged, c.unknown, n)
	}
}

// wires are the open connections.
type wires struct {
	mu   sync.Mutex
	open []net.Conn
}

func (w *wires) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open = append(w.open, conn)
	}
	return conn, err
}

// cut cuts one of them, and returns how many it has cut.
func (w *wires) cut() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		return 0
	}
	i := rand.IntN(len(w.open))
	err := w.open[i].Close()
	w.open = slices.Delete(w.open, i, i+1)
	if err != nil {
		return 0 // its pool has closed it
	}
	return 1
}

// counters are what the workers know of one key.
type counters struct {
	mu                            sync.Mutex
	holder                        *lease.Lease
	grants, acknowledged, unknown int64
}

// proves reports whether each counter was raised. On a busy machine that may take until no connection is cut.
func proves(all []counters) bool {
	proves := true
	for i := range all {
		all[i].mu.Lock()
		proves = proves && all[i].acknowledged > 0
		all[i].mu.Unlock()
	}
	return proves
}

// acquire acquires the lease of a counter, and proves that nobody else holds it.
func (c *counters) acquire(ctx context.Context, t *testing.T, m *lease.Manager, id int) (*lease.Lease, error) {
	l, err := m.Acquire(ctx, txlock.Named(fmt.Sprint("storm:", id)))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grants++
	if !l.Valid() {
		return l, nil // its server stood still for longer than the TTL before it answered
	}
	last := c.holder
	if last != nil && (last.Valid() || l.Token() <= last.Token()) {
		t.Errorf("token %d is held beside or after %d", l.Token(), last.Token())
	}
	c.holder = l
	return l, nil
}

// count increments a counter by a read and a write that its lease guards.
func (c *counters) count(ctx context.Context, l *lease.Lease, pool *sql.DB, table string, id int) {
	level := sql.LevelReadCommitted
	if testdb.Engines()[0] == testdb.Vitess {
		level = sql.LevelDefault // it refuses others
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if l.Guard(ctx, tx) != nil || increment(ctx, tx, table, id) != nil {
		return
	}
	c.ended(tx.Commit())
}

// countLocked increments a counter by a read and a write under a lock. Run says which outcome isn't known.
func (c *counters) countLocked(ctx context.Context, pool *sql.DB, table string, id int) {
	err := locksqlc.Run(ctx, pool, []txlock.Key{txlock.Named("storm")}, func(tx *sql.Tx) error { return increment(ctx, tx, table, id) })
	if err == nil || errors.Is(err, txlock.ErrUnknownOutcome) {
		c.ended(err)
	}
}

func increment(ctx context.Context, tx *sql.Tx, table string, id int) error {
	var n int64
	if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT n FROM %s WHERE id = %d", table, id)).Scan(&n); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET n = %d WHERE id = %d", table, n+1, id))
	return err
}

// ended counts a transaction by the reply to its COMMIT.
func (c *counters) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.acknowledged++
	} else {
		c.unknown++
	}
}
