package main

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// TestViews proves that any SQL client sees names, not hex.
func TestViews(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		if output, code := s.call("install", "--views", "--yes"); code != done {
			t.Fatal(output)
		}
		s.must(schema.InstallViews(s.ctx, s.db.Admin())) // again
		if err := schema.InstallViews(s.ctx, s.pool); !errors.Is(err, schema.ErrPrivilege) || !strings.Contains(err.Error(), "GRANT CREATE VIEW") {
			t.Errorf("InstallViews without privileges: %v", err)
		}
		s.acquire("web-1/4711", "nightly report")
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		tx, waiter := s.begin()
		s.waits(tx, func(ctx context.Context) error { return second(waiter.Lock(ctx, orders.Key(42))) })
		s.rows("SELECT kind, name, mode, owner, label FROM lockstep_held WHERE kind = 'lease'", "lease|report|exclusive|web-1/4711|nightly report")
		s.rows("SELECT kind, name, mode, session FROM lockstep_held WHERE kind = 'lock'", "lock|order:42|exclusive|51")
		s.printed("leases", "nightly report")
		s.printed("locks", "order:42", "order:42") // that is held, and that is waited for
		s.rows("SELECT kind, name, session, blocked_by FROM lockstep_waits", "lock|order:42|52|51")
	})
}

// TestViewsOfOneDatabase proves that the views show no locks of another database, whose
// name LIKE takes for the same.
func TestViewsOfOneDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.must(schema.InstallViews(s.ctx, s.db.Admin()))
		other := strings.Replace(s.db.Name(), "_", "x", 1)
		if other == s.db.Name() {
			t.Fatalf("the name %s has no _", other)
		}
		s.db.Exec(t, "CREATE DATABASE "+other)
		t.Cleanup(func() {
			s.must(second(s.db.Admin().ExecContext(context.WithoutCancel(s.ctx), "DROP DATABASE "+other)))
		})
		s.db.Exec(t, "CREATE TABLE "+other+".lockstep_locks LIKE lockstep_locks")
		lock := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+other+".lockstep_locks SET name = 'theirs', token = 1, conn_id = 1, locked_us = 1, owner = '' ON DUPLICATE KEY UPDATE name = name")
			return err
		}
		begin := func() *sql.Tx {
			tx, err := s.db.Admin().BeginTx(s.ctx, nil)
			s.must(err)
			t.Cleanup(func() { _ = tx.Rollback() })
			return tx
		}
		s.must(lock(s.ctx, begin()))
		waiter := begin()
		s.db.KeepWaiting(t, waiter, func(ctx context.Context) error { return lock(ctx, waiter) })
		s.rows("SELECT trx_state FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%"+other+"%'", "LOCK WAIT")
		for _, view := range []string{"lockstep_waits", "lockstep_held"} {
			s.rows("SELECT COUNT(*) FROM "+view, "0")
		}
	})
}

// rows asks until a query has a row.
func (s *stage) rows(query, want string) {
	s.Helper()
	s.until(s.db.Admin(), query, want, func(row string) bool { return row == want })
}

// until asks until a query has such a row as is wanted. MySQL lists no transactions while another
// test executes a statement that it can't convert.
func (s *stage) until(db gen.DBTX, query, want string, is func(row string) bool) {
	s.Helper()
	var seen []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); testdb.Refresh() {
		var err error
		if seen, err = s.read(db, query); fault.Unreadable(err) {
			continue
		}
		s.must(err)
		if slices.ContainsFunc(seen, is) {
			return
		}
		if slices.ContainsFunc(seen, func(row string) bool { return strings.Contains(row, "||") }) {
			s.recall("lockstep_locks") // the row has no name
		}
	}
	s.Fatalf("%s returns %q, and not %s", query, seen, want)
}

// recall reads a table, whose pages may have left the server's memory: it lists locks without their rows then.
func (s *stage) recall(table string) {
	s.Helper()
	s.must(s.db.Admin().QueryRowContext(s.ctx, "SELECT COUNT(*) FROM "+table).Scan(new(int)))
}

// read returns the rows of a query, as they stand on the page.
func (s *stage) read(db gen.DBTX, query string) (all []string, err error) {
	_, rows, err := cells(s.ctx, db, query)
	for _, row := range rows {
		all = append(all, strings.TrimSpace(s.normal(strings.Join(row, "|"))))
	}
	return all, err
}

// printed executes what the command sql prints, as a DBA does, until it shows what is wanted.
func (s *stage) printed(what string, want ...string) {
	s.Helper()
	all, err := statements(what, s.db.Engine() == testdb.MariaDB)
	s.must(err)
	session, err := s.db.Admin().Conn(s.ctx)
	s.must(err)
	defer func() { s.must(session.Close()) }()
	for _, query := range all {
		if strings.HasPrefix(query, "SET") {
			s.must(second(session.ExecContext(s.ctx, query)))
			continue
		}
		s.until(session, query, want[0], func(row string) bool { return strings.Contains(row, want[0]) })
		want = want[1:]
	}
}
