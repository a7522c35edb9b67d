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

// lane is the connection on which a manager renews its leases, so that no lease is lost
// when the program has used its pool up. Over a guarded pool it is an additional
// connection, made by the pool's connector. Over a plain pool it is one of the pool's
// connections, which the manager keeps while it holds leases. Either way it is a sql.DB
// of one connection, which opens it again when it is lost; over a guarded pool it has a
// few more, for waits. The zero lane of a pool is not open.
type lane struct {
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

// reserve opens the lane before a grant, if the program can use its pool up.
func (l *lane) reserve(ctx context.Context) error {
	if l.program.Stats().MaxOpenConnections == 0 {
		return nil
	}
	return l.meet(ctx)
}

// meet opens the lane. The first time, it takes a connection of the program's pool to
// learn whether the pool is guarded. It keeps a connection of a plain pool, if there is
// one to spare: after a grant there may be none left.
func (l *lane) meet(ctx context.Context) error {
	if l.ready() {
		return nil
	}
	conn, err := l.program.Conn(ctx)
	if err != nil {
		return err
	}
	l.learn(conn)
	if l.ready() || !taken.keep(l.program) {
		return conn.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept || l.closed {
		taken.unkeep(l.program)
		return conn.Close()
	}
	l.open()
	if l.db.Stats().OpenConnections > 0 { // the last connection is still used
		return conn.Close()
	}
	l.source.offer(conn)
	return nil
}

// ready opens the lane if that needs no connection of the program's pool. It tells
// whether nothing more is to be done.
func (l *lane) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept && l.origin != nil && !l.closed {
		l.open()
	}
	return l.kept || l.closed || l.asked && !l.mayKeep()
}

// laneLife is how long a connection of a guarded pool's lane is used. After that, the
// next one goes where the program's new connections go.
const laneLife = 10 * time.Minute

// open makes the sql.DB of the lane, which keeps its connection from now on. The caller
// holds lane.mu.
func (l *lane) open() {
	if l.db == nil {
		l.source = &source{lane: l, origin: l.origin}
		l.db = sql.OpenDB(l.source)
		l.db.SetMaxOpenConns(1)
		if l.origin != nil {
			l.db.SetMaxOpenConns(1 + store.MostWaits)
			l.db.SetConnMaxLifetime(laneLife)
		}
	}
	l.db.SetMaxIdleConns(1)
	l.kept = true
}

// learn notes whether the program's pool is guarded, by one of its connections.
func (l *lane) learn(conn *sql.Conn) {
	_ = conn.Raw(func(raw any) error { // an error means that the connection is gone
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked = true
		if guarded, ok := raw.(interface {
			Origin() (driver.Connector, string)
		}); ok {
			l.origin, l.server = guarded.Origin()
		}
		return nil
	})
}

// mayKeep reports whether the manager may keep a connection for itself: not the only one of
// a plain pool. The caller holds lane.mu.
func (l *lane) mayKeep() bool {
	return l.origin != nil || l.program.Stats().MaxOpenConnections != 1
}

// conn returns the connection for renewals: the lane's, or if there is none, one of the
// program's pool.
func (l *lane) conn(ctx context.Context) (*sql.Conn, error) {
	if err := l.meet(ctx); err != nil {
		return nil, fmt.Errorf("get a connection: %w", err)
	}
	l.mu.Lock()
	db, kept := l.db, l.kept
	l.mu.Unlock()
	var own error
	if kept {
		limited, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok { // half of the time for the lane, the rest for the program's pool
			limited, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		}
		var conn *sql.Conn
		conn, own = db.Conn(limited)
		cancel()
		if own == nil {
			return conn, nil
		}
	}
	conn, err := l.program.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("get a connection: %w", errors.Join(own, err))
	}
	l.learn(conn) // the program may be on another server now
	return conn, nil
}

// another returns one more connection, to wait on, and the function that returns it. With
// own it may be kept for long: it is the lane's, or the plain pool has one to spare. Else
// the program may need it soon.
func (l *lane) another(ctx context.Context) (conn *sql.Conn, own bool, release func(), err error) {
	l.mu.Lock()
	db, own := l.db, l.kept && l.origin != nil
	l.mu.Unlock()
	if own {
		if conn, err = db.Conn(ctx); err == nil {
			return conn, true, func() { _ = conn.Close() }, nil // the pool closes a broken one
		}
	}
	end := func() { taken.unkeep(l.program) }
	if own = taken.keep(l.program); !own {
		if end = l.lending.Unlock; !l.lending.TryLock() {
			return nil, false, nil, store.ErrLent
		}
	}
	if conn, err = l.program.Conn(ctx); err != nil {
		end()
		return nil, false, nil, err
	}
	return conn, own, func() { _ = conn.Close(); end() }, nil
}

// spare returns the lane's sql.DB if its connection is one of the program's pool and that
// has none left, and else nil. What the manager sends on the pool then would wait for the
// program, which may wait for the manager.
func (l *lane) spare() *sql.DB {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept || l.origin != nil || !full(l.program) {
		return nil
	}
	return l.db
}

// beside returns a sql.DB that waits for no connection of the program's transactions, or nil.
func (l *lane) beside() *sql.DB {
	if l.program.Stats().MaxOpenConnections == 0 {
		return l.program
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.origin != nil && !l.closed:
		l.open()
		return l.db
	case !full(l.program):
		return l.program
	case l.kept:
		return l.db
	}
	return nil
}

// settle returns the connection to the pool if the manager holds nothing, or if it is the
// only one of a plain pool.
func (l *lane) settle(idle bool) {
	l.mu.Lock()
	keep := l.mayKeep() && !idle
	l.mu.Unlock()
	if !keep {
		_ = l.rest() // an error means that the connection is gone already
	}
}

// rest returns the connection to the pool. A statement that is about to be sent on the
// lane may still be sent.
func (l *lane) rest() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept {
		return nil
	}
	l.kept = false
	l.db.SetMaxIdleConns(-1)
	if l.origin != nil {
		return nil
	}
	taken.unkeep(l.program)
	if conn := l.source.take(); conn != nil {
		return conn.Close()
	}
	return nil
}

// close closes the lane for good.
func (l *lane) close() error {
	l.mu.Lock()
	l.closed = true
	db := l.db
	l.mu.Unlock()
	err := l.rest()
	if db != nil {
		err = errors.Join(err, db.Close())
	}
	return err
}

// hasOrigin reports whether the lane is known to be that of a guarded pool.
func (l *lane) hasOrigin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.origin != nil
}

// full reports whether a pool has no connection left at the moment.
func full(pool *sql.DB) bool {
	stats := pool.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}

// source makes the connections of a lane.
type source struct {
	lane   *lane
	origin driver.Connector // nil: it takes connections of the program's pool

	mu    sync.Mutex
	first *sql.Conn // of the program's pool, taken already
}

var _ driver.Connector = (*source)(nil)

// Connect opens a connection to the program's server, or takes one of the program's pool.
func (s *source) Connect(ctx context.Context) (driver.Conn, error) {
	if s.origin == nil {
		return s.borrow(ctx)
	}
	conn, err := s.origin.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s.lane.mu.Lock()
	server := s.lane.server
	s.lane.mu.Unlock()
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

// borrow takes a connection of the program's pool.
func (s *source) borrow(ctx context.Context) (driver.Conn, error) {
	taken := s.take()
	if taken == nil {
		var err error
		if taken, err = s.lane.program.Conn(ctx); err != nil {
			return nil, err
		}
	}
	b := &borrowed{taken: taken}
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
func (s *source) Driver() driver.Driver { return s.lane.program.Driver() }
