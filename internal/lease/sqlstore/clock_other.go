//go:build !linux

package sqlstore

import (
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
)

var start = time.Now()

// now reads the monotonic clock. On some systems it stands still while the machine
// is suspended.
func now() store.Instant { return store.Instant(time.Since(start)) }
