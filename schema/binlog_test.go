package schema_test

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// TestCheckFindsStatementsInBinlog proves that Check names a binary log of statements, and no
// other.
func TestCheckFindsStatementsInBinlog(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--log-bin=log", "--server-id=1")).Open(t)
		for _, c := range []struct {
			format string
			want   error
		}{{"MIXED", nil}, {"STATEMENT", schema.ErrBinlog}, {"ROW", nil}} {
			db.Exec(t, "SET GLOBAL binlog_format = "+c.format)
			demand(t, schema.Check(t.Context(), db.Connect(t)), c.want)
		}
		db.Exec(t, "SET GLOBAL binlog_format = STATEMENT")
		demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrBinlog, "SET GLOBAL binlog_format = 'ROW'")
	})
}
