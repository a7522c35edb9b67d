//go:build !linux

package lease

import "time"

var start = time.Now()

// now reads the monotonic clock. On some systems it stands still while the machine
// is suspended.
func now() instant { return instant(time.Since(start)) }
