package tests

import (
	"flag"
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) {
	// The defaults of rapid, which the command line overrides: -rapid.seed=0 draws a new seed.
	for name, value := range map[string]string{
		"rapid.checks": testdb.Long("8", "1000"), "rapid.seed": fmt.Sprint(testdb.Seed()), "rapid.nofailfile": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}

// onServers runs a test on every server.
func onServers(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	t.Helper()
	t.Parallel()
	testdb.OnEngines(t, test)
}
