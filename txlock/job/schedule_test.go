package job

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	return testdb.Got(time.Parse(time.RFC3339Nano, text))(t)
}

// TestBadSchedules proves that a schedule that can't be is refused with a reason.
func TestBadSchedules(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		schedule Schedule
		want     string
	}{
		"zero":          {Schedule{}, "zero Schedule"},
		"Every(0)":      {Every(0), "Every(0s)"},
		"Every(-1s)":    {Every(-time.Second), "Every(-1s)"},
		"Every(1us)":    {Every(time.Microsecond), "at least 1ms"},
		"nanoseconds":   {Every(time.Second + 1), "whole microseconds"},
		"nil":           {Of(nil), "nil"},
		"empty":         {Cron(""), "empty spec"},
		"30 February":   {Cron("0 0 30 2 *"), "never fires"},
		"@every":        {Cron("@every 1h"), "use Every"},
		"Of @every":     {Of(cron.Every(time.Hour)), "use Every"},
		"only a zone":   {Cron("CRON_TZ=UTC"), "nothing follows the time zone"},
		"unknown zone":  {Cron("CRON_TZ=Europe/Atlantis 0 2 * * *"), "Atlantis"},
		"never, hourly": {Cron("CRON_TZ=Europe/Berlin 0 * 30 2 *"), "never fires"},
		"Local":         {Cron("CRON_TZ=Local 0 2 * * *"), "Local differs between machines"},
		"TZ=Local":      {Cron("TZ=Local 0 2 * * *"), "Local differs between machines"},
		"day 8":         {Cron("0 0 * * 8"), "8"},
		"day 7 to 2":    {Cron("0 0 * * 7-2"), "7-2"},
		"minute 60":     {Cron("60 * * * *"), "60"},
		"four fields":   {Cron("* * * *"), "fields"},
	} {
		err := test.schedule.check()
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), test.want), "%s: %v, want %q", what, err, test.want)
		got := test.schedule.Next(time.Unix(0, 0))
		testdb.ErrorIf(t, !got.IsZero(), "%s fires: %v", what, got)
	}
}

// TestCron proves when schedules fire: Every at the multiples of its interval since 1970, and a crontab line with
// given hours once each day, also where the clocks of its zone change (Berlin, 29 March and 25 October 2026; Lord
// Howe, 4 October, by half an hour).
func TestCron(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		schedule Schedule
		after    string
		want     []string
	}{
		"in UTC":         {Cron("0 2 * * *"), "2026-03-28T12:00:00+09:00", []string{"2026-03-29T02:00:00Z", "2026-03-30T02:00:00Z"}},
		"day 7":          {Cron("0 0 * * 7"), "2026-11-22T12:00:00Z", []string{"2026-11-29T00:00:00Z", "2026-12-06T00:00:00Z"}},
		"days 5 to 7":    {Cron("0 0 * * 5-7"), "2026-11-22T12:00:00Z", []string{"2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z", "2026-11-29T00:00:00Z", "2026-12-04T00:00:00Z"}},
		"days 1,7":       {Cron("0 0 * * 1,7"), "2026-11-22T12:00:00Z", []string{"2026-11-23T00:00:00Z", "2026-11-29T00:00:00Z"}},
		"days 1-7/3":     {Cron("CRON_TZ=UTC 0 0 * * 1-7/3"), "2026-11-22T12:00:00Z", []string{"2026-11-23T00:00:00Z", "2026-11-26T00:00:00Z", "2026-11-29T00:00:00Z"}},
		"seconds":        {Cron("*/20 * * * * *"), "2026-01-01T00:00:00Z", []string{"2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z", "2026-01-01T00:01:00Z"}},
		"@daily":         {Cron("@daily"), "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z"}},
		"29 February":    {Cron("0 0 29 2 *"), "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z"}},
		"before 1970":    {Cron("0 0 1 1 *"), "1960-06-01T00:00:00Z", []string{"1961-01-01T00:00:00Z"}},
		"in 100 years":   {Cron("0 0 1 1 *"), "2126-06-01T00:00:00Z", []string{"2127-01-01T00:00:00Z"}},
		"in the gap":     {Cron("CRON_TZ=Europe/Berlin 30 2 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		"in the west":    {Cron("CRON_TZ=America/New_York 30 2 * * *"), "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		"twice in a gap": {Cron("CRON_TZ=Europe/Berlin 15,45 2 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:15:00Z"}},
		"gap and end":    {Cron("CRON_TZ=Europe/Berlin 0 2,3 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		"only in a gap":  {Cron("CRON_TZ=Europe/Berlin 30 2 29 3 *"), "2026-03-01T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2027-03-29T00:30:00Z"}},
		"beside a gap":   {Cron("CRON_TZ=Europe/Berlin 30 4 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T02:30:00Z"}},
		"twice a day":    {Cron("CRON_TZ=Europe/Berlin 30 2 * * *"), "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		"in between":     {Cron("CRON_TZ=Europe/Berlin 30 2 * * *"), "2026-10-25T01:00:00Z", []string{"2026-10-26T01:30:00Z"}},
		"every hour":     {Cron("CRON_TZ=Europe/Berlin 0 * * * *"), "2026-10-24T23:30:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		"hour in a gap":  {Cron("CRON_TZ=Europe/Berlin 0 * * * *"), "2026-03-29T00:30:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		"leap year":      {Cron("CRON_TZ=Europe/Berlin 30 * * * *"), "2028-12-31T06:07:00Z", []string{"2028-12-31T06:30:00Z", "2028-12-31T07:30:00Z"}},
		"leap year, 0":   {Cron("CRON_TZ=America/New_York 0 * * * *"), "2028-12-30T23:45:00Z", []string{"2028-12-31T00:00:00Z", "2028-12-31T01:00:00Z"}},
		"leap year 2040": {Cron("CRON_TZ=Europe/Berlin 30 * * * *"), "2040-12-31T06:07:00Z", []string{"2040-12-31T06:30:00Z"}}, // by the data of most machines
		"its 1 January":  {Cron("CRON_TZ=Europe/Berlin 0 * 1 1 *"), "2028-06-01T00:00:00Z", []string{"2028-12-31T23:00:00Z"}},
		"half an hour":   {Cron("CRON_TZ=Australia/Lord_Howe 15 2 * * *"), "2026-10-03T10:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		"each hour":      {Every(time.Hour), "2026-11-22T16:17:18Z", []string{"2026-11-22T17:00:00Z", "2026-11-22T18:00:00Z"}},
		"each 100 ms":    {Every(100 * time.Millisecond), "2026-11-22T16:17:18.25Z", []string{"2026-11-22T16:17:18.3Z"}},
		"around 1970":    {Every(time.Hour), "1969-12-31T22:00:00Z", []string{"1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"}},
		"to 1970":        {Every(time.Hour), "1969-12-31T23:30:00Z", []string{"1970-01-01T00:00:00Z"}},
		"each day":       {Every(24 * time.Hour), "2126-01-01T10:00:00+05:00", []string{"2126-01-02T00:00:00Z"}},
	} {
		s := test.schedule
		if err := s.check(); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		at := instant(t, test.after)
		for _, want := range test.want {
			if at = s.Next(at); !at.Equal(instant(t, want)) {
				t.Errorf("%s: %v, want %s", what, at.UTC(), want)
				break
			}
		}
	}
}

// TestLatest proves that the last instant of a long time is found without going through all of them.
func TestLatest(t *testing.T) {
	t.Parallel()
	after, now := instant(t, "1990-01-01T00:00:00Z"), instant(t, "2026-11-22T16:17:18.5Z")
	for line, want := range map[string]string{
		"* * * * * *":   "2026-11-22T16:17:18Z",
		"0 0 1 1 *":     "2026-01-01T00:00:00Z",
		"0 0 29 2 *":    "2024-02-29T00:00:00Z",
		"* * 2-3 * * *": "2026-11-22T03:59:59Z",
	} {
		got := Cron(line).latest(after, now)
		testdb.ErrorIf(t, !got.Equal(instant(t, want)), "%q: %v, want %s", line, got.UTC(), want)
	}
	got := Cron("0 0 1 1 *").latest(instant(t, "2026-01-01T00:00:00Z"), now)
	testdb.ErrorIf(t, !got.IsZero(), "there is an instant %v", got)
}

// TestJitter proves that all wait for equally long, and never past the next instant.
func TestJitter(t *testing.T) {
	t.Parallel()
	s, at, seen := Every(time.Minute), instant(t, "2026-11-22T16:17:00Z"), make(map[time.Duration]bool)
	for range 100 {
		due := s.due(nightly, at, time.Hour)
		testdb.ErrorIf(t, !due.Equal(s.due(nightly, at, time.Hour)) || due.Before(at) || !due.Before(s.Next(at)), "%v is due at %v", at, due)
		seen[due.Sub(at)] = true
		at = s.Next(at)
	}
	testdb.ErrorIf(t, len(seen) < 90, "%d different delays of 100", len(seen))
}

// TestPlan proves what a process does next about each row, by each policy; of a paused job, nothing but what was
// requested; and when a run that was requested is begun: soon, and behind all that CatchUpAll has missed.
func TestPlan(t *testing.T) {
	t.Parallel()
	begin := instant(t, "2026-11-22T16:00:00Z")
	// s is a number of seconds after the beginning.
	s := func(n float64) time.Time { return begin.Add(time.Duration(math.Round(n*1e6)) * time.Microsecond) }
	made := func(tick, done, ended float64) row {
		r := row{known: true}
		r.TickUs, r.DoneUs = s(tick).UnixMicro(), s(done).UnixMicro()
		if ended >= 0 {
			r.EndedUs = s(ended).UnixMicro()
		}
		return r
	}
	const runs, none, request = -1, -1, 600.000001
	// asked is a row of which a run was requested.
	asked := func(started, run float64, r row) row {
		r.Token, r.StartedUs = 1, s(started).UnixMicro()
		if run != none {
			r.RunUs = s(run).UnixMicro()
		}
		return r
	}
	paused := func(started, run float64, r row) row {
		r = asked(started, run, r)
		r.PausedUs = 1
		return r
	}
	unbegun := row{known: true}
	unbegun.Token, unbegun.PausedUs, unbegun.TickUs, unbegun.DoneUs = 1, 1, never.UnixMicro(), never.UnixMicro()
	unmarked := unbegun // its process has died when it had made the row
	unmarked.Token, unmarked.PausedUs = 0, 0
	tenth, soon := []RunOption{RetryAfter(10 * time.Second)}, []RunOption{Missed(SkipMissed), Grace(time.Second)}
	skips, all := []RunOption{Missed(SkipMissed), Grace(5 * time.Second)}, []RunOption{Missed(CatchUpAll)}
	for what, test := range map[string]struct {
		row     row
		options []RunOption
		now     float64
		at      float64 // or none
		until   float64 // or none
	}{
		"done, nothing due":   {made(60, 60, 61), nil, 70, none, 120},
		"due":                 {made(60, 60, 61), nil, 120, 120, none},
		"a little late":       {made(60, 60, 61), nil, 120.5, 120, none},
		"runs":                {made(60, 0, runs), nil, 70, 60, none},
		"failed, pause":       {made(60, 0, 61), nil, 62, none, 67},
		"failed, again":       {made(60, 0, 61), nil, 67, 60, none},
		"failed, RetryAfter":  {made(60, 0, 61), []RunOption{RetryAfter(2 * time.Second)}, 62, none, 63},
		"failed, long pause":  {made(60, 0, 61), []RunOption{RetryAfter(time.Hour)}, 62, none, 120},
		"failed, clock back":  {made(60, 0, 61), nil, 20, none, 26},
		"failed, next is due": {made(60, 0, 61), nil, 120, 120, none},
		"once, three missed":  {made(60, 60, 61), nil, 250, 240, none},
		"once, one died":      {made(60, 0, runs), nil, 250, 240, none},
		"all, three missed":   {made(60, 60, 61), all, 250, 120, none},
		"all, one died":       {made(60, 0, runs), all, 250, 60, none},
		"all, nobody began":   {unmarked, all, 250, 240, none}, // not all since 1970
		"all, one failed":     {made(60, 0, 61), all, 250, 120, none},
		"skip, too late":      {made(60, 60, 61), skips, 250, none, 300},
		"skip, in time":       {made(60, 60, 61), skips, 243, 240, none},
		"skip, died long ago": {made(60, 0, runs), skips, 250, none, 300},
		"clock set back":      {made(6000, 6000, 6001), nil, 10, none, 6060},
		"clock set forward":   {made(60, 60, 61), nil, 1e6, 999960, none},
		"made in between":     {made(61, 61, runs), nil, 70, none, 120},

		"paused, done":                     {paused(100, none, made(100, 100, 101)), tenth, 500, none, 510},
		"paused, died":                     {paused(100, none, made(100, 40, runs)), tenth, 500, none, 510},
		"paused, failed":                   {paused(100, none, made(100, 40, 101)), tenth, 500, none, 510},
		"paused, of a tick nobody began":   {unbegun, tenth, 500, none, 510},
		"paused, an old request":           {paused(100, 90, made(100, 100, 101)), tenth, 500, none, 510},
		"paused, next is soon":             {paused(100, none, made(100, 100, 101)), tenth, 536, none, 540},
		"paused, a request":                {paused(100, 170, made(100, 100, 101)), tenth, 500, 170, none},
		"paused, a request, died":          {paused(100, 170, made(170, 100, runs)), tenth, 500, 170, none},
		"paused, a request, failed":        {paused(100, 170, made(170, 100, 101)), tenth, 500, 170, none},
		"paused, a request, failed now":    {paused(100, 170, made(170, 100, 499)), tenth, 500, none, 509},
		"paused, a request, done":          {paused(171, 170, made(170, 170, 172)), tenth, 500, none, 510},
		"paused, a request, another died":  {paused(499, 170, made(100, 40, runs)), tenth, 500, 170, none},
		"paused, a request, another began": {paused(500, 170, made(100, 40, runs)), tenth, 500, none, 501},

		"request, latest":            {asked(420, request, made(420, 420, 421)), nil, request + 1, request, none},
		"request, jitter":            {asked(420, request, made(420, 420, 421)), []RunOption{Jitter(time.Hour)}, request + 1, request, none},
		"request, skip":              {asked(420, request, made(420, 420, 421)), soon, request + 30, request, none},
		"request, latest, late":      {asked(420, request, made(420, 420, 421)), nil, request + 90, request, none},
		"request, skip, late":        {asked(420, request, made(420, 420, 421)), soon, request + 90, request, none},
		"request, before its jitter": {asked(420, request, made(540, 540, 541)), []RunOption{Jitter(50 * time.Second)}, request, 600, none},
		"request, all":               {asked(420, request, made(420, 420, 421)), all, request + 1, 480, none},
		"request, all, long ago":     {asked(420, request, made(420, 420, 421)), all, request + 3600, 480, none},
		"request, all but the first": {asked(420, request, made(600, 600, 601)), all, request + 1, request, none},
	} {
		how := running{key: nightly, schedule: Every(time.Minute), grace: time.Minute}
		for _, option := range test.options {
			option(&how)
		}
		var want plan
		if test.at != none {
			want.at = s(test.at)
		}
		if test.until != none {
			want.until = s(test.until)
		}
		if got := how.at(test.row).next(test.row, s(test.now)); !got.at.Equal(want.at) || !got.until.Equal(want.until) {
			t.Errorf("%s: begins %v, waits until %v; want %v and %v", what, got.at.UTC(), got.until.UTC(), want.at.UTC(), want.until.UTC())
		}
	}
}

// TestMachineClock proves that nothing but the stopwatch reads the machine's clock.
func TestMachineClock(t *testing.T) {
	t.Parallel()
	files := testdb.Got(filepath.Glob("*.go"))(t)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "stopwatch.go" {
			continue
		}
		parsed := testdb.Got(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if s, is := n.(*ast.SelectorExpr); is {
				if x, is := s.X.(*ast.Ident); is && x.Name == "time" && (s.Sel.Name == "Now" || s.Sel.Name == "Since" || s.Sel.Name == "Until" || s.Sel.Name == "Local") {
					t.Errorf("%s uses time.%s", file, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestInstantsHaveAZone: what day it is doesn't depend on the process, nor on whether the tick is begun for the first time.
func TestInstantsHaveAZone(t *testing.T) {
	hourly := testdb.Got(cron.ParseStandard("0 * * * *"))(t)
	for zone, schedules := range map[string][]Schedule{
		"Asia/Tokyo": {Cron("CRON_TZ=Asia/Tokyo 0 0 * * *"), Cron("CRON_TZ=Asia/Tokyo 30 * * * *")},
		"UTC":        {Cron("0 0 * * *"), Cron("30 * * * *"), Every(time.Hour), Of(hourly)},
	} {
		for _, schedule := range schedules {
			t.Run(zone, func(t *testing.T) {
				inMemory(t, func(t *testing.T, c *cluster) {
					n, saw := c.node(), make(chan time.Time, 100)
					n.runs(schedule, func(_ context.Context, at time.Time) error {
						saw <- at
						return errors.New("broken")
					}, RetryAfter(time.Minute))
					first, again := <-saw, <-saw
					claim := testdb.Got(n.ClaimNearest(t.Context(), txlock.Named("nearest"), schedule))(t)
					must(t, claim.Finish(t.Context(), nil))
					zones := [3]string{first.Location().String(), again.Location().String(), claim.At().Location().String()}
					testdb.ErrorIf(t, !first.Equal(again) || zones != [3]string{zone, zone, zone}, "%v, then %v, and by a claim %v, want all in %s", first, again, claim.At(), zone)
				})
			})
		}
	}
}
