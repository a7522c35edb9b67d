package locktest

import (
	"fmt"
	"maps"

	"github.com/dca00107/lockstep/txlock"
)

// savepoint is what the transaction has held at a savepoint.
type savepoint struct {
	name string
	held
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

// read makes the snapshot, under Memory.mu.
func (t *transaction) read() {
	if t.snapshot != nil {
		return
	}
	t.snapshot = make(map[rowID]uint64, len(t.memory.rows))
	for id, r := range t.memory.rows {
		t.snapshot[id] = r.committed
	}
}

// versions returns the version of a key as it was committed last, and as plain reads of
// the transaction show it.
func (t *transaction) versions(key txlock.Key) (current, old uint64) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	current = t.memory.row(key).committed
	if t.snapshot == nil {
		return current, current
	}
	return current, t.snapshot[rowOf(key)]
}

// Savepoint stands in for SAVEPOINT, by which GORM nests transactions. It returns the
// error of a transaction that is over.
func (s *Scope) Savepoint(name string) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if s.over != nil {
		return fmt.Errorf("savepoint %s: %w", name, s.over)
	}
	s.savepoints = append(s.savepoints, savepoint{name, s.clone()})
	return nil
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
	if s.over != nil {
		return fmt.Errorf("roll back to savepoint %s: %w", name, s.over)
	}
	for i := len(s.savepoints) - 1; i >= 0; i-- {
		if s.savepoints[i].name == name {
			s.savepoints = s.savepoints[:i+1]
			s.held = s.savepoints[i].clone()
			return nil
		}
	}
	return fmt.Errorf("locktest: roll back to savepoint %s: there is none of that name", name)
}

func (h held) clone() held { return held{maps.Clone(h.grants), maps.Clone(h.bases)} }
