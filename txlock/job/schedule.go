package job

import (
	"fmt"
	"hash/fnv"
	"math/big"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dca00107/lockstep/txlock"
)

// A Schedule has the times at which a job is due. Every, Cron and Of return one. All processes
// must run a job by the same schedule.
type Schedule struct {
	next func(after time.Time) time.Time
	zone *time.Location // of its instants, nil for UTC
	text string         // which schedule it is
	bad  error          // why the schedule is invalid, to be said where it is used
}

// String returns the call that made the schedule, such as Every(1h0m0s). For a schedule of another
// package it returns only the type.
func (s Schedule) String() string { return s.text }

// coming is what a row says after a tick of the schedule.
func (s Schedule) coming(at time.Time) coming {
	return coming{due: s.Next(at), schedule: s.text}
}

// and is the schedule with one more time.
func (s Schedule) and(more time.Time) Schedule {
	of := s
	s.next = func(after time.Time) time.Time {
		next := of.Next(after)
		if more.After(after) && (next.IsZero() || more.Before(next)) {
			return more
		}
		return next
	}
	return s
}

// Next returns the first scheduled time after a time, or the zero Time if there is none.
func (s Schedule) Next(after time.Time) time.Time {
	if s.check() != nil {
		return time.Time{}
	}
	at := s.next(after)
	if !at.After(after) || at.Year() > 9999 {
		return time.Time{}
	}
	return at
}

// inZone is an instant as all processes show it, whatever their zones are.
func (s Schedule) inZone(at time.Time) time.Time {
	if s.zone == nil {
		return at.UTC()
	}
	return at.In(s.zone)
}

// check returns what is wrong with the schedule.
func (s Schedule) check() error {
	if s.next == nil && s.bad == nil {
		return fmt.Errorf("%w: the zero Schedule: use Every, Cron or Of", txlock.ErrInvalidOption)
	}
	return s.bad
}

// maxSchedule is the length of the column.
const maxSchedule = 255

// leastEvery is the shortest interval of Every.
const leastEvery = time.Millisecond

// Every returns the schedule of the multiples of d since 1970 by the server's clock, so that all
// processes agree on the times, whenever they were started. The interval is at least a
// millisecond, in whole microseconds; every call refuses a schedule of any other with
// txlock.ErrInvalidOption.
func Every(d time.Duration) Schedule {
	if d < leastEvery || d%time.Microsecond != 0 {
		return Schedule{bad: fmt.Errorf("%w: Every(%v): it must be at least %v, and whole microseconds", txlock.ErrInvalidOption, d, leastEvery)}
	}
	every := d.Microseconds()
	return Schedule{text: fmt.Sprintf("Every(%v)", d), next: func(after time.Time) time.Time {
		us := after.UnixMicro()
		n := us / every
		if us < 0 && us%every != 0 {
			n--
		}
		return time.UnixMicro((n + 1) * every)
	}}
}

// Of returns a schedule of another package, such as github.com/robfig/cron/v3. Next returns the
// first scheduled time after a time, and the zero Time for never. It must depend only on its
// argument, and return the same times in all processes.
func Of(s interface {
	Next(after time.Time) time.Time
}) Schedule {
	if s == nil {
		return Schedule{bad: fmt.Errorf("%w: Of: the schedule is nil", txlock.ErrInvalidOption)}
	}
	if _, is := s.(cron.ConstantDelaySchedule); is {
		return Schedule{bad: fmt.Errorf("%w: Of: %w", txlock.ErrInvalidOption, errInterval)}
	}
	return Schedule{text: clippedTo(maxSchedule, fmt.Sprintf("Of(%T)", s)), next: func(after time.Time) time.Time {
		after = time.UnixMicro(after.UnixMicro()).UTC() // in all processes: the schedule may take the zone for its own
		return s.Next(after).Truncate(time.Microsecond)
	}}
}

// latest returns the last instant up to now that is after a time, or the zero Time. It
// begins to look a second before now, and then ever earlier, as there may be millions.
func (s Schedule) latest(after, now time.Time) time.Time {
	at := time.Time{}
	for back := time.Second; ; back *= 2 {
		from := now.Add(-back)
		if from.Before(after) || back > 100*365*24*time.Hour {
			from = after
		}
		if at = s.Next(from); !at.IsZero() && !at.After(now) {
			break
		}
		if from.Equal(after) {
			return time.Time{}
		}
	}
	for {
		next := s.Next(at)
		if next.IsZero() || next.After(now) {
			return at
		}
		at = next
	}
}

// nearest returns the instant that is nearest to now, or the zero Time.
func (s Schedule) nearest(now time.Time) time.Time {
	before, after := s.latest(time.Unix(0, -1), now), s.Next(now)
	if before.IsZero() || !after.IsZero() && after.Sub(now) < now.Sub(before) {
		return after
	}
	return before
}

// due returns when an instant is to be begun: later by a part of the jitter, which is the
// same in all processes, but never after the next instant.
func (s Schedule) due(key txlock.Key, at time.Time, jitter time.Duration) time.Time {
	if jitter <= 0 {
		return at
	}
	if next := s.Next(at); !next.IsZero() {
		jitter = min(jitter, next.Sub(at)-time.Microsecond)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", key, at.UnixMicro()) //nolint:errcheck // a hash returns no error
	part := new(big.Int).Mul(new(big.Int).SetUint64(h.Sum64()), big.NewInt(int64(jitter)))
	return at.Add(time.Duration(part.Rsh(part, 64).Int64()))
}
