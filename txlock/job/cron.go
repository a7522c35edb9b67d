package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dca00107/lockstep/txlock"
)

var crontab = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// everyHour is the mark of a field with a star in the schedules of package cron.
const everyHour = 1 << 63

// Cron returns the schedule of a crontab line: minute, hour, day of the month, month and day of
// the week (0 or 7 is Sunday), optionally with seconds in front, or @hourly, @daily, @weekly,
// @monthly or @yearly. The line is in UTC, wherever the process runs, unless it begins with a time
// zone: "CRON_TZ=Europe/Berlin 30 2 * * *".
//
// Where the clocks of the zone are put forward, a line with given hours fires at the end of the
// gap if its time is in the gap; where they are put back, it fires at the first of the two times.
// A line for every hour (*) fires as time passes.
//
// Every call refuses a schedule whose line can't be parsed or never fires, with
// txlock.ErrInvalidOption.
func Cron(line string) Schedule {
	spec, err := parse(line)
	if err != nil {
		return Schedule{bad: fmt.Errorf("%w: Cron(%q): %w", txlock.ErrInvalidOption, line, err)}
	}
	return Schedule{next: func(after time.Time) time.Time { return nextOf(spec, after) }, zone: spec.Location, text: clippedTo(maxSchedule, fmt.Sprintf("Cron(%q)", line))}
}

var errInterval = errors.New("intervals depend on when they begin: use Every")

func parse(line string) (*cron.SpecSchedule, error) {
	line = strings.TrimSpace(line)
	zoned := strings.HasPrefix(line, "TZ=") || strings.HasPrefix(line, "CRON_TZ=")
	if zoned && !strings.Contains(line, " ") { // the parser would panic
		return nil, errors.New("nothing follows the time zone")
	}
	parsed, err := crontab.Parse(sundays(line))
	if err != nil {
		return nil, err
	}
	spec, is := parsed.(*cron.SpecSchedule)
	if !is {
		return nil, errInterval
	}
	zone := spec.Location
	if zoned && zone.String() == "Local" {
		return nil, errors.New("the time zone Local differs between machines: name one, such as Europe/Berlin")
	}
	spec.Location = time.UTC
	if spec.Next(time.Unix(0, 0)).IsZero() {
		return nil, errors.New("it never fires")
	}
	if zoned {
		spec.Location = zone
	}
	return spec, nil
}

// sundays writes day 7 of the week, which cron has and the parser hasn't, as day 0.
func sundays(line string) string {
	fields := strings.Fields(line)
	if len(fields) == 0 || strings.HasPrefix(fields[len(fields)-1], "@") {
		return line
	}
	days := strings.Split(fields[len(fields)-1], ",")
	for i, part := range days {
		bounds, step, stepped := strings.Cut(part, "/")
		first, last, isRange := strings.Cut(bounds, "-")
		by, err := strconv.Atoi(step)
		switch from, _ := strconv.Atoi(first); {
		case first == "7" && !isRange: // 7/2, too: it is the last day
			days[i] = "0"
		case isRange && last == "7" && first >= "0" && first <= "6" && len(first) == 1 && (!stepped || err == nil && by > 0):
			var all []string
			for day := from; day <= 7; day += max(by, 1) {
				all = append(all, strconv.Itoa(day%7))
			}
			days[i] = strings.Join(all, ",")
		}
	}
	fields[len(fields)-1] = strings.Join(days, ",")
	return strings.Join(fields, " ")
}

// nextOf returns the next instant of a crontab line. Package cron is asked in UTC only: it
// leaves out and repeats days where zones change by other than whole hours.
func nextOf(spec *cron.SpecSchedule, after time.Time) time.Time {
	wall := *spec
	wall.Location = time.UTC
	if spec.Hour&everyHour != 0 {
		return asTimePasses(&wall, after.In(spec.Location))
	}
	for at := shown(after.In(spec.Location)); ; {
		if at = wall.Next(at); at.IsZero() {
			return at
		}
		if first := firstShown(at, spec.Location); first.After(after) {
			return first
		}
	}
}

// asTimePasses returns the next time at which a clock of the zone shows a time of the
// line, be it for the second time.
func asTimePasses(wall *cron.SpecSchedule, after time.Time) time.Time {
	for {
		_, offset := after.Zone()
		change := nextChange(after)
		at := wall.Next(shown(after))
		if !at.IsZero() {
			at = at.Add(-time.Duration(offset) * time.Second)
		}
		if change.IsZero() || !at.IsZero() && at.Before(change) {
			return at
		}
		if next := wall.Next(shown(change).Add(-time.Second)); next.Equal(shown(change)) {
			return change
		}
		after = change
	}
}

// nextChange returns when the clocks of the zone are put forward or back next, or the zero time. On
// the last day of a leap year ZoneBounds may return one that is over (seen with Go 1.26).
func nextChange(after time.Time) time.Time {
	for at := after; ; at = at.Add(time.Hour) {
		if _, change := at.ZoneBounds(); change.IsZero() || change.After(after) {
			return change
		}
	}
}

// shown is what a clock of the time's zone shows, as a time in UTC.
func shown(at time.Time) time.Time {
	_, offset := at.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// firstShown returns when a clock of the zone shows a time first, or, if the clocks are put
// forward over it, when that happens.
func firstShown(wall time.Time, zone *time.Location) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, zone)
	begin, end := at.ZoneBounds()
	switch got := shown(at); {
	case got.Before(wall):
		return end
	case got.After(wall):
		return begin
	case !begin.IsZero() && at.Sub(begin) < -moved(begin):
		return at.Add(moved(begin)) // it is there for the second time
	}
	return at
}

// moved returns by how much the clocks of the zone are put forward at a change.
func moved(change time.Time) time.Duration {
	_, before := change.Add(-time.Second).Zone()
	_, after := change.Zone()
	return time.Duration(after-before) * time.Second
}
