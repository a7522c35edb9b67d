package schema_test

import (
	"database/sql/driver"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

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
