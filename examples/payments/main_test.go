package main

import (
	"bytes"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// eachEngine runs a test on every engine, with the DSN of an administrator.
func eachEngine(t *testing.T, test func(t *testing.T, dsn string)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) { test(t, testdb.Shared(t, engine).Config().FormatDSN()) })
}

// TestExample proves that each payment is made once and each message counts once, although both come several times.
func TestExample(t *testing.T) {
	eachEngine(t, func(t *testing.T, dsn string) {
		var out bytes.Buffer
		b, err := onServer(t.Context(), dsn, &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		t.Log(out.String())
		testdb.ErrorIf(t, b.received <= payments*senders, "%d requests: no client had to repeat one", b.received)
	})
}
