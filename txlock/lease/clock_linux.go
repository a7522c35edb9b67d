package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// now reads the clock that goes on while the machine is suspended, which the
// monotonic clock of package time does not.
func now() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return instant(time.Since(start)) // a kernel before 2.6.39
	}
	return instant(t.Nano())
}

var start = time.Now()
