package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// asText runs a transaction that is begun and ended as text.
func asText(ctx context.Context, pool *sql.DB, fn func(conn *sql.Conn) error) error {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.ExecContext(ctx, "BEGIN"); err == nil {
		err = fn(conn)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		if _, failed := conn.ExecContext(ctx, "ROLLBACK"); failed != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // else the next BEGIN would commit
		}
	}
	return err
}

// TestOutcomeInAStorm: the row of a transaction is there if it returns nil, and not if it returns another error than ErrUnknownOutcome,
// however its statements and sessions are killed. Without lost connections less than one outcome of 1,000 is unknown.
func TestOutcomeInAStorm(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, cuts := range []bool{true, false} {
			t.Run(fmt.Sprintf("cuts=%t", cuts), func(t *testing.T) { outcomesInAStorm(t, db, cuts) })
		}
	})
}

func outcomesInAStorm(t *testing.T, db *testdb.DB, cuts bool) {
	t.Helper()
	s := &storm{db: db, table: db.CreateTable(t, "storm", "id BIGINT PRIMARY KEY"), ending: make(chan int64), cuts: cuts}
	end := time.Now().Add(600 * time.Millisecond)
	if os.Getenv("LOCKSTEP_LONG") != "" {
		end = time.Now().Add(time.Minute)
	}
	cut := testdb.Losing(func(packet string) (lost, arrives bool) {
		one := 400
		if testdb.Commits(packet) {
			one = 40
		}
		return cuts && rand.IntN(one) == 0, rand.IntN(2) == 0
	})
	var pools []*sql.DB
	for _, guarded := range []bool{true, false} {
		pools = append(pools, newPool(t, db.Config(cut), guarded))
	}
	var killers, workers sync.WaitGroup
	for range 2 {
		killers.Go(func() { s.kill(t.Context()) })
	}
	var ids atomic.Int64
	for name, run := range stormy {
		for _, pool := range pools {
			workers.Go(func() {
				for i := 0; i < 5 || time.Now().Before(end); i++ {
					w := &written{storm: s, next: &ids, name: name}
					w.err = run(t.Context(), pool, uniqueKey(t, "storm"), w)
					s.note(w)
				}
			})
		}
	}
	workers.Wait()
	close(s.ending)
	killers.Wait()
	s.check(t)
}

// stormy are the ways in which transactions are run that write a row.
var stormy = map[string]func(ctx context.Context, pool *sql.DB, key txlock.Key, w *written) error{
	"Run":                     writes(ways["Run"]),
	"CommitWith":              lastWrite(" WHERE id = -1"),
	"CommitWith, one by one":  lastWrite(" WHERE id = -1 AND 'ä' = 'ö'"),
	"LockWith and CommitWith": sold,
	"Optimistic":              writes(ways["Optimistic"]),
	"OnceValue":               writes(ways["OnceValue"]),
	"BEGIN as text": func(ctx context.Context, pool *sql.DB, _ txlock.Key, w *written) error {
		err := asText(ctx, pool, func(conn *sql.Conn) error { return w.write(ctx, conn) })
		w.plain = err != nil && txlock.CheckGuarded(ctx, pool) != nil // nobody judges its errors
		return err
	},
}

func writes(run way) func(context.Context, *sql.DB, txlock.Key, *written) error {
	return func(ctx context.Context, pool *sql.DB, key txlock.Key, w *written) error {
		return run(ctx, pool, key, func(tx *sql.Tx) error { return w.write(ctx, tx) })
	}
}

// lastWrite is a transaction that commits with its last statement, on a guarded pool.
func lastWrite(where string) func(context.Context, *sql.DB, txlock.Key, *written) error {
	return func(ctx context.Context, pool *sql.DB, key txlock.Key, w *written) error {
		return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			scope, err := locksqlc.Join(ctx, tx)
			if err != nil {
				return err
			}
			return w.writeLast(ctx, tx, scope, where)
		})
	}
}

// sold runs a transaction whose first statement takes the lock and whose last one commits.
func sold(ctx context.Context, pool *sql.DB, key txlock.Key, w *written) error {
	return locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
		scope, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		if err = tx.QueryRowContext(scope.LockWith(ctx, key), "SELECT COUNT(*) FROM "+w.table+" WHERE id = ?", -1).Scan(new(int)); err != nil {
			return err
		}
		if _, held := scope.Held(key); !held {
			return errors.New("the read has taken no lock")
		}
		return w.writeLast(ctx, tx, scope, " WHERE id = ?", -1)
	})
}

// written are the rows of one call, and what it has returned.
type written struct {
	*storm
	name  string
	next  *atomic.Int64
	ids   []int64
	err   error
	plain bool
}

// write writes the row, and has the session killed in most cases.
func (w *written) write(ctx context.Context, on interface {
	testdb.Executor
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) error {
	w.ids = append(w.ids, w.next.Add(1))
	if _, err := on.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s VALUES (%d)", w.table, w.ids[len(w.ids)-1])); err != nil {
		return err
	}
	var session int64
	if err := on.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&session); err != nil {
		return err
	}
	select {
	case w.ending <- session:
	default:
	}
	return nil
}

// writeLast writes the row, and commits with a statement behind it on a guarded pool.
func (w *written) writeLast(ctx context.Context, tx *sql.Tx, scope *txlock.Scope, where string, args ...any) error {
	if err := w.write(ctx, tx); err != nil || !scope.Guarded() {
		return err
	}
	return testdb.Err(tx.ExecContext(scope.CommitWith(ctx, txlock.AnyRows), "DELETE FROM "+w.table+where, args...))
}

type storm struct {
	db     *testdb.DB
	table  string
	ending chan int64 // sessions that are about to commit
	cuts   bool       // connections are lost
	mu     sync.Mutex
	calls  []*written
}

func (s *storm) note(w *written) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, w)
}

// kill ends what the sessions execute that are about to commit, or the sessions.
func (s *storm) kill(ctx context.Context) {
	for id := range s.ending {
		how := "KILL QUERY"
		if s.cuts && rand.IntN(8) == 0 {
			how = "KILL"
		}
		_, _ = s.db.Admin().ExecContext(ctx, fmt.Sprintf("%s %d", how, id)) // it may be gone
	}
}

// check compares what was returned with what is in the table. A locking read waits for what is still being committed.
func (s *storm) check(t *testing.T) {
	t.Helper()
	counts, unknowns := map[string]int{}, 0
	for _, c := range s.calls {
		n := 0
		if len(c.ids) > 0 {
			ids := strings.Trim(strings.ReplaceAll(fmt.Sprint(c.ids), " ", ","), "[]")
			check(t, s.db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+s.table+" WHERE id IN ("+ids+") LOCK IN SHARE MODE").Scan(&n))
		}
		unknown := errors.Is(c.err, txlock.ErrUnknownOutcome)
		switch {
		case c.err == nil && n != 1, c.err != nil && !unknown && !c.plain && n != 0, n > 1:
			t.Errorf("%s: %d rows of %d runs: %v", c.name, n, len(c.ids), c.err)
		case unknown && (errors.Is(c.err, txlock.ErrTxDoomed) || txlock.Retryable(c.err)):
			t.Errorf("%s: unknown, and something else: %v", c.name, c.err)
		}
		if unknown {
			unknowns++
		}
		counts[fmt.Sprintf("%s: error %t, unknown %t, %d rows", c.name, c.err != nil, unknown, n)]++
	}
	if t.Log(counts); !s.cuts && unknowns > 1+len(s.calls)/1000 {
		t.Errorf("%d outcomes of %d are unknown, and no connection was lost", unknowns, len(s.calls))
	}
}

// TestRowBeforeCommit: a statement that commits sends its row while the transaction is open: without it nothing was committed.
func TestRowBeforeCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		wants := map[string][]bool{"Optimistic": {true, false}, "CommitWith": {true, false}}
		if db.Engine() == testdb.MySQL && testdb.WithoutProcedures() {
			wants = map[string][]bool{"Optimistic": nil, "CommitWith": {false}}
		}
		var open []bool
		pool := openPool(t, db.Config(), under(func(c testdb.Conn) driver.Conn { return watched{c, &open} }))
		insert := "INSERT INTO " + db.CreateTable(t, "ordered", "id INT AUTO_INCREMENT PRIMARY KEY") + " VALUES ()"
		key := uniqueKey(t, "ordered")
		for name, run := range map[string]way{"Optimistic": ways["Optimistic"], "CommitWith": endingWith(insert, nil)} {
			open = nil
			check(t, run(t.Context(), pool, key, func(tx *sql.Tx) error { return testdb.Err(tx.ExecContext(t.Context(), insert)) }))
			testdb.ErrorIf(t, !slices.Equal(open, wants[name]), "%s: behind the row and at the end a transaction is open: %t, want %t", name, open, wants[name])
		}
	})
}

// watched looks for the flag SERVER_STATUS_IN_TRANS behind the rows of what commits, and at the end of its reply.
type watched struct {
	testdb.Conn
	open *[]bool
}

func (w watched) Raw() driver.Conn { return w.Conn }

func (w watched) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := w.Conn.QueryContext(ctx, query, args)
	if err != nil || !testdb.Commits(query) {
		return rows, err
	}
	return watchedRows{rows, w}, nil
}

func (w watched) note() {
	*w.open = append(*w.open, reflect.ValueOf(w.Conn).Elem().FieldByName("status").Uint()&1 != 0)
}

type watchedRows struct {
	driver.Rows
	conn watched
}

func (r watchedRows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if errors.Is(err, io.EOF) {
		r.conn.note()
	}
	return err
}

func (r watchedRows) Close() error {
	defer r.conn.note()
	return r.Rows.Close()
}

// TestLostReplyOfCommit: what loses the connection with its COMMIT, or with the reply, isn't run again: ErrUnknownOutcome.
func TestLostReplyOfCommit(t *testing.T) {
	all := maps.Clone(ways)
	for name, text := range map[string]string{"CommitWith": "'a'", "CommitWith, one by one": "'ä'"} {
		all[name] = endingWith("DELETE FROM lockstep_once WHERE name = "+text, nil)
	}
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for name, run := range all {
			if !guarded && strings.HasPrefix(name, "CommitWith") {
				continue // refused there
			}
			for _, arrives := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/arrives=%t", name, arrives), func(t *testing.T) {
					t.Parallel()
					table := db.CreateTable(t, "lost", "id INT PRIMARY KEY")
					key, runs := uniqueKey(t, "lost"), 0
					pool := newPool(t, db.AdminConfig(testdb.LosingCommits(arrives)), guarded)
					fn := func(tx *sql.Tx) error {
						runs++
						exec(t, tx, "INSERT INTO "+table+" VALUES (?)", runs)
						return nil
					}
					err := run(t.Context(), pool, key, fn)
					testdb.ErrorIf(t, runs != 1 || !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !errors.Is(err, mysql.ErrInvalidConn),
						"%d runs, %v", runs, err)
					var n int
					want := map[bool]int{true: 1, false: 0}[arrives]
					testdb.Await(time.Minute, func() bool { // the row of the reply comes before the COMMIT
						n = count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
						return n == want
					})
					testdb.ErrorIf(t, n != want, "%d rows were committed, want %d", n, want)
				})
			}
		}
	})
}

// TestContextEndsWithCommitUnderWay: a context that ends before the reply of the COMMIT leaves the outcome unknown.
func TestContextEndsWithCommitUnderWay(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if db.Engine() == testdb.MySQL && testdb.WithoutProcedures() {
			return // COMMIT is a statement of its own
		}
		ctx, cancel := context.WithCancel(t.Context())
		pool := openPool(t, db.Config(), under(func(c testdb.Conn) driver.Conn { return cutOff{c, cancel} }))
		table := db.CreateTable(t, "cut_off", "id INT PRIMARY KEY")
		err := locksqlc.Optimistic(ctx, pool, uniqueKey(t, "cut off"), func(tx *sql.Tx) error {
			return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES (1)"))
		})
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || !errors.Is(err, context.Canceled) || txlock.Retryable(err),
			"Optimistic: %v", err)
		wantCount(t, db.Admin(), 1, "SELECT COUNT(*) FROM "+table)
	})
}

// cutOff ends a context with the reply to what commits.
type cutOff struct {
	testdb.Conn
	cancel context.CancelFunc
}

func (c cutOff) Raw() driver.Conn { return c.Conn }

func (c cutOff) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !testdb.Commits(query) {
		return c.Conn.QueryContext(ctx, query, args)
	}
	rows, err := c.Conn.QueryContext(context.WithoutCancel(ctx), query, args)
	if err == nil {
		err = rows.Close()
	}
	c.cancel()
	return nil, errors.Join(ctx.Err(), err, c.Close())
}

// TestContextEndsInFunction: a transaction whose context ends is rolled back, whether its function heeds that or not.
func TestContextEndsInFunction(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		key, table := uniqueKey(t, "ends"), numbers(t, db)
		for name, run := range ways {
			for i := range 4 {
				var scope *txlock.Scope
				ctx, cancel := context.WithCancel(t.Context())
				err := run(ctx, pool, key, func(tx *sql.Tx) error {
					scope = join(t, tx)
					_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET v = 1")
					cancel()
					if i%2 == 0 {
						return ctx.Err()
					}
					for err == nil { // until database/sql has rolled back
						_, err = tx.ExecContext(context.Background(), "DO 0")
					}
					return nil
				})
				isError(t, name, err, context.Canceled)
				idle(t, pool)
				if guarded {
					wantNoTransaction(t, scope, key)
				}
				wantFree(t, db, key)
			}
			wantCount(t, pool, 0, "SELECT v FROM "+table)
		}
	})
}

// TestLostLocks: whichever packet of a first lock is lost, the error says that the transaction is gone, and may be tried again.
func TestLostLocks(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		ways := map[string]func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error{
			"LockWith": func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return tx.QueryRowContext(s.LockWith(ctx, key), "SELECT 1").Scan(new(int))
			},
			"LockWith a write": func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return testdb.Err(tx.ExecContext(s.LockWith(ctx, key), "DELETE FROM lockstep_locks WHERE name = 'no such'"))
			},
		}
		for _, name := range []string{"Lock", "RLock", "TryLock", "Version", "LockAll"} {
			ways[name] = func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return verbs[name](ctx, s, key)
			}
		}
		for name, lock := range ways {
			for _, arrives := range []bool{false, true} {
				lost := true
				for at := int64(1); lost; at++ {
					var sent atomic.Int64
					sent.Store(-1 << 20) // until the transaction has begun
					pool := newPool(t, db.Config(testdb.Losing(func(packet string) (bool, bool) {
						if strings.Contains(packet, "DELETE FROM") || strings.HasPrefix(packet[5:], "SELECT 1") { // the program's own
							return false, false
						}
						return sent.Add(1) == at, arrives
					})), true)
					tx, s := joined(t, pool)
					sent.Store(0)
					err := lock(t.Context(), tx, s, uniqueKey(t, fmt.Sprint(name, arrives, at)))
					if lost = sent.Load() >= at; lost && (!errors.Is(err, txlock.ErrTxDoomed) || !txlock.Retryable(err)) || !lost && err != nil {
						t.Errorf("%s, packet %d lost (arrives=%t): %v, to be tried again: %t", name, at, arrives, err, txlock.Retryable(err))
					}
					sent.Store(-1 << 20) // the COMMIT isn't lost
					if err := tx.Commit(); lost && (!errors.Is(err, txlock.ErrTxDoomed) || !txlock.Retryable(err)) || !lost && err != nil {
						t.Errorf("Commit after %s, packet %d lost (arrives=%t): %v", name, at, arrives, err)
					}
				}
			}
		}
	})
}
