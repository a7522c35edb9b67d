package guard

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Tx is the book of one transaction. The connection writes it; what shares the
// transaction may read it from any goroutine.
type Tx struct {
	pool      *connector
	server    Server
	isolation sql.IsolationLevel
	owned     bool // begun by BeginTx, ended by Commit or Rollback of database/sql

	mu         sync.Mutex
	reads      bool  // a statement ran that may have fixed the snapshot
	doomed     error // the server has ended it: nothing more is sent
	severed    error // the program itself has ended it by a statement
	committed  error // why it was committed before its end, or may have been
	ended      bool  // Commit or Rollback has run
	scope      Scope
	held       bool // the scope holds locks
	savepoints savepoints
	fences     map[string]int // the stamps of Fence
}

// Scope is what the locks keep with a transaction.
type Scope interface {
	// Committed is called after a commit that succeeded.
	Committed()
	// Ended is called when the transaction ends, before the server has freed
	// what it holds. Why is nil, or what had ended it before on the server.
	Ended(why error)
}

// ErrEnded is returned for a lock's statement whose transaction is over.
var ErrEnded = errors.New("the transaction has been committed or rolled back")

// ErrReads is returned for a statement that was to be sent only while nothing
// had been read in the transaction. Nothing was sent.
var ErrReads = errors.New("a statement has run before in this transaction")

// ErrOpenRows is returned for a lock's statement while rows are open on the
// connection, which would break it. Nothing was sent.
var ErrOpenRows = errors.New("rows are still open on this transaction")

// Kept returns what the pool keeps for its transactions.
func (t *Tx) Kept() any { return t.pool.rules.Kept }

// Server returns what is known of the server.
func (t *Tx) Server() Server { return t.server }

// MayHaveSnapshot tells whether a plain read can show data from before a lock
// that is taken now: a statement has run that may have fixed the transaction's
// snapshot, and the isolation level is not known to read without one.
func (t *Tx) MayHaveSnapshot() bool {
	switch t.isolation {
	case sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelSerializable:
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reads
}

// Stamp numbers a lock that is about to be taken, for Stands.
func (t *Tx) Stamp() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.savepoints.stamp()
}

// Stands tells whether the lock of that stamp has seen no ROLLBACK TO a savepoint from
// before it, which may have freed it.
func (t *Tx) Stands(stamp int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.savepoints.stands(stamp)
}

// Err returns why no lock can be taken or held in the transaction any more.
func (t *Tx) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.doomed != nil:
		return t.doomed
	case t.severed != nil:
		return t.severed
	case t.ended:
		return ErrEnded
	}
	return nil
}

// Committed returns why the transaction was committed before its end, or may have been,
// in whole or in part: then it must not be started again.
func (t *Tx) Committed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.committed
}

// Scope returns what is kept with the transaction, made on first use.
func (t *Tx) Scope(make func() Scope) Scope {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.scope == nil {
		t.scope = make()
	}
	return t.scope
}

// Hold says that the transaction holds locks: from now on its Commit makes sure
// that it was open to the end.
func (t *Tx) Hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = true
}

// Fence says that the transaction has locked a row, of the given name, without
// which it must not be committed. The stamp is that of the lock: when it doesn't stand
// any more, the lock may be gone.
func (t *Tx) Fence(name string, stamp int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fences == nil {
		t.fences = make(map[string]int, 1)
	}
	t.fences[name] = stamp
	t.held = true
}

// Fenced tells whether the row of that name is locked for certain.
func (t *Tx) Fenced(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp, ok := t.fences[name]
	return ok && t.savepoints.stands(stamp)
}

// unfenced returns the name of a fence that a savepoint may have taken down.
func (t *Tx) unfenced() (name string, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, stamp := range t.fences {
		if !t.savepoints.stands(stamp) {
			return name, true
		}
	}
	return "", false
}

// refuse returns why a statement of the program may not be sent.
func (t *Tx) refuse() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.doomed
}

// doom stops the transaction; the first reason stays, but for the news that it was
// committed, or may have been: then it is never to be started again, whatever has ended
// what followed. It tells whether this is the first reason.
func (t *Tx) doom(why error, committed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, before := t.doomed == nil, t.committed
	if first {
		t.doomed = why
	}
	if before == nil && committed {
		t.committed = why
	}
	if t.committed != nil && (first || before == nil) && !errors.Is(t.doomed, t.committed) {
		t.doomed = fmt.Errorf("%w: %w", t.committed, t.doomed)
	}
	return first
}

// sever ends what the transaction held; its statements go on.
func (t *Tx) sever(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.severed == nil {
		t.severed = why
	}
	if t.committed == nil {
		t.committed = why
	}
}

// end closes the book.
func (t *Tx) end() {
	t.mu.Lock()
	scope, why := t.scope, cmp.Or(t.doomed, t.severed)
	if t.ended {
		scope = nil
	}
	t.ended = true
	t.mu.Unlock()
	if scope != nil {
		scope.Ended(why)
	}
}

// committedWell lets the scope know of a commit that succeeded.
func (t *Tx) committedWell() {
	t.mu.Lock()
	scope := t.scope
	t.mu.Unlock()
	if scope != nil {
		scope.Committed()
	}
}

// used tells whether locks have asked for the transaction.
func (t *Tx) used() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.scope != nil
}

// holds tells whether the transaction holds locks.
func (t *Tx) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// ran keeps book of a statement of the program that the server has executed, or has
// failed to.
func (t *Tx) ran(s statement, failed bool) {
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

// Call marks a statement of the locks themselves.
type Call struct {
	// Tx is the transaction that it belongs to; in any other it isn't sent.
	Tx *Tx
	// Fresh: it is to be sent only while MayHaveSnapshot is false, otherwise
	// the answer is ErrReads.
	Fresh bool
	// Reads: it is a plain read, which fixes the snapshot.
	Reads bool
	// Restores: it puts back a variable of the session, which outlives the
	// transaction: it is sent where the server has ended that, too.
	Restores bool
}

// question is what Ask sends in band.
type question struct {
	guarded bool
	tx      *Tx
}

// inBand is a context that carries a value for the guarded connection, by its
// type: context.WithValue in one allocation.
type inBand[T any] struct {
	context.Context
	value T
}

type inBandKey[T any] struct{}

func (c *inBand[T]) Value(key any) any {
	if key == (inBandKey[T]{}) {
		return &c.value
	}
	return c.Context.Value(key)
}

// valueOf returns what the context carries, or nil.
func valueOf[T any](ctx context.Context) *T {
	value, _ := ctx.Value(inBandKey[T]{}).(*T)
	return value
}

// WithCall marks the statements under the context as the locks' own.
func WithCall(ctx context.Context, c Call) context.Context {
	return &inBand[Call]{Context: ctx, value: c}
}

// Execer is the method of a transaction that Ask needs.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Ask asks the connection under a transaction for its book, by a statement that
// a guarded connection answers itself. The book is nil where the connection is
// guarded and knows of no transaction. Where the connection is not guarded the
// statement reaches the server, and reply is its answer, for Rules.Open.
func Ask(ctx context.Context, tx Execer) (book *Tx, guarded bool, reply error) {
	q := &inBand[question]{Context: ctx}
	_, reply = tx.ExecContext(q, rawsql.Probe)
	return q.value.tx, q.value.guarded, reply
}
