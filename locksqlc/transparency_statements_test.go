package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// Scenarios of statements, rows and arguments.

// columnTypes reads a row with every common type, and a row of NULLs, by the text and by
// the binary protocol.
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

// noRows calls Query for statements without rows, under contexts that can end, in
// transactions with and without locks.
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
	insert, err := s.db.PrepareContext(s.ctx, "INSERT INTO "+s.table+" VALUES (?, ?)")
	check(s, err)
	defer func() { s.error("close", insert.Close()) }()
	for i := range 3 {
		result, err := insert.ExecContext(s.ctx, i, i*i)
		s.error("insert", err)
		if err == nil {
			n, err := result.RowsAffected()
			s.note("%d %v", n, err)
		}
	}
	s.error("an argument is missing", second(insert.ExecContext(s.ctx, 1)))
	s.error("one too many", second(insert.ExecContext(s.ctx, 1, 2, 3)))
	s.error("duplicate", second(insert.ExecContext(s.ctx, 1, 1)))
	tx := s.begin(nil)
	s.error("in a transaction", second(tx.StmtContext(s.ctx, insert).ExecContext(s.ctx, 8, 8)))
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
	s.error("bad syntax", second(s.db.PrepareContext(s.ctx, "SELECT FROM WHERE")))
	s.error("no table", second(s.db.PrepareContext(s.ctx, "SELECT * FROM missing_table")))
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
		s.error("exec", second(s.db.ExecContext(s.ctx, "SET @a = ?", arg)))
	}
	s.query("SELECT ?, ?", 1)
	s.query("SELECT 1", 1)
}

// loadData loads a file that an io.Reader of this process gives.
func loadData(s *side) {
	mysql.RegisterReaderHandler(s.table, func() io.Reader { return strings.NewReader("1\t10\n2\t20\n3\t30\n") })
	defer mysql.DeregisterReaderHandler(s.table)
	broken := s.table + "_broken"
	mysql.RegisterReaderHandler(broken, func() io.Reader { return io.MultiReader(strings.NewReader("5\t50\n"), brokenReader{}) })
	defer mysql.DeregisterReaderHandler(broken)
	s.exec(s.db, "LOAD DATA LOCAL INFILE 'Reader::"+s.table+"' INTO TABLE "+s.table)
	s.query("SELECT * FROM " + s.table)
	tx := s.begin(nil)
	s.exec(tx, "DELETE FROM "+s.table)
	s.exec(tx, "LOAD DATA LOCAL INFILE 'Reader::"+s.table+"' INTO TABLE "+s.table)
	s.exec(tx, "LOAD DATA LOCAL INFILE 'Reader::"+broken+"' INTO TABLE "+s.table)
	s.exec(tx, "LOAD DATA LOCAL INFILE 'Reader::missing' INTO TABLE "+s.table)
	s.exec(tx, "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE "+s.table)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (9, 90)")
	s.error("commit", tx.Commit())
	s.query("SELECT * FROM " + s.table)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("the file is broken") }

// TestDiagnosticsOfAnError proves that a joined transaction shows what an error of a
// statement has left, to GET DIAGNOSTICS as to SHOW WARNINGS.
func TestDiagnosticsOfAnError(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "diagnostics", "id INT PRIMARY KEY")
		tx := holding(t, newPool(t, db.Config(), true), uniqueKey(t, "diagnostics"))
		exec(t, tx, "INSERT INTO "+table+" VALUES (1)")
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)"); err == nil {
			t.Error("a second row with the same key")
		}
		exec(t, tx, "GET DIAGNOSTICS CONDITION 1 @lockstep_number = MYSQL_ERRNO")
		wantCount(t, tx, 1062, "SELECT @lockstep_number")
		check(t, tx.Commit())
	})
}
