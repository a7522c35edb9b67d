package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// small has a stock that can't be divided evenly, so that rests have to be collected.
var small = config{buyers: 40, connections: 12, stock: 211, most: 7, takes: time.Millisecond, segments: []int{1, 4, 16}}

// TestSalesSellTheStock proves that every sale sells its stock to the last item and no item twice, that rests are
// collected from several segments, and that the table and the chart say so.
func TestSalesSellTheStock(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		variable := "LOCKSTEP_" + strings.ToUpper(string(engine)) + "_DSN"
		directory := t.TempDir()
		var out bytes.Buffer
		err := start(t.Context(), small, func(name string) string {
			if name == variable {
				return testdb.Shared(t, engine).Config().FormatDSN()
			}
			return ""
		}, directory, &out)
		testdb.FatalIf(t, err != nil, "%v\n%s", err, out.String())
		t.Log("\n" + out.String())
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		testdb.FatalIf(t, len(lines) != 2+len(small.segments), "%d lines", len(lines))
		for i, segments := range []string{"1", "4", "16"} {
			columns := strings.Fields(lines[2+i])
			testdb.ErrorIf(t, len(columns) != 6 || columns[0] != segments || columns[1] != "211", "line %q", lines[2+i])
		}
		drawing := testdb.Got(os.ReadFile(filepath.Join(directory, "flashsale-"+string(engine)+".svg")))(t)
		bars := bytes.Count(drawing, []byte("<rect")) - 1 // the ground
		testdb.ErrorIf(t, bars != len(small.segments), "%d bars in\n%s", bars, drawing)
	})
}
