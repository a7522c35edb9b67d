package memstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// Store is the way of a process to a Server. Its methods may be called from any goroutine.
type Store struct {
	session
	server *Server

	// Under Server.mu:
	fault   Fault
	clock   int64         // what the server's clock has shown
	clockAt store.Instant // when it was read, 0 for never
}

var _ store.Store = (*Store)(nil)

// Begin begins a transaction of the program, at REPEATABLE READ.
func (s *Store) Begin() *Tx { return s.begin(true) }

// BeginReadCommitted begins a transaction of the program at READ COMMITTED.
func (s *Store) BeginReadCommitted() *Tx { return s.begin(false) }

func (s *Store) begin(repeatable bool) *Tx {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	t := s.server.begin(repeatable)
	t.store = s
	return t
}

// Now is the same for all stores, and no moment of theirs is 0.
func (s *Store) Now() store.Instant {
	started := s.server.started
	return store.Instant(started.UnixNano()).Add(time.Since(started))
}

// clockAge is for how long a reading of the server's clock is trusted.
const clockAge = time.Minute

func (s *Store) Ready(ctx context.Context) error {
	s.server.mu.Lock()
	at := s.clockAt
	s.server.mu.Unlock()
	if at != 0 && at.Until(s.Now()) < clockAge {
		return nil
	}
	return s.ReadClock(ctx)
}

func (s *Store) ReadClock(ctx context.Context) error {
	return s.perform(ctx, "ReadClock", store.Row{}, func() error {
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		s.clock, s.clockAt = s.server.now(), s.Now()
		return nil
	})
}

// microsAt is a moment by the server's clock as it was read last, under Server.mu.
func (s *Store) microsAt(moment store.Instant) int64 {
	if moment == store.Never {
		return math.MaxInt64
	}
	return s.clock + s.clockAt.Until(moment).Microseconds()
}

// There are as many connections as anybody likes, and one server only.

func (s *Store) SharesLeases(context.Context) error { return nil }
func (s *Store) Identity() any                      { return s.server }
func (s *Store) Reserve(context.Context) error      { return nil }
func (s *Store) Settle(bool)                        {}
func (s *Store) Full() bool                         { return false }
func (s *Store) MayTurn() bool                      { return true }
func (s *Store) Close() error                       { return nil }

func (s *Store) Queued(ctx context.Context, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	return s.queued(ctx, "Queued", at, atMost, send)
}

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
		t.db.mu.Lock()
		err := t.await(ctx, at, max(atMost, 1))
		t.db.mu.Unlock()
		if errors.Is(err, txlock.ErrWaitTimeout) {
			return store.ErrLocked
		}
		if err == nil {
			err = send(session{s, t})
		}
		if err != nil {
			return err
		}
		t.db.mu.Lock()
		defer t.db.mu.Unlock()
		return t.commit()
	})
}

// turn is the transaction that has the turnstile of a key locked.
type turn struct{ session }

func (t turn) Leave() { _ = t.tx.Rollback() } // of which there is nothing to say

func (s *Store) Turn(ctx context.Context, key, owner string, asked func()) (store.Turn, error) {
	t, at := s.BeginReadCommitted(), store.Row{Key: key, Slot: store.TurnstileSlot}
	err := s.perform(ctx, "Turn", at, func() error {
		asked()
		db := s.server
		db.mu.Lock()
		defer db.mu.Unlock()
		if _, exists := db.rows[at]; !exists {
			db.rows[at] = free
		}
		if err := t.await(ctx, at, 0); err != nil {
			return err
		}
		t.written[at] = row{owner: owner, expires: db.now(), guards: 1, session: t.id}
		return nil
	})
	if err != nil {
		_ = t.Rollback() // it has written nothing
		return nil, err
	}
	return turn{session{s, t}}, nil
}

func (s *Store) Blockers(ctx context.Context, key string) ([]store.Blocker, error) {
	return do(ctx, s.session, "Blockers", gate(key), func(own *Tx) (all []store.Blocker, _ error) {
		for at, l := range own.db.locks {
			if w := l.holder.wrote(at); at.Key == key && w != (store.Written{}) {
				all = append(all, store.Blocker{Written: w, Over: micros(own.db.now() - l.holder.written[at].expires)})
			}
		}
		slices.SortFunc(all, func(a, b store.Blocker) int { return int(a.Slot - b.Slot) })
		return all, nil
	})
}

func (s *Store) End(ctx context.Context, key string, b store.Blocker) error {
	return exec(ctx, s.session, "End", gate(key), func(own *Tx) error {
		at := store.Row{Key: key, Slot: b.Slot}
		if l := own.db.locks[at]; l != nil && l.holder.wrote(at) == b.Written {
			l.holder.end(driver.ErrBadConn)
		}
		return nil
	})
}

// wrote returns what a transaction has written to a row that is held, and none if that is
// committed. It is called under Server.mu.
func (t *Tx) wrote(at store.Row) store.Written {
	of := func(r row) store.Written {
		return store.Written{Slot: at.Slot, Token: r.token, Guards: r.guards, Session: r.session}
	}
	r := t.written[at]
	if at.Slot < store.LeaseSlot || r.holds == "" || r.session == 0 || of(r) == of(t.db.rows[at]) {
		return store.Written{}
	}
	return of(r)
}

// Join joins a Tx of the same Server. In any other transaction, one of a mock for
// example, statements act at once: a Guard checks and counts there, but keeps nobody out
// until the end. The options are of no use, since a Tx knows what was read.
func (s *Store) Join(_ context.Context, tx txlock.Tx, _ ...txlock.JoinOption) (store.Joined, error) {
	if tx == nil {
		return nil, fmt.Errorf("%w: the transaction is nil", txlock.ErrNoTransaction)
	}
	t, ok := tx.(*Tx)
	if !ok || t.db != s.server {
		return joined{s, nil}, nil
	}
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if t.over != nil {
		return nil, fmt.Errorf("join: %w", doomed(t.over))
	}
	return joined{s, t}, nil
}

type joined session

func (j joined) Include(ctx context.Context, verb string, key txlock.Key, send func(ctx context.Context, in *store.In) error) error {
	if err := key.Validate(); err != nil {
		return err
	}
	in, t := &store.In{Session: session(j), Reading: ctx}, j.tx
	if t != nil {
		select {
		case t.sending <- struct{}{}:
			defer func() { <-t.sending }()
		case <-ctx.Done():
			return ctx.Err()
		}
		t.db.mu.Lock()
		in.Snapshot, in.Fenced, in.ID = t.snapshot != nil, t.fenced[key.String()], t.id
		over := t.over
		t.db.mu.Unlock()
		if over != nil {
			return fmt.Errorf("%s %q: %w", verb, key, doomed(over))
		}
	}
	if err := send(ctx, in); err != nil {
		return fmt.Errorf("%s %q: %w", verb, key, doomed(err))
	}
	if t != nil && in.Fence {
		t.fenced[key.String()] = true
	}
	return nil
}

func (s *Store) List(ctx context.Context) ([]store.Info, error) {
	return do(ctx, s.session, "List", store.Row{}, func(t *Tx) ([]store.Info, error) {
		return t.infos(func(at store.Row, held bool) bool { return at.Slot >= store.LeaseSlot && held }), nil
	})
}

func (s *Store) Inspect(ctx context.Context, key string) ([]store.Info, error) {
	return do(ctx, s.session, "Inspect", gate(key), func(t *Tx) ([]store.Info, error) {
		all := t.infos(func(at store.Row, held bool) bool {
			return at.Slot == store.LeaseSlot || at.Slot > store.LeaseSlot && held
		})
		return slices.DeleteFunc(all, func(i store.Info) bool { return i.Key != key }), nil
	})
}

// infos returns the rows that are wanted, and all first waiters, in order.
func (t *Tx) infos(wanted func(at store.Row, held bool) bool) (all []store.Info) {
	now := t.db.now()
	for at, r := range t.plain() {
		if wanted(at, r.held(now)) {
			all = append(all, store.Info{
				Row: at, Owner: r.owner, Token: r.token, TTL: micros(r.ttl), Left: r.left(now), Holds: len(r.holds) / store.HoldLength, Use: r.use,
			})
		}
	}
	for at, l := range t.db.locks {
		if r, ok := l.holder.written[at]; ok && at.Slot == store.TurnstileSlot && r.guards > 0 {
			all = append(all, store.Info{Row: at, Owner: r.owner, Since: time.UnixMicro(r.expires), Session: r.session})
		}
	}
	slices.SortFunc(all, func(a, b store.Info) int { return inOrder(a.Row, b.Row) })
	return all
}

func (s *Store) Clean(ctx context.Context, retention time.Duration) (int, error) {
	return do(ctx, s.session, "Clean", store.Row{}, func(t *Tx) (n int, _ error) {
		db, now := t.db, t.db.now()
		limit := now - now%1e6 - retention.Microseconds() // by a clock of whole seconds
		remove := func(may func(at store.Row, r row) bool) {
			for at, r := range db.rows {
				if at.Slot >= store.TurnstileSlot && r.expires < limit && r.token < uint64(now) && db.locks[at] == nil && may(at, r) {
					delete(db.rows, at)
					n++
				}
			}
		}
		remove(func(_ store.Row, r row) bool { return r.use == store.Exclusive })
		// What says how a key is used stays while the key has readers or permits.
		remove(func(at store.Row, _ row) bool { return len(db.places(at.Key)) == 0 })
		return n, nil
	})
}

func (s *Store) Sweep(ctx context.Context, key string) error {
	return exec(ctx, s.session, "Sweep", gate(key), func(t *Tx) error {
		for _, at := range t.db.places(key) {
			if r := t.db.rows[at]; r.expires+r.ttl < t.db.now() && t.db.locks[at] == nil {
				delete(t.db.rows, at)
			}
		}
		return nil
	})
}

// epochRow is where the epoch is: its owner is the epoch, and its expiry when it began.
var epochRow = store.Row{Key: "lockstep:epoch", Slot: -2}

func (s *Store) Epoch(ctx context.Context) (id string, age time.Duration, err error) {
	err = exec(ctx, s.session, "Epoch", epochRow, func(t *Tx) error {
		if r, begun := t.db.rows[epochRow]; begun {
			id, age = r.owner, micros(t.db.now()-r.expires)
		}
		return nil
	})
	return id, age, err
}

func (s *Store) BeginEpoch(ctx context.Context, id string, age time.Duration) error {
	return exec(ctx, s.session, "BeginEpoch", epochRow, func(t *Tx) error {
		if _, begun := t.db.rows[epochRow]; !begun {
			t.db.rows[epochRow] = row{owner: id, expires: t.db.now() - age.Microseconds()}
		}
		return nil
	})
}
