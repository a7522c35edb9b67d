package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock/internal/store"
)

// lane is the connection that a manager renews on, so that a pool that the program has
// used up loses no lease. Over a guarded pool it is one more, made by the pool's
// connector; over a plain pool it is one of the pool's, which the manager keeps while it
// holds leases. It is a pool of one connection either way, which opens it anew when it is
// lost, and of a few more for waits where they are not the program's. The zero lane of a
// pool is not open.
type lane struct {
	program *sql.DB
	lending sync.Mutex // while the program lends a connection that it may need itself

	mu     sync.Mutex // for the fields below
	asked  bool       // the program's pool was asked what it is
	origin driver.Connector
	server string // that the program's pool was connected to last
	db     *sql.DB
	source *source // of db
	kept   bool    // it has a connection, or is to have one
	closed bool
}

// errElsewhere is returned where the pool's connector has led to another server than
// the program's connections.
var errElsewhere = errors.New("lease: the pool's connector has led to another server")

// reserve is meet before a grant, where the program can use its pool up.
func (l *lane) reserve(ctx context.Context) error {
	if l.program.Stats().MaxOpenConnections == 0 {
		return nil
	}
	return l.meet(ctx)
}

// meet opens the lane. It asks a connection of the program's pool once what it is; of a
// plain pool it takes one to keep, if there is one to spare: after a grant it may be too
// late.
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
		taken.giveBack(l.program)
		return conn.Close()
	}
	l.open()
	if l.db.Stats().OpenConnections > 0 { // somebody still uses that of before
		return conn.Close()
	}
	l.source.offer(conn)
	return nil
}

// ready opens the lane if that needs no connection of the program's, and tells whether
// there is nothing more to do for it.
func (l *lane) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept && l.origin != nil && !l.closed {
		l.open()
	}
	return l.kept || l.closed || l.asked && !l.mayKeep()
}

// laneLife is for how long a connection of the lane's own is used. The next goes where the
// program's new ones go.
const laneLife = 10 * time.Minute

// open makes the pool of the lane, which keeps its connection from now on, under lane.mu.
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

// learn notes what a connection of the program's pool is.
func (l *lane) learn(conn *sql.Conn) {
	_ = conn.Raw(func(raw any) error { // the error is that of a connection that is gone
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

// mayKeep tells whether there may be a connection for the manager alone, under lane.mu:
// not one that is the only one of a plain pool.
func (l *lane) mayKeep() bool {
	return l.origin != nil || l.program.Stats().MaxOpenConnections != 1
}

// conn returns the connection to renew on: that of the lane, and one of the program's
// where there is none to be had.
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
		if deadline, ok := ctx.Deadline(); ok { // half of the time for it, the rest for the other
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

// another returns one more connection, to wait on, and tells whether it may be kept for as
// long as need be: it is the lane's own, or a plain pool has it to spare. Else it is to be
// given back soon, since the program may need it.
func (l *lane) another(ctx context.Context) (conn *sql.Conn, own bool, giveBack func(), err error) {
	l.mu.Lock()
	db, own := l.db, l.kept && l.origin != nil
	l.mu.Unlock()
	if own {
		if conn, err = db.Conn(ctx); err == nil {
			return conn, true, func() { _ = conn.Close() }, nil // a broken one is closed by the pool
		}
	}
	end := func() { taken.giveBack(l.program) }
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

// spare returns the lane where it has taken its connection from the program's pool, and
// that has none left: what the manager sends then would wait for the program, and that
// perhaps for what is sent. Otherwise it returns nil.
func (l *lane) spare() *sql.DB {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept || l.origin != nil || !full(l.program) {
		return nil
	}
	return l.db
}

// settle gives the connection back until there is something to renew again, and one of
// the program's as soon as the manager holds nothing or it is the only one.
func (l *lane) settle(idle bool) {
	l.mu.Lock()
	keep := l.mayKeep() && !idle
	l.mu.Unlock()
	if !keep {
		_ = l.rest() // an error is that of a connection that is gone already
	}
}

// rest gives the connection back. Who is about to send something on the lane still may.
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
	taken.giveBack(l.program)
	if conn := l.source.take(); conn != nil {
		return conn.Close()
	}
	return nil
}

// close is rest for good.
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

// hasOrigin tells whether the lane is known to have connections of its own.
func (l *lane) hasOrigin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.origin != nil
}

// full tells whether a pool has no connection left at the moment.
func full(pool *sql.DB) bool {
	stats := pool.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}

// source makes the connections of a lane, one at a time.
type source struct {
	lane   *lane
	origin driver.Connector // nil: they are the program's

	mu    sync.Mutex
	first *sql.Conn // the program's that was taken already
}

var _ driver.Connector = (*source)(nil)

// Connect opens a connection to the program's server, or takes one of the program's.
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

// borrow takes a connection of the program's.
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

// offer has the next Connect return a connection of the program's that was taken already.
func (s *source) offer(conn *sql.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = conn
}

// take returns what was offered, once.
func (s *source) take() *sql.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.first
	s.first = nil
	return conn
}

// Driver returns that of the program's pool.
func (s *source) Driver() driver.Driver { return s.lane.program.Driver() }
