package locksqlc_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// savepointNames are pairs of names, as they are written, that a server takes for one or for
// two: it compares them by a collation.
var savepointNames = [][2]string{
	{"a", "b"},
	{"a", "`A`"},
	{"a", "`a `"},
	{"a", "ä"},
	{"Ä", "`á`"},
	{"s", "ß"},
	{"k", "\u212a"}, // KELVIN SIGN
	{"И", "й"},
	{"保存点", "保存處"},
	{"か", "が"},
	{"`a\u0301`", "`a`"},
	{"a", "`a\t`"},
	{"a$1", "A$1"},
	{"`a-b`", "`A-B`"},
	{strings.Repeat("x", 64) + "1", strings.Repeat("x", 64) + "2"},
}

// savepointHistories are statements with savepoints of the two names, 1 and 2, between
// which locks are taken. Each of them leaves a lock that is gone where the names are one, or
// where they are two.
var savepointHistories = []string{
	"SAVEPOINT 1|LOCK|ROLLBACK TO 2",
	"SAVEPOINT 1|LOCK|SAVEPOINT 2|LOCK|ROLLBACK TO 1",
	"SAVEPOINT 1|SAVEPOINT x|LOCK|SAVEPOINT 2|RELEASE SAVEPOINT 1|ROLLBACK TO x",
	"SAVEPOINT x|SAVEPOINT 1|LOCK|RELEASE SAVEPOINT 2|ROLLBACK TO x",
}

// TestSavepointNames proves that no lock counts as held which a ROLLBACK TO SAVEPOINT has
// freed, whatever the savepoints are called. The server says whether two names are one, and
// what another session can lock.
func TestSavepointNames(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, other := newPool(t, db.Config(), true), takeConn(t, newPool(t, db.Config(), false))
		keys := []txlock.Key{uniqueKey(t, "savepoint"), uniqueKey(t, "savepoint"), uniqueKey(t, "savepoint")}
		check(t, txlock.Ensure(t.Context(), pool, keys...))
		one, two, freed := 0, 0, 0
		for _, names := range savepointNames {
			same, ok := oneSavepoint(t, other, names)
			if !ok {
				continue // the server doesn't take it for a name
			}
			if same {
				one++
			} else {
				two++
			}
			for _, history := range savepointHistories {
				freed += keepsToServer(t, pool, other, keys, history, names)
			}
		}
		if one < 4 || two < 3 || freed < 30 {
			t.Errorf("%d pairs are one name and %d two, %d locks were freed: too few to show anything", one, two, freed)
		}
	})
}

// oneSavepoint asks the server whether two names are one. It returns false for what isn't a name.
func oneSavepoint(t *testing.T, conn *sql.Conn, names [2]string) (same, ok bool) {
	t.Helper()
	exec(t, conn, "BEGIN")
	defer exec(t, conn, "ROLLBACK")
	for _, name := range names {
		if _, err := conn.ExecContext(t.Context(), "SAVEPOINT "+name); err != nil {
			t.Logf("SAVEPOINT %q: %v", name, err)
			return false, false
		}
		exec(t, conn, "RELEASE SAVEPOINT "+name)
	}
	exec(t, conn, "SAVEPOINT "+names[0])
	_, err := conn.ExecContext(t.Context(), "RELEASE SAVEPOINT "+names[1])
	return err == nil, true
}

// keepsToServer plays a history, and compares what counts as held with what another session
// can lock. It returns how many locks it can.
func keepsToServer(t *testing.T, pool *sql.DB, other *sql.Conn, keys []txlock.Key, history string, names [2]string) (freed int) {
	t.Helper()
	conn := takeConn(t, pool)
	defer func() { _ = conn.Close() }()
	exec(t, conn, "BEGIN")
	defer exec(t, conn, "ROLLBACK")
	scope := joinConn(t, conn)
	locked := keys[:0]
	for step := range strings.SplitSeq(history, "|") {
		if step == "LOCK" {
			lock(t, scope, keys[len(locked)])
			locked = keys[:len(locked)+1]
			continue
		}
		step = strings.NewReplacer("1", names[0], "2", names[1]).Replace(step)
		_, _ = conn.ExecContext(t.Context(), step) // 1305, where it has none of that name
	}
	free := freeRows(t, other, locked)
	for i, key := range locked {
		if grant, held := scope.Held(key); held && free[key.String()] {
			t.Errorf("%s with %q: lock %d counts as held, %v, and another can take it", history, names, i, grant)
		}
	}
	return len(free)
}

// freeRows returns the names of the keys whose rows a session can lock.
func freeRows(t *testing.T, conn *sql.Conn, keys []txlock.Key) map[string]bool {
	t.Helper()
	query, names := "SELECT name FROM lockstep_locks WHERE name = ''", []any(nil)
	for _, key := range keys {
		query += " OR name = ?"
		names = append(names, key.String())
	}
	rows, err := conn.QueryContext(t.Context(), query+" FOR UPDATE SKIP LOCKED", names...)
	check(t, err)
	defer func() { _ = rows.Close() }()
	free := make(map[string]bool)
	for rows.Next() {
		var name string
		check(t, rows.Scan(&name))
		free[name] = true
	}
	check(t, rows.Err())
	return free
}
