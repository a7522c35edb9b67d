package locktest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Scope stands in for txlock.Scope: the locks of one transaction, which is open from
// Memory.Begin to Commit or Rollback. It has no data: of what the test's own code does
// with data it is told by Snapshot, Savepoint and RollbackTo. Otherwise its methods do
// and return what those of txlock.Scope do on a guarded pool.
type Scope struct {
	*transaction
	atMost time.Duration
	bad    error
}

// transaction is what the views of a Scope share.
type transaction struct {
	memory  *Memory
	begun   *Scope
	sending sync.Mutex // held during a call, as on a connection

	readCommitted bool

	// Under Memory.mu.
	held
	savepoints []savepoint
	touched    bool                 // it has locked or read
	opened     bool                 // its BEGIN was sent, with a statement or before one
	snapshot   map[rowID]seenRow    // what plain reads show; nil: none was made
	seen       map[rowID]uint64     // those that Version has shown
	rows       map[rowID]*memoryRow // that it has locked, granted or not
	over       error                // why nothing can be locked any more
	ended      bool                 // by Commit or Rollback
	next       error                // of FailNext
}

// held is what a transaction holds.
type held struct {
	grants map[rowID]txlock.Grant
	bases  map[rowID]uint64 // the versions that CompareAndBump was granted for
	raised map[rowID]uint64 // the tokens that it has written, granted or not
	onces  map[rowID]onceRow
}

// Begin begins a transaction at REPEATABLE READ.
func (m *Memory) Begin() *Scope { return m.begin(false) }

// BeginTx begins a transaction at REPEATABLE READ, the default, or READ COMMITTED.
func (m *Memory) BeginTx(options *sql.TxOptions) (*Scope, error) {
	level := sql.LevelDefault
	if options != nil {
		level = options.Isolation
	}
	switch level {
	case sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelReadCommitted:
		return m.begin(level == sql.LevelReadCommitted), nil
	}
	return nil, fmt.Errorf("%w: locktest has no transactions at %v", txlock.ErrInvalidOption, level)
}

func (m *Memory) begin(readCommitted bool) *Scope {
	s := &Scope{transaction: &transaction{
		memory: m, readCommitted: readCommitted, rows: make(map[rowID]*memoryRow), seen: make(map[rowID]uint64),
		held: held{make(map[rowID]txlock.Grant), make(map[rowID]uint64), make(map[rowID]uint64), make(map[rowID]onceRow)},
	}}
	s.begun = s
	return s
}

// Commit ends the transaction and frees its locks. It returns txlock.ErrTxDoomed for one
// that was over before, and sql.ErrTxDone when it is called again.
func (s *Scope) Commit() error { return s.end(true) }

// Rollback ends the transaction and frees its locks. It returns sql.ErrTxDone when it is
// called again.
func (s *Scope) Rollback() error { return s.end(false) }

// AwaitWaiting returns when a call on this scope waits for a lock, or with the error of
// the context.
func (s *Scope) AwaitWaiting(ctx context.Context) error {
	return s.memory.await(ctx, func() bool {
		for _, r := range s.memory.rows {
			if slices.ContainsFunc(r.queue, func(w *rowWait) bool { return w.tx == s.transaction }) {
				return true
			}
		}
		return false
	})
}

// FailNext makes the next call that takes a lock return an error, txlock.ErrStaleSnapshot
// for example. After txlock.ErrDeadlock and ErrTxDoomed the transaction is over.
func (s *Scope) FailNext(err error) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	s.next = err
}

// WaitAtMost is that of txlock.Scope, by the clock of the Memory.
func (s *Scope) WaitAtMost(d time.Duration) *Scope {
	view := &Scope{transaction: s.transaction, atMost: d}
	if d <= 0 {
		view.bad = fmt.Errorf("%w: WaitAtMost(%v): the limit must be positive, use TryLock to not wait at all", txlock.ErrInvalidOption, d)
	}
	return view
}

// Lock is that of txlock.Scope.
func (s *Scope) Lock(ctx context.Context, key txlock.Key) (txlock.Grant, error) {
	return s.one(ctx, key, ask{verb: "lock", atMost: s.atMost})
}

// TryLock is that of txlock.Scope.
func (s *Scope) TryLock(ctx context.Context, key txlock.Key) (txlock.Grant, error) {
	return s.one(ctx, key, ask{verb: "try to lock", try: true})
}

// RLock is that of txlock.Scope.
func (s *Scope) RLock(ctx context.Context, key txlock.Key) (txlock.Grant, error) {
	return s.one(ctx, key, ask{verb: "lock shared", shared: true, atMost: s.atMost})
}

// TryRLock is that of txlock.Scope.
func (s *Scope) TryRLock(ctx context.Context, key txlock.Key) (txlock.Grant, error) {
	return s.one(ctx, key, ask{verb: "try to lock shared", shared: true, try: true})
}

// Held is that of txlock.Scope.
func (s *Scope) Held(key txlock.Key) (txlock.Grant, bool) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	grant, held := s.grants[rowOf(key)]
	return grant, held && s.over == nil
}

// Verify is that of txlock.Scope.
func (s *Scope) Verify(context.Context) error {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	s.opened = true
	if err := s.sent(); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

// sent is the error of a statement that is sent without a look at the book.
func (t *transaction) sent() error {
	if t.ended {
		return fmt.Errorf("%w: %w", errEnded, sql.ErrTxDone)
	}
	return t.over
}

var errEnded = fmt.Errorf("%w: it was committed or rolled back", txlock.ErrNoTransaction)

// end ends the transaction.
func (t *transaction) end(commit bool) error {
	t.sending.Lock()
	defer t.sending.Unlock()
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	if t.ended {
		return sql.ErrTxDone
	}
	doomed := t.over
	t.ended = true
	if doomed != nil && commit {
		return doomed
	}
	if doomed == nil {
		t.over = errEnded
		t.free(commit)
	}
	return nil
}
