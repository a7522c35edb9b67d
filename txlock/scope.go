package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// A Scope acquires and tracks the locks of one transaction. Several goroutines may use it; their
// locks are acquired one after the other. That doesn't apply to the program's own statements:
// while one goroutine reads rows of the transaction, or calls a method of the Scope (most of them
// read rows, with the procedures of MySQL even Lock), no other may send the transaction anything,
// including Exec. Otherwise go-sql-driver returns "busy buffer", and the connection, and with it
// the transaction, is lost. A Scope ends with the transaction and needs no closing.
type Scope struct {
	*state
	atMost time.Duration // the limit of WaitAtMost, 0 for the server's
	bad    error         // an option out of its range, to be said by every call
}

// state is what all views of a Scope share.
type state struct {
	tx      *rawsql.Text
	txState *guard.TxState     // nil on an unguarded pool
	unseen  bool               // on a guarded one, which has not seen it begin
	level   sql.IsolationLevel // by Began
	server  session.Server
	pooled

	sending sync.Mutex // held while a lock is taken, which may be several statements
	told    bool       // under it: that another transaction was the first of a key of Once
	runner  uintptr    // the goroutine that runs a function in the transaction, or 0
	unknown error      // under it: of a reply that isn't known, after which nothing is known

	mu             sync.Mutex // for the fields below
	held           map[record]hold
	fresh          bool              // NothingRead, good for the next lock
	requireGuarded bool              // RequireGuarded
	committed      bool              // on a guarded pool, with success
	followed       bool              // something follows the function that is called in it
	notUndone      error             // why what a function was to undo stays, nil if nothing does
	seen           map[record]uint64 // what Version has read last
	onces          map[string]keptOnce
	spots          []spot  // under inProgram.mu
	left           bool    // the same: leave was called
	oneSpot        [1]spot // for it, without an allocation
	last           Key     // asked for, where somebody watches
	gone           bool    // the transaction has ended, where somebody watches
	why            error   // the same: that of Ended
	afters         []after // of AfterCommit, in order
}

// hold is a lock that was given, and the stamp of the transaction state for it.
type hold struct {
	grant Grant
	stamp int
	since time.Time // where somebody watches

	base     uint64 // the version from which CompareAndBump has raised the token
	compared bool   // it was CompareAndBump
}

// WaitAtMost returns a view of the scope whose Lock, RLock, LockAll and CompareAndBump wait no
// longer than d, exactly even for fractions of a second, and then return ErrWaitTimeout; the
// transaction stays open. The limit applies only to the wait: a free lock is granted, however short
// the limit is. They keep their place in the server's queue while they wait. The default is the
// server's innodb_lock_wait_timeout, 50 s, which also ends a longer limit.
//
// MySQL limits only the wait of a SELECT, to at most 49 days. For a named key that this process
// hasn't used, for example because it was never committed, it waits for whole seconds, rounded up:
// Ensure avoids that. For the time of that wait the session has another innodb_lock_wait_timeout:
// if the transaction's context ends meanwhile, a guarded pool closes the connection, and the
// session of an unguarded one keeps the limit. TiDB always waits for whole seconds. A limit that
// ends in the moment in which the wait begins may be late, by up to a second on MySQL, and two on
// MariaDB. One that is not positive makes every call return ErrInvalidOption: TryLock doesn't wait.
func (s *Scope) WaitAtMost(d time.Duration) *Scope {
	view := &Scope{state: s.state, atMost: d, bad: s.bad}
	if d <= 0 {
		view.bad = fmt.Errorf("%w: WaitAtMost(%v): the limit must be positive, use TryLock to not wait at all", ErrInvalidOption, d)
	}
	return view
}

// Held returns the lock that the transaction holds on a key, exclusive or shared, without querying
// the server. A lock that was acquired after a savepoint doesn't count if the transaction has
// rolled back to that since, which may have released it: lock it again. One that was acquired
// before the savepoint stays. On an unguarded pool only locks of this scope are known, and
// savepoints are not.
func (s *Scope) Held(key Key) (Grant, bool) {
	if s.txState != nil && s.txState.Err() != nil {
		return Grant{}, false
	}
	h, certain := s.holdOf(key.record())
	return h.grant, certain
}

// Guarded reports whether the transaction is on a guarded pool, which tracks its state. A wrapper
// around such a pool that drops the context of what it passes on makes it an unguarded one.
func (s *Scope) Guarded() bool { return s.txState != nil }

// Verify asks the server whether the transaction is still open, and so whether the grants still
// hold. It returns ErrTxDoomed if a deadlock, DDL or the like has ended it, and ErrNoTransaction
// after Commit and Rollback. It changes nothing in the transaction, including its savepoints. On an
// unguarded pool it doesn't notice a transaction that statements have ended and replaced by another
// one.
func (s *Scope) Verify(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.probe(ctx); err != nil {
		return s.failed("verify", err)
	}
	return nil
}

// usable returns why no call with the context sends anything, or nil.
func (s *Scope) usable(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	return s.bad
}

// own marks the context of a statement as the scope's.
func (s *state) own(ctx context.Context, c guard.Call) context.Context {
	if s.txState == nil {
		return ctx
	}
	c.Tx = s.txState
	return guard.WithCall(ctx, c)
}

// stamp numbers a lock that is about to be taken, where savepoints are known.
func (s *state) stamp() int {
	if s.txState == nil {
		return 0
	}
	return s.txState.Stamp()
}

// holdOf returns what is held of a record, and whether it is for certain: no
// savepoint from before it was rolled back since.
func (s *state) holdOf(r record) (h hold, certain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[r]
	return h, ok && (s.txState == nil || s.txState.Stands(h.stamp))
}

// keep tells the observer of a lock that was given, and notes it, also where the observer panics.
func (s *state) keep(ctx context.Context, r record, h hold, asked asked) {
	s.mu.Lock()
	_, again := s.held[r]
	s.mu.Unlock()
	if s.watch != nil {
		h.since = time.Now()
	}
	defer s.note(r, h, again)
	s.granted(ctx, h, again, asked)
}

// note notes a lock.
func (s *state) note(r record, h hold, again bool) {
	s.mu.Lock()
	if s.held == nil {
		s.held = make(map[record]hold, 4)
	}
	if old := s.held[r]; old.grant.token == h.grant.token {
		h.base, h.compared = old.base, old.compared
	}
	s.held[r] = h
	first, gone, why := len(s.held) == 1, s.gone, s.why
	s.mu.Unlock()
	if gone && !again { // by the end of its context, since the reply came
		s.tellEnd(why, h)
	}
	s.settle(h.grant.key, h.grant.shared, false)
	if first && s.txState != nil {
		s.txState.Hold()
	}
}

// reenter answers a request for what is held already, and refuses an upgrade.
func (s *state) reenter(ctx context.Context, key Key, r record, shared bool) (h hold, done bool, err error) {
	if s.txState != nil {
		if err := s.txState.Err(); err != nil {
			return hold{}, false, s.failure("lock", key, err)
		}
	}
	h, certain := s.holdOf(r)
	if certain && h.grant.shared && !shared {
		if err := s.stillOpen(ctx); err != nil {
			return hold{}, false, s.failure("lock", key, err)
		}
		return hold{}, false, fmt.Errorf("lock %q: %w: lock it exclusively from the start", key, ErrUpgrade)
	}
	if certain && s.txState != nil {
		return h, true, nil
	}
	return h, false, nil
}

// stillOpen makes sure on an unguarded pool that the transaction was not ended by a statement of
// the program. A guarded pool sees to it with every statement.
func (s *state) stillOpen(ctx context.Context) error {
	if s.txState != nil {
		return nil
	}
	return s.probe(ctx)
}

// probe asks the server whether the transaction is open.
func (s *state) probe(ctx context.Context) error {
	if s.unknown != nil {
		return s.unknown
	}
	open, err := s.open(ctx)
	if err == nil && !open {
		err = fmt.Errorf("%w: %w", ErrTxDoomed, fault.ErrUnseen)
	}
	return err
}

// open asks the server whether a transaction is open.
func (s *state) open(ctx context.Context) (bool, error) {
	if s.server.Began != "" {
		var began uint64
		err := s.tx.DBTX.QueryRowContext(s.own(ctx, guard.Call{}), s.server.Began).Scan(&began)
		return began > 0, err
	}
	_, reply := s.tx.DBTX.ExecContext(s.own(ctx, guard.Call{}), rawsql.Probe)
	return openBy(s.tx.DBTX, reply)
}

// failure is the error of a call, with what it has done to the transaction.
func (s *state) failure(verb string, key Key, err error) error {
	return s.failed(fmt.Sprintf("%s %q", verb, fault.Clipped(key.name)), err)
}

// failed is failure for what concerns no single key.
func (s *state) failed(what string, err error) error {
	if errors.Is(err, fault.ErrReply) && !errors.Is(err, ErrTxDoomed) {
		err = fmt.Errorf("%w, and nothing more is sent: %w", ErrTxDoomed, err)
		if s.unknown = err; s.txState != nil {
			s.txState.Abort(err)
		}
	}
	err = fault.Of(what, err, s.server)
	if s.txState == nil && fault.Retryable(err) {
		return ofLock{err, s.tx.DBTX}
	}
	if s.txState == nil || errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrDeadlock) || errors.Is(err, ErrStaleSnapshot) || errors.Is(err, ErrNoTransaction) {
		return err
	}
	if why := s.txState.Err(); why != nil && !errors.Is(err, ErrTxDoomed) {
		return fmt.Errorf("%w: %w", err, ErrTxDoomed)
	}
	return err
}

// mayHaveSnapshot reports whether the snapshot check is needed.
func (s *state) mayHaveSnapshot() bool {
	if s.txState != nil {
		return s.txState.MayHaveSnapshot()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.fresh
	s.fresh = false
	return !fresh
}
