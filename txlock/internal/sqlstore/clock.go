package sqlstore

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
	fit "github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// clockAge is how long a reading of the server's clock is trusted.
const clockAge = time.Minute

// serverClock knows a lower bound of what the server's clock shows.
type serverClock struct {
	mu      sync.Mutex
	us      int64         // what it showed at the last reading, in microseconds since 1970
	at      store.Instant // when that reading was received; 0 for never
	mariaDB bool
}

// microsAt returns what the server's clock shows at the moment, or a little less: the
// last reading was on its way for a while.
func (c *serverClock) microsAt(moment store.Instant) int64 {
	if moment == store.Never {
		return math.MaxInt64
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.us + c.at.Until(moment).Microseconds()
}

// fresh makes sure that the clock was read within the last minute.
func (c *serverClock) fresh(ctx context.Context, db gen.DBTX) error {
	c.mu.Lock()
	at := c.at
	c.mu.Unlock()
	if at != 0 && at.Until(now()) < clockAge {
		return nil
	}
	return c.read(ctx, db)
}

// read reads the clock, and the kind of server.
func (c *serverClock) read(ctx context.Context, db gen.DBTX) error {
	row, err := queries.ServerClock(ctx, db)
	if err != nil {
		return err
	}
	if err := fit.Fit(row.Version); err != nil {
		return err
	}
	received := now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.us, c.at, c.mariaDB = row.NowUs, received, strings.Contains(row.Version, "MariaDB")
	return nil
}

// onMariaDB tells whether the server is MariaDB, after a reading.
func (c *serverClock) onMariaDB() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mariaDB
}
