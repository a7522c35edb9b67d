package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// A faulty is a call that returns an error, until what the error's text says was done.
type faulty struct {
	call func() error
	do   func(remedy string)
}

// remedied are the remedies of error texts. The text is part of one in the source, and of the error of
// the call. The remedy is taken out of the error by its expression.
var remedied = []struct {
	text, remedy string
	is           error
	make         func(s *stage) faulty
}{
	{"tables missing or wrong; run schema.Install(ctx, db)", `schema\.Install\(ctx, db\)`, txlock.ErrSchema, func(s *stage) faulty {
		s.db.Exec(s, "DROP TABLE lockstep_locks")
		return faulty{s.runs, func(string) { s.must(schema.Install(s.ctx, s.db.Admin())) }}
	}},
	{"GRANT %s ON %s TO '%s'@'%s', in the program's database", `GRANT [^@]*@`, txlock.ErrPrivilege, func(s *stage) faulty {
		account := s.account()
		s.db.Exec(s, "REVOKE UPDATE ON lockstep_locks FROM "+account)
		return faulty{s.runs, func(remedy string) {
			_, host, _ := strings.Cut(account, "@") // that of the account, as the text says
			s.db.Exec(s, remedy+host)
		}}
	}},
	{"GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `%s`.* TO %s", "GRANT .*?@'[^']*'", txlock.ErrPrivilege, func(s *stage) faulty {
		s.db.Exec(s, "DROP TABLE lockstep_locks")
		s.db.Exec(s, "REVOKE ALL PRIVILEGES, GRANT OPTION FROM "+s.account())
		return faulty{func() error { return schema.Install(s.ctx, s.db.Connect(s)) }, func(remedy string) { s.db.Exec(s, remedy) }}
	}},
	{"GRANT CREATE VIEW, DROP, SELECT ON `%s`.* TO %s%s; GRANT PROCESS ON *.* TO %s", "GRANT .*@'[^']*'; GRANT PROCESS ON .*?@'[^']*'", txlock.ErrPrivilege, func(s *stage) faulty {
		return faulty{func() error { return schema.InstallViews(s.ctx, s.db.Connect(s)) }, func(remedy string) {
			for statement := range strings.SplitSeq(remedy, "; ") {
				s.db.Exec(s, statement)
			}
		}}
	}},
	{"timed out waiting for the lock; retry later", "retry later", txlock.ErrWaitTimeout, func(s *stage) faulty {
		holder, scope := s.begin()
		s.lock(scope, key)
		return faulty{s.runs, func(string) { s.must(holder.Rollback()) }}
	}},
	{"deadlock: the server rolled the transaction back; retry it, as Run does", "retry it, as Run does", txlock.ErrDeadlock, func(s *stage) faulty {
		run := func(ctx context.Context, fn func(tx *sql.Tx) error) error { // once
			tx, err := s.pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			return errors.Join(fn(tx), tx.Rollback())
		}
		return faulty{func() error { return s.collide(run) }, func(string) {
			run = func(ctx context.Context, fn func(tx *sql.Tx) error) error {
				return locksqlc.Run(ctx, s.pool, nil, fn)
			}
		}}
	}},
	{"the transaction's snapshot is older than the lock; roll back and retry, as Run does, and lock before the first SELECT", "roll back and retry", txlock.ErrStaleSnapshot, func(s *stage) faulty {
		tx, scope := s.stale()
		return faulty{func() error { return second(scope.Lock(s.ctx, key)) }, func(string) {
			s.must(tx.Rollback())
			tx, scope = s.begin()
		}}
	}},
	{"the transaction has ended on the server; roll back", "roll back", txlock.ErrTxDoomed, func(s *stage) faulty {
		tx, scope := s.begin()
		s.lock(scope, key)
		s.db.Kill(s, s.last)
		s.db.WaitGone(s, s.last)
		return faulty{func() error { return second(scope.Lock(s.ctx, txlock.Named("other"))) }, func(string) {
			_ = tx.Rollback() // whose connection is gone
			tx, scope = s.begin()
		}}
	}},
	{"it was rolled back with its connection; unless that was killed, the readTimeout of the data source name must be longer than the wait for a lock", "must be longer than the wait", txlock.ErrTxDoomed, func(s *stage) faulty {
		s.must(txlock.Ensure(s.ctx, s.pool, key))
		holder, scope := s.begin()
		s.lock(scope, key)
		s.pool = s.db.Connect(s, func(c *mysql.Config) { c.ReadTimeout = time.Second })
		return faulty{func() error {
			tx, scope := s.begin()
			defer func() { _ = tx.Rollback() }() // whose connection may be gone
			return second(scope.Lock(s.ctx, key))
		}, func(string) {
			s.pool = s.db.Connect(s, func(c *mysql.Config) { c.ReadTimeout = time.Minute })
			released := time.AfterFunc(2*time.Second, func() { _ = holder.Rollback() })
			s.Cleanup(func() { released.Stop() })
		}}
	}},
	{"rows are open on the transaction; close them", "close them", txlock.ErrOpenRows, func(s *stage) faulty {
		s.pool = s.guarded(s.db.Config())
		tx, scope := s.begin()
		rows, err := tx.QueryContext(s.ctx, "SELECT slot FROM lockstep_leases UNION SELECT 1 UNION SELECT 2")
		s.must(err)
		s.Cleanup(func() { _ = rows.Close() })
		return faulty{func() error { return second(scope.TryLock(s.ctx, key)) }, func(string) { s.must(errors.Join(rows.Close(), rows.Err())) }}
	}},
	{"the server or the transaction is read-only; connect to the primary, and begin without ReadOnly", "begin without ReadOnly", txlock.ErrReadOnly, func(s *stage) faulty {
		readOnly := true
		return faulty{func() error {
			return locksqlc.Run(s.ctx, s.pool, []txlock.Key{key}, doesNothing, &sql.TxOptions{ReadOnly: readOnly})
		}, func(string) { readOnly = false }}
	}},
	{"the pool is not guarded; open it with locksqlc.Open", `locksqlc\.Open`, txlock.ErrUnguarded, func(s *stage) faulty {
		pool := s.db.Connect(s)
		return faulty{func() error { return txlock.CheckGuarded(s.ctx, pool) }, func(string) { pool = s.guarded(s.db.Config()) }}
	}},
	{"the server doesn't know a variable, probably one that the data source name sets", "remove it there", schema.ErrSession, func(s *stage) faulty {
		pool := s.db.Connect(s, func(cfg *mysql.Config) { cfg.Params = map[string]string{"max_statement_tim": "1"} })
		return faulty{func() error { return second(txlock.Holders(s.ctx, pool, key)) }, func(string) { pool = s.db.Connect(s) }}
	}},
	{"the key was used for another request; use a new key for a new request", "use a new key", txlock.ErrMismatch, func(s *stage) faulty {
		_, scope := s.begin()
		once := key
		s.must(second(scope.Once(s.ctx, once, txlock.Fingerprint([]byte("first")))))
		return faulty{func() error { return second(scope.Once(s.ctx, once, txlock.Fingerprint([]byte("second")))) }, func(string) { once = txlock.Named("new") }}
	}},
	{"rejectReadOnly=true makes the driver hide txlock.ErrReadOnly as a lost connection, which is retried: leave it out of the data source name", "leave it out of the data source name", nil, func(s *stage) faulty {
		return s.named(func(c *mysql.Config) { c.RejectReadOnly = true })
	}},
	{"it has autocommit = 0: remove that from the data source name", "remove that from the data source name", schema.ErrAutocommit, func(s *stage) faulty {
		return s.named(func(c *mysql.Config) { c.Params = map[string]string{"autocommit": "0"} })
	}},
	{"don't belong together: remove them, and collation_connection, from the data source name", "remove them, and collation_connection, from the data source name", schema.ErrCharset, func(s *stage) faulty {
		return s.named(func(c *mysql.Config) { c.Params = map[string]string{"character_set_connection": "latin1"} })
	}},
	{"the pool has no connection left besides the transaction's; increase SetMaxOpenConns", "increase SetMaxOpenConns", lease.ErrNoConnection, func(s *stage) faulty {
		s.pool.SetMaxOpenConns(1)
		m := s.manager()
		tx, err := s.pool.BeginTx(s.ctx, nil)
		s.must(err)
		s.Cleanup(func() { _ = tx.Rollback() })
		s.must(second(tx.ExecContext(s.ctx, "DO 1")))
		return faulty{func() error { return second(m.AcquireTx(s.ctx, tx, key)) }, func(string) { s.pool.SetMaxOpenConns(4) }}
	}},
	{"guard a transaction in the manager's own database", "in the manager's own database", lease.ErrOtherDatabase, func(s *stage) faulty {
		l, err := s.manager().Acquire(s.ctx, key)
		s.must(err)
		own, other := s.pool, s.guarded(s.db.Server().OpenLeases(s).AdminConfig())
		pool := other
		return faulty{func() error {
			tx, err := pool.BeginTx(s.ctx, nil)
			s.must(err)
			return errors.Join(l.Guard(s.ctx, tx), tx.Rollback())
		}, func(string) { pool = own }}
	}},
	{"as by an open transaction that guards it; it is released when that transaction ends", "when that transaction ends", lease.ErrGuarded, func(s *stage) faulty {
		s.pool = s.guarded(s.db.Config())
		m := s.manager()
		l, err := m.Acquire(s.ctx, key)
		s.must(err)
		tx, err := s.pool.BeginTx(s.ctx, nil)
		s.must(err)
		s.must(l.Guard(s.ctx, tx))
		return faulty{func() error { return l.Release(s.ctx) }, func(string) {
			s.must(tx.Commit())
			again, err := m.Acquire(s.ctx, key)
			s.must(err)
			l = again
		}}
	}},
}

// told are the texts whose remedy is somebody's decision, or was done by lockstep itself, and those that
// name none.
var told = []struct{ text, why string }{
	{"commit outcome unknown", "the program decides: it alone knows what it has written"},
	{"the version has changed; roll back, then read and show the record again", "a person decides: another one has changed the record"},
	{"the last statement changed another number of rows", "no remedy: it says what is left"},
	{"not an error of github.com/go-sql-driver/mysql", "the program decides: it has another driver"},
	{"does not implement driver.QueryerContext; use go-sql-driver/mysql", "the program decides: it has another driver"},
	{"CommitWith is for a single INSERT", "the program's own code: locksqlc.TestCommitWithRefused"},
	{"call it immediately before the statement that is to take the lock", "the program's own code: locksqlc.TestLockWithErrors"},
	{"it was prepared under the context of LockWith or CommitWith", "the program's own code: locksqlc.TestPreparedForAnotherContext"},
	{"lockstep retries", "no remedy: it is done already"},
	{"schema: unknown engine", "a person decides: it needs another server"},
	{"another process runs it by %s", "a person decides: which of two versions is right"},
	{"its token is higher than that of the quorum", "no remedy: Acquire itself retries"},
	{"the databases answered too late for a certain quorum", "the program decides: the TTL is its own"},
	{"nothing is held in a slot below 0", "a person decides: it ends a waiter"},
	{"it can't be ended, use KILL %d", "a person decides: it ends a session"},
	{"replicas get other tokens than this server", "check has it: TestRemediesOfSettings"},
	{"GRANT EXECUTE ON `%s`.* TO", "no remedy of a lock, which does without the procedure; check has its own: TestRemedies"},
	{"GRANT %s ON `%s`.%s TO %s", "check has it: TestRemedies"},
}

var key = txlock.Named("stock")

func doesNothing(*sql.Tx) error { return nil }

func second[T any](_ T, err error) error { return err }

// TestErrorRemedies proves that the remedy of each error text mends the fault: the call returns the
// error, and succeeds when what its text says was done, as the user of the programs. Check is clean
// afterwards.
func TestErrorRemedies(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, c := range remedied {
			t.Run(c.remedy, func(t *testing.T) {
				s := newStage(t, s.db)
				f := c.make(s)
				err := f.call()
				said, _, _ := strings.Cut(c.text, "%s")
				if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), said) {
					t.Fatalf("the call returned %v, want %q", err, c.text)
				}
				remedy := regexp.MustCompile(c.remedy).FindString(err.Error())
				if remedy == "" {
					t.Fatalf("%v has no remedy %s", err, c.remedy)
				}
				f.do(remedy)
				if err := f.call(); err != nil {
					t.Errorf("after %q the call returned %v", remedy, err)
				}
				for _, found := range s.findings(s.db.Connect(t), "tables", "privileges") {
					if found.State != ops.OK && !errors.Is(c.is, txlock.ErrPrivilege) {
						t.Errorf("after %q check says %+v", remedy, found)
					}
				}
			})
		}
	})
}

// commands are what a text names that can be executed.
var commands = regexp.MustCompile(`\b(GRANT|SET GLOBAL|KILL|lockstep install|schema\.Install)\b`)

// TestErrorRemediesAreKnown proves that each error text of the library with something to do, after a
// semicolon or as a statement, is in one of the lists above, and each entry of these in the source.
func TestErrorRemediesAreKnown(t *testing.T) {
	t.Parallel()
	var known []string
	for _, c := range remedied {
		known = append(known, c.text)
	}
	for _, c := range told {
		if c.why == "" {
			t.Errorf("%q has no reason", c.text)
		}
		known = append(known, c.text)
	}
	found := make(map[string]bool)
	for _, text := range errorTexts(t) {
		if !strings.Contains(text, "; ") && !commands.MatchString(text) {
			continue
		}
		at := slices.IndexFunc(known, func(part string) bool { return strings.Contains(text, part) })
		if at < 0 {
			t.Errorf("no list has the remedy of %q", text)
			continue
		}
		found[known[at]] = true
	}
	for _, part := range known {
		if !found[part] {
			t.Errorf("no text has %q", part)
		}
	}
}

// errorTexts are the texts of errors in the source of the library, but for those of schema's fault that
// have a fix for check: TestRemedies does these.
func errorTexts(t *testing.T) (texts []string) {
	t.Helper()
	for _, root := range []string{"schema", "txlock", "internal/fault", "internal/guard", "internal/session", "locksqlc", "lockhttp", "lockgorm"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && slices.Contains([]string{"locktest", "lockotel", "testdata"}, entry.Name()):
				return filepath.SkipDir // modules of their own
			case entry.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, is := n.(*ast.CallExpr)
				if !is || len(call.Args) == 0 {
					return true
				}
				literal, is := call.Args[0].(*ast.BasicLit)
				if name := fmt.Sprint(call.Fun); !is || literal.Kind != token.STRING || name != "&{errors New}" && name != "&{fmt Errorf}" && name != "&{fmt Sprintf}" {
					return true
				}
				text, err := strconv.Unquote(literal.Value)
				if err == nil && (fmt.Sprint(call.Fun) != "&{fmt Sprintf}" || strings.HasPrefix(text, "GRANT ")) {
					texts = append(texts, text)
				}
				return true
			})
			return nil
		})
		check(t, err)
	}
	return texts
}

// account is that of the programs, as GRANT wants it.
func (s *stage) account() string {
	s.Helper()
	var account string
	s.must(s.db.Connect(s).QueryRowContext(s.ctx, "SELECT CURRENT_USER()").Scan(&account))
	return ops.Grantee(account)
}

// guarded opens a guarded pool.
func (s *stage) guarded(cfg *mysql.Config) *sql.DB {
	s.Helper()
	pool, err := locksqlc.Open(cfg.FormatDSN())
	s.must(err)
	s.Cleanup(func() { s.must(pool.Close()) })
	return pool
}

// runs locks the key in a transaction of the programs, and waits for at most a second.
func (s *stage) runs() error {
	tx, err := s.db.Connect(s).BeginTx(s.ctx, nil)
	if err != nil {
		return err
	}
	scope, err := txlock.Join(s.ctx, tx)
	if err == nil {
		_, err = scope.WaitAtMost(time.Second).Lock(s.ctx, key)
	}
	return errors.Join(err, tx.Rollback())
}

// named is a guarded pool whose data source name is wrong, and without what is wrong.
func (s *stage) named(wrong func(*mysql.Config)) faulty {
	pool := s.guarded(s.db.Config(wrong))
	return faulty{func() error { return locksqlc.Run(s.ctx, pool, []txlock.Key{key}, doesNothing) }, func(string) { pool = s.guarded(s.db.Config()) }}
}

// stale begins a transaction that reads before another one locks the key and commits.
func (s *stage) stale() (*sql.Tx, *txlock.Scope) {
	s.Helper()
	s.pool = s.guarded(s.db.Config())
	s.must(txlock.Ensure(s.ctx, s.pool, key))
	tx, scope := s.begin()
	var n int
	s.must(tx.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM lockstep_locks").Scan(&n))
	s.must(locksqlc.Run(s.ctx, s.pool, []txlock.Key{key}, doesNothing))
	return tx, scope
}

// collide lets two transactions lock two keys in different orders, so that the server ends one of them
// in the first try. It returns their errors.
func (s *stage) collide(run func(ctx context.Context, fn func(tx *sql.Tx) error) error) error {
	one, other := txlock.Named("one"), txlock.Named("other")
	s.must(txlock.Ensure(s.ctx, s.pool, one, other))
	begun, met := make(chan bool, 2), make(chan bool)
	body := func(keys ...txlock.Key) func() error {
		tries := 0
		return func() error {
			return run(s.ctx, func(tx *sql.Tx) error {
				scope, err := txlock.Join(s.ctx, tx)
				if err != nil {
					return err
				}
				tries++
				for i, k := range keys {
					if _, err := scope.Lock(s.ctx, k); err != nil {
						return err
					}
					if i == 0 && tries == 1 {
						begun <- true
						<-met
					}
				}
				return nil
			})
		}
	}
	answers := make(chan error, 2)
	for _, fn := range []func() error{body(one, other), body(other, one)} {
		go func() { answers <- fn() }()
	}
	<-begun
	<-begun
	close(met)
	return errors.Join(<-answers, <-answers)
}
