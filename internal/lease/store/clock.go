package store

import (
	"math"
	"sync"
	"time"
)

// clockAge is how long a reading of the server's clock is trusted.
const clockAge = time.Minute

// Clock knows a lower bound of what the server's clock shows. Its methods may be called
// from any goroutine.
type Clock struct {
	mu sync.Mutex
	us int64   // what it showed at the last reading, in microseconds since 1970
	at Instant // when that reading was received; 0 for never
}

// Set notes a reading, and when it was received.
func (c *Clock) Set(us int64, received Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.us, c.at = us, received
}

// Fresh reports whether the clock was read within the last minute.
func (c *Clock) Fresh(now Instant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at != 0 && c.at.Until(now) < clockAge
}

// MicrosAt returns what the server's clock shows at the moment, or a little less: the
// last reading was on its way for a while. Never is later than all that it shows.
func (c *Clock) MicrosAt(moment Instant) int64 {
	if moment == Never {
		return math.MaxInt64
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.us + c.at.Until(moment).Microseconds()
}
