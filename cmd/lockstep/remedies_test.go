package main

import (
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
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// broken are faults of the tables, with the subject of check that tells of each. schema.TestCheckFinds
// has others, whose statements are part of the error.
var broken = []struct{ name, subject, by string }{
	{"a trigger", "tables", "CREATE TRIGGER counts AFTER UPDATE ON lockstep_locks FOR EACH ROW SET @n = 1"},
	{"a column of others", "tables", "ALTER TABLE lockstep_locks ADD tenant INT NOT NULL"},
	{"a unique key", "tables", "ALTER TABLE lockstep_locks ADD UNIQUE KEY once (name, token)"},
	{"a constraint", "tables", "ALTER TABLE lockstep_locks ADD CONSTRAINT few CHECK (token < 1 << 62)"},
	{"a constraint of a column", "tables", "ALTER TABLE lockstep_locks MODIFY token BIGINT UNSIGNED NOT NULL CHECK (token < 1 << 62)"},
	{"two constraints of a name", "tables", "ALTER TABLE lockstep_locks MODIFY token BIGINT UNSIGNED NOT NULL CHECK (token < 1 << 62), ADD CONSTRAINT `token` CHECK (owner <> 'CHECK')"},
	{"a view", "tables", "DROP TABLE lockstep_jobs; CREATE VIEW lockstep_jobs AS SELECT * FROM lockstep_once"},
	{"two faults", "tables", "ALTER TABLE lockstep_locks ENGINE = MyISAM; DROP TABLE lockstep_jobs"},
	{"too few centers", "center rows", "DELETE FROM lockstep_centers WHERE slot > 65000"},
	{"too many centers", "center rows", "INSERT INTO lockstep_centers VALUES (70000, 0, '-', 0, 0)"},
	{"no right to update", "privileges", "REVOKE UPDATE, DELETE ON lockstep_locks FROM "},
}

// uncallable are those of the procedures, which MySQL has.
var uncallable = []struct{ name, subject, by string }{
	{"a missing procedure", "procedures", "DROP PROCEDURE lockstep_lock_1"},
	{"another procedure", "procedures", "DROP PROCEDURE lockstep_lock_1; CREATE PROCEDURE lockstep_lock_1() SELECT 1"},
	{"no right to call", "procedures", "REVOKE EXECUTE ON %s.* FROM "},
	{"no right to call what is missing", "procedures", "DROP PROCEDURE lockstep_try_1; REVOKE EXECUTE ON %s.* FROM "},
}

// decided is what a person is told behind a statement.
var decided = regexp.MustCompile(`: a person decides.*`)

// TestRemedies proves that the remedy of each fault of the tables and procedures mends it: it does what check says,
// as an administrator, and check finds the subject right afterwards, as the user of the programs.
func TestRemedies(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.must(schema.Install(t.Context(), s.db.Admin()))
		faults := broken
		if s.db.Engine() == testdb.MySQL && !testdb.WithoutProcedures() {
			faults = slices.Concat(broken, uncallable)
		}
		for _, fault := range faults {
			t.Run(fault.name, func(t *testing.T) {
				by := fault.by
				if strings.HasSuffix(by, "FROM ") {
					by = strings.ReplaceAll(by, "%s", "`"+s.db.Name()+"`") + s.account()
				}
				for statement := range strings.SplitSeq(by, "; ") {
					s.db.Exec(t, statement)
				}
				if fault.name == "a view" {
					defer func() { _, _ = s.db.Admin().ExecContext(s.ctx, "DROP VIEW IF EXISTS lockstep_jobs") }()
				}
				look := func() ops.Finding {
					switch fault.name {
					case "a trigger", "another procedure": // which only who has the privilege TRIGGER sees, or made it
						return s.finding(fault.subject, s.db.Admin())
					}
					return s.finding(fault.subject, s.db.Connect(t)) // anew: a connection keeps the privileges of its database
				}
				said, f := "", look()
				for tries := 0; f.State != ops.OK && tries < 3; tries++ { // a table with two faults tells the second one afterwards
					said = f.Fix
					for remedy := range strings.SplitSeq(decided.ReplaceAllString(f.Fix, ""), "; ") {
						s.remedy(remedy)
					}
					f = look()
				}
				if f.State != ops.OK || said == "" {
					t.Errorf("after %q check says %+v", said, f)
				}
			})
		}
	})
}

// finding returns what check says of a subject.
func (s *stage) finding(subject string, as *sql.DB) ops.Finding {
	s.Helper()
	return s.findings(as, subject)[0]
}

// findings returns what check says of subjects.
func (s *stage) findings(as *sql.DB, subjects ...string) (all []ops.Finding) {
	s.Helper()
	found, err := ops.New(as).Check(s.ctx)
	s.must(err)
	for _, subject := range subjects {
		i := slices.IndexFunc(found, func(f ops.Finding) bool { return f.Name == subject })
		if i < 0 {
			s.Fatalf("check says nothing of %s", subject)
		}
		all = append(all, found[i])
	}
	return all
}

// remedy does what check says: a command of lockstep, or a statement.
func (s *stage) remedy(what string) {
	s.Helper()
	if command, is := strings.CutPrefix(what, "lockstep "); is {
		s.says(done, "", append(strings.Fields(command), "--yes")...)
		return
	}
	if _, err := s.db.Admin().ExecContext(s.ctx, what); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// TestRemediesOfSettings proves the same of the server's settings, which sessions have that come
// later, and of those of sessions. Where the server looks for no deadlock, waits shows it.
func TestRemediesOfSettings(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for subject, c := range map[string]struct {
			by    string
			state ops.State
		}{
			"read only":              {"SET GLOBAL read_only = ON", ops.Error},
			"isolation":              {"SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", ops.Warn},
			"deadlocks":              {"SET GLOBAL innodb_deadlock_detect = OFF", ops.Warn},
			"binary log":             {"SET GLOBAL binlog_format = 'STATEMENT'", ops.Error},
			"forgotten transactions": {"SET GLOBAL wait_timeout = 28800", ops.Warn},
		} {
			s.db.Exec(t, c.by)
			f := s.finding(subject, s.db.Connect(t))
			statement := regexp.MustCompile(`SET GLOBAL [^;,]*`).FindString(f.Fix)
			if f.State != c.state || statement == "" {
				t.Errorf("after %s check says %+v", c.by, f)
				continue
			}
			s.db.Exec(t, statement)
			if f := s.finding(subject, s.db.Connect(t)); f.State != ops.OK {
				t.Errorf("after %s check says %+v", statement, f)
			}
		}
		if s.db.Engine() == testdb.MariaDB {
			s.db.Exec(t, "SET GLOBAL idle_transaction_timeout = 120")
			if f := s.finding("forgotten transactions", s.db.Connect(t)); f.Text != "end after 120 s at most" {
				t.Errorf("with idle_transaction_timeout = 120 check says %+v", f)
			}
		}
		s.remediesOfSessions()
		s.db.Exec(t, "SET GLOBAL innodb_deadlock_detect = OFF")
		t.Run("a deadlock", func(t *testing.T) { newStage(t, s.db).deadlock() })
	}, func(tb testing.TB, engine testdb.Engine) *testdb.DB {
		return testdb.Dedicated(tb, engine, testdb.Args("--log-bin=log", "--server-id=1", "--performance-schema=ON")).OpenLeases(tb)
	})
}

// remediesOfSessions does what check says of sessions on which locks don't hold: it takes the
// setting out of the data source name, and out of init_connect.
func (s *stage) remediesOfSessions() {
	s.Helper()
	for subject, c := range map[string]struct{ name, value, says string }{
		"autocommit":    {"autocommit", "0", "remove autocommit=0 from the data source name and from init_connect"},
		"character set": {"character_set_connection", "latin1", "use charset=utf8mb4 in the data source name, and remove other character sets from it and from init_connect"},
		"session":       {"completion_type", "CHAIN", "remove the setting from the data source name and from init_connect"},
	} {
		wrong := func(cfg *mysql.Config) { cfg.Params = map[string]string{c.name: c.value} }
		if f := s.finding(subject, s.db.Connect(s, wrong)); f.State != ops.Error || !strings.Contains(f.Fix, c.says) {
			s.Errorf("with %s in the data source name check says %+v, want %q", c.name, f, c.says)
		}
		if f := s.finding(subject, s.db.Connect(s)); f.State != ops.OK {
			s.Errorf("without it check says %+v", f)
		}
		s.db.Exec(s, "SET GLOBAL init_connect = 'SET "+c.name+" = "+c.value+"'")
		if f := s.finding(subject, s.db.Connect(s)); f.State != ops.Error || !strings.Contains(f.Fix, c.says) {
			s.Errorf("with %s in init_connect check says %+v, want %q", c.name, f, c.says)
		}
		if subject == "character set" {
			if f := s.finding(subject, s.db.Connect(s, mysqlCharset)); f.State != ops.OK {
				s.Errorf("with charset=utf8mb4 check says %+v", f)
			}
		}
		s.db.Exec(s, "SET GLOBAL init_connect = ''")
		if f := s.finding(subject, s.db.Connect(s)); f.State != ops.OK {
			s.Errorf("without %s in init_connect check says %+v", c.name, f)
		}
	}
}

// mysqlCharset is charset=utf8mb4 in a data source name.
func mysqlCharset(cfg *mysql.Config) {
	if err := cfg.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		panic(err)
	}
}

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
	{"GRANT CREATE VIEW, DROP, SELECT ON `%s`.* TO %s", "GRANT .*@'[^']*'; GRANT PROCESS ON .*?@'[^']*'", txlock.ErrPrivilege, func(s *stage) faulty {
		return faulty{func() error { return schema.InstallViews(s.ctx, s.db.Connect(s)) }, func(remedy string) {
			for statement := range strings.SplitSeq(remedy, "; ") {
				s.db.Exec(s, statement)
			}
		}}
	}},
}

// mistaken is why the remedy is the program's.
const mistaken = "the program's own code: tests/mistakes.TestMistakes"

// told are the texts whose remedy is somebody's decision, or was done by lockstep itself, and those that
// name none.
var told = []struct{ text, why string }{
	{"timed out waiting for the lock; retry later", mistaken},
	{"deadlock: the server rolled the transaction back; retry it, as Run does", mistaken},
	{"the transaction's snapshot is older than the lock; roll back and retry, as Run does, and lock before the first SELECT", mistaken},
	{"the transaction has ended on the server; roll back", mistaken},
	{"it was rolled back with its connection; unless that was killed, the readTimeout of the data source name must be longer than the wait for a lock", mistaken},
	{"rows are open on the transaction; close them", mistaken},
	{"the server or the transaction is read-only; connect to the primary, and begin without ReadOnly", mistaken},
	{"the pool is not guarded; open it with locksqlc.Open", mistaken},
	{"the key was used for another request; use a new key for a new request", mistaken},
	{"it has autocommit = 0: remove that from the data source name", mistaken},
	{"don't belong together: remove them, and collation_connection, from the data source name", mistaken},
	{"guard a transaction in the manager's own database", mistaken},
	{"the server doesn't know a variable, probably one that the data source name sets", "the program's own settings: schema.TestUnknownVariable"},
	{"rejectReadOnly=true makes the driver hide txlock.ErrReadOnly as a lost connection, which is retried: leave it out of the data source name", "the program's own settings: locksqlc.TestRejectReadOnly"},
	{"the pool has no connection left besides the transaction's; increase SetMaxOpenConns", "the program's own settings: lease.TestAcquireTxExhaustedPool"},
	{"as by an open transaction that guards it; it is released when that transaction ends", "no remedy: lease.TestReleaseUnderGuard"},
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
	{"GRANT EXECUTE ON `%s`.* TO", "no remedy of a lock, which does without the procedure; check has its own: TestRemedies"},
	{"GRANT %s ON `%s`.%s TO %s", "check has it: TestRemedies"},
}

var key = txlock.Named("stock")

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
				wants(t, fmt.Sprintf("after %q the call", remedy), f.call(), nil)
			})
		}
		for _, found := range s.findings(s.db.Connect(t), "tables", "privileges") {
			if found.State != ops.OK {
				t.Errorf("afterwards check says %+v", found)
			}
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
			for n := range ast.Preorder(file) {
				call, is := n.(*ast.CallExpr)
				if !is || len(call.Args) == 0 {
					continue
				}
				name := fmt.Sprint(call.Fun)
				literal, is := call.Args[0].(*ast.BasicLit)
				if !is || literal.Kind != token.STRING || name != "&{errors New}" && name != "&{fmt Errorf}" && name != "&{fmt Sprintf}" {
					continue
				}
				text, err := strconv.Unquote(literal.Value)
				if err == nil && (name != "&{fmt Sprintf}" || strings.HasPrefix(text, "GRANT ")) {
					texts = append(texts, text)
				}
			}
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
