package main

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
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
	found := leasetest.Got(ops.New(as).Check(s.ctx))(s)
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
