package job

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dca00107/lockstep/txlock"
)

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// everyHour is the mark of a field with a star in the schedules of package cron.
const everyHour = 1 << 63

// Cron has the instants of a crontab line: minute, hour, day of the month, month and day of
// the week, with seconds in front of them or without, or @hourly, @daily, @weekly,
// @monthly and @yearly. The line is in UTC, wherever the process runs, unless it begins
// with a time zone: "CRON_TZ=Europe/Berlin 30 2 * * *".
//
// Where the clocks of the zone are put forward, a line with given hours fires at the end of
// the gap if its time is in the gap; where they are put back, it fires at the first of the
// two times. A line for every hour (*) fires as time passes.
//
// A line that can't be read, or that never fires, makes a schedule that every call refuses
// with txlock.ErrInvalidOption.
func Cron(line string) Schedule {
	spec, err := parse(line)
	if err != nil {
		return Schedule{bad: fmt.Errorf("%w: Cron(%q): %w", txlock.ErrInvalidOption, line, err)}
	}
	s := Schedule{next: func(after time.Time) time.Time { return nextOf(spec, after) }}
	if s.Next(time.Unix(0, 0)).IsZero() {
		return Schedule{bad: fmt.Errorf("%w: Cron(%q): it never fires", txlock.ErrInvalidOption, line)}
	}
	return s
}

func parse(line string) (*cron.SpecSchedule, error) {
	line = strings.TrimSpace(line)
	zoned := strings.HasPrefix(line, "TZ=") || strings.HasPrefix(line, "CRON_TZ=")
	if zoned && !strings.Contains(line, " ") { // the parser would panic
		return nil, errors.New("there is nothing behind the time zone")
	}
	parsed, err := parser.Parse(line)
	if err != nil {
		return nil, err
	}
	spec, is := parsed.(*cron.SpecSchedule)
	if !is {
		return nil, errors.New("intervals depend on when they begin: use Every")
	}
	if !zoned {
		spec.Location = time.UTC
	}
	return spec, nil
}

// nextOf returns the next instant of a crontab line.
func nextOf(spec *cron.SpecSchedule, after time.Time) time.Time {
	if spec.Hour&everyHour != 0 {
		return spec.Next(after)
	}
	at := spec.Next(after)
	for !at.IsZero() && repeated(at.In(spec.Location)) {
		at = spec.Next(at)
	}
	if gap := gapBefore(spec, after, at); !gap.IsZero() {
		return gap
	}
	return at
}

// repeated tells whether the clocks of the zone were put back over this time of the day: it
// is there for the second time.
func repeated(at time.Time) bool {
	change, _ := at.ZoneBounds()
	return !change.IsZero() && at.Sub(change) < -moved(change)
}

// gapBefore returns the first change of the clocks after one time and before another that
// has left out a time of the line, or the zero Time.
func gapBefore(spec *cron.SpecSchedule, after, before time.Time) time.Time {
	wall := *spec
	wall.Location = time.UTC
	for at := after.In(spec.Location); ; {
		_, change := at.ZoneBounds()
		if change.IsZero() || !before.IsZero() && !change.Before(before) || before.IsZero() && change.Sub(after) > 5*366*24*time.Hour {
			return time.Time{}
		}
		if gap := moved(change); gap > 0 {
			_, offset := change.Add(-time.Second).Zone()
			begins := change.UTC().Add(time.Duration(offset) * time.Second) // as if the zone were UTC
			if left := wall.Next(begins.Add(-time.Second)); !left.IsZero() && left.Before(begins.Add(gap)) {
				return change
			}
		}
		at = change
	}
}

// moved returns by how much the clocks of the zone were put forward at a change.
func moved(change time.Time) time.Duration {
	_, before := change.Add(-time.Second).Zone()
	_, after := change.Zone()
	return time.Duration(after-before) * time.Second
}
