package sqlstore

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/dca00107/lockstep/gen"
	server "github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// serverClock is the server's clock, and which kind of server it is of.
type serverClock struct {
	store.Clock
	mariaDB atomic.Bool
}

// fresh makes sure that the clock was read within the last minute.
func (c *serverClock) fresh(ctx context.Context, db gen.DBTX) error {
	if c.Fresh(now()) {
		return nil
	}
	return c.read(ctx, db)
}

// read reads the clock, and the kind of server.
func (c *serverClock) read(ctx context.Context, db gen.DBTX) error {
	facts, err := server.Ask(ctx, db)
	if err == nil {
		err = facts.Unfit
	}
	if err != nil {
		return err
	}
	c.mariaDB.Store(strings.Contains(facts.Version, "MariaDB"))
	c.Set(facts.ClockUs, now())
	return nil
}

// onMariaDB reports whether the server is MariaDB, after a reading.
func (c *serverClock) onMariaDB() bool { return c.mariaDB.Load() }
