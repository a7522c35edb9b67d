package job

import (
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// A Policy determines what happens to scheduled times at which no process could start the tick,
// because no process ran, the server was down, or an earlier tick took longer.
type Policy int

// The policies of Missed.
const (
	// CatchUpLatest runs the latest of the missed times, instead of all. It is the default.
	CatchUpLatest Policy = iota
	// SkipMissed runs none that is late by more than Grace.
	SkipMissed
	// CatchUpAll runs each of them, in their order. If the schedule has changed, they are the times
	// of the new one since the last tick.
	CatchUpAll
)

// A RunOption configures Run and RunTx. All processes should use the same.
type RunOption func(*running)

// running is how a job is run.
type running struct {
	key      txlock.Key
	schedule Schedule
	missed   Policy
	grace    time.Duration
	jitter   time.Duration
	retry    time.Duration
	limit    time.Duration
	bad      error

	requested time.Time // a run that was requested, or zero; none up to it has jitter
	without   Schedule  // what schedule was without that run
}

// Missed sets the policy for missed times. The default is CatchUpLatest.
func Missed(p Policy) RunOption {
	return func(r *running) {
		r.missed = p
		if p < CatchUpLatest || p > CatchUpAll {
			r.bad = fmt.Errorf("%w: Missed(%d): unknown policy", txlock.ErrInvalidOption, p)
		}
	}
}

// Grace sets how late a tick may start under the policy SkipMissed. It is at least a second,
// because every tick starts some round trips after its time. The default is a minute.
func Grace(d time.Duration) RunOption {
	return func(r *running) {
		r.grace = d
		if d < time.Second {
			r.bad = fmt.Errorf("%w: Grace(%v): it must be at least a second", txlock.ErrInvalidOption, d)
		}
	}
}

// WarnAfter sets how long a tick should take at most. A tick that takes longer is reported as
// TooLong, by Status and by the tools, but continues. The default is to report one that still runs
// a minute after the next tick was due.
func WarnAfter(d time.Duration) RunOption {
	return func(r *running) { r.limit, r.bad = d, positive("WarnAfter", d, r.bad) }
}

// Jitter delays each tick by up to d, so that jobs of the same time don't all start at once. The
// delay depends on the key and the time, so it is the same in all processes; no tick is delayed
// past the next scheduled time. The default is 0.
func Jitter(d time.Duration) RunOption {
	return func(r *running) { r.jitter, r.bad = d, notNegative("Jitter", d, r.bad) }
}

// RetryAfter sets how long after a failure a process retries the tick, until the next scheduled
// time. The default is a tenth of the time between the two, at most a minute.
func RetryAfter(d time.Duration) RunOption {
	return func(r *running) { r.retry, r.bad = d, positive("RetryAfter", d, r.bad) }
}

func positive(name string, d time.Duration, bad error) error {
	if d <= 0 {
		return fmt.Errorf("%w: %s(%v): it must be positive", txlock.ErrInvalidOption, name, d)
	}
	return bad
}

func notNegative(name string, d time.Duration, bad error) error {
	if d < 0 {
		return fmt.Errorf("%w: %s(%v): it must not be negative", txlock.ErrInvalidOption, name, d)
	}
	return bad
}

// plan is what a process does next: it begins the tick of the instant at, or it looks again
// when the time until has come. Without either, the schedule is over.
type plan struct {
	at, until time.Time
}

// at returns how the job of a row is run: its schedule has a requested run, too.
func (j *running) at(r row) *running {
	if r.RunUs <= max(r.TickUs, r.DoneUs, 0) {
		return j
	}
	with := *j
	with.requested = time.UnixMicro(r.RunUs)
	with.without, with.schedule = j.schedule, j.schedule.and(with.requested)
	return &with
}

// coming is what a row says after a tick of the instant.
func (j *running) coming(at time.Time) coming {
	c := coming{due: j.schedule.Next(at), schedule: j.schedule.text, limit: j.limit}
	if !c.due.IsZero() {
		c.due = j.due(c.due)
	}
	return c
}

// due returns when an instant is to be begun.
func (j *running) due(at time.Time) time.Time {
	if !at.After(j.requested) {
		return at
	}
	return j.schedule.due(j.key, at, j.jitter)
}

// fresh is for how long after the beginning of a tick nobody asks whether its process has
// died: no lease ends that soon.
const fresh = time.Second

// next decides what to do about a job whose row is r, at a time of the server's clock. It
// asks nothing else, so all processes come to the same.
func (j *running) next(r row, now time.Time) plan {
	begun := time.UnixMicro(max(r.TickUs, r.DoneUs))
	coming := j.schedule.Next(begun)
	if since := now.Sub(time.UnixMicro(r.StartedUs)); r.runs() && since >= 0 && since < fresh {
		until := now.Add(fresh - since)
		if coming.After(now) {
			until = earlier(until, coming)
		}
		return plan{until: until}
	}
	if r.PausedUs != 0 {
		return j.paused(r, now)
	}
	switch {
	case !coming.IsZero() && !coming.After(now):
		return j.when(j.missedOne(r, coming, now), now)
	case r.hasFailed():
		return j.again(r, coming, now)
	case r.open():
		return plan{at: begun} // it runs, or its process has died: the lease says which
	case coming.IsZero():
		return plan{}
	}
	return j.when(coming, now)
}

// when begins an instant that is due, and else waits for it. It may be zero.
func (j *running) when(at, now time.Time) plan {
	if at.IsZero() {
		return plan{}
	}
	if due := j.due(at); due.After(now) {
		return plan{until: due}
	}
	return plan{at: at}
}

// paused begins nothing but a run that was requested.
func (j *running) paused(r row, now time.Time) plan {
	switch {
	case r.RunUs <= max(r.DoneUs, 0) || r.RunUs < r.TickUs:
		until := now.Add(mostWait)
		if next := j.schedule.Next(now); !next.IsZero() { // by when it may have been resumed
			until = earlier(until, j.due(next))
		}
		return plan{until: until}
	case r.RunUs == r.TickUs && r.hasFailed():
		return j.again(r, time.Time{}, now)
	}
	return plan{at: time.UnixMicro(r.RunUs)}
}

// missedOne chooses among the instants from coming to now, none of which was begun, or the
// next one in the future. A run that was requested is left out by no policy.
func (j *running) missedOne(r row, coming, now time.Time) time.Time {
	// Of a row that was made for a tick which nobody has begun, all would be all since 1970.
	if j.missed == CatchUpAll && r.TickUs != never.UnixMicro() {
		if r.open() && !r.hasFailed() {
			return r.tick()
		}
		return coming
	}
	switch {
	case j.requested.IsZero() || j.requested.After(now):
	case coming.Before(j.requested) && j.without.due(j.key, coming, j.jitter).After(now):
		return coming // which waits for its jitter no longer
	default:
		return j.requested
	}
	latest := j.schedule.latest(coming.Add(-time.Microsecond), now)
	if j.missed == SkipMissed && now.Sub(j.due(latest)) > j.grace {
		return j.schedule.Next(latest)
	}
	return latest
}

// again tries a tick that has failed once more, after a pause.
func (j *running) again(r row, coming, now time.Time) plan {
	pause := j.retry
	if pause == 0 {
		pause = time.Minute
		if !coming.IsZero() {
			pause = min(pause, max(coming.Sub(r.tick())/10, leastTick))
		}
	}
	// A clock that was set back doesn't make the pause longer.
	if until := time.UnixMicro(r.EndedUs).Add(pause); until.After(now) {
		until = earlier(until, now.Add(pause))
		if coming.IsZero() {
			return plan{until: until}
		}
		return plan{until: earlier(until, coming)}
	}
	return plan{at: r.tick()}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
