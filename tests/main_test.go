package tests

import (
	"flag"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) {
	checks := testdb.Long("8", "1000")
	// The defaults of rapid, which the command line overrides.
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}
