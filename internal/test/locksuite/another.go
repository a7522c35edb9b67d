package locksuite

import (
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// AsAnotherEngine makes a server answer as TiDB and Vitess do: within a statement
// LAST_INSERT_ID() is that of the statement before, and SET TRANSACTION is no error in a
// transaction. It is what testdb.Rewritten is given.
func AsAnotherEngine(text string) string {
	if text == rawsql.Probe {
		return "DO 0"
	}
	return strings.NewReplacer("LAST_INSERT_ID(t.a)", "t.a", "LAST_INSERT_ID()", "5").Replace(text)
}
