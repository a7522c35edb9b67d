package main

import (
	"os"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestMain is the worker too: the example starts its own program, which is the test here.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asWorker {
		main()
		return
	}
	testdb.Main(m)
}

// TestExample proves that each day has its report, and has it once, although the processes are killed at random.
func TestExample(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		var out testdb.Output
		reports, err := onServer(t.Context(), whole, testdb.Shared(t, engine).Config().FormatDSN(), &out)
		testdb.FatalIf(t, err != nil, "%v\n%s", err, out.String())
		testdb.ErrorIf(t, len(reports) < whole.days || !strings.Contains(out.String(), " processes killed, "), "%d reports\n%s", len(reports), out.String())
		byWorker := make(map[string]int)
		for _, r := range reports {
			byWorker[r.worker]++
		}
		t.Logf("the reports are by %v", byWorker)
	})
}
