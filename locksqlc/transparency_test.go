package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// A guarded pool behaves like a plain one: each scenario runs on both, writes down what it sees, and the two records must be equal.

// side is one of the two pools of a scenario.
type side struct {
	testing.TB
	ctx    context.Context
	db     *sql.DB
	server *testdb.DB
	table  string // id INT PRIMARY KEY, v INT NOT NULL; empty
	record []string
}

// note writes down what was seen, without names that differ between the sides.
func (s *side) note(format string, args ...any) {
	s.record = append(s.record, strings.ReplaceAll(fmt.Sprintf(format, args...), s.table, "T"))
}

// error writes down an error with its type.
func (s *side) error(what string, err error) { s.note("%s: %T %v", what, err, err) }

// must writes down an error after which the scenario can't go on.
func (s *side) must(what string, err error) {
	s.Helper()
	s.error(what, err)
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *side) exec(on testdb.Executor, query string, args ...any) {
	result, err := on.ExecContext(s.ctx, query, args...)
	s.error("exec "+query, err)
	if err != nil {
		return
	}
	id, idErr := result.LastInsertId()
	n, nErr := result.RowsAffected()
	s.note("id %d %v, affected %d %v", id, idErr, n, nErr)
}

// rows writes down all results with their columns and values.
func (s *side) rows(rows *sql.Rows, err error) {
	s.error("query", err)
	if err != nil {
		return
	}
	defer func() { s.error("close", rows.Close()) }()
	for more := true; more; more = rows.NextResultSet() {
		types, err := rows.ColumnTypes()
		s.error("columns", err)
		for _, c := range types {
			nullable, knowsNull := c.Nullable()
			precision, scale, isDecimal := c.DecimalSize()
			length, hasLength := c.Length()
			s.note("%s %s nullable %t %t, decimal %d %d %t, length %d %t, %v", c.Name(), c.DatabaseTypeName(),
				nullable, knowsNull, precision, scale, isDecimal, length, hasLength, c.ScanType())
		}
		values, targets := make([]any, len(types)), make([]any, len(types))
		for i := range values {
			targets[i] = &values[i]
		}
		for rows.Next() {
			s.error("scan", rows.Scan(targets...))
			for i, v := range values {
				s.note("%d: %T %v", i, v, v)
			}
		}
	}
	s.error("end", rows.Err())
}

func (s *side) query(query string, args ...any) { s.rows(s.db.QueryContext(s.ctx, query, args...)) }

// begin begins a transaction that the scenario ends.
func (s *side) begin(options *sql.TxOptions) *sql.Tx {
	s.Helper()
	return testdb.Got(s.db.BeginTx(s.ctx, options))(s)
}

// settings are those of the driver that change how statements are sent or read.
var settings = map[string]func(server *testdb.DB, cfg *mysql.Config){
	"default":     func(*testdb.DB, *mysql.Config) {},
	"interpolate": func(_ *testdb.DB, cfg *mysql.Config) { cfg.InterpolateParams = true },
	"foundRows":   func(_ *testdb.DB, cfg *mysql.Config) { cfg.ClientFoundRows = true },
	"parseTime":   func(_ *testdb.DB, cfg *mysql.Config) { cfg.ParseTime, cfg.Loc = true, time.FixedZone("west", -3600) },
	"alias":       func(_ *testdb.DB, cfg *mysql.Config) { cfg.ColumnsWithAlias = true },
	"TLS":         func(_ *testdb.DB, cfg *mysql.Config) { cfg.TLSConfig = "skip-verify" },
	"socket": func(server *testdb.DB, cfg *mysql.Config) {
		if path := server.Server().Socket(); path != "" { // not in a container
			cfg.Net, cfg.Addr = "unix", path
		}
	},
}

var scenarios = map[string]func(s *side){
	"column types":       columnTypes,
	"several results":    severalResults,
	"no rows":            noRows,
	"prepared":           preparedStatements,
	"arguments":          arguments,
	"errors":             serverErrors,
	"transactions":       transactions,
	"text transactions":  textTransactions,
	"cancelled query":    cancelledQuery,
	"ended contexts":     endedContexts,
	"rows left open":     rowsLeftOpen,
	"raw connection":     rawConnection,
	"connection re-used": connectionReused,
	"killed connections": killedConnections,
}

func compare(t *testing.T, plain, guarded []string) {
	t.Helper()
	testdb.ErrorIf(t, len(plain) < 4, "the scenario has seen too little: %q", plain)
	for i := range min(len(plain), len(guarded)) {
		testdb.ErrorIf(t, plain[i] != guarded[i], "line %d\nplain:   %.500s\nguarded: %.500s", i, plain[i], guarded[i])
	}
	testdb.ErrorIf(t, len(plain) != len(guarded), "%d lines on the plain pool, %d on the guarded", len(plain), len(guarded))
}

// killedConnections has the server end idle connections, in the pool and in use.
func killedConnections(s *side) {
	s.db.SetMaxOpenConns(1)
	kill := func(id int64) {
		s.server.Kill(s, id)
		s.server.WaitGone(s, id)
	}
	kill(testdb.ConnID(s, s.db))
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (1, 1)")
	conn := takeConn(s, s.db)
	kill(testdb.ConnID(s, conn))
	s.error("ping", conn.PingContext(s.ctx))
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (2, 2)")
	s.error("close", conn.Close())
	s.query("SELECT * FROM " + s.table)
}

// connectionReused shows that a pool of one connection reuses it.
func connectionReused(s *side) {
	s.db.SetMaxOpenConns(1)
	first := testdb.ConnID(s, s.db)
	for range 3 {
		tx := s.begin(nil)
		s.exec(tx, "REPLACE INTO "+s.table+" VALUES (1, ?)", 1)
		s.error("commit", tx.Commit())
		s.query("SELECT v FROM " + s.table)
		s.error("ping", s.db.PingContext(s.ctx))
	}
	s.note("the same connection: %t", testdb.ConnID(s, s.db) == first)
	conn := takeConn(s, s.db)
	s.note("the same connection: %t", testdb.ConnID(s, conn) == first)
	s.error("close", conn.Close())
	s.error("close again", conn.Close())
	stats := s.db.Stats()
	s.note("open %d, closed %d %d %d", stats.OpenConnections, stats.MaxIdleClosed, stats.MaxIdleTimeClosed, stats.MaxLifetimeClosed)
	if strings.Contains(s.Name(), "/TLS/") {
		var name, cipher string
		s.error("cipher", s.db.QueryRowContext(s.ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher))
		s.note("encrypted: %t", cipher != "")
		if cipher == "" {
			s.Error("the connection is not encrypted")
		}
	}
}

// Scenarios of statements, rows and arguments.

// columnTypes reads a row with every common type, and a row of NULLs, by the text and by the binary protocol.
func columnTypes(s *side) {
	columns := []struct{ kind, value string }{
		{"TINYINT", "-7"}, {"TINYINT UNSIGNED", "200"}, {"BOOL", "TRUE"}, {"SMALLINT", "-7"}, {"SMALLINT UNSIGNED", "60000"},
		{"MEDIUMINT", "-7"}, {"MEDIUMINT UNSIGNED", "7"}, {"INT", "-7"}, {"INT UNSIGNED", "4000000000"},
		{"BIGINT", "-7"}, {"BIGINT UNSIGNED", "18446744073709551615"}, {"DECIMAL(20,6)", "1.5"}, {"DECIMAL(10,0)", "9"},
		{"FLOAT", "0.1"}, {"DOUBLE", "0.1"}, {"BIT(9)", "b'101'"}, {"YEAR", "2024"},
		{"DATE", "'2024-02-29'"}, {"TIME(3)", "'-12:34:56.789'"}, {"DATETIME(6)", "'2024-02-29 12:34:56.789012'"},
		{"DATETIME", "'2024-02-29 12:34:56'"}, {"TIMESTAMP(6) NULL", "'2024-02-29 12:34:56.789012'"},
		{"CHAR(9)", "'a'"}, {"VARCHAR(99)", "'größe'"}, {"VARCHAR(9) CHARACTER SET latin1", "'größe'"}, {"BINARY(4)", "'a'"}, {"VARBINARY(9)", "x'00ff'"},
		{"TINYTEXT", "'a'"}, {"TEXT", "'a'"}, {"MEDIUMTEXT", "'a'"}, {"LONGTEXT", "'a'"},
		{"TINYBLOB", "'a'"}, {"BLOB", "'a'"}, {"LONGBLOB", "'a'"},
		{"ENUM('a','b')", "'b'"}, {"SET('a','b')", "'a,b'"}, {"JSON", `'{"a": 1}'`}, {"GEOMETRY", "POINT(1, 2)"},
	}
	var kinds, values, nulls []string
	for i, c := range columns {
		kinds = append(kinds, "c"+string(rune('a'+i/26))+string(rune('a'+i%26))+" "+c.kind)
		values, nulls = append(values, c.value), append(nulls, "NULL")
	}
	s.exec(s.db, "CREATE TEMPORARY TABLE never_used (a INT)")
	s.exec(s.db, "ALTER TABLE "+s.table+" DROP COLUMN v, ADD COLUMN ("+strings.Join(kinds, ", ")+", must INT NOT NULL)")
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (1, "+strings.Join(values, ", ")+", 1)")
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (2, "+strings.Join(nulls, ", ")+", 1)")
	s.query("SELECT * FROM " + s.table + " ORDER BY id")
	s.query("SELECT * FROM "+s.table+" WHERE id > ? ORDER BY id", 0)
	s.query("SELECT COUNT(*), SUM(id), NULL, 'text', 1.50, x'00' FROM " + s.table + " WHERE id > 5")
	s.query("SELECT id FROM " + s.table + " WHERE FALSE")
}

// severalResults reads results of several statements and of a procedure.
func severalResults(s *side) {
	s.query("SELECT 1 AS a; INSERT INTO " + s.table + " VALUES (1, 1), (2, 2); SELECT id, v FROM " + s.table + "; DO 1")
	s.query("SELECT 1; SELECT * FROM missing_table")
	s.query("SELECT 1; SELECT 2; SELECT 3") // three results, of which none is lost
	s.exec(s.db, "UPDATE "+s.table+" SET v = 5; DELETE FROM "+s.table+" WHERE id = 1")
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (7, 7); INSERT INTO "+s.table+" VALUES (7, 7)")
	procedure := "call_" + s.table
	s.exec(s.db, "CREATE PROCEDURE "+procedure+"(n INT) BEGIN SELECT n; SELECT id, v FROM "+s.table+"; UPDATE "+s.table+" SET v = n; END")
	defer s.exec(s.db, "DROP PROCEDURE "+procedure)
	s.query("CALL "+procedure+"(?)", 9)
	s.query("CALL " + procedure + "(8)")
	s.exec(s.db, "CALL "+procedure+"(7)")
	rows, err := s.db.QueryContext(s.ctx, "CALL "+procedure+"(6)")
	s.error("call", err)
	if err == nil {
		s.note("a row: %t", rows.Next())
		s.error("closed early", rows.Close())
		s.note("after the end: %t %t", rows.Next(), rows.NextResultSet())
		s.error("err", rows.Err())
	}
	s.query("SELECT * FROM " + s.table)
}

// noRows calls Query for statements without rows, under contexts that can end, in transactions with and without locks.
func noRows(s *side) {
	procedure := "call_" + s.table
	s.exec(s.db, "CREATE PROCEDURE "+procedure+"() INSERT INTO "+s.table+" VALUES (1, 1) ON DUPLICATE KEY UPDATE v = v + 1")
	defer s.exec(s.db, "DROP PROCEDURE "+procedure)
	for _, locks := range []bool{false, true} {
		tx := s.begin(nil)
		if locks {
			join(s, tx)
		}
		s.exec(tx, "PREPARE s FROM 'DO 1'")
		for i, text := range []string{"CALL " + procedure + "()", "DO 1", "DO 1; DO 2", "EXECUTE s", "SET @a = 1", "UPDATE " + s.table + " SET v = v + 1"} {
			ctx, cancel := context.WithCancel(s.ctx)
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(s.ctx, time.Hour)
			}
			s.rows(tx.QueryContext(ctx, text))
			s.error("row of "+text, tx.QueryRowContext(ctx, text).Scan(new(int)))
			stmt, err := tx.PrepareContext(ctx, text)
			s.error("prepare "+text, err)
			if err == nil {
				s.rows(stmt.QueryContext(ctx))
				s.error("row of it", stmt.QueryRowContext(ctx).Scan(new(int)))
				s.error("close", stmt.Close())
			}
			cancel()
		}
		s.error("commit", tx.Commit())
		s.query("SELECT * FROM " + s.table)
	}
}

func preparedStatements(s *side) {
	insert := testdb.Got(s.db.PrepareContext(s.ctx, "INSERT INTO "+s.table+" VALUES (?, ?)"))(s)
	defer func() { s.error("close", insert.Close()) }()
	for i := range 3 {
		result, err := insert.ExecContext(s.ctx, i, i*i)
		s.error("insert", err)
		if err == nil {
			n, err := result.RowsAffected()
			s.note("%d %v", n, err)
		}
	}
	s.error("an argument is missing", testdb.Err(insert.ExecContext(s.ctx, 1)))
	s.error("one too many", testdb.Err(insert.ExecContext(s.ctx, 1, 2, 3)))
	s.error("duplicate", testdb.Err(insert.ExecContext(s.ctx, 1, 1)))
	tx := s.begin(nil)
	s.error("in a transaction", testdb.Err(tx.StmtContext(s.ctx, insert).ExecContext(s.ctx, 8, 8)))
	get, err := tx.PrepareContext(s.ctx, "SELECT v FROM "+s.table+" WHERE id = ?")
	s.must("prepare", err)
	for _, id := range []int{2, 8, 9} {
		var v sql.NullInt64
		s.error("get", get.QueryRowContext(s.ctx, id).Scan(&v))
		s.note("%v", v)
	}
	s.rows(get.QueryContext(s.ctx, 8))
	s.error("rollback", tx.Rollback())
	s.error("after the end", get.QueryRowContext(s.ctx, 1).Scan(new(int)))
	s.error("bad syntax", testdb.Err(s.db.PrepareContext(s.ctx, "SELECT FROM WHERE")))
	s.error("no table", testdb.Err(s.db.PrepareContext(s.ctx, "SELECT * FROM missing_table")))
	s.query("SELECT * FROM " + s.table)
}

// valuer is an argument that converts itself.
type valuer struct {
	value driver.Value
	err   error
}

func (v valuer) Value() (driver.Value, error) { return v.value, v.err }

func arguments(s *side) {
	moment := time.Date(2024, 2, 29, 12, 34, 56, 789012345, time.UTC)
	number, text := 7, "pointed"
	type kind string
	for _, arg := range []any{
		nil, true, false, int8(-1), uint8(255), int64(math.MinInt64), uint64(math.MaxUint64), uint64(1 << 63), float32(0.1), math.Pi,
		"text with ' and \\ and \x00", "größe", []byte{0, 255, '\''}, []byte(nil), []byte{}, kind("named type"), moment, moment.In(time.FixedZone("east", 7200)), time.Time{},
		json.RawMessage(`{"a":1}`), json.RawMessage(nil), &number, &text, (*int)(nil), sql.NullString{}, sql.NullString{String: "x", Valid: true},
		sql.NullTime{Time: moment, Valid: true}, sql.RawBytes("raw"), valuer{value: "valued"}, valuer{value: uint64(math.MaxUint64)}, valuer{err: errors.New("refused")},
		valuer{value: struct{}{}}, struct{}{}, []int{1}, make(chan int), sql.Named("n", 1), sql.Out{Dest: new(int)},
	} {
		s.note("%T", arg)
		s.query("SELECT ?", arg)
		s.query("SELECT ?, CAST(? AS CHAR), HEX(?)", arg, arg, arg)
		s.error("exec", testdb.Err(s.db.ExecContext(s.ctx, "SET @a = ?", arg)))
	}
	s.query("SELECT ?, ?", 1)
	s.query("SELECT 1", 1)
}

// Scenarios of transactions, connections, errors and cancellation.

// serverErrors compares errors of the server, which must not be wrapped, since GORM's Translate asserts their type directly, and
// leave the transaction open, which has a lock, be they known or not. What they have left is shown.
func serverErrors(s *side) {
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (1, 1)")
	tx := s.begin(nil)
	lock(s, join(s, tx), uniqueKey(s, "errors"))
	for _, on := range []testdb.Executor{s.db, tx} {
		for _, query := range []string{
			"INSERT INTO " + s.table + " VALUES (1, 1)", "INSERT INTO " + s.table + " VALUES (1)", "INSERT INTO " + s.table + " (id) VALUES (5)",
			"INSERT INTO " + s.table + " VALUES (NULL, 1)", "INSERT INTO " + s.table + " VALUES (99999999999, 1)", "DO (SELECT 1 UNION SELECT 2)",
			"SET @a = (SELECT 18446744073709551615 + 1 FROM " + s.table + ")", "KILL QUERY CONNECTION_ID()", "SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317",
			"SELECT * FROM missing_table", "SELECT FROM WHERE", "ROLLBACK TO SAVEPOINT missing", "SELECT missing FROM " + s.table, "SELECT * FROM " + s.table + ", " + s.table,
			"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'own', MYSQL_ERRNO = 30001", "KILL 999999999", "CALL missing()",
		} {
			s.exec(on, query)
			_, err := on.ExecContext(s.ctx, query)
			server, ok := err.(*mysql.MySQLError) //nolint:errorlint // what is tested
			s.note("is a *mysql.MySQLError itself: %t", ok)
			if ok {
				s.note("%d %s", server.Number, server.SQLState)
			}
		}
	}
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (1, 1)")
	s.exec(tx, "GET DIAGNOSTICS CONDITION 1 @number = MYSQL_ERRNO")
	s.rows(tx.QueryContext(s.ctx, "SELECT @number"))
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (2, 2)")
	s.error("commit", tx.Commit())
	s.error("commit again", tx.Commit())
	s.error("rollback after commit", tx.Rollback())
	s.exec(tx, "SELECT 1")
	s.error("no row", s.db.QueryRowContext(s.ctx, "SELECT id FROM "+s.table+" WHERE id = 77").Scan(new(int)))
	s.error("wrong type", s.db.QueryRowContext(s.ctx, "SELECT 'x'").Scan(new(int)))
	s.error("wrong number", s.db.QueryRowContext(s.ctx, "SELECT 1, 2").Scan(new(int)))
	s.query("SELECT * FROM " + s.table)
}

func transactions(s *side) {
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx := s.begin(nil)
		s.exec(tx, "INSERT INTO "+s.table+" VALUES (1, 1), (2, 2) ON DUPLICATE KEY UPDATE v = v + 1")
		s.exec(tx, "UPDATE "+s.table+" SET v = v")
		s.exec(tx, "SAVEPOINT a")
		s.exec(tx, "DELETE FROM "+s.table)
		s.exec(tx, "ROLLBACK TO SAVEPOINT a")
		s.exec(tx, "RELEASE SAVEPOINT a")
		s.rows(tx.QueryContext(s.ctx, "SELECT * FROM "+s.table))
		s.rows(tx.QueryContext(s.ctx, "SELECT * FROM "+s.table+" WHERE id=?", 1))
		s.error("end", end(tx))
	}
	tx := s.begin(&sql.TxOptions{ReadOnly: true})
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (3, 3)")
	s.error("rollback", tx.Rollback())
	ctx, cancel := context.WithCancel(s.ctx)
	tx, err := s.db.BeginTx(ctx, nil)
	s.must("begin", err)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (4, 4)")
	cancel()
	s.note("commit after the end of the context is refused: %t", tx.Commit() != nil)
	conn := takeConn(s, s.db)
	tx, err = conn.BeginTx(s.ctx, nil)
	s.must("begin on a connection", err)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (5, 5)")
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (6, 6)") // within the transaction
	s.error("rollback", tx.Rollback())
	s.exec(conn, "SET autocommit = 0")
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (7, 7)")
	s.exec(conn, "ROLLBACK")
	s.exec(conn, "SET autocommit = 1")
	s.error("close", conn.Close())
	s.query("SELECT * FROM " + s.table + " WHERE id > 2")
}

func textTransactions(s *side) {
	conn := takeConn(s, s.db)
	for _, text := range []string{
		"BEGIN", "INSERT INTO " + s.table + " VALUES (1, 1)", "ROLLBACK", "START TRANSACTION", "INSERT INTO " + s.table + " VALUES (2, 2)",
		"COMMIT AND CHAIN", "INSERT INTO " + s.table + " VALUES (3, 3)", "ROLLBACK AND CHAIN", "INSERT INTO " + s.table + " VALUES (4, 4)", "COMMIT",
		"COMMIT", "ROLLBACK", "BEGIN", "BEGIN; INSERT INTO " + s.table + " VALUES (5, 5); COMMIT; BEGIN", "SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO a", "COMMIT",
		"BEGIN", "COMMIT NONSENSE", "INSERT INTO " + s.table + " VALUES (6, 6)", "ROLLBACK",
		"XA START '" + s.table + "'", "INSERT INTO " + s.table + " VALUES (7, 7)", "XA END '" + s.table + "'", "XA ROLLBACK '" + s.table + "'",
		"SET TRANSACTION READ ONLY", "BEGIN", "INSERT INTO " + s.table + " VALUES (8, 8)", "SET TRANSACTION READ WRITE", "COMMIT", "SET TRANSACTION READ WRITE",
	} {
		s.exec(conn, text)
	}
	s.rows(conn.QueryContext(s.ctx, "SELECT * FROM "+s.table))
	s.error("close", conn.Close())
}

// cancelledQuery cancels a query that would run for long. The connection is dropped.
func cancelledQuery(s *side) {
	s.db.SetMaxOpenConns(1)
	s.query("SELECT 1") // the connection is open: the limit is for the statements
	limit := 50 * time.Millisecond
	for _, query := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return testdb.Err(s.db.ExecContext(ctx, "DO SLEEP(30)")) },
		func(ctx context.Context) error { return s.db.QueryRowContext(ctx, "SELECT SLEEP(30)").Scan(new(int)) },
		func(ctx context.Context) error {
			return s.db.QueryRowContext(ctx, "SELECT ?, SLEEP(30)", 1).Scan(new(int), new(int))
		},
		func(context.Context) error {
			tx := s.begin(nil)                                  // this may take longer than the limit of the statement
			ctx, cancel := context.WithTimeout(s.ctx, 20*limit) // and the limit must not end before the statement is sent
			defer cancel()
			_, err := tx.ExecContext(ctx, "DO SLEEP(30)")
			return errors.Join(err, tx.Rollback())
		},
	} {
		ctx, cancel := context.WithTimeout(s.ctx, limit)
		begun := time.Now()
		err := query(ctx)
		cancel()
		s.error("cancelled", err)
		s.note("promptly %t", time.Since(begun) < 25*time.Second)
		s.query("SELECT 1") // on another connection: the pool's only one was dropped
	}
}

func endedContexts(s *side) {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	s.error("exec", testdb.Err(s.db.ExecContext(ctx, "INSERT INTO "+s.table+" VALUES (1, 1)")))
	s.error("query", s.db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)))
	s.error("prepare", testdb.Err(s.db.PrepareContext(ctx, "SELECT 1")))
	s.error("begin", testdb.Err(s.db.BeginTx(ctx, nil)))
	conn := takeConn(s, s.db)
	s.error("begin on a connection", testdb.Err(conn.BeginTx(ctx, nil)))
	s.error("close", conn.Close())
	s.error("ping", s.db.PingContext(ctx))
	tx := s.begin(nil)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (2, 2)")
	s.error("exec in a transaction", testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+s.table+" VALUES (3, 3)")))
	s.error("query in a transaction", tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)))
	s.error("commit", tx.Commit())
	s.query("SELECT * FROM " + s.table)
}

// rowsLeftOpen sends a statement while rows are read, which breaks the connection on any pool, unless the driver has read them all.
func rowsLeftOpen(s *side) {
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (1, 1), (2, 2)")
	tx := s.begin(nil)
	rows, err := tx.QueryContext(s.ctx, "SELECT a.id, REPEAT('x', 9000) FROM "+s.table+" a, "+s.table+" b, "+s.table+" c")
	s.must("query", err)
	s.note("a row: %t", rows.Next())
	s.error("a statement meanwhile", testdb.Err(tx.ExecContext(s.ctx, "SET @a = 1")))
	s.note("closed: %t", rows.Close() == nil)
	_, err = tx.ExecContext(s.ctx, "SET @a = 1")
	s.note("a statement after it is refused: %t", err != nil)
	s.note("commit is refused: %t", tx.Commit() != nil)
	s.query("SELECT * FROM " + s.table)
}

func rawConnection(s *side) {
	conn := takeConn(s, s.db)
	s.error("raw", conn.Raw(func(driverConn any) error {
		result, err := driverConn.(driver.Execer).Exec( //nolint:staticcheck // go-sql-driver documents this way
			"INSERT INTO "+s.table+" VALUES (1, 1), (2, 2); UPDATE "+s.table+" SET v = 7; DELETE FROM "+s.table+" WHERE id = 1", nil)
		s.error("exec", err)
		all, ok := result.(mysql.Result)
		s.note("a mysql.Result: %t", ok)
		if ok {
			s.note("%v %v", all.AllRowsAffected(), all.AllLastInsertIds())
		}
		_, err = driverConn.(driver.Execer).Exec("INSERT INTO "+s.table+" VALUES (?, ?)", []driver.Value{int64(5), int64(5)}) //nolint:staticcheck // likewise
		s.error("exec with arguments", err)
		rows, err := driverConn.(driver.Queryer).Query("SELECT id, v FROM "+s.table, nil) //nolint:staticcheck // likewise
		s.error("query", err)
		if err == nil {
			s.note("%v", rows.Columns())
			s.error("close", rows.Close())
		}
		s.error("ping", driverConn.(driver.Pinger).Ping(s.ctx))
		s.error("reset", driverConn.(driver.SessionResetter).ResetSession(s.ctx))
		s.note("valid: %t", driverConn.(driver.Validator).IsValid())
		value := driver.NamedValue{Ordinal: 1, Value: uint64(1 << 63)}
		s.error("check", driverConn.(driver.NamedValueChecker).CheckNamedValue(&value))
		s.note("%T %v", value.Value, value.Value)
		stmt, err := driverConn.(driver.Conn).Prepare("SELECT ?, ?")
		s.error("prepare", err)
		if err == nil {
			s.note("%d arguments", stmt.NumInput())
			s.error("close", stmt.Close())
		}
		tx, err := driverConn.(driver.Conn).Begin() //nolint:staticcheck // likewise
		s.error("begin", err)
		if err == nil {
			s.error("rollback", tx.Rollback())
		}
		return errors.New("of the function")
	}))
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (6, 6)")
	s.error("discard", conn.Raw(func(any) error { return driver.ErrBadConn }))
	s.error("after it", conn.PingContext(s.ctx))
	s.note("open %d", s.db.Stats().OpenConnections)
	s.query("SELECT * FROM " + s.table)
}
