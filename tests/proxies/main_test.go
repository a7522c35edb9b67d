package proxies

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// onServers runs a test on every server.
func onServers(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	t.Helper()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}
