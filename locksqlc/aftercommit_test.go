package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// callees are the names of the functions that were called after the COMMIT, in order.
type callees chan string

func newCallees(t *testing.T) callees {
	c := make(callees, 16)
	t.Cleanup(func() { c.wants(t, "at the end") })
	return c
}

// then registers a function of that name.
func (c callees) then(t *testing.T, s *txlock.Scope, name string) {
	t.Helper()
	check(t, s.AfterCommit(func() { c <- name }))
}

// wants waits until as many were called, and makes sure that no other was.
func (c callees) wants(t *testing.T, what string, want ...string) {
	t.Helper()
	var got []string
	testdb.Await(30*time.Second, func() bool {
		for {
			select {
			case name := <-c:
				got = append(got, name)
			default:
				return len(got) >= len(want)
			}
		}
	})
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q were called, want %q", what, got, want)
	}
}

// commitWays are the ways to commit a transaction in which fn has written.
func commitWays(t *testing.T, pool *sql.DB, fn func(on executor, s *txlock.Scope) error) map[string]func() error {
	in := func(tx *sql.Tx) error { return fn(tx, join(t, tx)) }
	all := map[string]func() error{
		"CommitWith": func() error {
			err := endingWith("DELETE FROM lockstep_once WHERE 1 = 0", errBehind)(t.Context(), pool, uniqueKey(t, "after"), in)
			if errors.Is(err, errBehind) {
				return nil // it was committed nevertheless
			}
			return err
		},
		"Commit": func() error {
			return plainly(t.Context(), pool, nil, func(tx *sql.Tx, _ *txlock.Scope) error { return in(tx) })
		},
		"COMMIT as text": func() error {
			return asText(t.Context(), pool, func(conn *sql.Conn) error { return fn(conn, joinConn(t, conn)) })
		},
		"CommitWith before COMMIT as text": func() error {
			return asText(t.Context(), pool, func(conn *sql.Conn) error {
				s := joinConn(t, conn)
				if err := fn(conn, s); err != nil {
					return err
				}
				return second(conn.ExecContext(s.CommitWith(t.Context(), txlock.AnyRows), "DELETE FROM lockstep_once WHERE 1 = 0"))
			})
		},
	}
	for name, run := range ways {
		all[name] = func() error { return run(t.Context(), pool, uniqueKey(t, "after"), in) }
	}
	return all
}

var errBehind = errors.New("of the function, behind CommitWith")

// TestAfterCommit proves that functions are called in their order, once, when the transaction is
// committed, its lock is free, and its connection is back in a pool of one; and not when it is
// rolled back.
func TestAfterCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, table := newPool(t, db.Config(), true), db.CreateTable(t, "after_commit", "id INT PRIMARY KEY")
		pool.SetMaxOpenConns(1)
		id, called := 0, newCallees(t)
		for way, commit := range commitWays(t, pool, func(on executor, s *txlock.Scope) error {
			id++
			id, key := id, uniqueKey(t, "after")
			lock(t, s, key)
			exec(t, on, fmt.Sprintf("INSERT INTO %s VALUES (%d)", table, id))
			called.then(t, s, "first")
			return s.AfterCommit(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // for a connection that isn't back
				defer cancel()
				err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
					wantCount(t, tx, 1, fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE id = %d", table, id))
					called.then(t, join(t, tx), "inner")
					return nil
				})
				isError(t, "Run in a function after the COMMIT", err, nil)
				isError(t, "AfterCommit after the COMMIT", s.AfterCommit(func() {}), txlock.ErrNoTransaction)
				called <- "second"
			})
		}) {
			isError(t, way, commit(), nil)
			called.wants(t, way, "first", "inner", "second")
			idle(t, pool)
		}
		broken := errors.New("broken")
		for way, commit := range commitWays(t, pool, func(_ executor, s *txlock.Scope) error {
			called.then(t, s, "never")
			return broken
		}) {
			isError(t, way, commit(), broken)
			called.wants(t, way+", rolled back")
		}
	})
}

// TestAfterCommitOfSavepoints: what was registered after a savepoint is dropped with it.
func TestAfterCommitOfSavepoints(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, called := newPool(t, db.Config(), true), newCallees(t)
		for way, commit := range commitWays(t, pool, func(on executor, s *txlock.Scope) error {
			called.then(t, s, "before")
			exec(t, on, "SAVEPOINT a")
			called.then(t, s, "undone")
			exec(t, on, "ROLLBACK TO a")
			called.then(t, s, "between")
			exec(t, on, "SAVEPOINT b")
			called.then(t, s, "released")
			exec(t, on, "RELEASE SAVEPOINT b")
			return nil
		}) {
			isError(t, way, commit(), nil)
			called.wants(t, way, "before", "between", "released")
		}
	})
}

// TestAfterCommitOfAttempts: an attempt that is retried calls nothing.
func TestAfterCommitOfAttempts(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, called := newPool(t, db.Config(), true), newCallees(t)
		c, calls := cross(t, db), 0
		check(t, locksqlc.Run(t.Context(), pool, keysOf(t), func(tx *sql.Tx) error {
			calls++
			called.then(t, join(t, tx), fmt.Sprint(calls))
			if calls == 1 {
				return c.lose(t, tx)
			}
			return nil
		}))
		called.wants(t, "Run after a deadlock", "2")
		key, calls := uniqueKey(t, "attempts"), 0
		check(t, locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
			calls++
			called.then(t, join(t, tx), fmt.Sprint(calls))
			if calls == 1 {
				return locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil })
			}
			return nil
		}))
		called.wants(t, "Optimistic after a conflict", "2")
	})
}

// TestAfterCommitUnanswered proves that nothing is called if the connection is lost with COMMIT,
// on its way or with the reply, when all is committed.
func TestAfterCommitUnanswered(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, arrives := range []bool{false, true} {
			pool, called := newPool(t, db.AdminConfig(testdb.LosingCommits(arrives)), true), newCallees(t)
			table := db.CreateTable(t, fmt.Sprintf("unanswered_%t", arrives), "id INT PRIMARY KEY AUTO_INCREMENT")
			for way, commit := range commitWays(t, pool, func(on executor, s *txlock.Scope) error {
				exec(t, on, "INSERT INTO "+table+" VALUES ()")
				called.then(t, s, "never")
				return nil
			}) {
				isError(t, fmt.Sprintf("%s, arrives %t", way, arrives), commit(), txlock.ErrUnknownOutcome)
				called.wants(t, fmt.Sprintf("%s, arrives %t", way, arrives))
			}
		}
	})
}

// TestAfterCommitPanics proves that the transaction stays committed, the other functions are
// called, and the panic goes on.
func TestAfterCommitPanics(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, called := newPool(t, db.Config(), true), newCallees(t)
		table := numbers(t, db)
		wantPanic(t, "on purpose", func() {
			_ = locksqlc.Run(t.Context(), pool, keysOf(t), func(tx *sql.Tx) error {
				exec(t, tx, "UPDATE "+table+" SET v = 1")
				check(t, join(t, tx).AfterCommit(func() { panic("on purpose") }))
				called.then(t, join(t, tx), "the other")
				return nil
			})
		})
		called.wants(t, "behind a panic", "the other")
		idle(t, pool)
		wantCount(t, pool, 1, "SELECT v FROM "+table)
	})
}

// TestAfterCommitRefused proves that AfterCommit refuses what it could not see, and that Commit
// fails, and calls nothing, where a statement has ended the transaction before.
func TestAfterCommitRefused(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		never := func() { t.Error("a function was called") }
		plain := begin(t, newPool(t, db.Config(), false))
		isError(t, "on a plain pool", join(t, plain).AfterCommit(never), txlock.ErrUnguarded)
		check(t, plain.Commit())
		pool := newPool(t, db.AdminConfig(), true)
		tx, s := joined(t, pool)
		isError(t, "nil", s.AfterCommit(nil), txlock.ErrInvalidOption)
		isError(t, "a view that is wrong", s.WaitAtMost(-1).AfterCommit(never), txlock.ErrInvalidOption)
		check(t, tx.Rollback())
		isError(t, "after the end", s.AfterCommit(never), txlock.ErrNoTransaction)

		c, lost := cross(t, db), begin(t, pool)
		s = join(t, lost)
		_ = c.lose(t, lost)
		isError(t, "after a deadlock", s.AfterCommit(never), txlock.ErrTxDoomed)

		table := db.CreateTable(t, "ended", "id INT PRIMARY KEY")
		for _, statement := range []string{"ALTER TABLE " + table + " COMMENT 'ended'", "COMMIT", "ROLLBACK"} {
			tx := begin(t, pool)
			check(t, join(t, tx).AfterCommit(never))
			exec(t, tx, statement)
			isError(t, "Commit after "+statement, tx.Commit(), txlock.ErrTxDoomed)
		}
		killed := begin(t, pool)
		check(t, join(t, killed).AfterCommit(never))
		db.Kill(t, testdb.ConnID(t, killed))
		if err := killed.Commit(); err == nil {
			t.Error("COMMIT of a session that was killed succeeds")
		}
	})
}

// TestAfterCommitBesideCommit proves that each function is called for which AfterCommit has returned
// nil, also while another goroutine commits.
func TestAfterCommitBesideCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		for range 100 {
			tx, s := joined(t, pool)
			c, accepted := make(chan struct{}, 1000), make(chan int, 1)
			begun := make(chan struct{})
			go func() {
				close(begun)
				n := 0
				for n < cap(c) && s.AfterCommit(func() { c <- struct{}{} }) == nil {
					n++
				}
				accepted <- n
			}()
			<-begun
			check(t, tx.Commit())
			n := <-accepted
			if !testdb.Await(30*time.Second, func() bool { return len(c) >= n }) || len(c) != n {
				t.Fatalf("%d functions were called, AfterCommit has accepted %d", len(c), n)
			}
		}
	})
}
