package schema_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// TestServerSettings runs on a server whose settings no other test may have. It is one that writes a
// binary log, and whose SYSDATE is NOW, which each Check finds.
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

// madeByAnother proves that a user who may create routines needs neither SUPER nor
// log_bin_trust_function_creators for procedures, which write to the binary log, and that they keep
// working without the user who has made them.
func madeByAnother(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "CREATE USER maker IDENTIFIED BY 'm'")
	db.Exec(t, "GRANT CREATE, CREATE ROUTINE, SELECT, INSERT ON `"+db.Name()+"`.* TO maker")
	cfg := db.Config()
	cfg.User, cfg.Passwd = "maker", "m"
	maker, err := sql.Open("mysql", cfg.FormatDSN())
	check(t, err)
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
			if text != call {
				t.Errorf("%s, %s: the statement is answered %q, the procedure %q", format, level, text, call)
			}
		}
	}
}

// takes sends a statement in a transaction, and returns the server's error.
func takes(t *testing.T, db *testdb.DB, format, level, statement string) string {
	t.Helper()
	conn, err := db.Admin().Conn(t.Context())
	check(t, err)
	defer func() { _ = conn.Close() }()
	setup := []string{"SET SESSION binlog_format = " + format}
	if level != "" {
		setup = append(setup, "SET TRANSACTION ISOLATION LEVEL "+level)
	}
	if strings.HasPrefix(statement, "INSERT") {
		setup = append(setup, "START TRANSACTION")
	}
	for _, s := range setup {
		check(t, second(conn.ExecContext(t.Context(), s)))
	}
	_, taken := conn.ExecContext(t.Context(), statement)
	check(t, second(conn.ExecContext(context.WithoutCancel(t.Context()), "COMMIT")))
	if taken != nil {
		return taken.Error()
	}
	return ""
}
