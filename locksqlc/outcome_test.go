package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
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

// TestRowBeforeCommit proves that a statement which commits sends its row while the transaction
// is still open, that of Optimistic and a last one of the program. So who hasn't seen the row
// knows that an error is that of a transaction which wasn't committed; and a KILL QUERY during
// COMMIT comes too late for an error. On MySQL without procedures COMMIT is a statement of its own.
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
			check(t, run(t.Context(), pool, key, func(tx *sql.Tx) error {
				return second(tx.ExecContext(t.Context(), insert))
			}))
			if !slices.Equal(open, wants[name]) {
				t.Errorf("%s: behind the row and at the end a transaction is open: %t, want %t", name, open, wants[name])
			}
		}
	})
}

// watched looks for the flag SERVER_STATUS_IN_TRANS behind the rows of what commits, and at
// the end of its reply.
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

// TestLostReplyOfCommit loses the connection with the text that commits: on its way to the
// server, or with the reply, when all is committed. Nobody knows which, so the transaction
// isn't run again, and the error says so: ErrUnknownOutcome.
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
					if runs != 1 || !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !errors.Is(err, mysql.ErrInvalidConn) {
						t.Errorf("%d runs, %v", runs, err)
					}
					var n int
					want := map[bool]int{true: 1, false: 0}[arrives]
					testdb.Await(time.Minute, func() bool { // the row of the reply comes before the COMMIT
						n = count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
						return n == want
					})
					if n != want {
						t.Errorf("%d rows were committed, want %d", n, want)
					}
				})
			}
		}
	})
}

// TestContextEndsWithCommitUnderWay ends the context when Optimistic's last statement has
// committed, and the reply isn't there yet: the driver closes the connection then, and returns
// the context's error.
func TestContextEndsWithCommitUnderWay(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		pool := openPool(t, db.Config(), under(func(c testdb.Conn) driver.Conn { return cutOff{c, cancel} }))
		table := db.CreateTable(t, "cut_off", "id INT PRIMARY KEY")
		err := locksqlc.Optimistic(ctx, pool, uniqueKey(t, "cut off"), func(tx *sql.Tx) error {
			return second(tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES (1)"))
		})
		if !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || !errors.Is(err, context.Canceled) || txlock.Retryable(err) {
			t.Errorf("Optimistic: %v", err)
		}
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

// TestContextEndsInFunction: if the context ends while the function runs, database/sql rolls the
// transaction back, whether the function heeds that or not, and the error is the context's.
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

// TestLostLocks proves that whichever packet of a transaction's first lock is lost with its
// connection, on its way or with its reply, the error says that the transaction is gone, and may
// be tried again; also that of what a pool asks its server once.
func TestLostLocks(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		ways := map[string]func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error{
			"LockWith": func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return tx.QueryRowContext(s.LockWith(ctx, key), "SELECT 1").Scan(new(int))
			},
			"LockWith a write": func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
				return second(tx.ExecContext(s.LockWith(ctx, key), "DELETE FROM lockstep_locks WHERE name = 'no such'"))
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
				for at := 1; lost; at++ {
					sent := -1 << 20 // until the transaction has begun
					pool := newPool(t, db.Config(testdb.Losing(func(packet string) (bool, bool) {
						if !strings.Contains(packet, "DELETE FROM") { // the program's own
							sent++
						}
						return sent == at, arrives
					})), true)
					tx, s := joined(t, pool)
					sent = 0
					err := lock(t.Context(), tx, s, uniqueKey(t, fmt.Sprint(name, arrives, at)))
					if lost = sent >= at; lost && (!errors.Is(err, txlock.ErrTxDoomed) || !txlock.Retryable(err)) || !lost && err != nil {
						t.Errorf("%s, packet %d lost (arrives=%t): %v, to be tried again: %t", name, at, arrives, err, txlock.Retryable(err))
					}
					sent = -1 << 20 // the COMMIT isn't lost
					if err := tx.Commit(); lost && (!errors.Is(err, txlock.ErrTxDoomed) || !txlock.Retryable(err)) || !lost && err != nil {
						t.Errorf("Commit after %s, packet %d lost (arrives=%t): %v", name, at, arrives, err)
					}
				}
			}
		}
	})
}
