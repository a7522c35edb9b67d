package ops

import "testing"

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
