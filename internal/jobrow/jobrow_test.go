package jobrow

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// second is a moment of the table.
func second(s int64) int64 { return s * 1e6 }

func run(outcome string, started int64) Run {
	return Run{At: time.UnixMicro(second(started - 1)), Started: time.UnixMicro(second(started)), Took: 250 * time.Millisecond, Outcome: outcome, Instance: "web-1:4711"}
}

// column is a column runs with these runs, the first of them the last.
func column(runs ...Run) string {
	var all []byte
	for i := len(runs) - 1; i >= 0; i-- {
		all = Push(all, runs[i].Line(), MaxKept)
	}
	return string(all)
}

// TestRuns writes runs into a column and reads them again, however long they and their texts are.
func TestRuns(t *testing.T) {
	t.Parallel()
	failed := run(Failed, 9)
	failed.Err = "no\tpaper\nin the tray"
	failed.Instance = "web\t2"
	read := failed
	read.Err, read.Instance = "no paper in the tray", "web 2"
	long := run(Failed, 9)
	long.Err = strings.Repeat("é", 200)
	cut := long
	cut.Err = strings.Repeat("é", 100)
	for name, c := range map[string]struct {
		column string
		want   []Run
	}{
		"none":            {"", nil},
		"one":             {column(run(Done, 5)), []Run{run(Done, 5)}},
		"the last first":  {column(failed, run(Done, 5)), []Run{read, run(Done, 5)}},
		"a long error":    {column(long), []Run{cut}},
		"cut off":         {column(run(Done, 7), run(Done, 5))[:60], []Run{run(Done, 7)}},
		"an unknown line": {column(run(Done, 7)) + "\nx\t1\t2\tdone\tme\t", []Run{run(Done, 7)}},
	} {
		got := Runs([]byte(c.column))
		testdb.ErrorIf(t, !reflect.DeepEqual(got, c.want), "%s: %+v, want %+v", name, got, c.want)
	}
}

// TestPush keeps so many runs, and no more bytes than the column has.
func TestPush(t *testing.T) {
	t.Parallel()
	var all []byte
	for i := range int64(9) {
		all = Push(all, run(Done, i+2).Line(), 3)
	}
	if got := Runs(all); len(got) != 3 || !got[0].Started.Equal(time.UnixMicro(second(10))) || !got[2].Started.Equal(time.UnixMicro(second(8))) {
		t.Errorf("3 are kept: %+v", got)
	}
	got := Push(all, run(Done, 20).Line(), 0)
	testdb.ErrorIf(t, len(got) != 0, "none is kept: %q", got)
	long := run(Failed, 2)
	long.Err = strings.Repeat("x", maxError)
	for range MaxKept {
		all = Push(all, long.Line(), MaxKept)
	}
	testdb.ErrorIf(t, len(all) != maxSize || len(Runs(all)) < 30, "%d bytes, %d runs", len(all), len(Runs(all)))
}

// TestSince leaves out runs of before.
func TestSince(t *testing.T) {
	t.Parallel()
	runs := []Run{run(Done, 100), run(Done, 50), run(Done, 10)}
	now := time.UnixMicro(second(110))
	for age, want := range map[time.Duration]int{time.Second: 0, 10 * time.Second: 1, time.Minute: 2, time.Hour: 3} {
		got := Since(runs, now, age)
		testdb.ErrorIf(t, len(got) != want, "in %v are %d runs, want %d", age, len(got), want)
	}
}

// TestOf says what is wrong with jobs, at second 1,000.
func TestOf(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.UnixMicro(second(s)) }
	const minute = time.Minute
	for name, c := range map[string]struct {
		row  gen.ListJobsRow
		want Health
	}{
		"new, due soon":               {gen.ListJobsRow{NextUs: second(1100)}, Health{}},
		"new, late by a minute":       {gen.ListJobsRow{NextUs: second(940)}, Health{}},
		"new, overdue":                {gen.ListJobsRow{NextUs: second(939)}, Health{Late: 61 * time.Second, Overdue: 61 * time.Second}},
		"without a schedule":          {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 5, EndedUs: 9}, Health{}},
		"paused":                      {gen.ListJobsRow{NextUs: second(100), PausedUs: second(90)}, Health{Late: 15 * minute}},
		"paused, and a run requested": {gen.ListJobsRow{NextUs: second(100), PausedUs: second(90), RunUs: second(880)}, Health{Late: 15 * minute, Overdue: 2 * minute}},
		"requested a moment ago":      {gen.ListJobsRow{NextUs: second(1100), RunUs: second(990)}, Health{}},
		"running":                     {gen.ListJobsRow{Token: 1, TickUs: 5, StartedUs: second(900), NextUs: second(1100)}, Health{Running: true, For: 100 * time.Second}},
		"running into the next tick":  {gen.ListJobsRow{Token: 1, TickUs: 5, StartedUs: second(800), NextUs: second(880)}, Health{Running: true, Late: 2 * minute, For: 200 * time.Second, TooLong: 2 * minute}},
		"running within its limit":    {gen.ListJobsRow{Token: 1, TickUs: 5, StartedUs: second(800), NextUs: second(880), LimitUs: second(300)}, Health{Running: true, Late: 2 * minute, For: 200 * time.Second}},
		"running over its limit":      {gen.ListJobsRow{Token: 1, TickUs: 5, StartedUs: second(800), LimitUs: second(80)}, Health{Running: true, For: 200 * time.Second, TooLong: 2 * minute}},
		"failed once":                 {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 4, EndedUs: second(951), Failures: 1, Runs: column(run(Failed, 950), run(Done, 900))}, Health{Failing: 1, Since: at(950)}},
		"done after a failure":        {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 5, EndedUs: second(951), Runs: column(run(Done, 950), run(Failed, 900))}, Health{}},
		"failed in several ticks":     {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 2, EndedUs: second(951), Failures: 1, Runs: column(run(Failed, 950), run(Interrupted, 900), run(Failed, 850), run(Done, 800))}, Health{Failing: 3, Since: at(850)}},
		"failed, and runs again":      {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 2, StartedUs: second(990), Failures: 1, Runs: column(run(Failed, 950))}, Health{Running: true, For: 10 * time.Second, Failing: 1, Since: at(950)}},
		"interrupted, and runs again": {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 2, StartedUs: second(990), Runs: column(run(Interrupted, 950), run(Done, 900))}, Health{Running: true, For: 10 * time.Second}},
		"interrupted twice":           {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 2, EndedUs: second(951), Runs: column(run(Interrupted, 950), run(Interrupted, 900), run(Done, 850))}, Health{Failing: 2, Since: at(900)}},
		"failed, and keeps no runs":   {gen.ListJobsRow{Token: 1, TickUs: 5, DoneUs: 4, StartedUs: second(940), EndedUs: second(951), Failures: 7}, Health{Failing: 7, Since: at(940)}},
		"another schedule":            {gen.ListJobsRow{NextUs: second(1100), Schedule: []byte("a"), Differs: []byte("b"), DiffersUs: second(940)}, Health{Differs: "b"}},
		"another schedule before":     {gen.ListJobsRow{NextUs: second(1100), Schedule: []byte("a"), Differs: []byte("b"), DiffersUs: second(939)}, Health{}},
		"the other schedule has won":  {gen.ListJobsRow{NextUs: second(1100), Schedule: []byte("b"), Differs: []byte("b"), DiffersUs: second(990)}, Health{}},
	} {
		got := Of(c.row, second(1000))
		testdb.ErrorIf(t, !reflect.DeepEqual(got, c.want), "%s: %+v, want %+v", name, got, c.want)
	}
}
