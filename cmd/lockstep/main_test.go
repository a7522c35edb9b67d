package main

import (
	"os"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// asCommand is the variable that makes this binary the command itself.
const asCommand = "LOCKSTEP_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	testdb.Main(m)
}
