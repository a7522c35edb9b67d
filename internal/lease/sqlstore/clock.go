package sqlstore

import (
	"context"
	"sync/atomic"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	server "github.com/dca00107/lockstep/internal/session"
)

// serverClock is the server's clock, and which kind of server it is of.
type serverClock struct {
	store.Clock
	known atomic.Pointer[rawsql.Engine]
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
	facts, err := server.AskAll(ctx, db)
	if err == nil {
		err = facts.Unfit
	}
	if err != nil {
		return err
	}
	engine := rawsql.EngineOf(facts.Version)
	c.known.Store(&engine)
	c.Set(facts.ClockUs, now())
	return nil
}

// engine returns the engine of the server, after a reading.
func (c *serverClock) engine() rawsql.Engine {
	if known := c.known.Load(); known != nil {
		return *known
	}
	return rawsql.MySQL
}
