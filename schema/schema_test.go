package schema_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

var number, onServers, check, wants = testdb.Number, testdb.OnServers, testdb.Must, testdb.Wants

func install(t *testing.T, db *testdb.DB) {
	t.Helper()
	check(t, schema.Install(t.Context(), db.Admin()))
}

// TestInstall measures the first calls, by several processes at once, and repeats them while rows are in
// use, and where some are missing.
func TestInstall(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		began, delays := time.Now(), testdb.Delays(t)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { demand(t, schema.Install(t.Context(), db.Admin()), nil) })
		}
		all.Wait()
		took := time.Since(began)
		t.Logf("8 installs took %v, one is meant to take 3 s at most", took)
		testdb.ErrorIf(t, took > 30*time.Second+delays(), "Install took %v", took)
		demand(t, schema.Check(t.Context(), db.Admin()), nil)

		for _, filled := range []string{
			"SELECT COUNT(*) = 65536 AND MIN(slot) = 0 AND MAX(slot) = 65535 AND COUNT(DISTINCT slot) = 65536 FROM lockstep_centers",
			"SELECT COUNT(*) = 65536 FROM lockstep_centers WHERE token = 0 AND REPLACE(owner, X'00', '') = '-' AND conn_id = 0 AND locked_us = 0",
			"SELECT COUNT(*) = 0 FROM lockstep_locks",
			"SELECT COUNT(*) = 0 FROM lockstep_leases",
			"SELECT COUNT(*) = 0 FROM lockstep_once",
			"SELECT COUNT(*) = 0 FROM lockstep_jobs",
		} {
			testdb.Equal(t, filled, number(t, db.Admin(), filled), 1)
		}

		besideHolder(t, db)

		db.Exec(t, "INSERT INTO lockstep_locks VALUES ('order:1', 4711, 'me', 5, 6)")
		db.Exec(t, "INSERT INTO lockstep_leases VALUES ('night', 0, 'me', '', 4711, 1, 2, 3, 4, 5, 'us', 6, 'why', 7)")
		db.Exec(t, "INSERT INTO lockstep_once VALUES ('paid', '-', REPEAT('x', 70000), 4711, 1)")
		db.Exec(t, "UPDATE lockstep_centers SET token = 4711, owner = 'me', conn_id = 5, locked_us = 6 WHERE slot = 65535")
		db.Exec(t, "DELETE FROM lockstep_centers WHERE slot IN (0, 77)")
		db.Exec(t, "INSERT INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) VALUES ('report', 2, 1, 4711, 'me', 3, 4, 5, 6, '-', 7)")
		demand(t, schema.Check(t.Context(), db.Admin()), schema.ErrCenters, "65534 rows up to slot 65535", "should have 65536", "run schema.Install again")
		db.Exec(t, "DROP TABLE lockstep_leases")
		install(t, db)
		for _, kept := range []string{
			"SELECT COUNT(*) = 1 FROM lockstep_locks WHERE name = 'order:1' AND token = 4711 AND REPLACE(owner, X'00', '') = 'me' AND conn_id = 5 AND locked_us = 6",
			"SELECT COUNT(*) = 1 FROM lockstep_centers WHERE slot = 65535 AND token = 4711 AND REPLACE(owner, X'00', '') = 'me' AND conn_id = 5 AND locked_us = 6",
			"SELECT COUNT(*) = 65536 FROM lockstep_centers",
			"SELECT COUNT(*) = 2 FROM lockstep_centers WHERE slot IN (0, 77) AND token = 0",
			"SELECT COUNT(*) = 0 FROM lockstep_leases",
			"SELECT COUNT(*) = 1 FROM lockstep_once WHERE name = 'paid' AND LENGTH(result) = 70000 AND done_us = 4711",
			"SELECT COUNT(*) = 1 FROM lockstep_jobs WHERE name = 'report' AND done_us = 1",
		} {
			testdb.Equal(t, "after the second Install: "+kept, number(t, db.Admin(), kept), 1)
		}
		demand(t, schema.Check(t.Context(), db.Admin()), nil)
		db.Exec(t, "UPDATE lockstep_centers SET slot = 70000 WHERE slot = 4711")
		demand(t, schema.Check(t.Context(), db.Admin()), schema.ErrCenters, "up to slot 70000", "DELETE those above 65535")
	})
}

// besideHolder proves that to install again waits for nobody who holds a lock, and so lets nobody wait.
func besideHolder(t *testing.T, db *testdb.DB) {
	t.Helper()
	tx := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }()
	check(t, testdb.Err(tx.ExecContext(t.Context(), "UPDATE lockstep_centers SET token = 1 WHERE slot = 40000")))
	check(t, testdb.Err(tx.ExecContext(t.Context(), "SELECT COUNT(*) FROM lockstep_locks, lockstep_leases, lockstep_once, lockstep_jobs FOR UPDATE")))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // of the 50 s that a server lets a statement wait
	defer cancel()
	check(t, schema.Install(ctx, db.Admin()))
}

// TestStatements sends the files as a migration tool does, which knows nothing of this package: comments off, cut
// at the semicolons at a line's end, in the order of the names.
func TestStatements(t *testing.T) {
	t.Parallel()
	names := testdb.Got(fs.Glob(schema.FS, "*.sql"))(t)
	var want []string
	comment, end := regexp.MustCompile(`(?m)^\s*--.*$`), regexp.MustCompile(`;\s*(\n|$)`)
	for _, name := range names {
		text := testdb.Got(schema.FS.ReadFile(name))(t)
		for _, s := range end.Split(comment.ReplaceAllString(string(text), ""), -1) {
			if s = strings.TrimSpace(s); s != "" {
				want = append(want, s)
			}
		}
	}
	got := testdb.Got(schema.Statements())(t)
	testdb.FatalIf(t, len(got) != 6 || len(got) != len(want), "%d statements, the files have %d", len(got), len(want))
	for i := range got {
		testdb.Equal(t, "a statement", got[i], want[i])
		testdb.ErrorIf(t, !strings.HasPrefix(got[i], "CREATE TABLE IF NOT EXISTS lockstep_") && !strings.HasPrefix(got[i], "INSERT IGNORE INTO lockstep_"),
			"statement %d can't be repeated: %s", i, got[i])
	}
}

// TestCheckFinds breaks the tables in every way that Check knows.
func TestCheckFinds(t *testing.T) {
	finds := []struct {
		name   string
		breaks []string
		says   []string
	}{
		{"two tables missing", []string{"DROP TABLE lockstep_leases", "DROP TABLE lockstep_locks"}, []string{"lockstep_leases is missing", "lockstep_locks is missing", "run schema.Install", "schema.FS"}},
		{"view in place of a table", []string{"DROP TABLE lockstep_locks", "CREATE VIEW lockstep_locks AS SELECT * FROM lockstep_centers"}, []string{"lockstep_locks is a view", "DROP VIEW lockstep_locks, then run schema.Install"}},
		{"triggers", []string{
			"CREATE TRIGGER counted BEFORE UPDATE ON lockstep_leases FOR EACH ROW SET @leases = 1",
			"CREATE TRIGGER added AFTER INSERT ON lockstep_leases FOR EACH ROW SET @leases = 2",
		}, []string{"lockstep_leases has the trigger added, counted", "DROP TRIGGER"}},
		{"engine without row locks", []string{"ALTER TABLE lockstep_locks ENGINE = MyISAM"}, []string{"engine MyISAM", "ALTER TABLE lockstep_locks ENGINE = InnoDB"}},
		{"column too short", []string{"ALTER TABLE lockstep_locks MODIFY name VARBINARY(64) NOT NULL"}, []string{"lockstep_locks.name is varbinary(64) not null", "should be varbinary(255) not null", "ALTER TABLE lockstep_locks MODIFY name VARBINARY(255) NOT NULL"}},
		{"column with a collation", []string{"ALTER TABLE lockstep_locks MODIFY name VARCHAR(255) CHARACTER SET ascii NOT NULL"}, []string{"lockstep_locks.name is varchar(255) not null"}},
		{"signed token", []string{"ALTER TABLE lockstep_centers MODIFY token BIGINT NOT NULL"}, []string{"lockstep_centers.token is bigint not null", "should be bigint unsigned not null"}},
		{"unsigned slot", []string{"ALTER TABLE lockstep_leases MODIFY slot BIGINT UNSIGNED NOT NULL"}, []string{"lockstep_leases.slot is bigint unsigned not null", "should be bigint not null"}},
		{"nullable column", []string{"ALTER TABLE lockstep_locks MODIFY owner BINARY(80) NULL"}, []string{"lockstep_locks.owner is binary(80) and"}},
		{"column missing", []string{"ALTER TABLE lockstep_centers DROP COLUMN conn_id"}, []string{"lockstep_centers.conn_id is missing"}},
		{"column of a converted table", []string{"ALTER TABLE lockstep_leases CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"}, []string{"lockstep_leases.holders is", "should be varchar(8192) not null collate ascii_bin"}},
		{"default missing", []string{"ALTER TABLE lockstep_leases MODIFY label VARBINARY(255) NOT NULL"}, []string{"lockstep_leases.label has no default"}},
		{"column of others", []string{"ALTER TABLE lockstep_once ADD id BIGINT NOT NULL"}, []string{"lockstep_once.id is not lockstep's"}},
		{"unique key of others", []string{"ALTER TABLE lockstep_locks ADD UNIQUE KEY who (owner)"}, []string{"unique key, who (owner)", "ALTER TABLE lockstep_locks DROP INDEX who"}},
		{"token that counts by itself", []string{"ALTER TABLE lockstep_once MODIFY done_us BIGINT NOT NULL AUTO_INCREMENT, ADD KEY (done_us)"}, []string{"lockstep_once.done_us is bigint not null auto_increment", "should be bigint not null"}},
		{"condition", []string{"ALTER TABLE lockstep_locks ADD CONSTRAINT few CHECK (token < 100)"}, []string{"lockstep_locks has constraints", "CHECK few"}},
		{"reference to a table", []string{
			"CREATE TABLE parents (name VARBINARY(255) PRIMARY KEY) ENGINE = InnoDB",
			"ALTER TABLE lockstep_locks ADD CONSTRAINT child FOREIGN KEY (name) REFERENCES parents (name)",
		}, []string{"FOREIGN KEY child"}},
		{"primary key of a prefix", []string{"ALTER TABLE lockstep_locks DROP PRIMARY KEY, ADD PRIMARY KEY (name(10))"}, []string{"lockstep_locks is (name(10))"}},
		{"old versions", []string{"ALTER TABLE lockstep_leases ADD SYSTEM VERSIONING"}, []string{"lockstep_leases is of the kind SYSTEM VERSIONED"}},
		{"primary key missing", []string{"ALTER TABLE lockstep_locks DROP PRIMARY KEY"}, []string{"primary key of lockstep_locks is ()", "should be (name)", "lock its neighbours"}},
		{"primary key of another order", []string{"ALTER TABLE lockstep_leases DROP PRIMARY KEY, ADD PRIMARY KEY (slot, name)"}, []string{"primary key of lockstep_leases is (slot,name)", "should be (name,slot)"}},
	}
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		statements := testdb.Got(schema.Statements())(t)
		statements = slices.DeleteFunc(statements, func(s string) bool { return !strings.HasPrefix(s, "CREATE") }) // the center rows play no part
		for _, f := range finds {
			if f.name == "old versions" && engine != testdb.MariaDB {
				continue
			}
			for _, s := range slices.Concat(statements, f.breaks) {
				db.Exec(t, s)
			}
			found := schema.Check(t.Context(), db.Admin())
			isFound(t, found, f.says)
			testdb.ErrorIf(t, schema.Advisory(found), "%s: only advice: %v", f.name, found)
			if strings.HasPrefix(f.breaks[0], "DROP") && len(f.breaks) == 1 || strings.HasPrefix(f.breaks[len(f.breaks)-1], "DROP") {
				continue // Install would make what is missing
			}
			isFound(t, schema.Install(t.Context(), db.Admin()), f.says)
			if _, fix, ok := strings.Cut(found.Error(), ": ALTER TABLE "); ok {
				fix, _, _ = strings.Cut(fix, "\n")
				db.Exec(t, "ALTER TABLE "+fix)
				err := schema.Check(t.Context(), db.Admin())
				testdb.ErrorIf(t, errors.Is(err, schema.ErrTable), "%s: after ALTER TABLE %s: %v", f.name, fix, err)
			}
			for _, table := range []string{"lockstep_locks", "lockstep_centers", "lockstep_leases", "lockstep_once"} {
				if strings.Contains(strings.Join(f.breaks, ";"), table) {
					db.Exec(t, "DROP VIEW IF EXISTS "+table)
					db.Exec(t, "DROP TABLE IF EXISTS "+table)
				}
			}
		}
	})
}

// isFound fails the test unless it is ErrTable and says so.
func isFound(t *testing.T, err error, says []string) {
	t.Helper()
	for _, text := range says {
		testdb.ErrorIf(t, !errors.Is(err, schema.ErrTable) || !strings.Contains(err.Error(), text), "%v, want ErrTable that says %q", err, text)
	}
}

// TestUnknownVariable: a variable in the data source name that the server doesn't know is that, and no other engine.
func TestUnknownVariable(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		pool := testdb.Open(t, engine).Connect(t, func(cfg *mysql.Config) { cfg.Params = map[string]string{"max_statement_tim": "1"} })
		says := []string{"max_statement_tim'", "the data source name sets: remove it"}
		demand(t, schema.Check(t.Context(), pool), schema.ErrSession, says...)
		demand(t, schema.Install(t.Context(), pool), schema.ErrSession, says...)
	})
}

// TestCheckFindsReadOnlySession has a data source name by which transactions are read-only, also if SHOW shows
// no more than a row.
func TestCheckFindsReadOnlySession(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		name := map[testdb.Engine]string{testdb.MySQL: "transaction_read_only", testdb.MariaDB: "tx_read_only"}[engine]
		pool := testdb.Open(t, engine).Connect(t, func(cfg *mysql.Config) { cfg.Params = map[string]string{name: "1", "sql_select_limit": "1"} })
		demand(t, schema.Check(t.Context(), pool), schema.ErrSession, "_read_only = ON", "remove that from the data source name")
	})
}

// demand fails the test unless there is exactly this finding, with its remedy.
func demand(t *testing.T, err, want error, says ...string) {
	t.Helper()
	for _, finding := range []error{schema.ErrEngine, schema.ErrServer, schema.ErrTable, schema.ErrPrivilege, schema.ErrAutocommit, schema.ErrCharset, schema.ErrBinlog, schema.ErrCenters, schema.ErrSysdateIsNow, schema.ErrMultiPrimary, schema.ErrProcedures, schema.ErrSession} {
		testdb.ErrorIf(t, errors.Is(err, finding) != errors.Is(want, finding), "Check: %v, want %v", err, want)
	}
	for _, text := range says {
		testdb.Fails(t, "Check", err, text)
	}
}

// TestCheckFindsGalera needs no Galera: with wsrep_on = ON and no provider, a server works alone.
func TestCheckFindsGalera(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).Open(t)
		demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrMultiPrimary, "wsrep_on is ON", "one node", "retry ErrDeadlock")
	}
}

// TestCheckFindsGroupReplication plays a server that is a member of a group. That is advice.
func TestCheckFindsGroupReplication(t *testing.T) {
	t.Parallel()
	good := played{version: "9.7.4", numbers: [4]int{1, 2, 3, 4}}
	demand(t, play(t, good.steps()), nil) // a single primary
	good.cluster = []driver.Value{"group_replication_single_primary_mode", "OFF"}
	err := play(t, good.steps())
	demand(t, err, schema.ErrMultiPrimary, "group_replication_single_primary_mode is OFF", "one node")
	testdb.ErrorIf(t, !schema.Advisory(err) || !schema.Advisory(fmt.Errorf("start: %w", err)) || schema.Advisory(errors.Join(err, errCold)) || schema.Advisory(nil),
		"what is advice? %v", err)
}

// TestCheckFindsOldServer plays servers of many versions.
func TestCheckFindsOldServer(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"5.6.51":                               "it is MySQL 5.6.51, and lockstep needs at least MySQL 8.0",
		"5.7.44-log":                           "it is MySQL 5.7.44-log, and lockstep needs at least MySQL 8.0",
		"8.0.11":                               "",
		"8.0.36-28 Percona":                    "",
		"9.7.4":                                "",
		"10.0.0":                               "", // MySQL, one day
		"10.3.39-MariaDB-0ubuntu0.20.04.2":     "it is MariaDB 10.3.39-MariaDB-0ubuntu0.20.04.2, and lockstep needs at least MariaDB 10.6",
		"5.5.5-10.5.29-MariaDB-log":            "and lockstep needs at least MariaDB 10.6",
		"5.5.68-MariaDB":                       "and lockstep needs at least MariaDB 10.6",
		"10.6.7-MariaDB":                       "",
		"5.5.5-10.11.19-MariaDB-deb12-log":     "",
		"11.8.2-MariaDB":                       "",
		"99999999999999999999.0-not-a-version": "which lockstep can't parse",
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			steps := played{version: version, numbers: [4]int{1, 2, 3, 4}}.steps()
			if strings.Contains(want, "can't parse") {
				steps = steps[:11] // nothing else is asked
			}
			if err := play(t, steps); want == "" {
				demand(t, err, nil)
			} else {
				demand(t, err, schema.ErrServer, want, "the server")
			}
		})
	}
}

// TestInstallAfterDeadlocks proves that Install repeats a statement after a deadlock with
// another process, not for ever, and after no other error.
func TestInstallAfterDeadlocks(t *testing.T) {
	t.Parallel()
	deadlock := &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock; try restarting transaction"}
	denied := &mysql.MySQLError{Number: 1142, Message: "CREATE command denied"}
	for _, c := range []struct {
		name      string
		deadlocks int
		then      error
		want      error
	}{
		{"once", 1, nil, nil},
		{"many times", 19, nil, nil},
		{"for ever", 20, nil, deadlock},
		{"then denied", 2, denied, denied},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db, mock, err := sqlmock.New()
			check(t, err)
			defer func() { _ = db.Close() }()
			statements := testdb.Got(schema.Statements())(t)
			mock.ExpectQuery("LAST_INSERT_ID").WillReturnRows(row(session.Reply("11.8.2-MariaDB", "host/3306/shop")...))
			nothing := sqlmock.NewRows(make([]string, 5)).AddRow("server", " ", "11.8.2-MariaDB", " ", " ")
			mock.ExpectQuery("information_schema").WillReturnRows(nothing)
			for range c.deadlocks {
				mock.ExpectExec(regexp.QuoteMeta(statements[0])).WillReturnError(deadlock)
			}
			switch {
			case c.then != nil:
				mock.ExpectExec(regexp.QuoteMeta(statements[0])).WillReturnError(c.then)
			case c.want == nil:
				for _, statement := range statements {
					mock.ExpectExec(regexp.QuoteMeta(statement)).WillReturnResult(sqlmock.NewResult(0, 0))
				}
				mock.ExpectQuery("information_schema").WillReturnRows(played{version: "11.8.2-MariaDB"}.described())
			}
			wants(t, "Install", schema.Install(t.Context(), db), c.want)
			check(t, mock.ExpectationsWereMet())
		})
	}
}

// TestServerSettings runs on a server whose settings no other test may have.
func TestServerSettings(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--log-bin=log", "--server-id=1", "--log-bin-trust-function-creators=OFF", "--sysdate-is-now")).Fresh(t)
		madeByAnother(t, db)
		grants(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON `"+db.Name()+"`.* TO %s")
		demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrSysdateIsNow, "start the server without --sysdate-is-now")
		if engine != testdb.MariaDB {
			proceduresUnderBinlog(t, db)
		}
		for _, format := range []string{"MIXED", "STATEMENT", "ROW"} {
			want, says := schema.ErrSysdateIsNow, ""
			if format == "STATEMENT" {
				want, says = errors.Join(want, schema.ErrBinlog), "SET GLOBAL binlog_format = 'ROW'"
			}
			db.Exec(t, "SET GLOBAL binlog_format = "+format)
			demand(t, schema.Check(t.Context(), db.Connect(t)), want, says)
		}
		db.Exec(t, "SET GLOBAL read_only = ON") // whose refusals are not taken for missing privileges
		demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrSysdateIsNow)
		db.Exec(t, "SET GLOBAL read_only = OFF")
		db.Exec(t, "DROP TABLE lockstep_leases")
		demand(t, schema.Check(t.Context(), db.Connect(t)), errors.Join(schema.ErrSysdateIsNow, schema.ErrTable)) // all that is wrong
	})
}

// madeByAnother proves that a user who may create routines needs neither SUPER nor log_bin_trust_function_creators
// for procedures, which write to the binary log, and that they keep working without the user who has made them.
func madeByAnother(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "CREATE USER maker IDENTIFIED BY 'm'")
	db.Exec(t, "GRANT CREATE, CREATE ROUTINE, SELECT, INSERT ON `"+db.Name()+"`.* TO maker")
	cfg := db.Config()
	cfg.User, cfg.Passwd = "maker", "m"
	maker := testdb.Got(sql.Open("mysql", cfg.FormatDSN()))(t)
	check(t, errors.Join(schema.Install(t.Context(), maker), maker.Close()))
	db.Exec(t, "DROP USER maker")
}

// proceduresUnderBinlog proves that, where the log has statements, procedures work where the statements do.
func proceduresUnderBinlog(t *testing.T, db *testdb.DB) {
	t.Helper()
	for _, format := range []string{"ROW", "MIXED", "STATEMENT"} {
		for _, level := range []string{"", "READ COMMITTED", "SERIALIZABLE"} {
			text := takes(t, db, format, level, "INSERT INTO lockstep_locks VALUES ('text', 0, '', 0, 0) ON DUPLICATE KEY UPDATE token = token + 1")
			call := takes(t, db, format, "", "CALL lockstep_lock_1('"+level+"', 'call', NULL, 'me', 1)")
			testdb.Equal(t, format+", "+level+": what the procedure is answered, beside the statement", call, text)
		}
	}
}

// takes sends a statement in a transaction, and returns the server's error.
func takes(t *testing.T, db *testdb.DB, format, level, statement string) string {
	t.Helper()
	conn := testdb.Got(db.Admin().Conn(t.Context()))(t)
	defer func() { _ = conn.Close() }()
	setup := []string{"SET SESSION binlog_format = " + format}
	if level != "" {
		setup = append(setup, "SET TRANSACTION ISOLATION LEVEL "+level)
	}
	if strings.HasPrefix(statement, "INSERT") {
		setup = append(setup, "START TRANSACTION")
	}
	for _, s := range setup {
		check(t, testdb.Err(conn.ExecContext(t.Context(), s)))
	}
	_, taken := conn.ExecContext(t.Context(), statement)
	check(t, testdb.Err(conn.ExecContext(context.WithoutCancel(t.Context()), "COMMIT")))
	if taken != nil {
		return taken.Error()
	}
	return ""
}

func TestMain(m *testing.M) { testdb.Main(m) }

// TestNilPool proves that a call without a pool says what it needs.
func TestNilPool(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *sql.DB) error{
		"Install": schema.Install, "Check": schema.Check,
		"CheckCluster": func(ctx context.Context, db *sql.DB) error { return schema.CheckCluster(ctx, db) },
	} {
		testdb.Fails(t, name+"(nil)", call(t.Context(), nil), fmt.Sprintf("%s needs a *sql.DB", name))
	}
}

// played is a server that answers Check. The zero value is a good MariaDB.
type played struct {
	version           string
	sessions, numbers [4]int // of the reads that look for a proxy
	savepoint         error  // at its end
	ignored           int    // the hint
	shares            bool   // sessions
	cluster           []driver.Value
}

// step is a statement of Check and its answer.
type step struct {
	text string // how it begins
	rows *sqlmock.Rows
	err  error
}

var errCold = errors.New("the server has a cold")

func row(values ...driver.Value) *sqlmock.Rows {
	return sqlmock.NewRows(make([]string, len(values))).AddRow(values...)
}

// problem reports whether it is one through which Check asks for no snapshot.
func (p played) problem() bool {
	return p.savepoint != nil || p.sessions != [4]int{} || p.numbers != [4]int{1, 2, 3, 4} || p.ignored != 0 || p.shares
}

var errInTransaction = &mysql.MySQLError{Number: 1568, Message: "Transaction characteristics can't be changed while a transaction is in progress"}

// steps are what Check sends to the server.
func (p played) steps() []step {
	if p.version == "" {
		p.version = "11.8.2-MariaDB"
	}
	read := func(i int, more ...driver.Value) *sqlmock.Rows {
		return row(append([]driver.Value{7 + p.sessions[i], 100 + p.numbers[i]}, more...)...)
	}
	all := []step{
		{text: "SELECT @@version, CONCAT(CONNECTION_ID())", rows: row(session.Reply(p.version, "host/3306/shop")...)},
		{text: "SHOW VARIABLES", rows: row("tx_read_only", "OFF")},
		{text: "SELECT CONNECTION_ID(), UUID(), SLEEP(0.01)", rows: read(0, 0, 10_050)},
		{text: "BEGIN"}, {text: "SAVEPOINT"},
		{text: "SELECT CONNECTION_ID(), UUID()", rows: read(1)},
		{text: "SELECT CONNECTION_ID(), UUID() FOR UPDATE", rows: read(2)},
		{text: "RELEASE", err: p.savepoint}, {text: "ROLLBACK"},
	}
	if p.savepoint == nil {
		all = append(all, step{text: "SELECT CONNECTION_ID(), UUID(), SLEEP(0.01)", rows: read(3, 0, 10_050)})
		if !strings.Contains(p.version, "MariaDB") {
			shares := map[bool]error{false: errSyntax}[p.shares]
			all = append(all, step{text: "SELECT /*+ SET_VAR(max_execution_time", rows: row(p.ignored)}, step{text: "ROUTER SET", err: shares})
		}
	}
	all = append(all, step{text: "/*M!100601 SET STATEMENT sql_big_selects=1 FOR */ SELECT /*+ SET_VAR(sql_big_selects=1) */ 'table'", rows: p.described()},
		step{text: "EXPLAIN DELETE", rows: row(1)},
		step{text: "/*M!100601 SET STATEMENT sql_big_selects=1 FOR */ SELECT /*+ SET_VAR(sql_big_selects=1) */ COUNT", rows: row(schema.Centers, schema.Centers-1)})
	if !strings.Contains(p.version, "MariaDB") {
		all = append(all, step{text: "CALL lockstep_begin_1()", err: errArguments})
	}
	cluster := sqlmock.NewRows([]string{"n", "v"})
	if p.cluster != nil {
		cluster.AddRow(p.cluster...)
	}
	all = append(all, step{text: "SHOW GLOBAL VARIABLES", rows: cluster})
	if p.problem() {
		return all
	}
	return append(all, step{text: "SET TRANSACTION"}, step{text: "BEGIN"}, step{text: "SET TRANSACTION", err: errInTransaction}, step{text: "ROLLBACK"})
}

// described is what a server says of right tables and procedures.
func (p played) described() *sqlmock.Rows {
	rows := sqlmock.NewRows(make([]string, 5))
	for name, t := range map[string]struct{ primary, columns string }{
		"lockstep_locks":   {"name", "name varbinary(255), token bigint(20) unsigned, owner binary(80), conn_id bigint(20) unsigned, locked_us bigint(20)"},
		"lockstep_centers": {"slot", "slot int(10) unsigned, token bigint unsigned, owner binary(80), conn_id bigint unsigned, locked_us bigint"},
		"lockstep_leases":  {"name,slot", "name varbinary(255), slot bigint, owner varbinary(255), holders varchar(8192), token bigint unsigned, ttl_us bigint, expires_us bigint, used_for bigint, guards bigint unsigned, conn_id bigint unsigned, label varbinary(255), asked_us bigint, release_reason varbinary(255), version bigint unsigned"},
		"lockstep_once":    {"name", "name varbinary(255), fingerprint varbinary(32), result longblob, done_us bigint, keep_us bigint"},
		"lockstep_jobs":    {"name", "name varbinary(255), tick_us bigint, done_us bigint, token bigint unsigned, owner varbinary(255), started_us bigint, ended_us bigint, took_us bigint, failures bigint, error varbinary(1024), next_us bigint, limit_us bigint, schedule varbinary(255), paused_us bigint, paused_by varbinary(255), run_us bigint, runs varbinary(8192), differs varbinary(255), differs_us bigint"},
	} {
		rows.AddRow("table", name, "BASE TABLE", "InnoDB", " ")
		for column := range strings.SplitSeq(t.columns, ", ") {
			column, kind, _ := strings.Cut(column, " ")
			kind += " not null "
			if column == "holders" {
				kind += " collate ascii_bin"
			}
			rows.AddRow("column", name, column, kind, "select,insert,update,references ")
		}
		rows.AddRow("constraint", name, "PRIMARY", "PRIMARY KEY", " ")
		for i, column := range strings.Split(t.primary, ",") {
			rows.AddRow("key", name, "PRIMARY", column+" ", string(rune('1'+i)))
		}
	}
	for _, name := range procedures {
		rows.AddRow("procedure", " ", name, nil, " ")
	}
	return rows.AddRow("server", " ", p.version, "u@h", " ")
}

// play answers Check by these steps, which it must send, and no others.
func play(t *testing.T, steps []step) error {
	t.Helper()
	db, mock, err := sqlmock.New()
	check(t, err)
	for _, s := range steps {
		switch {
		case s.text == "BEGIN":
			mock.ExpectBegin()
		case s.text == "ROLLBACK":
			mock.ExpectRollback()
		case s.rows == nil && s.text != "CALL lockstep_begin_1()" && !errors.Is(s.err, errCold):
			mock.ExpectExec("^" + s.text).WillReturnResult(sqlmock.NewResult(0, 0)).WillReturnError(s.err)
		case s.err != nil:
			mock.ExpectQuery("^" + regexp.QuoteMeta(s.text)).WillReturnError(s.err)
		default:
			mock.ExpectQuery("^" + regexp.QuoteMeta(s.text)).WillReturnRows(s.rows)
		}
	}
	mock.ExpectClose()
	result := schema.Check(t.Context(), db)
	check(t, errors.Join(db.Close(), mock.ExpectationsWereMet()))
	return result
}

// TestCheckFailsWithServer proves that Check returns the server's error to each of its
// questions, and that it asks few: a readiness probe may call it.
func TestCheckFailsWithServer(t *testing.T) {
	t.Parallel()
	for version, most := range map[string]int{"11.8.2-MariaDB": 18, "9.7.4": 21} {
		server := played{version: version, numbers: [4]int{1, 2, 3, 4}}
		all := server.steps()
		testdb.ErrorIf(t, len(all) > most, "Check sends %d statements to %s, want %d", len(all), version, most)
		for i, s := range all {
			if s.rows == nil || i == 5 || i == 6 || strings.Contains(s.text, "max_execution_time") || strings.HasPrefix(s.text, "EXPLAIN") {
				continue // which the server may refuse
			}
			until := server.steps()[:i+1]
			until[i].err = errCold
			err := play(t, until)
			testdb.ErrorIf(t, !errors.Is(err, errCold) || !strings.HasPrefix(err.Error(), "schema: "), "after %q: Check: %v", s.text, err)
		}
	}
}

var (
	errSyntax    = &mysql.MySQLError{Number: 1064, Message: "You have an error in your SQL syntax"}
	errArguments = &mysql.MySQLError{Number: 1318, Message: "Incorrect number of arguments"}
)

// TestCheckFindsProxies plays proxies. Those that the statements really go through are in module tests.
func TestCheckFindsProxies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		played
		says string
	}{
		"none":                   {played{numbers: [4]int{1, 2, 3, 4}}, ""},
		"another session at all": {played{numbers: [4]int{1, 2, 3, 4}, sessions: [4]int{0, 1, 1, 0}}, "reach several sessions"},
		"reads go elsewhere":     {played{numbers: [4]int{1, 2, 30, 4}, sessions: [4]int{0, 0, 1, 0}}, "reach several sessions"},
		"the next transaction":   {played{numbers: [4]int{1, 2, 3, 4}, sessions: [4]int{0, 0, 0, 1}}, "reach several sessions"},
		"a cache":                {played{numbers: [4]int{1, 2, 3, 1}}, "answered from a cache"},
		"a reset":                {played{numbers: [4]int{1, 2, 3, 4}, savepoint: errSyntax}, "a transaction that does nothing has failed"},
		"no comments":            {played{version: "9.7.4", numbers: [4]int{1, 2, 3, 4}, ignored: 1}, "removes comments"},
		"a router that shares":   {played{version: "9.7.4", numbers: [4]int{1, 2, 3, 4}, shares: true}, "gives sessions to other clients"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := play(t, c.steps()); c.says == "" {
				demand(t, err, nil)
			} else {
				demand(t, err, schema.ErrProxy, c.says)
			}
		})
	}
}
