package ops

import (
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// TestOwnStatement proves that what lockstep sends beside a program's statements isn't taken for one
// of them.
func TestOwnStatement(t *testing.T) {
	t.Parallel()
	for text, own := range map[string]bool{
		"lockstep LockNamed": true, "SAVEPOINT lockstep_x7": true, "RELEASE SAVEPOINT lockstep_x7": true, "CALL lockstep_lock_1('a', NULL, 'b', 1)": true,
		"BEGIN": true, "START TRANSACTION READ ONLY": true, "": true, "SET SESSION innodb_lock_wait_timeout = 1": true,
		rawsql.Galera: true, rawsql.GroupView: true, rawsql.MaxPacket: true, rawsql.Uptime: true, rawsql.Facts: true, rawsql.Progress: true, rawsql.Session: true, rawsql.LockWaitSeconds: true, rawsql.ProbeSavepoint: true, rawsql.Probe: true, rawsql.ShortenLockWait: true,
		"SAVEPOINT sp1": false, "query GetOrder: SELECT 1": false, "UPDATE stock SET n = 1": false, "CALL ship(7)": false, "SELECT lockstep": false, "SET @x = 1": false,
	} {
		if ownStatement(text) != own {
			t.Errorf("%q is lockstep's own: %v", text, !own)
		}
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
		if got := statement(text); got != want {
			t.Errorf("%q is told as %q, not %q", text, got, want)
		}
	}
}
