package memstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Store is the way of a process to a Server. Its methods may be called from any goroutine.
type Store struct {
	session
	server *Server

	once sync.Once // for the pool
	pool *sql.DB
	asks atomic.Pointer[sql.Stmt] // see behind

	clock store.Clock // as this process has read it

	// Under Server.Mu:
	fault Fault
}

var _ store.Store = (*Store)(nil)

// Begin begins a transaction of the program, at REPEATABLE READ.
func (s *Store) Begin() *Tx { return s.begin(true) }

// BeginReadCommitted begins a transaction of the program at READ COMMITTED.
func (s *Store) BeginReadCommitted() *Tx { return s.begin(false) }

func (s *Store) begin(repeatable bool) *Tx {
	s.server.Mu.Lock()
	defer s.server.Mu.Unlock()
	t := s.server.begin(repeatable)
	t.store = s
	return t
}

// Now is that of store.Store: the same for all stores of a server, and never 0.
func (s *Store) Now() store.Instant {
	started := s.server.started
	return store.Instant(started.UnixNano()).Add(time.Since(started) + time.Duration(s.server.skipped.Load()))
}

// Ready is that of store.Store.
func (s *Store) Ready(ctx context.Context) error {
	if s.clock.Fresh(s.Now()) {
		return nil
	}
	return s.ReadClock(ctx)
}

// ReadClock is that of store.Store.
func (s *Store) ReadClock(ctx context.Context) error {
	return s.perform(ctx, "ReadClock", store.Row{}, func() error {
		s.server.Mu.Lock()
		defer s.server.Mu.Unlock()
		s.clock.Set(s.server.now(), s.Now())
		return nil
	})
}

// SharesLeases is that of store.Store: there is one server only.
func (s *Store) SharesLeases(ctx context.Context) error {
	return s.perform(ctx, "SharesLeases", store.Row{}, func() error { return nil })
}

// Identity is that of store.Store: the server.
func (s *Store) Identity() any { return s.server }

// Reserve is that of store.Store. There are connections for everybody, as those below say
// as well.
func (s *Store) Reserve(context.Context) error { return nil }

// Settle is that of store.Store.
func (s *Store) Settle(func() bool) {}

// Full is that of store.Store.
func (s *Store) Full() bool { return false }

// Beside is that of store.Store.
func (s *Store) Beside() store.Session { return s }

// MayTurn is that of store.Store.
func (s *Store) MayTurn() bool { return true }

// Close is that of store.Store. Nothing is open.
func (s *Store) Close() error { return nil }

// Queued is that of store.Store.
func (s *Store) Queued(ctx context.Context, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	return s.queued(ctx, "Queued", at, atMost, send)
}

// Wait is that of store.Store. The program never needs the connection itself.
func (s *Store) Wait(ctx context.Context, at store.Row, limit func(brief bool) (time.Duration, bool), send func(store.Session) error) error {
	atMost, goOn := limit(false)
	if !goOn {
		return nil
	}
	return s.queued(ctx, "Wait", at, atMost, send)
}

func (s *Store) queued(ctx context.Context, op string, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	return s.perform(ctx, op, at, func() error {
		t := s.BeginReadCommitted()
		defer func() { _ = t.Rollback() }() // unless it is committed
		t.db.Mu.Lock()
		err := t.await(ctx, at, max(atMost, 1))
		t.db.Mu.Unlock()
		if errors.Is(err, txlock.ErrWaitTimeout) {
			return store.ErrLocked
		}
		if err == nil {
			err = send(session{s, t})
		}
		if err != nil {
			return err
		}
		t.db.Mu.Lock()
		defer t.db.Mu.Unlock()
		return t.rowTx.Commit()
	})
}

// turn is the transaction that has the queue row of a key locked.
type turn struct{ session }

// Leave is that of store.Turn.
func (t turn) Leave() { _ = t.tx.Rollback() } // of which there is nothing to say

// Turn is that of store.Store.
func (s *Store) Turn(ctx context.Context, key, owner, label string, before func() error) (store.Turn, error) {
	t, at := s.BeginReadCommitted(), store.Row{Key: key, Slot: store.QueueSlot}
	err := s.perform(ctx, "Turn", at, func() error {
		for {
			if err := before(); err != nil {
				return err
			}
			if there, err := t.turn(ctx, at, owner, label); there || err != nil {
				return err
			}
		}
	})
	if err != nil {
		_ = t.Rollback() // it has written nothing
		return nil, err
	}
	return turn{session{s, t}}, nil
}

// turn waits for the queue row, unless it is missing, and says there whose it is.
func (t *Tx) turn(ctx context.Context, at store.Row, owner, label string) (there bool, err error) {
	t.db.Mu.Lock()
	defer t.db.Mu.Unlock()
	if _, there = t.db.Committed[at]; !there {
		return false, nil
	}
	if err := t.await(ctx, at, 0); err != nil {
		return true, err
	}
	t.Written[at] = rules.Row{Owner: owner, Label: label, Expires: t.db.now(), Guards: 1, Session: t.Session}
	return true, nil
}

// Blockers is that of store.Store.
func (s *Store) Blockers(ctx context.Context, key string) ([]store.Blocker, error) {
	return do(ctx, s.session, "Blockers", entryRow(key), func(own *Tx) (all []store.Blocker, _ error) {
		for t := range own.db.Open {
			for at, r := range t.Written {
				if w := own.db.wrote(t, at); at.Key == key && w != (store.Written{}) {
					all = append(all, store.Blocker{Written: w, Over: micros(own.db.now() - r.Expires)})
				}
			}
		}
		slices.SortFunc(all, func(a, b store.Blocker) int { return int(a.Slot - b.Slot) })
		return all, nil
	})
}

// End is that of store.Store.
func (s *Store) End(ctx context.Context, key string, b store.Blocker) error {
	return exec(ctx, s.session, "End", entryRow(key), func(own *Tx) error {
		for t := range own.db.Open {
			if own.db.wrote(t, store.Row{Key: key, Slot: b.Slot}) == b.Written {
				t.End(driver.ErrBadConn)
			}
		}
		return nil
	})
}

// wrote returns what a transaction has written to a row that is held, and none if that is
// committed. It is called under Server.Mu.
func (db *Server) wrote(t *rowTx, at store.Row) store.Written {
	of := func(r rules.Row) store.Written {
		return store.Written{Slot: at.Slot, Token: r.Token, Guards: r.Guards, Session: r.Session}
	}
	r := t.Written[at]
	if at.Slot < store.LeaseSlot || r.Holders == "" || r.Session == 0 || of(r) == of(db.Committed[at]) {
		return store.Written{}
	}
	return of(r)
}
