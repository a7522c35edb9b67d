package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// modes are the modes of sql_mode. A server refuses those of the other and of other versions.
const modes = "ALLOW_INVALID_DATES,ANSI,ANSI_QUOTES,DB2,EMPTY_STRING_IS_NULL,ERROR_FOR_DIVISION_BY_ZERO,HIGH_NOT_PRECEDENCE,IGNORE_BAD_TABLE_OPTIONS," +
	"IGNORE_SPACE,MAXDB,MSSQL,MYSQL323,MYSQL40,NO_AUTO_CREATE_USER,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES,NO_DIR_IN_CREATE,NO_ENGINE_SUBSTITUTION," +
	"NO_FIELD_OPTIONS,NO_KEY_OPTIONS,NO_TABLE_OPTIONS,NO_UNSIGNED_SUBTRACTION,NO_ZERO_DATE,NO_ZERO_IN_DATE,ONLY_FULL_GROUP_BY,ORACLE," +
	"PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT,POSTGRESQL,REAL_AS_FLOAT,SIMULTANEOUS_ASSIGNMENT,STRICT_ALL_TABLES,STRICT_TRANS_TABLES," +
	"TIME_ROUND_FRACTIONAL,TIME_TRUNCATE_FRACTIONAL,TRADITIONAL"

// querier is a *sql.Conn or *sql.Tx.
type querier interface {
	gen.DBTX
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// harmless asks what a session says about itself, as a text and prepared, and fails unless the
// server is known by each answer, and LAST_INSERT_ID() is what it was.
func harmless(t *testing.T, what string, db querier, name string) {
	t.Helper()
	for _, was := range []uint64{0, math.MaxUint64} {
		var set, is uint64
		check(t, db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT LAST_INSERT_ID(%d)", was)).Scan(&set))
		for _, d := range []gen.DBTX{db, &rawsql.Text{DBTX: db, Inline: true}} {
			job, jobErr := gen.New().LookJob(t.Context(), d, []byte(name))
			facts, factsErr := session.Ask(t.Context(), d)
			wants(t, what, errors.Join(jobErr, factsErr, session.Fit(job.Words), facts.Unfit), nil)
		}
		check(t, db.QueryRowContext(t.Context(), "SELECT LAST_INSERT_ID()").Scan(&is))
		leasetest.Equal(t, what+": LAST_INSERT_ID()", is, was)
	}
}

// TestEngineIsKnown: MySQL and MariaDB are known in every sql_mode, at every isolation level, in transactions and
// outside. Who is asked keeps the LAST_INSERT_ID() of the session, and a transaction takes no snapshot for it.
func TestEngineIsKnown(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db, name := testdb.Open(t, engine), unused().String()
		check(t, gen.New().MakeJob(t.Context(), db.Admin(), gen.MakeJobParams{Name: []byte(name)}))
		conn, _ := connection(t, db.Connect(t))
		harmless(t, "default", conn, name)
		tried := 0
		for mode := range strings.SplitSeq(","+modes, ",") {
			_, err := conn.ExecContext(t.Context(), "SET SESSION sql_mode = '"+mode+"'")
			if refused := new(mysql.MySQLError); errors.As(err, &refused) && (refused.Number == 1231 || refused.Number == 3899) {
				continue // ER_WRONG_VALUE_FOR_VAR, ER_UNSUPPORTED_SQL_MODE
			}
			check(t, err)
			tried++
			harmless(t, "sql_mode "+mode, conn, name)
		}
		testdb.ErrorIf(t, tried < 15, "only %d modes were tried", tried)
		for _, setting := range []string{"sql_mode = DEFAULT", "sql_select_limit = 1", "sql_safe_updates = 1", "big_tables = 1", "optimizer_switch = 'derived_merge=off'"} {
			exec(t, conn, "SET SESSION "+setting)
			harmless(t, setting, conn, name)
		}
		for _, level := range append(levels, sql.LevelReadUncommitted) {
			for _, readOnly := range []bool{false, true} {
				options := sql.TxOptions{Isolation: level, ReadOnly: readOnly}
				tx := leasetest.Got(conn.BeginTx(t.Context(), &options))(t)
				const token = "SELECT token FROM lockstep_jobs WHERE name = ?"
				check(t, second(session.Ask(t.Context(), tx))) // the one that is asked in transactions
				before := count(t, db.Admin(), token, name)
				db.Exec(t, "UPDATE lockstep_jobs SET token = token + 1 WHERE name = '"+name+"'")
				leasetest.Equal(t, fmt.Sprintf("%+v: what the transaction reads", options), count(t, tx, token, name), before+1)
				harmless(t, fmt.Sprintf("%+v", options), tx, name)
				check(t, tx.Rollback())
			}
		}
	})
}
