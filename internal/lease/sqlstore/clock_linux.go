package sqlstore

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/dca00107/lockstep/internal/lease/store"
)

// now reads the clock that goes on while the machine is suspended. The monotonic clock of
// package time doesn't.
func now() store.Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return store.Instant(time.Since(start)) // a kernel before 2.6.39
	}
	return store.Instant(t.Nano())
}

var start = time.Now()
