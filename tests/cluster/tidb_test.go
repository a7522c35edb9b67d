//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Beside what all clusters do, TiDB servers over one store have these tests. The locks of a server that is gone stay in the store until
// their TTL of 20 s has passed.

// TestTiDBInstall: what Install makes through one server, Check finds right through the others at once, as
// does lockstep check, which compares their clocks. A pool that isn't guarded is refused through each.
func TestTiDBInstall(t *testing.T) {
	onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Fresh(t)
		wants(t, "before Install", schema.Check(t.Context(), db.At(t, nodes[1]).Connect(t)), schema.ErrTable)
		check(t, schema.Install(t.Context(), db.Admin()))
		for i, node := range nodes {
			plain := db.At(t, node).Connect(t)
			wants(t, fmt.Sprintf("through server %d", i), schema.Check(t.Context(), plain), nil)
			err := locksqlc.Run(t.Context(), plain, []txlock.Key{txlock.Named("plain")}, func(*sql.Tx) error { return errors.New("it runs") })
			wants(t, fmt.Sprintf("an unguarded pool of server %d", i), err, schema.ErrEngine)
		}
		found := testdb.Got(ops.New(db.Admin()).Check(t.Context(), db.At(t, nodes[1]).Admin(), db.At(t, nodes[2]).Admin()))(t)
		clocks := 0
		for _, f := range found {
			testdb.ErrorIf(t, f.State == ops.Error, "lockstep check: %+v", f)
			if strings.HasPrefix(f.Name, "clock of node ") && f.State == ops.OK {
				clocks++
			}
		}
		testdb.ErrorIf(t, clocks != 2, "the clocks of %d nodes are found right, want 2, of %+v", clocks, found)
	})
}

// TestTiDBBalanced: a pool whose connections go to one server after the other is found right, and loses no update.
func TestTiDBBalanced(t *testing.T) {
	onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		cfg, opened := quiet(db), new(atomic.Int64)
		cfg.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, nodes[opened.Add(1)%int64(len(nodes))].Config().Addr)
		}
		pool := openGuarded(t, cfg)
		check(t, schema.Check(t.Context(), pool))
		l := load.AddLedger(t, db, "balanced", load.Tables(t, db))
		var working sync.WaitGroup
		for range 2 * len(nodes) {
			working.Go(func() {
				for range 50 {
					l.Locked(t.Context(), pool)
				}
			})
		}
		working.Wait()
		l.Check(t, db.Admin())
		n := opened.Load()
		testdb.ErrorIf(t, n < int64(len(nodes)), "%d connections were opened", n)
	})
}

// between is a lock that a transaction through the first server has, and for which one through the
// second waits.
type between struct {
	db, there *testdb.DB // through the first server, and through the second
	holder    *sql.Tx
	session   int64 // of the holder
	held      txlock.Grant

	waiter  *sql.Tx
	granted <-chan error // of the waiter
	token   uint64
}

// newBetween returns when the waiter waits. The holder has written "old".
func newBetween(t *testing.T, nodes []*testdb.Server) *between {
	t.Helper()
	b := &between{db: nodes[0].Open(t)}
	b.db.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	b.there = b.db.At(t, nodes[1])
	key := txlock.Named("between")
	var err error
	b.holder, err = openGuarded(t, quiet(b.db)).BeginTx(t.Context(), nil)
	check(t, err)
	b.session = testdb.ConnID(t, b.holder)
	b.held = lockAndWork(t, b.holder, key, "old")
	b.waiter, err = openGuarded(t, quiet(b.there)).BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	check(t, err)
	t.Cleanup(func() { _, _ = b.holder.Rollback(), b.waiter.Rollback() }) // they have ended unless the test has failed
	scope := testdb.Got(locksqlc.Join(t.Context(), b.waiter))(t)
	wants(t, "TryLock through another server", testdb.Err(scope.TryLock(t.Context(), key)), txlock.ErrBusy)
	session, granted := testdb.ConnID(t, b.waiter), make(chan error, 1)
	b.granted = granted
	go func() {
		grant, err := scope.Lock(t.Context(), key)
		b.token = grant.Token()
		granted <- err
	}()
	waits := func() (waits bool) { // as the other server shows it, more than once where a server has been restarted
		check(t, b.db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) > 0 FROM information_schema.cluster_tidb_trx WHERE session_id = ? AND state = 'LockWaiting'", session).Scan(&waits))
		return waits
	}
	testdb.FatalIf(t, !testdb.Await(callLimit, waits), "Lock doesn't wait for a transaction through another server")
	return b
}

// quiet is how a program reaches a server that may be killed.
func quiet(db *testdb.DB) *mysql.Config {
	return db.Config(func(cfg *mysql.Config) { cfg.Logger = &mysql.NopLogger{} })
}

// takesOver waits until the waiter has the lock, and has it work and commit. It returns how long that took.
func (b *between) takesOver(t *testing.T) time.Duration {
	t.Helper()
	since := time.Now()
	select {
	case err := <-b.granted:
		check(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the lock isn't granted")
	}
	took := time.Since(since)
	testdb.ErrorIf(t, b.token <= b.held.Token() && workers(t, b.there) == "old", "token %d after %d", b.token, b.held.Token())
	_, err := b.waiter.ExecContext(t.Context(), "INSERT INTO work VALUES ('new', 1)")
	check(t, errors.Join(err, b.waiter.Commit()))
	return took
}

// works demands who has worked, as a server shows it.
func works(t *testing.T, db *testdb.DB, want string) {
	t.Helper()
	testdb.Equal(t, "whose work it is", workers(t, db), want)
}

// TestTiDBLock: a lock through one server excludes one through another until COMMIT, KILL through another server, or until its
// server was killed, stopped or cut off for longer than the store's TTL of locks. There two may believe to hold it, and the
// store refuses the transaction of one: nothing of what the old holder has done is there.
func TestTiDBLock(t *testing.T) {
	type fault = func(t *testing.T, b *between, node *testdb.Server)
	onNode := func(do func(t *testing.T, node *testdb.Server)) fault {
		return func(t *testing.T, _ *between, node *testdb.Server) { do(t, node) }
	}
	signal := func(sig syscall.Signal) fault {
		return onNode(func(t *testing.T, node *testdb.Server) { check(t, node.Signal(sig)) })
	}
	for name, c := range map[string]struct {
		begin, end fault
		commits    bool
	}{
		"COMMIT": {begin: func(t *testing.T, b *between, _ *testdb.Server) {
			select {
			case err := <-b.granted:
				t.Errorf("the lock was granted twice: %v", err)
			case <-time.After(2 * time.Second): // twice as long as the store lets a request wait
			}
			check(t, b.holder.Commit())
		}, commits: true},
		"KILL": {
			begin: func(t *testing.T, b *between, _ *testdb.Server) { b.there.Kill(t, b.session) },
			end: func(t *testing.T, b *between, _ *testdb.Server) {
				if err := b.holder.Commit(); !errors.Is(err, txlock.ErrTxDoomed) && !errors.Is(err, txlock.ErrUnknownOutcome) {
					t.Errorf("Commit of the session that was ended: %v, want ErrTxDoomed or ErrUnknownOutcome", err)
				}
			},
		},
		"killed":  {onNode(func(t *testing.T, node *testdb.Server) { check(t, node.Kill()) }), onNode(func(t *testing.T, node *testdb.Server) { check(t, node.Restart(t.Context())) }), false},
		"stopped": {signal(syscall.SIGSTOP), signal(syscall.SIGCONT), false},
		"cut off": {
			onNode(func(t *testing.T, node *testdb.Server) { check(t, node.Part(t.Context())) }),
			onNode(func(t *testing.T, node *testdb.Server) { check(t, node.Heal(t.Context())) }), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
				b, want := newBetween(t, nodes), "new"
				c.begin(t, b, nodes[0])
				t.Logf("granted %v after the end of the holder: %s", b.takesOver(t), name)
				if c.end != nil {
					c.end(t, b, nodes[0])
				}
				if c.commits {
					want = "new,old"
				} else {
					testdb.Fails(t, "Commit of a transaction whose lock another has had", b.holder.Commit())
				}
				works(t, b.there, want)
				works(t, b.db, want)
			})
		})
	}
}

// TestTiDBKills ends sessions at random through another server, while they lock and write: no update is lost.
func TestTiDBKills(t *testing.T) {
	onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		l, there, pool := load.AddLedger(t, db, "killed", load.Tables(t, db)), db.At(t, nodes[1]), openGuarded(t, quiet(db))
		kills := 0
		load.Beside(4, func(int) { l.Locked(t.Context(), pool) }, func() {
			for end := time.Now().Add(testdb.Long(10*time.Second, time.Minute)); time.Now().Before(end); time.Sleep(rand.N(time.Second)) {
				var session int64
				err := there.Admin().QueryRowContext(t.Context(), "SELECT id FROM information_schema.cluster_processlist WHERE user = ? ORDER BY RAND() LIMIT 1", quiet(db).User).Scan(&session)
				if errors.Is(err, sql.ErrNoRows) {
					continue // they connect again
				}
				check(t, err)
				there.Kill(t, session)
				kills++
			}
		})
		l.Check(t, there.Admin())
		t.Logf("%d sessions were ended, errors %v", kills, l.Errors())
	})
}

// TestTiDBLeaseOfADeadServer: when the server of a holder is killed, another process has the lease as soon as it has expired, and a lock
// of a transaction that it guarded, with a higher token. What the old holder would do then is refused.
func TestTiDBLeaseOfADeadServer(t *testing.T) {
	for name, guards := range map[string]bool{"idle": false, "guarding": true} {
		t.Run(name, func(t *testing.T) {
			onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
				db, key := nodes[0].Open(t), txlock.Named("job")
				db.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
				there := db.At(t, nodes[1])
				oldPool, old := holder(t, db, load.TTL)
				_, other := holder(t, there, load.TTL)
				l := acquire(t, old, key)
				wants(t, "TryAcquire through another server", testdb.Err(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
				tx := testdb.Got(oldPool.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted}))(t)
				defer func() { _ = tx.Rollback() }() // it has ended
				if guards {
					check(t, workUnder(t.Context(), tx, l, "old"))
				}
				check(t, nodes[0].Kill())
				since := time.Now()
				next := acquire(t, other, key)
				t.Logf("%s: acquired %v after the end of the holder's server, with a TTL of %v", name, time.Since(since), load.TTL)
				leasetest.Higher(t, next, l)
				wants(t, "the old lease", l.Err(), txlock.ErrLost)
				err := tx.Commit()
				testdb.ErrorIf(t, guards && err == nil, "a server that is gone has committed")
				check(t, nodes[0].Restart(t.Context()))
				err = locksqlc.Run(t.Context(), oldPool, nil, func(tx *sql.Tx) error { return workUnder(t.Context(), tx, l, "late") })
				wants(t, "Guard by the old lease", err, txlock.ErrLost)
				works(t, there, "")
				check(t, next.Release(t.Context()))
			})
		})
	}
}

// workUnder writes in a transaction that a lease guards.
func workUnder(ctx context.Context, tx *sql.Tx, l *lease.Lease, who string) error {
	if err := l.Guard(ctx, tx); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?, 1)", who)
	return err
}

// TestTiDBCommitOfADeadServer has four programs commit through a server that is killed in the middle, again and again. Each that gets no
// answer gets ErrUnknownOutcome, and has done all of its transaction or nothing; all of those that were answered is there.
func TestTiDBCommitOfADeadServer(t *testing.T) {
	onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		inside, there, c := load.Tables(t, db), db.At(t, nodes[1]), load.NewClient(t, 0, db.Config())
		var all []*load.Ledger
		var unknown atomic.Int64
		for round := range testdb.Long(10, 50) {
			commits := make(chan struct{}) // a program is about to commit
			var ledgers []*load.Ledger     // with keys of their own: the locks of dead transactions stay for a while
			for i := range 4 {
				ledgers = append(ledgers, load.AddLedger(t, there, fmt.Sprintf("%d.%d", round, i), inside))
			}
			all = append(all, ledgers...)
			load.Beside(len(ledgers), func(i int) {
				a := ledgers[i].Begin()
				err := locksqlc.Run(t.Context(), c.DB, []txlock.Key{txlock.Named(a.Kind)}, func(tx *sql.Tx) error {
					err := a.Increment(t.Context(), tx)
					select {
					case commits <- struct{}{}:
					default:
					}
					return err
				})
				a.Settle(err)
				switch {
				case errors.Is(err, txlock.ErrUnknownOutcome):
					unknown.Add(1)
				case err != nil && a.Done && !txlock.Retryable(err):
					t.Errorf("a COMMIT without an answer: %v, want ErrUnknownOutcome", err)
				}
			}, func() {
				time.Sleep(500 * time.Millisecond) // they commit some
				<-commits
				time.Sleep(rand.N(2 * time.Millisecond)) // about as long as a COMMIT takes
				check(t, nodes[0].Kill())
			})
			check(t, nodes[0].Restart(t.Context()))
		}
		for _, l := range all {
			l.Check(t, there.Admin())
		}
		testdb.ErrorIf(t, unknown.Load() == 0, "no server was killed in the middle of a COMMIT")
	})
}

// TestTiDBSchemaChange changes a program's table and one of lockstep through one server, while transactions through another have
// locks and write: with the lock of metadata, the default, and without, where TiDB may refuse their COMMIT (8028). No update is
// lost, and all that is refused is retried.
func TestTiDBSchemaChange(t *testing.T) {
	for name, locked := range map[string]bool{"with the lock of metadata": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			onTiDB(t, func(t *testing.T, nodes []*testdb.Server) {
				db := nodes[0].Open(t)
				db.Exec(t, fmt.Sprintf("SET GLOBAL tidb_enable_metadata_lock = %t", locked))
				defer db.Exec(t, "SET GLOBAL tidb_enable_metadata_lock = TRUE")
				l, watch := load.AddLedger(t, db, "changed", load.Tables(t, db)), &retried{number: 8028}
				var pools []*sql.DB
				for _, node := range nodes[1:] {
					pools = append(pools, openGuarded(t, quiet(db.At(t, node)), txlock.Observe(watch.observe)))
				}
				load.Beside(len(pools), func(i int) { l.Locked(t.Context(), pools[i]) }, func() {
					n := 0
					for end := time.Now().Add(testdb.Long(10*time.Second, time.Minute)); time.Now().Before(end); n++ {
						for _, change := range []string{"numbers ADD COLUMN c%d INT", "lockstep_locks COMMENT '%d'", "numbers DROP COLUMN c%d"} {
							db.Exec(t, fmt.Sprintf("ALTER TABLE "+change, n))
							time.Sleep(200 * time.Millisecond) // without a pause the ten tries of Run may all meet a change
						}
					}
				})
				for _, node := range nodes {
					l.Check(t, db.At(t, node).Admin())
				}
				t.Logf("%d transactions were refused because of changes", watch.n.Load())
				testdb.ErrorIf(t, len(l.Errors()) > 0, "not all was retried: %v", l.Errors())
			})
		})
	}
}
