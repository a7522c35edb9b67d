package locksuite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// counter is a row that transactions raise by read, add one, write.
type counter struct {
	*sql.DB
	table string
	key   txlock.Key
	level sql.IsolationLevel
	early bool // read once before all else
}

func newCounter(t *testing.T, db *testdb.DB, pool *sql.DB, level sql.IsolationLevel) counter {
	t.Helper()
	c := counter{DB: pool, table: db.CreateTable(t, "counters", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL"), key: txlock.Named("test:" + rand.Text()), level: level}
	db.Exec(t, "INSERT INTO "+c.table+" VALUES (1, 0)")
	return c
}

// begun calls f in a transaction, and commits it unless f has.
func (c counter) begun(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := c.BeginTx(ctx, c.options())
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	if c.early {
		_, err = c.read(ctx, tx, "")
	}
	if err == nil {
		err = f(tx)
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (c counter) options() *sql.TxOptions { return &sql.TxOptions{Isolation: c.level} }

func (c counter) read(ctx context.Context, tx *sql.Tx, locking string) (n int, err error) {
	err = tx.QueryRowContext(ctx, "SELECT n FROM "+c.table+" WHERE id = 1"+locking).Scan(&n)
	return n, err
}

func (c counter) write(ctx context.Context, tx *sql.Tx, n int) error {
	_, err := tx.ExecContext(ctx, "UPDATE "+c.table+" SET n = ? WHERE id = 1", n)
	return err
}

// raise is what each way does in the end.
func (c counter) raise(ctx context.Context, tx *sql.Tx, locking string) error {
	return c.raiseRead(ctx, ctx, tx, locking)
}

// raiseRead raises what is read in one context by a write in another.
func (c counter) raiseRead(reads, writes context.Context, tx *sql.Tx, locking string) error {
	n, err := c.read(reads, tx, locking)
	if err == nil {
		err = c.write(writes, tx, n+1)
	}
	return err
}

// joined calls f with a transaction's scope.
func joined(f func(ctx context.Context, c counter, tx *sql.Tx, s *txlock.Scope) error) func(context.Context, counter) error {
	return func(ctx context.Context, c counter) error {
		return c.begun(ctx, func(tx *sql.Tx) error {
			s, err := txlock.Join(ctx, tx)
			if err != nil {
				return err
			}
			return f(ctx, c, tx, s)
		})
	}
}

// under raises the counter under what lock locks.
func under(lock func(ctx context.Context, s *txlock.Scope, key txlock.Key) error) func(context.Context, counter) error {
	return joined(func(ctx context.Context, c counter, tx *sql.Tx, s *txlock.Scope) error {
		if err := lock(ctx, s, c.key); err != nil {
			return err
		}
		return c.raise(ctx, tx, "")
	})
}

const aWhile = 50 * time.Millisecond

// ways are the verbs by which a program keeps others from its read and write, in the order of the page.
var ways = []struct {
	name  string
	raise func(ctx context.Context, c counter) error
}{
	{"`Lock`", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return testdb.Err(s.Lock(ctx, key)) })},
	{"`Lock` of a hashed key", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.Lock(ctx, txlock.NewFamily[string]("matrix", txlock.Hashed(), txlock.Exact()).Key(key.String())))
	})},
	{"`TryLock`", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.TryLock(ctx, key))
	})},
	{"`LockAny`", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.LockAny(ctx, key))
	})},
	{"`WaitAtMost`, `Lock`", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.WaitAtMost(aWhile).Lock(ctx, key))
	})},
	{"`LockAll`", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.LockAll(ctx, key, beside(key)))
	})},
	{"`WaitAtMost`, `LockAll`", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.WaitAtMost(aWhile).LockAll(ctx, key, beside(key)))
	})},
	{"`LockAll` with a shared key", under(func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(s.LockAll(ctx, key, txlock.Shared(beside(key))))
	})},
	{"`Version`, `CompareAndBump`", joined(func(ctx context.Context, c counter, tx *sql.Tx, s *txlock.Scope) error {
		version, err := s.Version(ctx, c.key)
		if err != nil {
			return err
		}
		n, err := c.read(ctx, tx, "")
		if err == nil {
			err = s.CompareAndBump(ctx, c.key, version)
		}
		if err != nil {
			return err
		}
		return c.write(ctx, tx, n+1)
	})},
	{"`LockWith`", joined(func(ctx context.Context, c counter, tx *sql.Tx, s *txlock.Scope) error {
		return c.raiseRead(s.LockWith(ctx, c.key), ctx, tx, "")
	})},
	{"`Lock`, `CommitWith`", joined(func(ctx context.Context, c counter, tx *sql.Tx, s *txlock.Scope) error {
		if _, err := s.Lock(ctx, c.key); err != nil {
			return err
		}
		return c.raiseRead(ctx, s.CommitWith(ctx, 1), tx, "")
	})},
	{"`Run`", func(ctx context.Context, c counter) error {
		return locksqlc.Run(ctx, c.DB, []txlock.Key{c.key}, func(tx *sql.Tx) error { return c.raise(ctx, tx, "") }, c.options())
	}},
	{"`Optimistic`", func(ctx context.Context, c counter) error {
		return locksqlc.Optimistic(ctx, c.DB, c.key, func(tx *sql.Tx) error { return c.raise(ctx, tx, "") }, c.options())
	}},
}

func beside(key txlock.Key) txlock.Key { return txlock.Named(key.String() + "'") }

// once raises the counter by a way until that has committed. What is refused, and not because of
// another transaction, is returned.
func (c counter) once(ctx context.Context, raise func(context.Context, counter) error) error {
	for {
		err := raise(ctx, c)
		if ctx.Err() != nil || err == nil || !txlock.Retryable(err) && !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrWaitTimeout) {
			return err
		}
	}
}

// attack raises the counter by a way from several goroutines. It returns why the way is refused,
// "" if it isn't: none of them may commit then.
func (c counter) attack(t *testing.T, raise func(context.Context, counter) error) (refused string) {
	t.Helper()
	const workers, rounds = 4, 3
	ctx := leasetest.Limited(t, 5*time.Minute)
	errs := make([]error, workers)
	each(t, workers, func(_ context.Context, w int) error {
		c := c
		for round := range rounds {
			c.early = (w+round)%2 == 0
			errs[w] = errors.Join(errs[w], c.once(ctx, raise))
		}
		return nil
	})
	want := workers * rounds
	if err := errors.Join(errs...); err != nil {
		refused, want = "", 0
		for name, sentinel := range map[string]error{"schema.ErrEngine": schema.ErrEngine, "ErrUnguarded": txlock.ErrUnguarded} {
			if !slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, sentinel) }) {
				refused = "`" + name + "`"
			}
		}
		testdb.ErrorIf(t, refused == "", "%v", err)
	}
	testdb.Equal(t, "the counter at "+c.level.String(), count(t, c, "SELECT n FROM "+c.table+" WHERE id = 1"), want)
	return refused
}

// lostPage has the table that TestLostUpdatesOfEveryWay makes: a line for each way, a column for each engine.
const (
	lostPage  = "../../../docs/reference/lost-updates.md"
	lostBegin = "| way | MariaDB | MySQL | TiDB | Vitess |\n|---|---|---|---|---|\n"
)

var lostColumns = []testdb.Engine{testdb.MariaDB, testdb.MySQL, testdb.TiDB, testdb.Vitess}

// TestLostUpdatesOfEveryWay raises a counter by each verb, at each isolation level, on guarded and
// unguarded pools, at first and after a read: no update is lost, or the way is refused, and nothing
// is written. What it finds is on a page. TestControls shows that it could tell.
func TestLostUpdatesOfEveryWay(t *testing.T) {
	t.Parallel()
	found := make(map[string]string) // by way and engine
	var mu sync.Mutex
	t.Run("ways", func(t *testing.T) {
		for _, engine := range testdb.Engines() {
			for _, way := range ways {
				t.Run(string(engine)+"/"+way.name, func(t *testing.T) {
					t.Parallel()
					cell := everywhere(t, testdb.Open(t, engine), way.raise)
					mu.Lock()
					defer mu.Unlock()
					found[way.name+string(engine)] = cell
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	testdb.NeedsServer(t)
	page := testdb.Got(os.ReadFile(lostPage))(t)
	head, table, ok := strings.Cut(string(page), lostBegin)
	testdb.FatalIf(t, !ok, "%s has no table", lostPage)
	table, rest, _ := strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	var now []string
	for i, way := range ways {
		cells := make([]string, 2+len(lostColumns))
		if i < len(lines) {
			copy(cells, strings.Split(strings.Trim(lines[i], "| "), " | "))
		}
		cells = cells[:1+len(lostColumns)]
		cells[0] = way.name
		for j, engine := range lostColumns {
			if cell := found[way.name+string(engine)]; cell != "" {
				cells[1+j] = cell
			}
		}
		now = append(now, "| "+strings.Join(cells, " | ")+" |")
	}
	switch is := strings.Join(now, "\n"); {
	case *updatePage:
		check(t, os.WriteFile(lostPage, []byte(head+lostBegin+is+"\n\n"+rest), 0o644))
	case is != table:
		t.Errorf("%s isn't true: write it by -update. It was found:\n%s", lostPage, is)
	}
}

// everywhere tries a way at each isolation level and on both kinds of pools, and returns the cell of the page.
func everywhere(t *testing.T, db *testdb.DB, raise func(context.Context, counter) error) string {
	t.Helper()
	guarded := poolOf(t, db, true)
	by := make(map[string][]string) // where, by what was found
	for pool, on := range map[string]*sql.DB{"guarded": guarded, "unguarded": db.Connect(t)} {
		levels := levels
		if db.Engine() == testdb.Vitess { // which may ignore a level: see TestVitessLevel
			levels = []sql.IsolationLevel{sql.LevelDefault}
		}
		for _, level := range levels {
			if level == sql.LevelSerializable && db.Engine() == testdb.TiDB {
				continue // it has no such level: see TestTiDBRefusesTransactions
			}
			refused := newCounter(t, db, on, level).attack(t, raise)
			by[refused] = append(by[refused], pool)
		}
	}
	var cells []string
	for refused, pools := range by {
		text := "none lost"
		if refused != "" {
			text = "refused: " + refused
		}
		slices.Sort(pools)
		if pools = slices.Compact(pools); len(pools) == 1 {
			text += " (" + pools[0] + ")"
		}
		cells = append(cells, text)
	}
	slices.Sort(cells)
	if slices.Equal(cells, []string{"none lost (guarded)", "refused: `schema.ErrEngine` (unguarded)"}) {
		return "guarded"
	}
	return strings.Join(cells, ", ")
}

// TestLostUpdates raises one counter by all verbs that lock its key, at once, on guarded and unguarded pools.
func TestLostUpdates(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		c, pools := newCounter(t, db, nil, sql.LevelDefault), []*sql.DB{poolOf(t, db, true), db.Connect(t)}
		var committed atomic.Int64
		each(t, 2*len(ways), func(ctx context.Context, i int) error {
			way, c := ways[i/2], c
			if strings.Contains(way.name, "hashed") {
				return nil // another key
			}
			c.DB = pools[i%2]
			for round := range 4 {
				c.early = round%2 == i%2
				if err := c.once(ctx, way.raise); err == nil {
					committed.Add(1)
				} else if !errors.Is(err, txlock.ErrUnguarded) {
					return fmt.Errorf("%s: %w", way.name, err)
				}
			}
			return nil
		})
		n := count(t, db.Admin(), "SELECT n FROM "+c.table)
		testdb.ErrorIf(t, int64(n) != committed.Load() || n < 4*len(ways), "the counter shows %d of %d commits", n, committed.Load())
	})
}

// TestControls: what locks nothing loses an update, in each engine, and a locking read doesn't. So
// TestLostUpdatesOfEveryWay can tell.
func TestControls(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		c := newCounter(t, db, db.Connect(t, db.Overwriting(t)), sql.LevelRepeatableRead)
		check(t, c.begun(t.Context(), func(tx *sql.Tx) error {
			n, err := c.read(t.Context(), tx, "")
			if err == nil {
				err = c.begun(t.Context(), func(other *sql.Tx) error { return c.raise(t.Context(), other, "") })
			}
			return errors.Join(err, c.write(t.Context(), tx, n+1))
		}))
		testdb.Equal(t, "what two transactions have written, of which one is lost", count(t, c, "SELECT n FROM "+c.table), 1)
		exec(t, c, "UPDATE "+c.table+" SET n = 0")
		refused := c.attack(t, func(ctx context.Context, c counter) error {
			err := c.begun(ctx, func(tx *sql.Tx) error { return c.raise(ctx, tx, " FOR UPDATE") })
			var server *mysql.MySQLError // of a transaction without locks of ours: a deadlock, or TiDB's write conflict
			if errors.As(err, &server) && (server.Number == 1213 || server.Number == 9007) {
				return txlock.ErrDeadlock
			}
			return err
		})
		testdb.Equal(t, "why it is refused", refused, "")
	})
}
