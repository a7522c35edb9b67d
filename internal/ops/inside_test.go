package ops

import (
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestSettle proves what the rows contradict of the locks that the server has listed before, and what
// they don't. See TestHotKey for the same on servers.
func TestSettle(t *testing.T) {
	t.Parallel()
	row := Row{Kind: Named, Key: "hot"}
	holds := rowLock{Row: row, mode: Exclusive, session: 1}
	waits := rowLock{Row: row, mode: Exclusive, session: 1, waiting: true}
	shares := rowLock{Row: row, mode: Shared, session: 1}
	perhaps := rowLock{Row: row, mode: Shared, session: 1, unsure: true}
	leased := rowLock{Row: Row{Kind: LeaseRow, Key: "hot"}, mode: Exclusive, session: 1}
	for name, c := range map[string]struct {
		seen      rowLock
		granted   uint64 // the session that has the row when it is read, or 0
		changing  bool   // the row was granted anew during the look
		kept, new bool   // the lock stays, and the row is changing afterwards
	}{
		"the holder that the row has":               {holds, 1, false, true, false},
		"another one than the row has":              {holds, 2, false, false, true},
		"a reader, where the row has a holder":      {shares, 2, false, false, true},
		"a reader":                                  {shares, 0, true, true, true},
		"a holder of a row that was granted anew":   {holds, 0, true, false, true},
		"one of several readers":                    {perhaps, 2, false, true, false},
		"a waiter that has the row when it is read": {waits, 1, false, false, false},
		"a waiter for another one":                  {waits, 2, false, true, false},
		"a waiter for a row without a holder":       {waits, 0, false, true, false},
		"a row that has no token":                   {leased, 2, false, true, false},
	} {
		l := &look{seen: []rowLock{c.seen}, changing: make(map[Row]grant)}
		known := make(map[Row]grant)
		if c.granted > 0 {
			known[row] = grant{session: c.granted}
		}
		if c.changing {
			l.changing[row] = grant{}
		}
		err := l.settle(t.Context(), known)
		_, changing := l.changing[row]
		testdb.ErrorIf(t, err != nil || (len(l.seen) == 1) != c.kept || changing != c.new, "%s: there are %+v, changing %v, %v", name, l.seen, changing, err)
	}
}

// TestOwnStatement proves that what lockstep sends beside a program's statements isn't taken for one of them.
func TestOwnStatement(t *testing.T) {
	t.Parallel()
	for text, own := range map[string]bool{
		"lockstep LockNamed": true, "SAVEPOINT lockstep_x7": true, "RELEASE SAVEPOINT lockstep_x7": true, "CALL lockstep_lock_1('a', NULL, 'b', 1)": true,
		"BEGIN": true, "START TRANSACTION READ ONLY": true, "": true, "SET SESSION innodb_lock_wait_timeout = 1": true,
		rawsql.Galera: true, rawsql.GroupView: true, rawsql.MaxPacket: true, rawsql.Uptime: true, rawsql.Facts: true, rawsql.Progress: true, rawsql.Session: true, rawsql.LockWaitSeconds: true, rawsql.ProbeSavepoint: true, rawsql.Probe: true, rawsql.ShortenLockWait: true,
		"SAVEPOINT sp1": false, "query GetOrder: SELECT 1": false, "UPDATE stock SET n = 1": false, "CALL ship(7)": false, "SELECT lockstep": false, "SET @x = 1": false,
	} {
		testdb.Equal(t, fmt.Sprintf("%q is lockstep's own", text), ownStatement(text), own)
	}
}

// TestStatement proves that lockstep's statements are told by their names, those that sqlc has
// made for a program are not taken for them, and no comment stands in a statement's place.
func TestStatement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"SET STATEMENT x=1 FOR -- name: LockNamed :execlastid\nINSERT INTO lockstep_locks":             "lockstep LockNamed",
		"SET STATEMENT max_statement_time=0.5 FOR /* name: LockNamed */ INSERT INTO lockstep_locks":    "lockstep LockNamed",
		"/* name: RenewMany */ INSERT INTO lockstep_leases (name)":                                     "lockstep RenewMany",
		"/* trace=7 */ -- name: LockNamed :execlastid\nINSERT INTO `shop`.`lockstep_locks` VALUES (1)": "lockstep LockNamed",
		"-- name: GetOrder :one\nSELECT a\n\tFROM orders":                                              "query GetOrder: SELECT a FROM orders",
		"/* name: GetOrder :one */\nSELECT a FROM orders":                                              "query GetOrder: SELECT a FROM orders",
		"-- name: GetOrder :one\n-- with a remark on lockstep_locks\nSELECT 1":                         "query GetOrder: SELECT 1",
		"-- name: GetOrder :one\nSELECT a FROM orders WHERE note = ' lockstep_x'":                      "query GetOrder: SELECT a FROM orders WHERE note = ' lockstep_x'",
		"/* name: GetOrder :o":             "query GetOrder",
		"-- a remark\nSELECT 1":            "SELECT 1",
		"# a remark\n/* and one */DO 2":    "DO 2",
		"/**/DO 3":                         "DO 3",
		"/*!50000 DO 4 */":                 "/*!50000 DO 4 */",
		"/*M!100000 DO 4 */":               "/*M!100000 DO 4 */",
		"SELECT '-- name: x' FROM orders":  "SELECT '-- name: x' FROM orders",
		"-- only this":                     "-- only this",
		"SELECT 'lockstep_' /* name: X */": "SELECT 'lockstep_' /* name: X */",
		"":                                 "",
		"UPDATE t\nSET a = 1 ":             "UPDATE t SET a = 1",
	} {
		testdb.Equal(t, fmt.Sprintf("how %q is told", text), statement(text), want)
	}
}

// TestTableOf proves that a table is told from those of other databases, whatever quotes its name has.
func TestTableOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ours, name, database, table string }{
		{"shop", "`shop`.`lockstep_locks`", "shop", "lockstep_locks"},
		{"shop", `"shop"."lockstep_locks"`, "shop", "lockstep_locks"},
		{"shop", "shop.`lockstep_locks`", "shop", "lockstep_locks"},
		{"shop.eu", "`shop.eu`.`lockstep_locks`", "shop.eu", "lockstep_locks"},
		{"a`b", "`a``b`.`lockstep_locks`", "a`b", "lockstep_locks"},
		{"shop", "`shopping`.`lockstep_locks`", "shopping", "lockstep_locks"},
	} {
		l := look{Picture: Picture{Database: c.ours}}
		database, table := l.tableOf(c.name)
		testdb.Equal(t, c.name, database+" "+table, c.database+" "+c.table)
	}
}

// TestVacant proves that an election without a leader is known, also one for which no process stands.
func TestVacant(t *testing.T) {
	t.Parallel()
	p := &Picture{elections: map[string]bool{"led": true, "waits": true, "left": true}, Leases: []Lease{
		{Key: "led", Kind: "exclusive"}, {Key: "led:standby", Kind: "permit", Label: "a"}, {Key: "waits:standby", Kind: "permit", Label: "b"}, {Key: "waits", Kind: "reader"},
	}}
	got := fmt.Sprint(p.Vacant()[0].Key, p.Vacant()[0].Standby, p.Vacant()[1].Key, p.Vacant()[1].Standby)
	testdb.ErrorIf(t, len(p.Vacant()) != 2 || got != "left[]waits[b]", "without a leader are %s", got)
}
