package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestSoak lets every kind run for a moment, faster than usual, and reads what was written. Whether
// figures are flat a minute shows, by night.
func TestSoak(t *testing.T) {
	testdb.NeedsServer(t)
	var engines []string
	for _, engine := range testdb.Engines() {
		engines = append(engines, string(engine))
		t.Setenv(engine.DSNVariable(), testdb.Shared(t, engine).Config().FormatDSN())
	}
	out, values := "", map[string]string{}
	for lasts := testdb.Long(4*time.Second, time.Minute); values["clients heap_bytes"] == "" && lasts < 10*time.Minute; lasts *= 4 { // a busy machine has no figures yet
		out = t.TempDir()
		code, err := soak(t.Context(), []string{"-engines", strings.Join(engines, ","), "-duration", lasts.String(),
			"-every", testdb.Long("2s", "4s"), "-pace", testdb.Long("8", "4"), "-warm-up", testdb.Long(lasts.String(), "20s"), "-out", out})
		if code != 0 || err != nil {
			t.Fatalf("soak = %d, %v", code, err)
		}
		values = figures(t, filepath.Join(out, "figures.csv"))
	}
	want := []string{"clients heap_bytes", "clients rss_bytes", "clients goroutines"}
	for _, engine := range engines {
		for _, name := range []string{"threads", "history_list", "prepared_statements", "rows lockstep_locks", "bytes lockstep_once", "rows nodes_leases"} {
			want = append(want, engine+" "+name)
		}
		for _, k := range kinds() {
			want = append(want, engine+" done "+k.name)
		}
	}
	for _, name := range want {
		if values[name] == "" || values[name] == "0" && !strings.HasSuffix(name, "history_list") && !strings.Contains(name, "done ") {
			t.Errorf("%s is %q", name, values[name])
		}
	}
	summary, err := os.ReadFile(filepath.Join(out, "summary.md"))
	if err != nil || !strings.Contains(string(summary), "| clients | heap_bytes |") {
		t.Errorf("summary.md is %q, %v", summary, err)
	}
}

// figures reads the last value of each figure.
func figures(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer func() { _ = file.Close() }()
	rows, err := csv.NewReader(file).ReadAll()
	check(t, err)
	values := make(map[string]string)
	for _, row := range rows {
		values[row[1]+" "+row[2]] = row[3]
	}
	return values
}

// TestSoakNoticesFaults lets an operation fail, and an update be lost.
func TestSoakNoticesFaults(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Setenv(engine.DSNVariable(), testdb.Shared(t, engine).Config().FormatDSN())
			s, err := newSite(t.Context(), engine)
			if s != nil {
				defer func() { check(t, s.close()) }()
			}
			check(t, err)
			check(t, s.makeRecords(t.Context(), "x"))
			journal, err := newJournal(filepath.Join(t.TempDir(), "figures.csv"), 1)
			check(t, err)
			defer func() { _ = journal.close() }()
			r := &runner{options: options{out: t.TempDir(), every: time.Second}, sites: []*site{s}, journal: journal, asked: make(map[*site]float64)}
			told := func(want int) {
				t.Helper()
				if code, err := r.tell(); code != want || err != nil {
					t.Errorf("tell = %d, %v, want %d", code, err, want)
				}
			}
			raising := kind{name: "x", run: func(ctx context.Context, o *op) error { return o.raise(ctx, o.plain) }}
			one(s, raising, 3, 0)
			check(t, r.look())
			if lost, err := s.lost(t.Context()); len(lost) != 0 || err != nil {
				t.Errorf("lost = %q, %v", lost, err)
			}
			told(0)
			_, err = s.admin.ExecContext(t.Context(), "UPDATE counters SET value = 0")
			check(t, err)
			r.wrong, err = s.lost(t.Context())
			if len(r.wrong) != 1 || err != nil {
				t.Errorf("lost = %q, %v, want one", r.wrong, err)
			}
			told(1)
			r.wrong = nil
			failing := errors.New("refused")
			refused := kind{name: "x", run: func(context.Context, *op) error { return fmt.Errorf("it is %w", failing) }, expected: []error{failing}}
			one(s, refused, 3, 0)
			told(0)
			refused.expected = nil
			one(s, refused, 3, 0)
			told(1)
		})
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-duration", "0s"}, {"-pace", "0"}, {"-every", "-1s"}, {"-warm-up", "-1s"}, {"-engines", "oracle"}, {"more"}} {
		if code, err := soak(t.Context(), append([]string{"-engines", "mysql"}, args...)); code != 2 || err == nil {
			t.Errorf("soak %q = %d, %v, want 2 and an error", args, code, err)
		}
	}
}

var check = leasetest.Must
