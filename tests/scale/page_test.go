package scale

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// install makes the tables that are needed.
func install(t *testing.T, db *testdb.DB) {
	t.Helper()
	statements, err := schema.Statements()
	must(t, err)
	for _, s := range statements {
		if strings.Contains(s, "TABLE IF NOT EXISTS lockstep_locks") || strings.Contains(s, "TABLE IF NOT EXISTS lockstep_leases") {
			db.Exec(t, s)
		}
	}
	db.Grant(t, "lockstep_locks", "lockstep_leases")
}

// loadOf is the load of the machine in the last minute, as uptime says, or "unknown".
func loadOf(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// circumstances says how the figures are to be taken.
func circumstances(cpus int, load string) string {
	text := fmt.Sprintf("Measured by `make scale` on %s, on a machine of %d cores that clients and servers share, with a load of %s before.", time.Now().UTC().Format(time.DateOnly), cpus, load)
	var n float64
	if _, err := fmt.Sscan(load, &n); err != nil || n >= 1 {
		text += " **The machine was loaded by other work: the figures are lower than those of an idle one.**"
	}
	return text
}

// short is a time with two or three digits.
func short(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

// replaced puts a text between the marks of a page.
func replaced(t *testing.T, page, mark, text string) string {
	t.Helper()
	before, rest, begun := strings.Cut(page, "<!-- "+mark+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end of "+mark+" -->")
	if !begun || !ended {
		t.Fatalf("the page has no marks for %q", mark)
	}
	return before + "<!-- " + mark + " -->\n\n" + strings.TrimSpace(text) + "\n\n<!-- end of " + mark + " -->" + after
}
