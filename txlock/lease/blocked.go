package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

const (
	// guardGrace is how much longer than its lease, by the server's clock, a transaction
	// that guards the lease may stay open while somebody else wants it.
	guardGrace = 5 * time.Second
	// blockedPause is the time between two looks at who has a row locked.
	blockedPause = 250 * time.Millisecond
)

// blocker is an open transaction that has written a row of a key: it guards the lease,
// or has acquired it.
type blocker struct {
	written
	over time.Duration // since when the lease is over, negative while it isn't
}

// written is what a transaction has written.
type written struct {
	slot                   int64
	token, guards, session uint64
}

func (b blocker) String() string {
	return fmt.Sprintf("an open transaction of session %d has its row locked", b.session)
}

// blockers returns the open transactions that have written rows of a key. What is read
// uncommitted isn't committed afterwards, and is read uncommitted once more: so it was not
// committed meanwhile either, and its transaction was open all the time.
func (m *Manager) blockers(ctx context.Context, key txlock.Key) ([]blocker, error) {
	first, err := m.writtenOf(ctx, key, false)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	committed, err := m.writtenOf(ctx, key, true)
	if err != nil {
		return nil, err
	}
	again, err := m.writtenOf(ctx, key, false)
	if err != nil {
		return nil, err
	}
	var all []blocker
	for w, over := range again {
		_, before := first[w]
		if _, done := committed[w]; before && !done {
			all = append(all, blocker{w, over})
		}
	}
	return all, nil
}

// writtenOf reads what transactions have written to the rows of a key, and since when each
// lease is over: what is committed, or all.
func (m *Manager) writtenOf(ctx context.Context, key txlock.Key, committed bool) (found map[written]time.Duration, err error) {
	if committed {
		return readWritten(ctx, m.db, key)
	}
	err = uncommitted(ctx, m.db, func(tx gen.DBTX) (err error) {
		found, err = readWritten(ctx, tx, key)
		return err
	})
	return found, err
}

func readWritten(ctx context.Context, db gen.DBTX, key txlock.Key) (map[written]time.Duration, error) {
	rows, err := queries.LeaseTransactions(ctx, db, []byte(key.String()))
	found := make(map[written]time.Duration, len(rows))
	for _, r := range rows {
		found[written{r.Slot, r.Token, r.Guards, r.ConnID}] = micros(r.OverUs)
	}
	return found, err
}

// blockerOf returns the open transaction that has written one row, or nil.
func (m *Manager) blockerOf(ctx context.Context, key txlock.Key, slot int64) (*blocker, error) {
	all, err := m.blockers(ctx, key)
	for _, b := range all {
		if b.slot == slot {
			return &b, err
		}
	}
	return nil, err
}

// end has the server end the session of the transaction, which rolls it back, if that is
// open still: the server knows sessions only, and this one may have begun another.
func (b blocker) end(ctx context.Context, m *Manager, key txlock.Key) error {
	err := uncommitted(ctx, m.db, func(tx gen.DBTX) error {
		found, err := readWritten(ctx, tx, key)
		if _, open := found[b.written]; err != nil || !open {
			return err
		}
		_, err = tx.ExecContext(ctx, rawsql.Kill(b.session))
		return err
	})
	var server *mysql.MySQLError
	if errors.As(err, &server) && server.Number == 1094 { // ER_NO_SUCH_THREAD
		return nil
	}
	if err != nil {
		return fmt.Errorf("%v, and it can't be ended, use KILL %d as its user or as root: %w", b, b.session, err)
	}
	return nil
}

// blocked is what a request knows of the transactions that keep it from a lease which
// is free.
type blocked struct {
	looked instant
	who    error // the last that was seen
}

// unblock looks who is in the way where an attempt has found errLocked: the lease is over,
// and its row locked nevertheless. That is so for moments, or for as long as a transaction
// is open that guards it. Those that are open for longer than the grace are ended: their
// holder is stopped, or cut off, and the lease is not theirs any more. It returns the
// error, with the session that is in the way.
func (m *Manager) unblock(ctx context.Context, q *request, busy error) error {
	if !errors.Is(busy, errLocked) || q.blocked.looked > 0 && q.blocked.looked.until(now()) < blockedPause {
		return busy
	}
	q.blocked.looked = now()
	found, err := m.blockers(ctx, q.key)
	if err != nil {
		return errors.Join(busy, err)
	}
	q.blocked.who = nil
	for _, b := range found {
		switch {
		case b.over >= guardGrace:
			if err := b.end(ctx, m, q.key); err != nil {
				q.blocked.who = err
			}
		case b.over > 0:
			q.blocked.who = errors.New(b.String())
		}
	}
	return q.blocked.named(busy)
}

// named adds to an error who is in the way.
func (b blocked) named(err error) error {
	if err == nil || b.who == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, b.who)
}
