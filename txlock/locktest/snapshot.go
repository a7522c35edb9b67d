package locktest

import (
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/dca00107/lockstep/txlock"
)

// savepoint is what the transaction has held at a savepoint.
type savepoint struct {
	name string
	held
	touched bool // the transaction had locked or read before
	opened  bool
	made    map[rowID]bool
}

// Snapshot says that the transaction reads data, by a plain SELECT: the first one makes
// its snapshot, as at REPEATABLE READ. A lock whose key somebody else has locked and
// committed since is txlock.ErrStaleSnapshot from then on. Call it where the stand-in of
// the data is read, for a test that finds out whether a program locks before it reads.
func (s *Scope) Snapshot() {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	s.read()
}

// seenRow is a row as a snapshot shows it.
type seenRow struct {
	version uint64
	changes int
}

// read makes the snapshot, under Memory.mu.
func (t *transaction) read() {
	t.touched, t.opened = true, true
	if t.snapshot != nil || t.readCommitted {
		return
	}
	t.snapshot = make(map[rowID]seenRow, len(t.memory.rows))
	for id, r := range t.memory.rows {
		t.snapshot[id] = seenRow{r.committed, r.changes}
	}
}

// stale returns txlock.ErrStaleSnapshot where the row of a key that was locked is newer
// than the snapshot.
func (t *transaction) stale(key txlock.Key, verb string) error {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	if err := t.older(t.memory.row(key)); err != nil {
		return fmt.Errorf("%s %q: %w", verb, key, err)
	}
	return nil
}

// older is stale under Memory.mu. On MySQL the library compares the versions, and the
// transaction goes on; a MariaDB compares the rows, and ends it.
func (t *transaction) older(r *memoryRow) error {
	old := t.snapshot[r.id]
	_, ours := t.raised[r.id]
	if t.snapshot == nil || ours || r.committed == old.version && (t.memory.mysql || r.changes == old.changes) {
		return nil
	}
	err := fmt.Errorf("%w: version %d in the snapshot, %d in the row", txlock.ErrStaleSnapshot, old.version, r.committed)
	if !t.memory.mysql {
		t.doom(err)
	}
	return err
}

// Savepoint stands in for SAVEPOINT, by which GORM nests transactions. It returns the
// error of a transaction that is over.
func (s *Scope) Savepoint(name string) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if s.ended {
		return sql.ErrTxDone
	}
	if s.over != nil {
		return fmt.Errorf("savepoint %s: %w", name, s.over)
	}
	s.savepoints = slices.DeleteFunc(s.savepoints, func(p savepoint) bool { return p.name == name })
	s.opened = true
	before := s.mark()
	before.name = name
	s.savepoints = append(s.savepoints, before)
	return nil
}

// mark notes what the transaction has, under Memory.mu.
func (t *transaction) mark() savepoint {
	made := make(map[rowID]bool)
	for id, r := range t.rows {
		made[id] = r.maker == t
	}
	return savepoint{held: t.clone(), touched: t.touched, opened: t.opened, made: made}
}

// RollbackTo stands in for ROLLBACK TO SAVEPOINT: what was locked since is not held any
// more, and asked for again by the next call, though nobody else gets it before the end
// of the transaction. It returns an error where there is no such savepoint, and that of a
// transaction that is over.
func (s *Scope) RollbackTo(name string) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if s.ended {
		return sql.ErrTxDone
	}
	if s.over != nil {
		return fmt.Errorf("roll back to savepoint %s: %w", name, s.over)
	}
	for i := len(s.savepoints) - 1; i >= 0; i-- {
		if s.savepoints[i].name == name {
			s.savepoints = s.savepoints[:i+1]
			s.held = s.savepoints[i].clone()
			s.undo(s.savepoints[i])
			return nil
		}
	}
	return fmt.Errorf("locktest: roll back to savepoint %s: there is none of that name", name)
}

func (h held) clone() held {
	return held{maps.Clone(h.grants), maps.Clone(h.bases), maps.Clone(h.raised), maps.Clone(h.onces)}
}

// undo frees the rows of which the server keeps no lock: all, where the transaction had done
// nothing before the savepoint, and those that it has made since, unless the server leaves
// it the gap where they were: at REPEATABLE READ, and on MariaDB if somebody has asked.
func (t *transaction) undo(to savepoint) {
	for id, r := range t.rows {
		made := r.maker == t && !to.made[id]
		gap := !t.readCommitted && (t.memory.mysql || r.asked)
		switch {
		case !to.touched || made && !gap:
			delete(t.rows, id)
			r.lose(t)
		case made:
			r.maker = nil
		}
	}
	if !to.touched {
		t.touched, t.snapshot = false, nil
	}
}
