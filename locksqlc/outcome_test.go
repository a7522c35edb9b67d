package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOutcomeInAStorm runs transactions while their statements and sessions are killed and
// their connections are cut. Each writes a row, which is the oracle: of one that returns nil
// it is there, of one that returns any error but ErrUnknownOutcome it is not. Where only
// statements are killed, less than one outcome of 1,000 is unknown: a kill that came between
// COMMIT and the answer to it.
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
	executor
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
	return second(tx.ExecContext(scope.CommitWith(ctx, txlock.AnyRows), "DELETE FROM "+w.table+where, args...))
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

// check compares what was returned with what is in the table. A locking read waits for what
// is still being committed.
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
