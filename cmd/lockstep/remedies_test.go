package main

import (
	"database/sql"
	"regexp"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// broken are faults of the tables, with the subject of check that tells of each.
var broken = []struct{ name, subject, by string }{
	{"a missing table", "tables", "DROP TABLE lockstep_jobs"},
	{"another engine", "tables", "ALTER TABLE lockstep_locks ENGINE = MyISAM"},
	{"a trigger", "tables", "CREATE TRIGGER counts AFTER UPDATE ON lockstep_locks FOR EACH ROW SET @n = 1"},
	{"a missing column", "tables", "ALTER TABLE lockstep_leases DROP COLUMN question"},
	{"another type", "tables", "ALTER TABLE lockstep_locks MODIFY token INT UNSIGNED NOT NULL DEFAULT 0"},
	{"a column of others", "tables", "ALTER TABLE lockstep_locks ADD tenant INT NOT NULL"},
	{"no primary key", "tables", "ALTER TABLE lockstep_locks DROP PRIMARY KEY"},
	{"another primary key", "tables", "ALTER TABLE lockstep_locks DROP PRIMARY KEY, ADD PRIMARY KEY (name, token)"},
	{"a unique key", "tables", "ALTER TABLE lockstep_locks ADD UNIQUE KEY once (name, token)"},
	{"a constraint", "tables", "ALTER TABLE lockstep_locks ADD CONSTRAINT few CHECK (token < 1 << 62)"},
	{"a view", "tables", "DROP TABLE lockstep_jobs; CREATE VIEW lockstep_jobs AS SELECT * FROM lockstep_once"},
	{"two faults", "tables", "ALTER TABLE lockstep_locks ENGINE = MyISAM; DROP TABLE lockstep_jobs"},
	{"too few centers", "center rows", "DELETE FROM lockstep_centers WHERE slot > 65000"},
	{"too many centers", "center rows", "INSERT INTO lockstep_centers VALUES (70000, 0, '-', 0, 0)"},
	{"no right to update", "privileges", "REVOKE UPDATE, DELETE ON lockstep_locks FROM "},
}

// decided is what a person is told behind a statement.
var decided = regexp.MustCompile(`: a person decides.*`)

// TestRemedies proves that the remedy of each fault of the tables mends it: it does what check says,
// as an administrator, and check finds the subject right afterwards, as the user of the programs.
func TestRemedies(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			s := stageOn(t, testdb.Shared(t, engine).OpenLeases(t))
			for _, fault := range broken {
				t.Run(fault.name, func(t *testing.T) {
					s.nothing()
					s.must(schema.Install(t.Context(), s.db.Admin()))
					by := fault.by
					if fault.subject == "privileges" {
						var account string
						s.must(s.db.Connect(t).QueryRowContext(s.ctx, "SELECT CURRENT_USER()").Scan(&account))
						by += ops.Grantee(account)
					}
					for statement := range strings.SplitSeq(by, "; ") {
						s.db.Exec(t, statement)
					}
					if fault.name == "a view" {
						defer func() { _, _ = s.db.Admin().ExecContext(s.ctx, "DROP VIEW IF EXISTS lockstep_jobs") }()
					}
					as := s.db.Connect(t)
					if fault.name == "a trigger" { // which only who has the privilege TRIGGER sees
						as = s.db.Admin()
					}
					said := ""
					for range 3 { // a table with two faults tells the second one afterwards
						f := s.finding(fault.subject, as)
						if f.State == ops.OK {
							break
						}
						said = f.Cure
						for remedy := range strings.SplitSeq(decided.ReplaceAllString(f.Cure, ""), "; ") {
							s.remedy(remedy)
						}
					}
					if f := s.finding(fault.subject, as); f.State != ops.OK || said == "" {
						t.Errorf("after %q check says %+v", said, f)
					}
				})
			}
		})
	}
}

// finding returns what check says of a subject.
func (s *stage) finding(subject string, as *sql.DB) ops.Finding {
	s.Helper()
	found, err := ops.New(as).Check(s.ctx)
	s.must(err)
	for _, f := range found {
		if f.Name == subject {
			return f
		}
	}
	s.Fatalf("check says nothing of %s", subject)
	return ops.Finding{}
}

// remedy does what check says: a command of lockstep, or a statement.
func (s *stage) remedy(what string) {
	s.Helper()
	if command, is := strings.CutPrefix(what, "lockstep "); is {
		if output, code := s.call(append(strings.Fields(command), "--yes")...); code != done {
			s.Errorf("%s returns %d:\n%s", what, code, output)
		}
		return
	}
	if _, err := s.db.Admin().ExecContext(s.ctx, what); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// TestRemediesOfSettings proves the same of the server's settings, which sessions have that come
// later.
func TestRemediesOfSettings(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			s := stageOn(t, testdb.Dedicated(t, engine).OpenLeases(t))
			for subject, c := range map[string]struct {
				by    string
				state ops.State
			}{
				"read only":              {"SET GLOBAL read_only = ON", ops.Fault},
				"isolation":              {"SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", ops.Warn},
				"deadlocks":              {"SET GLOBAL innodb_deadlock_detect = OFF", ops.Warn},
				"forgotten transactions": {"SET GLOBAL wait_timeout = 28800", ops.Warn},
			} {
				s.db.Exec(t, c.by)
				f := s.finding(subject, s.db.Connect(t))
				statement := regexp.MustCompile(`SET GLOBAL [^;,]*`).FindString(f.Cure)
				if f.State != c.state || statement == "" {
					t.Errorf("after %s check says %+v", c.by, f)
					continue
				}
				s.db.Exec(t, statement)
				if f := s.finding(subject, s.db.Connect(t)); f.State != ops.OK {
					t.Errorf("after %s check says %+v", statement, f)
				}
			}
			if engine == testdb.MariaDB {
				s.db.Exec(t, "SET GLOBAL idle_transaction_timeout = 120")
				if f := s.finding("forgotten transactions", s.db.Connect(t)); f.Text != "end after 120 s at most" {
					t.Errorf("with idle_transaction_timeout = 120 check says %+v", f)
				}
			}
		})
	}
}
