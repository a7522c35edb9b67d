package testdb

import "testing"

// ErrorIf fails the test with a message if there is something wrong.
func ErrorIf(tb testing.TB, wrong bool, format string, args ...any) {
	tb.Helper()
	if wrong {
		tb.Errorf(format, args...)
	}
}

// FatalIf ends the test with a message if there is something wrong.
func FatalIf(tb testing.TB, wrong bool, format string, args ...any) {
	tb.Helper()
	if wrong {
		tb.Fatalf(format, args...)
	}
}
