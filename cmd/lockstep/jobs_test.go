package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// TestJobs proves that the table of jobs fits 80 columns, and that jobs are paused, resumed and
// requested after a question only, as the programs see it.
func TestJobs(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		jobs, err := job.New(s.pool, s.manager())
		s.must(err)
		name := "reports:" + strings.Repeat("of-all-branches-", 4)
		if _, err := jobs.Tick(s.ctx, txlock.Named(name), time.Now().Add(-time.Hour), func(context.Context, time.Time) error { return errors.New(strings.Repeat("no paper, ", 30)) }); err == nil {
			t.Fatal("the job has not failed")
		}
		key := txlock.Named("nightly")
		s.must(second(jobs.Tick(s.ctx, key, time.Now().Add(-time.Hour), func(context.Context, time.Time) error { return nil })))

		output, code := s.call("jobs")
		for line := range strings.Lines(output) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("a line has %d columns: %s", n, line)
			}
		}
		if code != done || !strings.Contains(output, "reports:of-all-br...") || !strings.Contains(output, "failed 12s ago: no") || !strings.Contains(output, "nightly") {
			t.Errorf("jobs returns %d and prints:\n%s", code, output)
		}
		var shows jobForm
		output, code = s.call("jobs", "show", name, "--json")
		if code != done || json.Unmarshal([]byte(output), &shows) != nil || shows.Job.Failing != 1 || len(shows.Runs) != 1 || shows.Runs[0].Outcome != "failed" || shows.Now.IsZero() {
			t.Errorf("jobs show returns %d and prints:\n%s", code, output)
		}

		status := func() ops.JobStatus {
			t.Helper()
			all, err := ops.New(s.db.Admin()).Jobs(s.ctx)
			s.must(err)
			j, _ := all.Job("nightly")
			return j
		}
		says := func(want int, text string, args ...string) {
			t.Helper()
			if output, code := s.call(append([]string{"jobs"}, args...)...); code != want || !strings.Contains(output, text) {
				t.Errorf("jobs %v returns %d, not %d and %q, and prints:\n%s", args, code, want, text, output)
			}
		}
		s.stdin = "no\n"
		says(declined, "nothing was done", "pause", "nightly", "--by", "alice")
		if j := status(); !j.Paused.IsZero() {
			t.Errorf("it is paused without an answer: %+v", j)
		}
		says(nothing, "is not paused", "resume", "nightly", "--yes")
		says(nothing, "by a schedule", "run", "nightly", "--yes")
		s.stdin = "yes\n"
		says(done, "Paused.", "pause", "nightly", "--by", "alice")
		if _, err := jobs.Tick(s.ctx, key, time.Now(), func(context.Context, time.Time) error { return nil }); !errors.Is(err, job.ErrPaused) {
			t.Errorf("a tick of the paused job: %v", err)
		}
		says(done, "paused by alice", "show", "nightly")
		says(done, `"state": "paused"`, "--json")
		says(nothing, "is paused already, by \"alice", "pause", "nightly", "--yes")
		s.db.Exec(t, "UPDATE lockstep_jobs SET schedule = 'Every(1h0m0s)' WHERE name = 'nightly'")
		says(done, "Requested.", "run", "nightly", "--yes")
		says(nothing, "was requested already", "run", "nightly", "--yes")
		says(done, `"did": "resume"`, "resume", "nightly", "--yes", "--json")
		if j := status(); !j.Paused.IsZero() || j.Requested.IsZero() {
			t.Errorf("after resume and run it is %+v", j)
		}
		says(done, "Paused.", "pause", "nightly", "--by", "al\x1bice\nState: done", "--yes") // which makes no line of its own
		says(done, `paused by al\x1bice\nState: done`, "show", "nightly")
		says(nothing, `"nightly" is paused already, by "al\x1bice\nState: done"`, "pause", "nightly", "--yes")
		says(done, `"nightly", which was paused by al\x1bice\nState: done`, "resume", "nightly", "--yes")
		says(usage, "must have 1 to 255", "pause", "nightly", "--by", "", "--yes")
		says(usage, "accepts 1 arg", "pause")
		says(nothing, "there is no job", "pause", "nobody", "--yes")
		says(nothing, "there is no job", "show", "nobody", "--json")
	})
}
