package locksqlc_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
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

func (s *side) exec(on executor, query string, args ...any) {
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
	return leasetest.Got(s.db.BeginTx(s.ctx, options))(s)
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
		if plain[i] != guarded[i] {
			t.Errorf("line %d\nplain:   %.500s\nguarded: %.500s", i, plain[i], guarded[i])
		}
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
