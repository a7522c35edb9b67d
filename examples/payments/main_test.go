package main

import (
	"bytes"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestExample proves that each payment is made once and each message counts once, although both come several times.
func TestExample(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		var out bytes.Buffer
		b, err := onServer(t.Context(), testdb.Shared(t, engine).Config().FormatDSN(), &out)
		testdb.FatalIf(t, err != nil, "%v\n%s", err, out.String())
		t.Log(out.String())
		testdb.ErrorIf(t, b.received <= payments*senders, "%d requests: no client had to repeat one", b.received)
	})
}
