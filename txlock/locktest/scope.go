package locktest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/marks"
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
}

// memoryRow is the row of a key.
type memoryRow struct {
	exists          bool         // it was committed
	known           bool         // and the library knows
	maker           *transaction // who has made it and not committed
	last, committed uint64       // tokens
	changes         int          // how often it was committed
	owner           string       // of the last, and when that was
	locked          time.Time
	holders         map[*transaction]bool // true: shared
	queue           []*rowWait
}

// rowWait is a call that waits for a row.
type rowWait struct {
	tx     *transaction
	key    txlock.Key
	owner  string
	shared bool
	done   chan error // of one place
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
		held: held{grants: make(map[rowID]txlock.Grant), bases: make(map[rowID]uint64)},
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

// LockAll is that of txlock.Scope.
func (s *Scope) LockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error) {
	if err := checkKeys(keys); err != nil {
		return nil, err
	}
	if s.bad != nil {
		return nil, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	for _, key := range keys {
		if _, _, err := s.reenter(key, false); err != nil {
			return nil, err
		}
	}
	end := s.memory.Now().Add(s.atMost)
	given := make(map[rowID]txlock.Grant, len(keys))
	for _, key := range slices.SortedFunc(slices.Values(keys), compareRows) {
		if _, done := given[rowOf(key)]; done {
			continue
		}
		q := ask{verb: "lock all from"}
		if s.atMost > 0 {
			q.atMost = max(1, end.Sub(s.memory.Now()))
		}
		grant, err := s.take(ctx, key, q)
		if err != nil {
			return nil, err
		}
		given[rowOf(key)] = grant
	}
	grants := make([]txlock.Grant, len(keys))
	for i, key := range keys {
		s.keep(key, given[rowOf(key)])
		grants[i] = txlock.NewGrant(key, given[rowOf(key)].Token(), false)
	}
	return grants, nil
}

// LockAny is that of txlock.Scope.
func (s *Scope) LockAny(ctx context.Context, keys ...txlock.Key) (txlock.Grant, error) {
	if err := checkKeys(keys); err != nil {
		return txlock.Grant{}, err
	}
	for _, key := range keys {
		grant, err := s.TryLock(ctx, key)
		if !errors.Is(err, txlock.ErrBusy) {
			return grant, err
		}
	}
	return txlock.Grant{}, fmt.Errorf("lock any of %d keys: %w", len(keys), txlock.ErrBusy)
}

// Version is that of txlock.Scope at REPEATABLE READ, the default of the servers: it is
// a plain read, and makes the snapshot if there is none.
func (s *Scope) Version(ctx context.Context, key txlock.Key) (uint64, error) {
	if err := key.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("read the version of %q: %w", key, err)
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if err := s.sent(); err != nil {
		return 0, fmt.Errorf("read the version of %q: %w", key, err)
	}
	s.read()
	id := rowOf(key)
	version := s.snapshot[id].version
	if s.snapshot == nil {
		version = s.memory.row(key).committed
	}
	if grant, held := s.grants[id]; held && !grant.Shared() {
		version = grant.Token()
	}
	s.seen[id] = version
	return version, nil
}

// CompareAndBump is that of txlock.Scope.
func (s *Scope) CompareAndBump(ctx context.Context, key txlock.Key, version uint64) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if s.bad != nil {
		return s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	id := rowOf(key)
	seen, ok := s.seen[id] // written in calls only, one at a time
	saw := ok && seen == version
	conflict := fmt.Errorf("compare and bump %q: %w: it is not %d any more", key, txlock.ErrConflict, version)
	if !saw {
		conflict = fmt.Errorf("%w: %w", conflict, marks.ErrGiven)
	}
	grant, held, err := s.reenter(key, false)
	if err != nil {
		return err
	}
	if held {
		if base, compared := s.bases[id]; version != grant.Token() && (!compared || version != base) {
			return conflict
		}
		return nil
	}
	if _, old := s.versions(key); s.snapshot != nil && !saw && old > version {
		return conflict
	}
	if grant, err = s.take(ctx, key, ask{verb: "compare and bump", atMost: s.atMost, compares: true}); err != nil {
		return err
	}
	current, old := s.versions(key)
	switch {
	case current != version:
		return conflict // the row stays locked until the end of the transaction
	case old != version && !saw:
		return fmt.Errorf("compare and bump %q: %w", key, txlock.ErrStaleSnapshot)
	}
	s.keep(key, grant)
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	s.bases[id] = version
	return nil
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
	if err := s.sent(); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

// sent is the error of a statement that is sent without a look at the book.
func (t *transaction) sent() error {
	if t.ended {
		return fmt.Errorf("%w: %w", t.over, sql.ErrTxDone)
	}
	return t.over
}

// checkKeys returns txlock.ErrInvalidKey for the first key that can't be locked.
func checkKeys(keys []txlock.Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("%w: no key was given", txlock.ErrInvalidKey)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// compareRows is the order in which LockAll takes keys.
func compareRows(a, b txlock.Key) int {
	return cmp.Or(cmp.Compare(rowOf(a).slot, rowOf(b).slot), cmp.Compare(rowOf(a).name, rowOf(b).name))
}

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
	t.ended, t.over = true, fmt.Errorf("%w: it was committed or rolled back", txlock.ErrNoTransaction)
	t.free(commit && doomed == nil)
	if commit && doomed != nil {
		return doomed
	}
	return nil
}
