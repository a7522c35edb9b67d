package lease_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// beginnings are those of the transactions that acquire leases: the isolation levels at which InnoDB
// locks gaps, and whether the transaction begins with a read.
var beginnings = []struct {
	level sql.IsolationLevel
	read  bool
}{{sql.LevelRepeatableRead, false}, {sql.LevelRepeatableRead, true}, {sql.LevelSerializable, true}}

// neighbourhood is where one trial looks at the rows beside those of a transaction.
type neighbourhood struct {
	db       *testdb.DB
	pool     *sql.DB
	m, other *lease.Manager
	level    sql.IsolationLevel
	read     bool // the transaction begins with a read
}

// amongNeighbours runs a test on every server over a guarded and a plain pool, for each
// case, however the transaction begins. Each trial has the table for itself, so that all rows are
// in one page: from REPEATABLE READ on InnoDB also locks the gap before the first row of a page.
func amongNeighbours[C any](t *testing.T, cases map[string]C, test func(t *testing.T, n neighbourhood, c C)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, guarded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/guarded=%t", engine, guarded), func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				for name, c := range cases {
					for _, b := range beginnings {
						if !t.Run(fmt.Sprintf("%s/%v/%t", name, b.level, b.read), func(t *testing.T) {
							exec(t, db, "TRUNCATE TABLE lockstep_leases")
							pool := newPool(t, db, guarded)
							test(t, neighbourhood{db, pool, newManager(t, pool), newManager(t, pool), b.level, b.read}, c)
						}) {
							return // what waits for a gap does so everywhere, each time for minutes
						}
					}
				}
			})
		}
	}
}

// begin begins the transaction of a trial.
func (n neighbourhood) begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx := begin(t, n.pool, n.level)
	if n.read {
		reads(t, tx, counter(t, n.db))
	}
	return tx
}

// TestAcquireTxLocksNoOtherKey proves that a lease that is taken in a transaction locks no row
// and no gap but its own row, also if the key was leased shared before, and after plain reads:
// the leases of the keys before and behind it are renewed, released and acquired meanwhile, and
// every verb works on new keys there, in the same transaction, too.
func TestAcquireTxLocksNoOtherKey(t *testing.T) {
	amongNeighbours(t, map[string]func(t *testing.T, n neighbourhood, key txlock.Key){
		"exclusive": func(t *testing.T, n neighbourhood, key txlock.Key) { release(t, acquire(t, n.other, key)) },
		"shared":    func(t *testing.T, n neighbourhood, key txlock.Key) { release(t, share(t, n.other, key)) },
		"dead readers": func(t *testing.T, n neighbourhood, key txlock.Key) {
			share(t, n.other, key)
			exec(t, n.db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ? AND slot > 0", key.String())
		},
		"never": func(*testing.T, neighbourhood, txlock.Key) {},
	}, func(t *testing.T, n neighbourhood, use func(t *testing.T, n neighbourhood, key txlock.Key)) {
		ctx := limited(t, soon)
		key := named().String()
		before, own, behind := txlock.Named(key+":1"), txlock.Named(key+":2"), txlock.Named(key+":3")
		use(t, n, own)
		held := []*lease.Lease{acquire(t, n.other, before), share(t, n.other, behind)}
		tx := n.begin(t)
		l := acquireTx(t, n.m, tx, own)
		for _, h := range held {
			wantsNone(t, "Renew of a neighbour", h.Renew(ctx))
			wantsNone(t, "Release of a neighbour", h.Release(ctx))
			release(t, acquire(t, n.other, h.Key()))
		}
		for i, suffix := range []string{":0", ":2", ":4"} { // around each of the three
			everyVerb(ctx, t, n.other, n.pool, fmt.Sprintf("%s%s%d", key, suffix, i))
		}
		again, err := n.m.AcquireTx(ctx, tx, txlock.Named(key+":2a"))
		wantsNone(t, "AcquireTx of a new key in the same transaction", err)
		commit(t, tx)
		release(t, l)
		if err == nil {
			release(t, again)
		}
	})
}

// everyVerb makes rows under new keys by each verb that does so.
func everyVerb(ctx context.Context, t *testing.T, m *lease.Manager, pool *sql.DB, key string) {
	t.Helper()
	for name, verb := range map[string]verb{
		"TryAcquire": tryExclusive, "TryAcquireShared": tryShared, "Acquire fairly": fairly, "Semaphore.TryAcquire": tryPermit,
		"AcquireTx": func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (l *lease.Lease, err error) {
			tx := begin(t, pool, sql.LevelRepeatableRead)
			defer commit(t, tx)
			return m.AcquireTx(ctx, tx, key)
		},
	} {
		l, err := verb(ctx, m, txlock.Named(key+":"+name))
		wantsNone(t, name+" of a new key", err)
		if err == nil {
			release(t, l)
		}
	}
}

// TestAcquireTxWaitsForNoOtherKey proves that a lease that was shared before, and is free, is
// granted in a transaction while others guard the leases of the keys before and behind it.
func TestAcquireTxWaitsForNoOtherKey(t *testing.T) {
	amongNeighbours(t, map[string]bool{"": true}, func(t *testing.T, n neighbourhood, _ bool) {
		key := keyOf(t, n.m, true).String()
		release(t, share(t, n.other, txlock.Named(key+":2")))
		guarded := begin(t, n.pool, sql.LevelReadCommitted)
		for _, suffix := range []string{":1", ":3"} {
			l := acquire(t, n.other, txlock.Named(key+suffix))
			wantsNone(t, "Guard", l.Guard(t.Context(), guarded))
			defer release(t, l)
		}
		tx := n.begin(t)
		l, err := n.m.AcquireTx(limited(t, soon), tx, txlock.Named(key+":2"))
		wantsNone(t, "AcquireTx", err)
		if err == nil {
			commit(t, tx)
			release(t, l)
		}
		commit(t, guarded)
	})
}

// TestMakeBehindAForeignGap proves that no verb waits for longer than the server's limit where
// somebody has locked the gap in which its row would be, and that it leaves no session waiting.
func TestMakeBehindAForeignGap(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		key := named().String()
		release(t, acquire(t, m, txlock.Named(key+":1")))
		release(t, acquire(t, m, txlock.Named(key+":9")))
		foreign := begin(t, newPool(t, db, false), sql.LevelRepeatableRead)
		rows, err := foreign.Query("SELECT slot FROM lockstep_leases WHERE name > ? AND name < ? FOR UPDATE", key+":1", key+":9")
		wantsNone(t, "the range", err)
		wantsNone(t, "the range", rows.Close())
		ctx := limited(t, 5*time.Minute)
		run, wait := sideBySide(t)
		for name, verb := range map[string]verb{
			"TryAcquire": tryExclusive, "TryAcquireShared": tryShared, "Semaphore": tryPermit,
			"AcquireTx": func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (*lease.Lease, error) {
				tx := begin(t, pool, sql.LevelRepeatableRead)
				defer rollback(t, tx)
				return m.AcquireTx(ctx, tx, key)
			},
		} {
			run(name, func(t *testing.T) { wants(t, name, second(verb(ctx, m, txlock.Named(key+":5:"+name))), txlock.ErrBusy) })
		}
		wait()
		wants(t, "Acquire", second(m.Acquire(ctx, txlock.Named(key+":5"), lease.WaitAtMost(100*time.Millisecond))), txlock.ErrWaitTimeout)
		if ctx.Err() != nil {
			t.Errorf("it took minutes: the server's innodb_lock_wait_timeout is 50 s")
		}
		rollback(t, foreign)
		free(t, m, txlock.Named(key+":5"))
		free(t, m, txlock.Named(key+":5:TryAcquire"))
	})
}

// wantsNone is wants for no error.
func wantsNone(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// TestMakeKeepsTheSessionsLimit proves that the limit of lock waits of a session that has made
// rows is the program's afterwards.
func TestMakeKeepsTheSessionsLimit(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(1)
		m := newManager(t, pool)
		limit := func() (seconds int) {
			t.Helper()
			wantsNone(t, "the limit", pool.QueryRow("SELECT @@SESSION.innodb_lock_wait_timeout").Scan(&seconds))
			return seconds
		}
		wantsNone(t, "SET", second(pool.Exec("SET SESSION innodb_lock_wait_timeout = 17")))
		id := testdb.ConnID(t, pool)
		release(t, acquire(t, m, named()))
		if now := limit(); now != 17 || testdb.ConnID(t, pool) != id {
			t.Errorf("the limit is %d s, on connection %d that was %d", now, testdb.ConnID(t, pool), id)
		}
	})
}

// TestRefusedAcquireTxLocksNothing proves that a transaction whose AcquireTx has found the row
// locked, and which stays open, locks nothing: the key is leased as before, and so are new keys
// around it.
func TestRefusedAcquireTxLocksNothing(t *testing.T) {
	amongNeighbours(t, map[string]bool{"never shared": false, "shared before": true}, func(t *testing.T, n neighbourhood, shared bool) {
		ctx := limited(t, 2*time.Minute)
		name := named().String()
		key := txlock.Named(name + ":2")
		if release(t, acquire(t, n.other, key)); shared {
			release(t, share(t, n.other, key))
		}
		release(t, acquire(t, n.other, txlock.Named(name+":3")))
		first := begin(t, n.pool, sql.LevelRepeatableRead)
		l := acquireTx(t, n.other, first, key)
		tx := n.begin(t)
		wants(t, "AcquireTx", second(n.m.AcquireTx(ctx, tx, key)), txlock.ErrBusy)
		rollback(t, first)
		wants(t, "Release of what was rolled back", l.Release(ctx), txlock.ErrNotHeld)
		r, err := n.other.TryAcquireShared(ctx, key)
		wantsNone(t, "TryAcquireShared", err)
		if err == nil {
			release(t, r)
		}
		for _, suffix := range []string{":1", ":2a", ":4"} {
			everyVerb(ctx, t, n.other, n.pool, name+suffix)
		}
		wantsNone(t, "Commit", tx.Commit())
	})
}
