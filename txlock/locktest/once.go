package locktest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/txlock"
)

// once is what package txlock does for this one.
var once = inside.OnceOf[*txlock.Scope, txlock.Key, txlock.OnceOption]()

// onceRow is the content of the row of a key of Once.
type onceRow struct {
	fingerprint []byte // nil for none
	expires     time.Time
}

// onceKey is the key of the row, which no lock has.
func onceKey(key txlock.Key) txlock.Key { return txlock.Named("lockstep:once:" + key.String()) }

// Once is that of txlock.Scope. The time of Keep is that of package time; nothing lets it
// begin anew before Commit.
func (s *Scope) Once(ctx context.Context, key txlock.Key, options ...txlock.OnceOption) (first bool, err error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	keep, fingerprint, err := once.Asked(options)
	if err != nil {
		return false, err
	}
	if s.bad != nil {
		return false, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	row, asked := onceKey(key), time.Now()
	if _, _, err := s.reenter(row, false); err != nil {
		return false, err
	}
	if _, err := s.lock(ctx, row, ask{verb: "ask", atMost: s.atMost, compares: true, inside: true}); err != nil {
		return false, err
	}
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if s.over != nil {
		return false, fmt.Errorf("once %q: %w", key, s.over)
	}
	id := rowOf(row)
	old, there := s.onces[id]
	if !there {
		old, there = s.memory.onces[id]
	}
	switch {
	case !there || !old.expires.After(asked):
		s.onces[id] = onceRow{fingerprint, asked.Add(keep)}
		return true, nil
	case fingerprint != nil && old.fingerprint != nil && !bytes.Equal(fingerprint, old.fingerprint):
		return false, fmt.Errorf("once %q: %w", key, txlock.ErrMismatch)
	}
	return false, nil
}

// SweepOnce stands in for txlock.SweepOnce.
func (m *Memory) SweepOnce(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("sweep once: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.onces)
	maps.DeleteFunc(m.onces, func(id rowID, row onceRow) bool {
		r := m.rows[id]
		free := r == nil || len(r.holders) == 0
		if free && r != nil && !row.expires.After(time.Now()) {
			r.exists = false
		}
		return free && !row.expires.After(time.Now())
	})
	return before - len(m.onces), nil
}
