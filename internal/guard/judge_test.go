package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// kinds has the names of the kinds, for messages.
var kinds = map[kind]string{
	kindUncertain: "uncertain", kindPlain: "plain", kindQuiet: "quiet", kindSavepoint: "savepoint", kindRelease: "release",
	kindRollbackTo: "rollback to", kindBegin: "begin", kindCommit: "commit", kindRollback: "rollback",
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for want, queries := range map[kind][]string{
		kindPlain: {
			"", " ", ";", "-- nothing", "/* nothing */",
			"SELECT 1", "select 1", "(SELECT 1)", "SELECT 'COMMIT; DROP TABLE t'", "SELECT 1;", "SELECT 1; SELECT 2",
			"/* trace */ SELECT 1", "-- DROP TABLE t\nSELECT 1", "# COMMIT\nSELECT 1",
			"INSERT INTO t VALUES (1)", "REPLACE INTO t VALUES (1)", "UPDATE t SET a = 1", "DELETE FROM t",
			"WITH x AS (SELECT 1) SELECT * FROM x", "VALUES (1)", "TABLE t", "DO 1", "USE d", "HELP 'x'", "HANDLER t OPEN",
			"SHOW TABLES", "EXPLAIN SELECT 1", "PREPARE s FROM 'COMMIT'", "DEALLOCATE PREPARE s", "DESCRIBE t", "DESC t", "KILL QUERY 5", "SIGNAL SQLSTATE '45000'",
			"LOAD DATA INFILE 'x' INTO TABLE t", "LOAD DATA LOCAL INFILE 'x' INTO TABLE t", "LOAD XML INFILE 'x' INTO TABLE t",
			"SET STATEMENT max_statement_time=1 FOR SELECT 1",
			"set statement max_statement_time=1 for insert into t values (1)",
			"CREATE TEMPORARY TABLE t (id INT)", "CREATE TEMPORARY TABLE IF NOT EXISTS t (id INT)", "create temporary table t select 1",
			"DROP TEMPORARY TABLE t", "DROP TEMPORARY TABLE IF EXISTS t",
			"INSERT INTO t VALUES (1); UPDATE t SET a = 2",
		},
		kindUncertain: {
			"CREATE TABLE t (id INT)", "ALTER TABLE t ADD x INT", "DROP TABLE t", "TRUNCATE TABLE t", "TRUNCATE t",
			"RENAME TABLE a TO b", "CREATE INDEX i ON t (a)", "CREATE VIEW v AS SELECT 1", "/*!50000 CREATE */ TABLE t (id INT)",
			"ANALYZE TABLE t", "OPTIMIZE TABLE t", "FLUSH TABLES", "GRANT ALL ON d.* TO u", "REVOKE ALL ON d.* FROM u",
			"LOCK TABLES t WRITE", "UNLOCK TABLES", "CALL p()", "XA START 'x'", "XA COMMIT 'x'", "EXECUTE s", "EXECUTE IMMEDIATE 'COMMIT'",
			"BEGIN NOT ATOMIC COMMIT; END", "IF 1 THEN COMMIT; END IF", "START SLAVE", "LOAD INDEX INTO CACHE t",
			"CREATE OR REPLACE TEMPORARY TABLE t (id INT)", "NONSENSE",
			"SET @a = 1", "SET NAMES utf8mb4", "SET SESSION sql_mode = ''", "SET GLOBAL max_connections = 1", "SET ROLE NONE",
			"SET TRANSACTION READ WRITE", "SET autocommit = 1", "SET @@autocommit = 1", "SET SESSION AutoCommit = ON", "SET @a = 1, autocommit = 0",
			"SET STATEMENT max_statement_time=1 FOR ALTER TABLE t ADD x INT", "SET STATEMENT max_statement_time=1\nFOR\nALTER TABLE t ADD x INT",
			"SELECT 1; COMMIT", "SELECT 1; DROP TABLE t", "COMMIT; SELECT 1", "SAVEPOINT a; SELECT 1", "SELECT 'a;b'; ROLLBACK TO a", "/*! COMMIT */", "SELECT 1 /*! ; COMMIT AND CHAIN */",
			// Texts whose first words are misleading.
			"SET PASSWORD = 'x'", "SET PASSWORD FOR u = 'x'", // stored in a table of the server
			"SET DEFAULT ROLE r FOR u", "SET DEFAULT ROLE ALL TO u", // likewise
			"SET @a = 1, PASSWORD = 'x'",
			"CREATE TEMPORARY SEQUENCE s",                                                  // commits, unlike a table
			"/*!99999 COMMIT */", "/*M!999999 BEGIN */", "/*!99999 SELECT */ DROP TABLE t", // executed by some servers only
			"SET STATEMENT sql_mode=' for select' FOR ALTER TABLE t ADD x INT",
			"SET STATEMENT /* for select */ max_statement_time=1 FOR ALTER TABLE t ADD x INT",
			`SELECT '\'; COMMIT; -- '`, // two statements under NO_BACKSLASH_ESCAPES
			`/* \ */; DROP TABLE t`, `COMMIT; -- \`,
		},
		kindSavepoint:  {"SAVEPOINT a", "savepoint `a`"},
		kindRelease:    {"RELEASE SAVEPOINT a"},
		kindRollbackTo: {"ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a", "ROLLBACK WORK TO SAVEPOINT a", "rollback/**/to `a`"},
		kindBegin:      {"BEGIN", "begin work", "BEGIN;", "START TRANSACTION", "START TRANSACTION READ ONLY", "/* x */ BEGIN"},
		kindCommit:     {"COMMIT", "commit work", "COMMIT AND NO CHAIN", "COMMIT RELEASE", "COMMIT;", "SET STATEMENT max_statement_time=1 FOR COMMIT"},
		kindRollback:   {"ROLLBACK", "rollback work", "ROLLBACK AND NO CHAIN", "ROLLBACK RELEASE", "ROLLBACK -- TO a"},
	} {
		for _, query := range queries {
			if got := judge(query); got.kind != want || want == kindUncertain && got.name == "" {
				t.Errorf("judge(%q) is %s by the name of %q, want %s", query, kinds[got.kind], got.name, kinds[want])
			}
		}
	}
}

func TestJudgeDetails(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]statement{
		"COMMIT AND CHAIN":                                   {leaves: true, kind: kindCommit, name: "COMMIT AND CHAIN", chain: true, end: endCommits},
		"COMMIT WORK AND CHAIN":                              {leaves: true, kind: kindCommit, name: "COMMIT WORK AND CHAIN", chain: true, end: endCommits},
		"rollback work and chain":                            {leaves: true, kind: kindRollback, name: "ROLLBACK WORK AND CHAIN", chain: true},
		"ROLLBACK AND CHAIN NO RELEASE":                      {leaves: true, kind: kindRollback, name: "ROLLBACK AND CHAIN NO", chain: true},
		"COMMIT AND NO CHAIN":                                {leaves: true, kind: kindCommit, name: "COMMIT AND NO CHAIN", end: endCommits},
		"START TRANSACTION":                                  {leaves: true, kind: kindBegin, name: "START TRANSACTION", end: endUnknown},
		"START TRANSACTION READ WRITE":                       {leaves: true, kind: kindBegin, name: "START TRANSACTION READ WRITE", end: endUnknown},
		"ALTER TABLE orders ADD x INT":                       {name: "ALTER TABLE ORDERS ADD", end: endCommitted},
		"SELECT 1; truncate table x":                         {name: "TRUNCATE TABLE X", end: endCommitted},
		"DROP TABLE a; DROP TABLE b":                         {name: "DROP TABLE A", end: endCommitted},
		"DROP TABLE a; CALL p()":                             {name: "DROP TABLE A", reopens: true, end: endCommitted, chooses: true},
		"COMMIT; BEGIN":                                      {name: "COMMIT", reopens: true, end: endCommitted},
		"DO 1; DROP TABLE a; ROLLBACK":                       {name: "DROP TABLE A", reopens: true, end: endCommitted},
		"ROLLBACK TO a; DO 1":                                {name: "ROLLBACK TO A", reopens: true, unseen: true},
		"DROP /*!99999 TEMPORARY */ TABLE t":                 {name: "DROP TEMPORARY TABLE T", reopens: true, end: endUnknown},
		"COMMIT /*! AND CHAIN */":                            {name: "COMMIT AND CHAIN", reopens: true, end: endCommitted},
		"ROLLBACK /*!99999 TO a */":                          {name: "ROLLBACK TO A", reopens: true, unseen: true, end: endUnknown},
		"START TRANSACTION /*! WITH CONSISTENT SNAPSHOT */":  {leaves: true, kind: kindBegin, name: "START TRANSACTION WITH CONSISTENT", reads: true, end: endUnknown},
		"START TRANSACTION WITH CONSISTENT SNAPSHOT":         {leaves: true, kind: kindBegin, name: "START TRANSACTION WITH CONSISTENT", reads: true, end: endUnknown},
		"SELECT 1; SELECT 2":                                 {kind: kindPlain, name: "SELECT 1"},
		"SELECT 1; CALL p(); SELECT 2":                       {name: "CALL P", reopens: true, end: endUnknown, chooses: true},
		"CALL p(); COMMIT":                                   {name: "CALL P", reopens: true, end: endCommitted, chooses: true},
		"CALL p()":                                           {name: "CALL P", reopens: true, end: endUnknown, chooses: true},
		"DO f(1)":                                            {kind: kindPlain, name: "DO F", reopens: true},
		"SET STATEMENT x=1 FOR DO f(1)":                      {kind: kindPlain, name: "DO F", reopens: true},
		"SET autocommit = 1":                                 {name: "SET AUTOCOMMIT 1", sets: true, end: endUnknown},
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE":       {name: "SET TRANSACTION ISOLATION LEVEL", sets: true, level: sql.LevelSerializable, end: endUnknown, chooses: true},
		"SET LOCAL TRANSACTION ISOLATION LEVEL SERIALIZABLE": {name: "SET LOCAL TRANSACTION ISOLATION", sets: true, end: endUnknown, chooses: true},
		"set transaction read only":                          {name: "SET TRANSACTION READ ONLY", sets: true, end: endUnknown, chooses: true},
		"SET SESSION a = 1, @@tx_isolation = 'SERIALIZABLE'": {name: "SET SESSION A 1", sets: true, level: anyLevel, end: endUnknown, chooses: true},
		"SET @a = 1; DROP TABLE a":                           {name: "SET A 1", reopens: true, end: endCommitted},
		"/*!50000 BEGIN */":                                  {name: "BEGIN", reopens: true, end: endCommitted},
		"/*! SELECT */ 1":                                    {name: "SELECT 1", reopens: true, end: endUnknown},
		"INSERT /*! IGNORE */ INTO t ()":                     {leaves: true, kind: kindPlain, name: "INSERT IGNORE INTO T"},
		"SAVEPOINT `A-b`":                                    {leaves: true, kind: kindSavepoint, name: "SAVEPOINT", savepoint: "a-b"},
		"RELEASE SAVEPOINT a":                                {leaves: true, kind: kindRelease, name: "RELEASE SAVEPOINT A", savepoint: "a"},
		"ROLLBACK TO SAVEPOINT a":                            {leaves: true, kind: kindRollbackTo, name: "ROLLBACK TO SAVEPOINT A", savepoint: "a"},
		"ROLLBACK WORK TO a":                                 {leaves: true, kind: kindRollbackTo, name: "ROLLBACK WORK TO A", savepoint: "a"},
		"LOCK TABLES `secret name` READ":                     {name: "LOCK TABLES", end: endCommitted, chooses: true},
		"CREATE TABLE `a b` (id BIGINT AUTO_INCREMENT)":      {name: "CREATE TABLE", end: endCommitted},
	} {
		got := judge(query)
		testdb.ErrorIf(t, got != want, "judge(%q) = %+v, want %+v", query, got, want)
	}
}

// TestJudgeSession judges what leaves the session as it was. Nothing else does.
func TestJudgeSession(t *testing.T) {
	t.Parallel()
	for want, queries := range map[bool][]string{
		true: {
			"", "-- nothing", "SELECT 1", "(SELECT 1)", "SELECT 'INTO'", "SELECT 1;", "select * from t for update", "WITH x AS (SELECT 1) SELECT * FROM x",
			"INSERT INTO t VALUES (1)", "INSERT INTO t SELECT 1", "REPLACE INTO t VALUES (1)", "UPDATE t SET autocommit = 0", "DELETE FROM t",
			"SAVEPOINT a", "RELEASE SAVEPOINT a", "ROLLBACK TO a", "BEGIN", "START TRANSACTION READ ONLY", "COMMIT", "COMMIT AND CHAIN", "ROLLBACK",
			"SET STATEMENT max_statement_time=1 FOR SELECT 1", "INSERT /*! IGNORE */ INTO t VALUES (1)", "SELECT /*+ MAX_EXECUTION_TIME(1) */ 1",
			"SHOW TABLES", rawsql.ReadCommitted, rawsql.Facts,
		},
		false: {
			"SET @a = 1", "SET autocommit = 0", "SET @@session.completion_type = 1", "SET NAMES utf8mb4", "SET TRANSACTION READ WRITE", "SET ROLE NONE",
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "set /* x */ sql_mode = ''", "SET STATEMENT max_statement_time=1 FOR SET @a = 1",
			"SET STATEMENT sql_mode='ANSI' FOR SELECT 1", "USE other", "/*! USE other */", "USE/**/other", "CALL p()", "EXECUTE s", "EXECUTE IMMEDIATE 'USE other'",
			"PREPARE s FROM 'USE other'", "DEALLOCATE PREPARE s", "BEGIN NOT ATOMIC USE other; END", "IF 1 THEN DO 1; END IF", "DO 1", "LOCK TABLES t WRITE",
			"UNLOCK TABLES", "CREATE TABLE t (id INT)", "CREATE TEMPORARY TABLE t (id INT)", "DROP TABLE t", "TRUNCATE t", "ALTER TABLE t ADD x INT", "ANALYZE TABLE t",
			"FLUSH TABLES", "GRANT ALL ON d.* TO u", "XA START 'x'", "KILL 1", "EXPLAIN SELECT 1", "DESCRIBE t", "HELP 'x'", "HANDLER t OPEN",
			"LOAD DATA INFILE 'x' INTO TABLE t", "VALUES (1)", "TABLE t", "SIGNAL SQLSTATE '45000'", "NONSENSE", "CHANGE USER x", "RESET CONNECTION",
			"SELECT 1 INTO @a", "SELECT 1 into @@sql_mode", "SELECT 1 /*! INTO @a */", "WITH x AS (SELECT 1) SELECT * FROM x INTO @a", "SELECT 1 INTO OUTFILE 'x'",
			"SELECT 1; SELECT 2", "SELECT 1; USE other", "COMMIT; SELECT 1", "SAVEPOINT a; SELECT 1", "INSERT INTO t VALUES (1); SET autocommit = 0",
			"/*!99999 SELECT */ 1", "/*!50000 BEGIN */", "COMMIT /*! AND CHAIN */", "SELECT '\\'; USE other; -- '", rawsql.ReadCommitted + " ",
		},
	} {
		for _, query := range queries {
			equal(t, fmt.Sprintf("judge(%q) says that it leaves the session as it was", query), judge(query).leaves, want)
		}
	}
}

// FuzzJudge looks for texts on which judge panics or doesn't end.
func FuzzJudge(f *testing.F) {
	for _, seed := range []string{
		"", ";", "SELECT 1; COMMIT", "SET STATEMENT x=1 FOR SET STATEMENT y=2 FOR BEGIN", "/*!50000 ROLLBACK WORK AND CHAIN */",
		"SELECT 'a;b\\'; --", "START TRANSACTION WITH CONSISTENT SNAPSHOT", "SET STATEMENT İ=1 FOR COMMIT", "BEGIN NOT ATOMIC", "/*", "`", "-- ", "/*!", ";\\",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		s := judge(query)
		_, known := kinds[s.kind]
		testdb.ErrorIf(t, !known, "judge(%q) = %+v", query, s)
		testdb.ErrorIf(t, s.kind == kindUncertain && s.name == "", "judge(%q) is uncertain and has no name", query)
	})
}

// TestSavepoints tells which locks of a history are gone after savepoints were rolled back. All others stand. A name of "" may be any.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, history, gone string }{
		{"after the savepoint", "a|SAVEPOINT x|b|ROLLBACK TO x|c", "b"},
		{"twice", "SAVEPOINT x|a|ROLLBACK TO x|b|ROLLBACK TO x|c", "ab"},
		{"an inner one", "SAVEPOINT x|a|SAVEPOINT y|b|ROLLBACK TO y", "b"},
		{"an outer one, after an inner one", "a|SAVEPOINT x|b|SAVEPOINT y|c|ROLLBACK TO y|d|ROLLBACK TO x", "bcd"},
		{"set again under the same name", "SAVEPOINT x|a|SAVEPOINT x|b|ROLLBACK TO x", "b"},
		{"released with those after it", "SAVEPOINT x|a|SAVEPOINT y|SAVEPOINT z|RELEASE y|b|ROLLBACK TO x", "ab"},
		{"one that was set unseen", "a|UNSEEN|b|ROLLBACK TO p", "b"},
		{"unseen, to one of the program", "a|SAVEPOINT x|b|UNSEEN|c", "b"},
		{"unseen, to one that was set unseen", "UNSEEN|a|UNSEEN", "a"},
		{"unseen, where all were released", "SAVEPOINT x|SAVEPOINT y|RELEASE x|a|UNSEEN", ""},
		{"one that nobody has seen set", "a|SAVEPOINT x|b|ROLLBACK TO y|c", "ab"},
		{"one whose name may be any", "a|SAVEPOINT x|b|ROLLBACK TO |c", "b"},
		{"one after one whose name may be any", "a|SAVEPOINT |b|SAVEPOINT x|c|ROLLBACK TO x", "bc"},
		{"one before one whose name may be its own, which is released", "SAVEPOINT x|SAVEPOINT y|a|SAVEPOINT |RELEASE x|b|ROLLBACK TO y", "ab"},
		{"one before a release whose name may be any", "a|SAVEPOINT x|SAVEPOINT y|b|RELEASE |c|ROLLBACK TO x", "bc"},
		{"one before a rollback whose name may be any", "a|SAVEPOINT x|SAVEPOINT y|b|ROLLBACK TO |c|ROLLBACK TO y", "bc"},
		{"unseen, where none was set", "a|UNSEEN", ""},
	} {
		var s savepoints
		stamps := make(map[string]int)
		for step := range strings.SplitSeq(c.history, "|") {
			if name, is := strings.CutPrefix(step, "SAVEPOINT "); is {
				s.set(name)
			} else if name, is := strings.CutPrefix(step, "RELEASE "); is {
				s.release(name)
			} else if name, is := strings.CutPrefix(step, "ROLLBACK TO "); is {
				s.rollBackTo(name)
			} else if step == "UNSEEN" {
				s.unseen()
			} else {
				stamps[step] = s.stamp()
			}
		}
		for lock, stamp := range stamps {
			testdb.ErrorIf(t, s.stands(stamp) == strings.Contains(c.gone, lock), "%s: lock %s stands: %t: %+v", c.name, lock, s.stands(stamp), s)
		}
	}
}

// TestSavepointsStaySmall: many failed nested transactions don't fill the memory.
func TestSavepointsStaySmall(t *testing.T) {
	t.Parallel()
	var s savepoints
	s.stamp()
	s.set("outer")
	for range 10_000 {
		s.set("inner")
		s.stamp()
		s.rollBackTo("inner")
		s.release("inner")
		s.set("empty")
		s.rollBackTo("empty")
	}
	for range 10_000 {
		s.set("")
		s.set("behind it")
	}
	testdb.ErrorIf(t, len(s.marks) > 3 || len(s.undone) > 1, "%d savepoints and %d spans are kept", len(s.marks), len(s.undone))
	s.rollBackTo("outer")
	testdb.ErrorIf(t, len(s.undone) != 1 || !s.stands(1), "after the outer one: %d spans, the first lock stands: %t", len(s.undone), s.stands(1))
}

// TestJudgeWrites judges what may be the last statement of a transaction.
func TestJudgeWrites(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{
		"UPDATE t SET n = 1": true, "UPDATE t SET `returning` = 'RETURNING' /* RETURNING */": true,
		"DELETE FROM t RETURNING n": false, "INSERT INTO t VALUES (1) /*! RETURNING n */": false, "SELECT 1": false, "UPDATE t SET n = 1; SELECT 1": false,
	} {
		equal(t, query, judge(query).writes(query), want)
	}
}

func TestMain(m *testing.M) { testdb.Main(m) }

// TestStatusOfDriver checks, on real servers, that the driver of go.mod has the field that the guard reads. If it fails after an update of the
// driver, look in the driver's packets.go for the place where the status flags of an OK packet are kept now, and read them there in flagsOf. Until
// then nothing is wrong, but statements that may end a transaction cost one more question to the server.
func TestStatusOfDriver(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			cfg := db.AdminConfig()
			cfg.MultiStatements = engine == testdb.MySQL
			connector, err := mysql.NewConnector(cfg)
			check(t, err)
			base, err := connector.Connect(t.Context())
			check(t, err)
			defer func() { check(t, base.Close()) }()
			s := statusOf(base)
			testdb.FatalIf(t, !s.flags.IsValid(), "%T has no readable field status: see the comment of this test", base)
			again := statusOf(showing{base})
			testdb.ErrorIf(t, again.flags != s.flags, "the flags are not found under a wrapper that shows its base")
			table := db.CreateTable(t, "status", "id INT PRIMARY KEY")
			expect := func(statement string, want bool) {
				t.Helper()
				if _, err := base.(driver.ExecerContext).ExecContext(context.Background(), statement, nil); err != nil {
					t.Fatal(statement, err)
				}
				s.told = true
				open, told := s.inTransaction()
				testdb.ErrorIf(t, !told || open != want, "after %s the reply says that a transaction is open: %t, want %t", statement, open, want)
			}
			expect("DO 1", false)
			s.trust()
			if _, told := s.inTransaction(); told {
				t.Error("the flags are trusted though no BEGIN has set them")
			}
			expect("BEGIN", true)
			s.trust()
			_, told := s.inTransaction()
			testdb.ErrorIf(t, !told, "the flags are not trusted though a BEGIN has set them")
			expect("INSERT INTO "+table+" VALUES (1)", true)
			expect("SAVEPOINT a", true)
			expect("SET autocommit = 1", true)
			expect("COMMIT AND CHAIN", true)
			expect("CREATE TABLE IF NOT EXISTS "+table+" (id INT)", false)
			expect("START TRANSACTION", true)
			expect("/*! COMMIT */", false)
			expect("BEGIN", true)
			rows, err := base.(driver.QueryerContext).QueryContext(context.Background(), "SELECT id FROM "+table, nil)
			check(t, err)
			check(t, rows.Close())
			open, _ := s.inTransaction()
			testdb.ErrorIf(t, !open, "after a query the reply says that no transaction is open")
			expect("ROLLBACK", false)
			for _, on := range []string{"0", "1"} {
				expect("SET autocommit = "+on, false)
				testdb.ErrorIf(t, s.autocommit() != (on == "1"), "after autocommit = %s the reply says otherwise", on)
			}
		})
		t.Run(string(engine)+"/plain", func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			pool := db.Connect(t)
			tx, err := pool.BeginTx(t.Context(), nil)
			check(t, err)
			defer func() { _ = tx.Rollback() }()
			for _, want := range []bool{true, false} {
				open, told := OpenAtLastReply(tx)
				testdb.ErrorIf(t, !told || open != want, "in a *sql.Tx: open %t, told %t, want %t: database/sql has moved its connection", open, told, want)
				exec(t, tx, "COMMIT")
			}
		})
	}
	for _, other := range []any{nil, (*sql.Tx)(nil), &sql.Tx{}, &sql.Conn{}} {
		open, told := OpenAtLastReply(other)
		testdb.ErrorIf(t, open || told, "%T: open %t, told %t", other, open, told)
	}
	s := statusOf(&leanConn{})
	testdb.ErrorIf(t, s.flags.IsValid(), "another driver's connection has the flags")
}

// showing is a wrapper that shows what it wraps.
type showing struct{ driver.Conn }

func (s showing) Raw() driver.Conn { return s.Conn }

// asked counts how often the session was asked for its facts.
func (s *stub) asked() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.sent {
		if text == rawsql.Facts {
			n++
		}
	}
	return n
}

// move tells from now on that the first session is elsewhere.
func (s *stub) move(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere = name
}

// sender is a *sql.Tx or a *sql.Conn.
type sender interface {
	Execer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// ways are the ways that database/sql has to send a statement.
var ways = map[string]func(ctx context.Context, s sender, query string) error{
	"Exec":  func(ctx context.Context, s sender, query string) error { return testdb.Err(s.ExecContext(ctx, query)) },
	"Query": func(ctx context.Context, s sender, query string) error { return closed(s.QueryContext(ctx, query)) },
	"Prepare and Exec": func(ctx context.Context, s sender, query string) error {
		stmt, err := s.PrepareContext(ctx, query)
		if err == nil {
			_, err = stmt.ExecContext(ctx, 1)
		}
		return errors.Join(err, stmt.Close())
	},
	"Prepare and Query": func(ctx context.Context, s sender, query string) error {
		stmt, err := s.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		return errors.Join(closed(stmt.QueryContext(ctx, 1)), stmt.Close())
	},
}

// closed reads a row of a query, and closes it.
func closed(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	rows.Next()
	return errors.Join(rows.Err(), rows.Close())
}

// TestFactsGrowOld: behind a statement that may have changed the session the next lock asks, once, and refuses one that has moved. No other asks.
func TestFactsGrowOld(t *testing.T) {
	t.Parallel()
	for query, old := range map[string]bool{
		"SELECT 1": false, "UPDATE t SET a = 1": false, "SAVEPOINT a": false, "WITH x AS (SELECT 1) SELECT * FROM x": false,
		"SET @a = 1": true, "USE other": true, "CALL p()": true, "DO 1": true, "EXPLAIN SELECT 1": true, "SELECT 1 INTO @a": true,
	} {
		for way, send := range ways {
			for _, inside := range []bool{false, true} {
				base, pool := newStub(t, false)
				conn, err := connect(t, pool), error(nil)
				if !inside {
					err = send(t.Context(), conn, query)
					base.move("host/3306/other")
				}
				tx, beginning := conn.BeginTx(t.Context(), nil)
				txState, _, answer := Ask(t.Context(), tx)
				if inside {
					err = errors.Join(answer, send(t.Context(), tx, query))
					base.move("host/3306/other")
				}
				check(t, errors.Join(beginning, err))
				for range 2 {
					_, err := tx.ExecContext(WithCall(t.Context(), Call{Tx: txState}), "LOCK")
					testdb.ErrorIf(t, errors.Is(err, session.ErrSession) != old || base.has("LOCK") == old,
						"%s by %s, in the transaction %t: a lock: %v", query, way, inside, err)
				}
				want := map[bool]int{false: 1, true: 2}[old]
				equal(t, fmt.Sprintf("%s by %s, in the transaction %t: questions", query, way, inside), base.asked(), want)
				check(t, errors.Join(tx.Commit(), conn.Close(), pool.PingContext(t.Context())))
				equal(t, fmt.Sprintf("%s by %s, in the transaction %t: connections", query, way, inside), base.connections(), want)
			}
		}
	}
}

// TestFactsCantBeAsked: nothing is locked, and the connection not used again, if the question fails.
func TestFactsCantBeAsked(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	tx := begin(t, pool)
	txState, _, _ := Ask(t.Context(), tx)
	base.will(rawsql.Facts, errDead)
	exec(t, tx, "SET @a = 1")
	_, err := tx.ExecContext(WithCall(t.Context(), Call{Tx: txState}), "LOCK")
	testdb.ErrorIf(t, !errors.Is(err, errDead) || base.has("LOCK"), "a lock: %v", err)
	check(t, tx.Rollback())
	base.will(rawsql.Facts, nil)
	err = pool.PingContext(t.Context())
	testdb.ErrorIf(t, err != nil || base.connections() != 1, "a connection that answers again: %v, %d connections", err, base.connections())
}

// TestFactsCutShort: a session that seems to be of another engine is asked again: a KILL QUERY may have cut the answer short.
func TestFactsCutShort(t *testing.T) {
	t.Parallel()
	for cut, asked := range map[int]int{0: 1, 1: 2, 2: 2} {
		base, pool := newStub(t, false)
		base.cutShort = cut
		tx, err := pool.BeginTx(t.Context(), nil)
		check(t, err)
		_, _, unfit := Ask(t.Context(), tx)
		n := base.asked()
		testdb.ErrorIf(t, n != asked || errors.Is(unfit, session.ErrEngine) != (cut > 1), "%d answers are cut short: asked %d times, %v", cut, n, unfit)
		check(t, tx.Rollback())
	}
}

// TestUnfitOnTiDB: locks hold in transactions of BeginTx at two levels, and plain reads may be older than a lock at one.
func TestUnfitOnTiDB(t *testing.T) {
	t.Parallel()
	for level, c := range map[sql.IsolationLevel]struct{ fit, old bool }{
		sql.LevelDefault: {true, true}, sql.LevelRepeatableRead: {true, true}, sql.LevelReadCommitted: {true, false},
		sql.LevelReadUncommitted: {}, sql.LevelSerializable: {}, sql.LevelSnapshot: {old: true},
	} {
		for engine, version := range map[string]string{"TiDB": "8.0.11-TiDB-v8.5.0", "": "8.0.11"} {
			for _, owned := range []bool{false, true} {
				tx := &TxState{server: session.NewServer(session.Facts{Version: version}), isolation: level, owned: owned}
				err := tx.unfit()
				testdb.ErrorIf(t, errors.Is(err, session.ErrEngine) == (engine == "" || owned && c.fit), "%s %v, by BeginTx %t: %v", engine, level, owned, err)
				old := tx.MayHaveSnapshot()
				testdb.ErrorIf(t, old != (engine != "" && c.old), "%s %v: may have a snapshot: %t", engine, level, old)
			}
		}
	}
}

// TestOnVitess: locks hold there in transactions of BeginTx at the session's level, and no session is ended by its number, which is another's.
func TestOnVitess(t *testing.T) {
	t.Parallel()
	server := session.NewServer(session.Facts{Version: "8.4.6-Vitess"})
	for level := sql.LevelDefault; level <= sql.LevelLinearizable; level++ {
		for _, owned := range []bool{false, true} {
			err := (&TxState{server: server, isolation: level, owned: owned}).unfit()
			fit := owned && level == sql.LevelDefault
			testdb.ErrorIf(t, errors.Is(err, session.ErrEngine) == fit, "%v, by BeginTx %t: %v", level, owned, err)
		}
	}
	base := &stub{}
	err := (&connector{base: base}).kill(&conn{server: server})
	testdb.ErrorIf(t, err != nil || base.connections() != 0, "%v, by %d connections", err, base.connections())
}
