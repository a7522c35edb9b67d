package ops

import "testing"

// TestStatement proves that lockstep's statements are told by their names, and those that sqlc
// has made for a program are not taken for them.
func TestStatement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"SET STATEMENT x=1 FOR -- name: LockNamed :execlastid\nINSERT INTO lockstep_locks": "lockstep LockNamed",
		"-- name: GetOrder :one\nSELECT a\n\tFROM orders":                                  "-- name: GetOrder :one SELECT a FROM orders",
		"UPDATE t\nSET a = 1 ": "UPDATE t SET a = 1",
	} {
		if got := statement(text); got != want {
			t.Errorf("%q is told as %q, not %q", text, got, want)
		}
	}
}
