package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
		testdb.FatalIf(t, code != 0 || err != nil, "soak = %d, %v", code, err)
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
		testdb.ErrorIf(t, values[name] == "" || values[name] == "0" && !strings.HasSuffix(name, "history_list") && !strings.Contains(name, "done "),
			"%s is %q", name, values[name])
	}
	summary, err := os.ReadFile(filepath.Join(out, "summary.md"))
	testdb.ErrorIf(t, err != nil || !strings.Contains(string(summary), "| clients | heap_bytes |"), "summary.md is %q, %v", summary, err)
}

// figures reads the last value of each figure.
func figures(t *testing.T, path string) map[string]string {
	t.Helper()
	file := testdb.Got(os.Open(path))(t)
	defer func() { _ = file.Close() }()
	rows := testdb.Got(csv.NewReader(file).ReadAll())(t)
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
			journal := testdb.Got(newJournal(filepath.Join(t.TempDir(), "figures.csv"), 1))(t)
			defer func() { _ = journal.close() }()
			r := &runner{options: options{out: t.TempDir(), every: time.Second}, sites: []*site{s}, journal: journal, asked: make(map[*site]float64)}
			told := func(want int) {
				t.Helper()
				code, err := r.tell()
				testdb.ErrorIf(t, code != want || err != nil, "tell = %d, %v, want %d", code, err, want)
			}
			raising := kind{name: "x", run: func(ctx context.Context, o *op) error { return o.raise(ctx, o.plain) }}
			one(s, raising, 3, 0)
			check(t, r.look())
			lost, err := s.lost(t.Context())
			testdb.ErrorIf(t, len(lost) != 0 || err != nil, "lost = %q, %v", lost, err)
			told(0)
			_, err = s.admin.ExecContext(t.Context(), "UPDATE counters SET value = 0")
			check(t, err)
			r.wrong, err = s.lost(t.Context())
			testdb.ErrorIf(t, len(r.wrong) != 1 || err != nil, "lost = %q, %v, want one", r.wrong, err)
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
		code, err := soak(t.Context(), append([]string{"-engines", "mysql"}, args...))
		testdb.ErrorIf(t, code != 2 || err == nil, "soak %q = %d, %v, want 2 and an error", args, code, err)
	}
}

var check = testdb.Must

// made are figures as a run has them, without a leak: what they are about, and what moves
// them from minute to minute.
var made = []struct {
	name         string
	level, noise float64
}{
	{"heap_bytes", 2e6, 1e5},
	{"rss_bytes", 23e6, 1e6},
	{"goroutines", 330, 15},
	{"threads", 35, 4},
	{"prepared_statements", 60, 9},
	{"history_list", 60, 60},
	{"rows lockstep_locks", 130, 10},
	{"bytes lockstep_locks", 1e5, 5e4},
	{"wait_p50_ms Run", 8, 3},
	{"wait_p99_ms Run", 60, 30},
}

// minutes is what a run of two hours has after the first five.
const minutes = 120

// noisy is a figure that moves about its level, sometimes far.
func noisy(random *rand.Rand, level, noise float64) []float64 {
	values := make([]float64, minutes)
	for i := range values {
		values[i] = math.Max(0, level+noise*random.NormFloat64())
		if random.IntN(20) == 0 {
			values[i] += 10 * noise * random.Float64()
		}
	}
	return values
}

// leaking adds a growth, so much over the whole run.
func leaking(values []float64, growth float64) []float64 {
	for i := range values {
		values[i] += growth * float64(i) / float64(len(values)-1)
	}
	return values
}

// TestLeaksAndNoise proves that a slow leak of each figure is noticed, and that noise, less of it, saw teeth and a step aren't.
func TestLeaksAndNoise(t *testing.T) {
	for _, f := range made {
		r, _ := ruleOf(f.name)
		floor := max(r.floor, r.share*f.level)
		for seed := range testdb.Long(uint64(3), 500) {
			random := rand.New(rand.NewPCG(seed, 1))
			for what, values := range map[string][]float64{
				"a leak":    leaking(noisy(rand.New(rand.NewPCG(seed, 0)), f.level, f.noise), 3*floor),
				"noise":     noisy(random, f.level, f.noise),
				"less":      leaking(noisy(random, 2*f.level, f.noise), -f.level),
				"saw teeth": sawTeeth(f.level, floor, int(2+random.Uint64N(30))),
				"a step":    stepping(f.level, floor, random.IntN(minutes)),
			} {
				v := r.judge(values)
				testdb.ErrorIf(t, v.flat() == (what == "a leak"), "%s, seed %d: %s is judged flat %t: %+v", f.name, seed, what, v.flat(), v)
			}
		}
	}
}

// sawTeeth rise for so many minutes, and fall again.
func sawTeeth(level, height float64, width int) []float64 {
	values := make([]float64, minutes)
	for i := range values {
		values[i] = level + height*float64(i%width)/float64(width)
	}
	return values
}

// TestMachineIsNoGrowth: neither figures that are slower while the machine is busy grow, nor those that aren't.
func TestMachineIsNoGrowth(t *testing.T) {
	for busy, c := range map[string]struct {
		figure   string
		from, to int  // the minutes in which it is busy
		follows  bool // the figure
	}{
		"later":    {"wait_p99_ms Run", minutes / 2, minutes, true},
		"at first": {"wait_p99_ms election", 0, minutes / 2, false},
	} {
		random := rand.New(rand.NewPCG(1, 2))
		r, _ := ruleOf(c.figure)
		control, waits, grows := noisy(random, 20, 2), noisy(random, 100, 10), leaking(noisy(random, 100, 10), 500)
		for i := c.from; i < c.to; i++ {
			control[i] *= 5
			if c.follows {
				waits[i] *= 5
				grows[i] *= 5
			}
		}
		raw, steady := r.judge(waits), r.judge(steadied(waits, control))
		testdb.ErrorIf(t, raw.flat() == c.follows || steady.flat() != c.follows,
			"busy %s: alone each figure should tell of growth in one way: %+v, %+v", busy, raw, steady)
		v := slower(raw, steady)
		testdb.ErrorIf(t, !v.flat(), "busy %s: that counts as growth: %+v", busy, v)
		v = slower(r.judge(grows), r.judge(steadied(grows, control)))
		testdb.ErrorIf(t, v.flat(), "busy %s: waits that grow aren't noticed: %+v", busy, v)
	}
}

// stepping goes up once, as a file does by an extent.
func stepping(level, height float64, at int) []float64 {
	values := slices.Repeat([]float64{level}, minutes)
	for i := at; i < minutes; i++ {
		values[i] += height
	}
	return values
}

func TestSummaryNamesWhatGrows(t *testing.T) {
	for _, f := range made {
		place := place
		if strings.Contains(f.name, " ") || f.name == "threads" {
			place = "mysql"
		}
		for _, leaks := range []bool{false, true} {
			r := &runner{options: options{every: time.Minute, warmUp: 5 * time.Minute}, sites: []*site{{engine: "mysql"}}, began: time.Now()}
			j := testdb.Got(newJournal(t.TempDir()+"/figures.csv", minutes))(t)
			r.journal = j
			values := noisy(rand.New(rand.NewPCG(3, 4)), f.level, f.noise)
			if leaks {
				values = leaking(values, 10*f.level+4<<20)
			}
			for i, value := range values {
				j.note(time.Duration(i)*time.Minute, place, f.name, value)
			}
			_, grown, judged := r.summarise()
			testdb.ErrorIf(t, judged != 1 || (len(grown) == 1) != leaks || leaks && !strings.Contains(fmt.Sprint(grown), f.name),
				"%s, leaks %v: %d judged, %q grow", f.name, leaks, judged, grown)
			check(t, j.close())
		}
	}
}
