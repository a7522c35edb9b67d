package txlock

import "fmt"

// after is a function of AfterCommit, and the stamp of the transaction state for it.
type after struct {
	fn    func()
	stamp int
}

// AfterCommit calls fn once, after the transaction is committed: to send a message about what is
// written, or to empty a cache. The functions of a transaction are called one after the other, in
// the order of their registration. None is called if the transaction is rolled back, if the server
// refuses COMMIT, and if the commit outcome is unknown (ErrUnknownOutcome): a process may also die
// before it has called them. What must not be lost belongs in a row of the transaction. Nor is a
// function called if it was registered after a savepoint to which the transaction has rolled back
// since, or may have, or in an attempt that Run or the like retries: the next attempt registers its
// own.
//
// The locks are free when fn is called; the lease of a tick is still held. Run, Optimistic, Once,
// OnceHandler, TickTx and lockgorm's Transaction call the functions when the connection is back in
// the pool, and then return; if their own function panics, they call none. In a transaction that
// the program commits itself, Commit returns when it has started a goroutine that calls them,
// because only then can fn get the connection. If fn panics, the others are still called, and the
// panic is propagated: the transaction stays committed.
//
// It returns ErrUnguarded on a pool that isn't guarded, which sees neither the outcome nor the
// savepoints; ErrInvalidOption for nil; and ErrTxDoomed and ErrNoTransaction for a transaction
// that has ended, which may be committed: after one of these, fn isn't called. AfterCommit sends
// nothing. From then on, Commit returns ErrTxDoomed if a statement has ended the transaction
// before, as it does for locks.
func (s *Scope) AfterCommit(fn func()) error {
	switch {
	case fn == nil:
		return fmt.Errorf("%w: AfterCommit needs a function, got nil", ErrInvalidOption)
	case s.bad != nil:
		return s.bad
	case s.txState == nil:
		return fmt.Errorf("AfterCommit: %w: use locksqlc.Open or lockgorm.Open, or call the function when Commit or Run has returned nil", ErrUnguarded)
	}
	s.txState.Hold()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.txState.Err(); err != nil { // under the lock: takeAfters runs after the end
		return s.failed("AfterCommit", err)
	}
	s.afters = append(s.afters, after{fn, s.txState.Stamp()})
	return nil
}

// AfterCommit calls the functions of Scope.AfterCommit that still count, if the transaction is
// known to be committed and they were not called before. The caller of Runs calls it when the
// transaction has ended and its connection is back in the pool. The scope may be nil.
func (internals) AfterCommit(s *Scope) {
	if s != nil && s.over() {
		callAll(s.takeAfters())
	}
}

// takeAfters returns the functions that are to be called, once.
func (s *state) takeAfters() []func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fns []func()
	for _, a := range s.afters {
		if s.txState.Stands(a.stamp) {
			fns = append(fns, a.fn)
		}
	}
	s.afters = nil
	return fns
}

// callAll calls functions one after the other, also behind one that panics.
func callAll(fns []func()) {
	if len(fns) == 0 {
		return
	}
	defer callAll(fns[1:])
	fns[0]()
}
