// Package jobrow reads the rows of lockstep_jobs: what is wrong with a job, and its last runs.
package jobrow

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
)

// The outcomes of runs.
const (
	Done        = "done"
	Failed      = "failed"
	Interrupted = "interrupted" // the process died, lost its lease or its connection, or was stopped
)

// Run is one run of a job: a tick that was begun.
type Run struct {
	At       time.Time // the scheduled time
	Started  time.Time // when it was begun, by the server's clock
	Took     time.Duration
	Outcome  string
	Instance string // the process
	Err      string
}

// MaxKept is how many runs a row keeps at most, and maxError how long their errors are.
const (
	MaxKept  = 50
	maxSize  = 8192 // of the column
	maxError = 200
)

// Line is a run as the column runs has it.
func (r Run) Line() []byte {
	text := strings.Map(func(c rune) rune {
		if c == '\t' || c == '\n' {
			return ' '
		}
		return c
	}, r.Err)
	if len(text) > maxError {
		text = text[:maxError]
	}
	instance := strings.NewReplacer("\t", " ", "\n", " ").Replace(r.Instance)
	return fmt.Appendf(nil, "%d\t%d\t%d\t%s\t%s\t%s", r.At.UnixMicro(), r.Started.UnixMicro(), r.Took.Microseconds(), r.Outcome, instance, text)
}

// Push puts the line of a run before those of the runs that are kept, as the statements do.
func Push(runs, line []byte, keep int) []byte {
	lines := bytes.SplitN(slices.Concat(line, []byte{'\n'}, runs), []byte{'\n'}, keep+1)
	all := bytes.Join(lines[:min(keep, len(lines))], []byte{'\n'})
	return all[:min(len(all), maxSize)]
}

// Runs reads the column runs, the last run first. A line that the end of the column has cut off
// is left out.
func Runs(column []byte) []Run {
	var all []Run
	for line := range bytes.SplitSeq(column, []byte{'\n'}) {
		fields := strings.SplitN(string(line), "\t", 6)
		if len(fields) < 6 {
			continue
		}
		var us [3]int64
		for i := range us {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				return all
			}
			us[i] = n
		}
		all = append(all, Run{
			At: time.UnixMicro(us[0]), Started: time.UnixMicro(us[1]), Took: time.Duration(us[2]) * time.Microsecond,
			Outcome: fields[3], Instance: fields[4], Err: strings.ToValidUTF8(fields[5], ""),
		})
	}
	return all
}

// Since returns those of the runs that were begun in the time before now.
func Since(runs []Run, now time.Time, age time.Duration) []Run {
	for i, r := range runs {
		if now.Sub(r.Started) > age {
			return runs[:i]
		}
	}
	return runs
}

// Late is by how much a tick, or its end, may be late before somebody is told: another process
// takes over in less.
const Late = time.Minute

// Health is what is wrong with a job that was not paused.
type Health struct {
	Running bool          // a tick was begun and has not ended: it runs, or its process has died
	For     time.Duration // since when it runs
	Failing int           // how many runs in a row were not done, 0 if that needs no person
	Since   time.Time     // when the first of them was begun
	Late    time.Duration // since when the next tick is due; 0 if it is not more than Late
	Overdue time.Duration // since when a tick should have begun; 0 if it is not Late
	TooLong time.Duration // by how much a tick takes longer than it should
	Differs string        // the schedule by which another process runs it, if that is another one
}

// Of returns the health of a job at a time of the server's clock.
func Of(r gen.ListJobsRow, nowUs int64) Health {
	since := func(us int64) time.Duration { return max(0, time.Duration(nowUs-us)*time.Microsecond) }
	h := Health{Running: r.Token > 0 && r.EndedUs == 0}
	h.Failing, h.Since = failing(r)
	if d := since(r.NextUs); r.NextUs > 0 && d > Late {
		h.Late = d
	}
	switch {
	case h.Running:
		h.For, h.TooLong = since(r.StartedUs), h.Late
		if r.LimitUs > 0 {
			h.TooLong = max(0, h.For-time.Duration(r.LimitUs)*time.Microsecond)
		}
	case r.PausedUs == 0:
		h.Overdue = h.Late
	}
	if r.RunUs > max(r.TickUs, 0) && since(r.RunUs) > Late && !h.Running {
		h.Overdue = max(h.Overdue, since(r.RunUs))
	}
	// Its process says so at each look at the table, of which it takes one in ten seconds at least.
	if r.DiffersUs > 0 && since(r.DiffersUs) <= Late && string(r.Differs) != string(r.Schedule) {
		h.Differs = string(r.Differs)
	}
	return h
}

// failing returns how many runs in a row were not done, as far as the row keeps them, and when the
// first of them was begun. A run that was interrupted is tried again by another process: one alone,
// as each restart of a program leaves, is none.
func failing(r gen.ListJobsRow) (n int, since time.Time) {
	if r.TickUs <= r.DoneUs {
		return 0, time.Time{}
	}
	failed := false
	for _, run := range Runs([]byte(r.Runs)) {
		if run.Outcome == Done {
			break
		}
		n, since, failed = n+1, run.Started, failed || run.Outcome == Failed
	}
	switch {
	case int(r.Failures) > n: // the row keeps fewer
		return int(r.Failures), time.UnixMicro(r.StartedUs)
	case !failed && n < 2:
		return 0, time.Time{}
	}
	return n, since
}
