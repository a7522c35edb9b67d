package testdb

import (
	"errors"
	"os"
	"testing"
)

// none is what Engines returns where LOCKSTEP_ENGINES is none, and nothing else is: a
// wrong name or a server that is missing never skips a test.
const none Engine = "none"

func withoutServers() bool { return os.Getenv("LOCKSTEP_ENGINES") == string(none) }

// mayStart refuses a server to a test that has not asked NeedsServer. A command that is
// told its engines, such as withservers, is no test.
func mayStart() error {
	if testing.Testing() && withoutServers() {
		return errors.New("testdb: LOCKSTEP_ENGINES is none, so no test starts a server: call NeedsServer first")
	}
	return nil
}

// NeedsServer skips the test or benchmark where LOCKSTEP_ENGINES is none. Open, Fresh,
// Shared and Dedicated call it. A test does where it would fail, or show nothing, before
// it calls them.
func NeedsServer(tb testing.TB) {
	tb.Helper()
	if withoutServers() {
		tb.Skip("LOCKSTEP_ENGINES is none, and this needs a server")
	}
}
