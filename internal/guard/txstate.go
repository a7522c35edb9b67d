package guard

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/session"
)

// TxState is the state of one transaction. The connection writes it. Any goroutine that shares
// the transaction may read it.
type TxState struct {
	pool      *connector
	server    session.Server
	isolation sql.IsolationLevel
	session   sql.IsolationLevel // that of the session, where it is known to be the transaction's
	direct    bool               // the connection is the driver's own; see Direct
	owned     bool               // begun by BeginTx, not as text
	chosen    bool               // the isolation level, by Choose

	mu             sync.Mutex
	reads          bool  // a statement ran that may have taken the snapshot
	aborted        error // the server has ended it: nothing more is sent
	endedByProgram error // the program itself has ended it by a statement
	committed      error // why it, or what followed it, was committed before its end, or may have been
	finished       bool  // a lock statement has committed it, or is about to
	ended          bool  // Commit or Rollback has run
	scope          Scope
	held           bool // the scope holds locks
	savepoints     savepoints
	fences         map[string]int // the stamps of Fence, by name
}

// newTxState returns the state of a transaction that begins.
func (c *conn) newTxState() *TxState {
	t := &TxState{pool: c.pool, server: c.server, direct: c.status.flags.IsValid()}
	if t.session = c.status.level; t.session == sql.LevelDefault && !c.old {
		t.session = c.facts.Isolation
	}
	return t
}

// Scope is what package txlock keeps with a transaction.
type Scope interface {
	// Committed is called after a commit that succeeded.
	Committed()
	// Ended is called when the transaction ends, before the server frees its locks. Why
	// is nil, or what has ended the transaction on the server before.
	Ended(why error)
	// Unanswered is called after Ended if nobody knows whether the transaction was committed.
	Unanswered(why error)
}

// ErrReads is returned for a statement with Call.Fresh when the transaction may have a
// snapshot. Nothing was sent.
var ErrReads = errors.New("a statement has run in this transaction")

// Value returns Options.Value.
func (t *TxState) Value() any { return t.pool.options.Value }

// Direct reports whether statements go to the driver as they are: it has no wrapper, which
// might treat a text without arguments in another way.
func (t *TxState) Direct() bool { return t.direct }

// Server returns what is known of the server.
func (t *TxState) Server() session.Server { return t.server }

// MayHaveSnapshot reports whether plain reads can show data that is older than a lock taken
// now: a statement has run that may have taken the transaction's snapshot, or BEGIN
// has taken it, and the isolation level isn't known to read without one.
func (t *TxState) MayHaveSnapshot() bool {
	switch t.isolation {
	case sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelSerializable:
		return t.Unchecked()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reads || t.server.SnapshotAtBegin
}

// Unchecked reports whether something was read at the level that Choose has chosen: the program has
// not asked for it, and no snapshot shows any more whether that is older than a lock taken now.
func (t *TxState) Unchecked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chosen && t.reads
}

// unfit returns why no lock would hold in the transaction, whatever the session: on TiDB one that
// was begun as text may be optimistic or old, and there are two isolation levels; Vitess may ignore
// a level.
func (t *TxState) unfit() error {
	lacks := t.server.Lacks
	switch {
	case lacks.Begin != "" && !t.owned:
		return session.Lacks(t.server.Engine, lacks.Begin)
	case lacks.Levels == "" || t.isolation == sql.LevelDefault || strings.Contains(t.server.Levels, t.isolation.String()):
		return nil
	}
	return session.Lacks(t.server.Engine, lacks.Levels+t.isolation.String())
}

// MayReadUncommitted reports whether plain reads may show what others have not committed.
func (t *TxState) MayReadUncommitted() bool { return t.at(sql.LevelReadUncommitted) || t.anyLevel() }

// ReadsCommitted reports whether plain reads are known to take no snapshot.
func (t *TxState) ReadsCommitted() bool { return t.at(sql.LevelReadCommitted) }

// MayBeSerializable reports whether plain reads may lock what they read.
func (t *TxState) MayBeSerializable() bool { return t.at(sql.LevelSerializable) || t.anyLevel() }

// anyLevel reports whether nobody knows the isolation level: a statement before BEGIN may have chosen
// it.
func (t *TxState) anyLevel() bool {
	return t.isolation == sql.LevelDefault && t.session <= sql.LevelDefault
}

// at reports whether the transaction is known to have that isolation level.
func (t *TxState) at(level sql.IsolationLevel) bool {
	return t.isolation == level || t.isolation == sql.LevelDefault && t.session == level
}

// Stamp returns a number for a lock that is about to be taken; see Stands.
func (t *TxState) Stamp() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.savepoints.stamp()
}

// Stands reports whether the lock of that stamp is still held for certain: no ROLLBACK TO a
// savepoint that is older than the lock has run since.
func (t *TxState) Stands(stamp int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.savepoints.stands(stamp)
}

// Err returns why the transaction can't take or hold locks any more, or nil.
func (t *TxState) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.aborted != nil:
		return t.aborted
	case t.endedByProgram != nil:
		return t.endedByProgram
	case t.ended, t.finished:
		return fault.ErrEnded
	}
	return nil
}

// Committed returns an error if the transaction was committed before its end, in whole or
// in part, or may have been, or if its program has rolled it back by a statement, after which
// others commit by themselves: then it must not be run again.
func (t *TxState) Committed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.committed
}

// Scope returns the scope of the transaction, and makes it on first use.
func (t *TxState) Scope(make func() Scope) Scope {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.scope == nil {
		t.scope = make()
	}
	return t.scope
}

// Hold notes that the transaction holds locks: from now on Commit fails if the
// transaction was ended before.
func (t *TxState) Hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = true
}

// Fence notes that the transaction has locked a row and must not be committed without
// that lock. The name stands for the row, the stamp for the lock; see Stands.
func (t *TxState) Fence(name string, stamp int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fences == nil {
		t.fences = make(map[string]int, 1)
	}
	t.fences[name] = stamp
	t.held = true
}

// Fenced reports whether the row of that name is still locked for certain.
func (t *TxState) Fenced(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp, ok := t.fences[name]
	return ok && t.savepoints.stands(stamp)
}

// unfenced returns the name of a fence whose lock may be gone since a ROLLBACK TO
// SAVEPOINT.
func (t *TxState) unfenced() (name string, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, stamp := range t.fences {
		if !t.savepoints.stands(stamp) {
			return name, true
		}
	}
	return "", false
}

// refuse returns why a statement of the program must not be sent, or nil.
func (t *TxState) refuse() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.aborted == nil && t.finished {
		return fault.ErrEnded
	}
	return t.aborted
}

// abort stops the transaction. The first reason stays, but if the transaction was
// committed, or may have been, that is added to it: such a transaction must never be run
// again. It returns whether this is the first reason.
func (t *TxState) abort(why error, committed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, before := t.aborted == nil, t.committed
	if first {
		t.aborted = why
	}
	if before == nil && committed {
		t.committed = why
	}
	if t.committed != nil && (first || before == nil) && !errors.Is(t.aborted, t.committed) {
		t.aborted = fmt.Errorf("%w: %w", t.committed, t.aborted)
	}
	return first
}

// Abort stops the transaction after a lock statement whose reply isn't known; see fault.ErrReply.
func (t *TxState) Abort(why error) { t.abort(why, t.Finished()) }

// markEndedByProgram notes that the program has ended the transaction: its locks are gone, its
// statements are still sent.
func (t *TxState) markEndedByProgram(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.endedByProgram == nil {
		t.endedByProgram = why
	}
	if t.committed == nil {
		t.committed = why
	}
}

// end notes the end of the transaction, and notifies the scope.
func (t *TxState) end() {
	t.mu.Lock()
	scope, why := t.scope, cmp.Or(t.aborted, t.endedByProgram)
	if t.ended {
		scope = nil
	}
	t.ended = true
	t.mu.Unlock()
	if scope != nil {
		scope.Ended(why)
	}
}

// notifyCommitted tells the scope that the commit has succeeded.
func (t *TxState) notifyCommitted() {
	t.mu.Lock()
	scope := t.scope
	t.mu.Unlock()
	if scope != nil {
		scope.Committed()
	}
}

// outcome returns what the COMMIT of a transaction that is over has failed with, and tells
// the scope if nobody knows whether it has.
func (t *TxState) outcome(err error) error {
	if fault.NotCommitted(err) {
		return err
	}
	err = fault.Outcome(err)
	t.mu.Lock()
	scope := t.scope
	t.mu.Unlock()
	if scope != nil {
		scope.Unanswered(err)
	}
	return err
}

// used reports whether package txlock has joined the transaction.
func (t *TxState) used() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.scope != nil
}

// holds reports whether the transaction holds locks.
func (t *TxState) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// ran notes a statement of the program that the server has executed, or has failed to
// execute.
func (t *TxState) ran(s statement, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s.kind {
	case kindUncertain, kindPlain:
		t.reads = true
	}
	if s.unseen {
		t.savepoints.unseen()
	}
	if failed {
		return
	}
	switch s.kind {
	case kindSavepoint:
		t.savepoints.set(s.savepoint)
	case kindRelease:
		t.savepoints.release(s.savepoint)
	case kindRollbackTo:
		t.savepoints.rollBackTo(s.savepoint)
	}
}
