package sqlstore

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// Blockers returns the open transactions that have written rows of a key. It reads
// uncommitted data, then committed data, then uncommitted data again. What it finds in
// both uncommitted reads and not in the committed one was never committed in between, so
// its transaction was open all the time. Where nothing uncommitted can be read, it returns none.
func (s *Store) Blockers(ctx context.Context, key string) ([]store.Blocker, error) {
	if s.clock.engine().CommittedOnly {
		return nil, nil
	}
	first, err := s.uncommittedOf(ctx, key)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	committed, err := s.writtenOf(ctx, key)
	if err != nil {
		return nil, err
	}
	again, err := s.uncommittedOf(ctx, key)
	if err != nil {
		return nil, err
	}
	var all []store.Blocker
	for w, over := range again {
		_, before := first[w]
		if _, done := committed[w]; before && !done {
			all = append(all, store.Blocker{Written: w, Over: over})
		}
	}
	return all, nil
}

// uncommittedOf is writtenOf including what is not committed yet.
func (s *Store) uncommittedOf(ctx context.Context, key string) (found map[store.Written]time.Duration, err error) {
	err = uncommitted(ctx, s.pool, func(tx gen.DBTX) (err error) {
		found, err = session{db: tx, s: s}.writtenOf(ctx, key)
		return err
	})
	return found, err
}

// writtenOf reads what transactions have written to the rows of a key, and for how long
// each lease has been over.
func (s session) writtenOf(ctx context.Context, key string) (map[store.Written]time.Duration, error) {
	rows, err := queries.LeaseTransactions(ctx, s.db, []byte(key))
	found := make(map[store.Written]time.Duration, len(rows))
	for _, r := range rows {
		found[store.Written{Slot: r.Slot, Token: r.Token, Guards: r.Guards, Session: r.ConnID}] = micros(r.OverUs)
	}
	return found, err
}

// End ends the session of a transaction by KILL, if what it has written is still there.
func (s *Store) End(ctx context.Context, key string, b store.Blocker) error {
	err := uncommitted(ctx, s.pool, func(tx gen.DBTX) error {
		found, err := session{db: tx, s: s}.writtenOf(ctx, key)
		if _, open := found[b.Written]; err != nil || !open {
			return err
		}
		_, err = tx.ExecContext(ctx, rawsql.Kill(b.Session))
		return err
	})
	if fault.NoSession(err) {
		return nil
	}
	return err
}
