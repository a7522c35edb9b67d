package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
)

// renewConn is the connection on which a manager renews its leases, so that no lease is lost
// when the program has used its pool up. Over a guarded pool it is an additional
// connection, made by the pool's connector. Over a plain pool it is one of the pool's
// connections, which the manager keeps while it holds leases. Either way it is a sql.DB
// of one connection, which opens it again when it is lost; over a guarded pool it has a
// few more, for waits. That of a new manager is not open.
type renewConn struct {
	program *sql.DB
	lending sync.Mutex // held while the program lends a connection that it may need itself

	mu     sync.Mutex       // guards the fields below
	asked  bool             // we know whether the program's pool is guarded
	origin driver.Connector // of a guarded pool, else nil
	server string           // that the program's pool was connected to last
	db     *sql.DB
	source *source // makes the connections of db
	kept   bool    // it has a connection, or may open one
	closed bool
}

// errElsewhere is returned if the pool's connector has connected to another server than
// the program's connections.
var errElsewhere = errors.New("lease: the pool's connector has led to another server")

// reserve opens the renewal connection before a grant, if the program can use its pool up.
func (c *renewConn) reserve(ctx context.Context) error {
	if c.program.Stats().MaxOpenConnections == 0 {
		return nil
	}
	return c.ensure(ctx)
}

// ensure opens the renewal connection. The first time, it takes a connection of the program's
// pool to learn whether the pool is guarded. It keeps a connection of a plain pool, if there is
// one to spare: after a grant there may be none left.
func (c *renewConn) ensure(ctx context.Context) error {
	if c.ready() {
		return nil
	}
	conn, err := c.program.Conn(ctx)
	if err != nil {
		return err
	}
	c.learn(conn)
	if c.ready() || !budgets.keep(c.program) {
		return conn.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept || c.closed {
		budgets.unkeep(c.program)
		return conn.Close()
	}
	c.open()
	if c.db.Stats().OpenConnections > 0 { // the last connection is still used
		return conn.Close()
	}
	c.source.offer(conn)
	return nil
}

// ready opens the renewal connection if that needs no connection of the program's pool. It tells
// whether nothing more is to be done.
func (c *renewConn) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.kept && c.origin != nil && !c.closed {
		c.open()
	}
	return c.kept || c.closed || c.asked && !c.mayKeep()
}

// renewConnLife is how long the renewal connection of a guarded pool is used. After
// that, the next one goes where the program's new connections go.
const renewConnLife = 10 * time.Minute

// open makes the sql.DB of the renewal connection, which keeps its connection from now on. The
// caller holds renewConn.mu.
func (c *renewConn) open() {
	if c.db == nil {
		c.source = &source{renewConn: c, origin: c.origin}
		c.db = sql.OpenDB(c.source)
		c.db.SetMaxOpenConns(1)
		if c.origin != nil {
			c.db.SetMaxOpenConns(1 + store.MostWaits)
			c.db.SetConnMaxLifetime(renewConnLife)
		}
	}
	c.db.SetMaxIdleConns(1)
	c.kept = true
}

// learn notes whether the program's pool is guarded, by one of its connections.
func (c *renewConn) learn(conn *sql.Conn) {
	_ = conn.Raw(func(raw any) error { // an error means that the connection is gone
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked = true
		if guarded, ok := raw.(interface {
			Origin() (driver.Connector, string)
		}); ok {
			c.origin, c.server = guarded.Origin()
		}
		return nil
	})
}

// mayKeep reports whether the manager may keep a connection for itself: not the only one of
// a plain pool. The caller holds renewConn.mu.
func (c *renewConn) mayKeep() bool {
	return c.origin != nil || c.program.Stats().MaxOpenConnections != 1
}

// conn returns the connection for renewals: the renewal connection's, or if there is none, one
// of the program's pool.
func (c *renewConn) conn(ctx context.Context) (*sql.Conn, error) {
	if err := c.ensure(ctx); err != nil {
		return nil, fmt.Errorf("get a connection: %w", err)
	}
	c.mu.Lock()
	db, kept := c.db, c.kept
	c.mu.Unlock()
	var own error
	if kept {
		limited, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok { // half of the time for the renewal connection, the rest for the program's pool
			limited, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		}
		var conn *sql.Conn
		conn, own = db.Conn(limited)
		cancel()
		if own == nil {
			return conn, nil
		}
	}
	conn, err := c.program.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("get a connection: %w", errors.Join(own, err))
	}
	c.learn(conn) // the program may be on another server now
	return conn, nil
}

// another returns one more connection, to wait on, and the function that returns it. With own it
// may be kept for long: it is the renewal connection's, or the plain pool has one to spare. Else
// the program may need it soon.
func (c *renewConn) another(ctx context.Context) (conn *sql.Conn, own bool, release func(), err error) {
	c.mu.Lock()
	db, own := c.db, c.kept && c.origin != nil
	c.mu.Unlock()
	if own {
		if conn, err = db.Conn(ctx); err == nil {
			return conn, true, func() { _ = conn.Close() }, nil // the pool closes a broken one
		}
	}
	end := func() { budgets.unkeep(c.program) }
	if own = budgets.keep(c.program); !own {
		if end = c.lending.Unlock; !c.lending.TryLock() {
			return nil, false, nil, store.ErrLent
		}
	}
	if conn, err = c.program.Conn(ctx); err != nil {
		end()
		return nil, false, nil, err
	}
	return conn, own, func() { _ = conn.Close(); end() }, nil
}

// spare returns the renewal connection's sql.DB if its connection is one of the program's pool
// and that has none left, and else nil. What the manager sends on the pool then would wait for
// the program, which may wait for the manager.
func (c *renewConn) spare() *sql.DB {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.kept || c.origin != nil || !full(c.program) {
		return nil
	}
	return c.db
}

// beside returns a sql.DB that waits for no connection of the program's transactions, or nil.
func (c *renewConn) beside() *sql.DB {
	if c.program.Stats().MaxOpenConnections == 0 {
		return c.program
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.origin != nil && !c.closed:
		c.open()
		return c.db
	case !full(c.program):
		return c.program
	case c.kept:
		return c.db
	}
	return nil
}

// settle returns the connection to the pool if the manager holds nothing, or if it is the
// only one of a plain pool. It asks that under the lock: who counts as holding before reserve finds
// the connection kept.
func (c *renewConn) settle(idle func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mayKeep() || idle() {
		_ = c.rest() // an error means that the connection is gone already
	}
}

// rest returns the connection to the pool. A statement that is about to be sent on the
// lane may still be sent. The caller holds renewConn.mu.
func (c *renewConn) rest() error {
	if !c.kept {
		return nil
	}
	c.kept = false
	c.db.SetMaxIdleConns(-1)
	if c.origin != nil {
		return nil
	}
	budgets.unkeep(c.program)
	if conn := c.source.take(); conn != nil {
		return conn.Close()
	}
	return nil
}

// close closes the renewal connection for good.
func (c *renewConn) close() error {
	c.mu.Lock()
	c.closed = true
	db, err := c.db, c.rest()
	c.mu.Unlock()
	if db != nil {
		err = errors.Join(err, db.Close())
	}
	return err
}

// hasOrigin reports whether the renewal connection is known to be that of a guarded pool.
func (c *renewConn) hasOrigin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.origin != nil
}

// full reports whether a pool has no connection left at the moment.
func full(pool *sql.DB) bool {
	stats := pool.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}

// source makes the connections of a renewConn.
type source struct {
	renewConn *renewConn
	origin    driver.Connector // nil: it takes connections of the program's pool

	mu    sync.Mutex
	first *sql.Conn // of the program's pool, taken already
}

var _ driver.Connector = (*source)(nil)

// Connect opens a connection to the program's server, or takes one of the program's pool.
func (s *source) Connect(ctx context.Context) (driver.Conn, error) {
	if s.origin == nil {
		return s.takePooled(ctx)
	}
	conn, err := s.origin.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s.renewConn.mu.Lock()
	server := s.renewConn.server
	s.renewConn.mu.Unlock()
	if guarded, ok := conn.(interface {
		Origin() (driver.Connector, string)
	}); ok {
		_, found := guarded.Origin()
		if found != server {
			return nil, errors.Join(fmt.Errorf("%w: %s, not %s", errElsewhere, found, server), conn.Close())
		}
	}
	return conn, nil
}

// takePooled takes a connection of the program's pool.
func (s *source) takePooled(ctx context.Context) (driver.Conn, error) {
	taken := s.take()
	if taken == nil {
		var err error
		if taken, err = s.renewConn.program.Conn(ctx); err != nil {
			return nil, err
		}
	}
	b := &pooledConn{taken: taken}
	if err := taken.Raw(func(raw any) error {
		b.Conn = raw.(driver.Conn)
		return nil
	}); err != nil {
		return nil, errors.Join(err, taken.Close())
	}
	return b, nil
}

// offer makes the next Connect return a connection of the program's pool that was taken
// already.
func (s *source) offer(conn *sql.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = conn
}

// take returns the connection that was offered, once.
func (s *source) take() *sql.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.first
	s.first = nil
	return conn
}

// Driver returns the driver of the program's pool.
func (s *source) Driver() driver.Driver { return s.renewConn.program.Driver() }
