// Package txlock takes named locks inside the transaction that a program already
// has open on MySQL or MariaDB. A lock is one statement of that transaction, and
// is gone with its COMMIT or ROLLBACK: there is no second connection, no time to
// live and no unlock.
//
// Programs reach it through package locksqlc (database/sql, sqlc) or package
// lockgorm (GORM), which join a transaction and hand out its Scope.
package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// Tx is a transaction: what sqlc calls a DBTX, and Commit and Rollback. These two
// are never called, they are the proof that the value is a transaction, so that a
// pool does not compile.
type Tx interface {
	gen.DBTX
	Commit() error
	Rollback() error
}

var _ Tx = (*sql.Tx)(nil)

// Scope is the locks of one transaction. Several goroutines may use it, and their
// locks are taken one after the other. But the program's own statements know nothing of
// that: while one goroutine reads rows of the transaction, or calls LockAll, RLock,
// Version or another method that reads rows, no other may send the transaction anything,
// Exec included. go-sql-driver answers that by "busy buffer", and the connection, and
// with it the transaction, is lost. A Scope ends with the transaction and needs no closing.
type Scope struct {
	*state
	atMost time.Duration // the limit of WaitAtMost, 0 for the server's
	bad    error         // an option out of its range, to be said by every call
}

// state is what all views of a Scope share.
type state struct {
	tx     *unprepared
	book   *guard.Tx // nil on a plain pool
	server guard.Server
	watch  Observer // nil for none

	sending sync.Mutex // held while a lock is taken, which may be several statements

	mu          sync.Mutex // for the fields below
	held        map[record]hold
	fresh       bool              // NothingRead, good for the next lock
	onlyGuarded bool              // OnlyGuarded
	seen        map[record]uint64 // what Version has read last
}

// hold is a lock that was given, and the stamp of the book for it.
type hold struct {
	grant Grant
	stamp int
	since time.Time // where somebody watches

	base     uint64 // the version from which CompareAndBump has raised the token
	compared bool   // it was CompareAndBump
}

// JoinOption is an option of Join.
type JoinOption interface{ toJoin(*state) }

type joinOption func(*state)

func (f joinOption) toJoin(s *state) { f(s) }

// NothingRead says that the transaction has run no plain SELECT yet, which a
// plain pool can't know: the next lock then needs no snapshot guard. A guarded
// pool knows better and takes no notice. The default is to guard.
func NothingRead() JoinOption { return joinOption(func(s *state) { s.fresh = true }) }

// OnlyGuarded makes Join refuse a transaction of a pool that is not guarded, with
// ErrUnguarded. The default is to join it: its locks exclude as well.
func OnlyGuarded() JoinOption { return joinOption(func(s *state) { s.onlyGuarded = true }) }

// Join returns the scope of a transaction. On a guarded pool, one opened by
// locksqlc.Open or lockgorm.Open, it sends nothing, and a transaction has one
// scope however often it is joined. On a plain pool it asks the server two things,
// and every call makes a scope of its own.
//
// It returns ErrNoTransaction where no transaction is open, ErrTxDoomed where
// the server has ended it, ErrUnguarded where OnlyGuarded was asked for in vain, and
// schema.ErrAutocommit or schema.ErrCharset where its session has autocommit = 0 or
// converts the names of keys, on a guarded pool from its beginning. The transaction goes on
// as it was.
func Join(ctx context.Context, tx Tx, options ...JoinOption) (*Scope, error) {
	if tx == nil {
		return nil, fmt.Errorf("%w: the transaction is nil", ErrNoTransaction)
	}
	book, guarded, reply := guard.Ask(ctx, tx)
	if guarded && book == nil {
		// Not begun through the driver: by a procedure, or under autocommit=0.
		_, reply = tx.ExecContext(ctx, rawsql.Probe)
	}
	if book != nil {
		if err := book.Err(); err != nil {
			return nil, lockError("join", err, book.Server())
		}
		if err := session.Fit(book.Server().Name); err != nil {
			return nil, lockError("join", err, book.Server())
		}
		kept := book.Scope(func() guard.Scope { return newJoined(tx, book, book.Server()) })
		return &kept.(*joined).scope, nil
	}
	var wanted state
	for _, option := range options {
		option.toJoin(&wanted)
	}
	open, err := transactionOpen(reply)
	if err != nil {
		return nil, lockError("join", err, guard.Server{})
	}
	if wanted.onlyGuarded && !guarded {
		return nil, fmt.Errorf("join: %w", ErrUnguarded)
	}
	if !open {
		return nil, fmt.Errorf("%w: none was begun on this connection, or the server has ended it", ErrNoTransaction)
	}
	server, err := introduce(ctx, tx)
	if err != nil {
		return nil, lockError("join", err, guard.Server{})
	}
	j := newJoined(tx, nil, server)
	for _, option := range options {
		option.toJoin(&j.state)
	}
	return &j.scope, nil
}

// joined is a scope and its state in one piece, kept with the transaction.
type joined struct {
	scope Scope
	state state
	tx    unprepared
}

func newJoined(tx Tx, book *guard.Tx, server guard.Server) *joined {
	j := &joined{state: state{book: book, server: server}, tx: unprepared{tx}}
	j.scope.state, j.state.tx = &j.state, &j.tx
	if book != nil {
		j.state.watch, _ = book.Kept().(Observer)
	}
	return j
}

// Committed is called by the guarded connection when the transaction was
// committed: the rows of its keys exist.
func (j *joined) Committed() {
	j.state.mu.Lock()
	defer j.state.mu.Unlock()
	for r := range j.state.held {
		known.add(j.state.server.Name, r)
	}
}

// Ended is called by the guarded connection when the transaction ends.
func (j *joined) Ended(why error) { j.state.ended(why) }

// introduce reads the facts about the server, which guarded connections know.
func introduce(ctx context.Context, db gen.DBTX) (guard.Server, error) {
	var version, name string
	var id uint64
	var rollbackOnTimeout bool
	if err := db.QueryRowContext(ctx, rawsql.Facts).Scan(&version, &id, &rollbackOnTimeout, &name); err != nil {
		return guard.Server{}, err
	}
	server := guard.NewServer(version, id, rollbackOnTimeout, name)
	return server, session.Fit(name)
}

// WaitAtMost returns a view of the scope whose Lock, RLock, LockAll and CompareAndBump
// wait no longer than d, exact below a second, and then return ErrWaitTimeout with the
// transaction alive. The limit is for the wait: a lock that is free is granted, however
// short it is. The place in the server's queue is kept while they wait. The default is
// the server's innodb_lock_wait_timeout, 50 s, which also ends a longer limit.
//
// MySQL limits the wait of a SELECT only, to 49 days at most. To take a named key that
// this process hasn't seen, be it because nobody has committed it yet, it waits for whole
// seconds, rounded up: Ensure makes keys known. A limit that is not positive makes every
// call return ErrInvalidOption: TryLock doesn't wait.
func (s *Scope) WaitAtMost(d time.Duration) *Scope {
	view := &Scope{state: s.state, atMost: d}
	if d <= 0 {
		view.bad = fmt.Errorf("%w: WaitAtMost(%v): the limit must be positive, use TryLock to not wait at all", ErrInvalidOption, d)
	}
	return view
}

// Lock takes the lock of a key exclusively and waits until it is free. The server
// grants it first come, first served; MySQL prefers a waiter that blocks others.
// It is one statement where it is the first of its transaction, or the isolation
// level is known to be READ COMMITTED; after other statements it also makes sure
// that the transaction's snapshot is not older than the lock. A key that the
// transaction holds already costs no statement on a guarded pool, and keeps its
// token.
//
// It may return ErrWaitTimeout, ErrDeadlock, ErrStaleSnapshot, ErrUpgrade,
// ErrTxDoomed, ErrNoTransaction, ErrOpenRows, ErrReadOnly, ErrSchema and
// ErrInvalidKey; each says what becomes of the transaction. When the context ends
// while it waits, the connection is closed, as go-sql-driver does it: the error
// matches the context's, and the transaction is doomed.
func (s *Scope) Lock(ctx context.Context, key Key) (Grant, error) {
	return s.one(ctx, key, request{verb: "lock", atMost: s.atMost})
}

// TryLock is Lock that doesn't wait: where somebody else holds the lock, or waits
// for it, it returns ErrBusy, and the transaction goes on. On MySQL a key that is
// being locked for the very first time in its life can take it a second to see. A key
// that was never locked may be refused while a transaction has the row beside its own:
// Ensure makes rows beforehand. On MySQL the try of a named key that this process hasn't
// seen looks for its row first, which fixes the transaction's snapshot.
func (s *Scope) TryLock(ctx context.Context, key Key) (Grant, error) {
	return s.one(ctx, key, request{verb: "try to lock", try: true})
}

// RLock takes the lock of a key shared: with other shared holders, but with no
// exclusive one. A writer that waits holds off new readers. It returns what Lock
// returns; a transaction that holds the key exclusively keeps that. On a cluster of
// several primaries it returns schema.ErrMultiPrimary, and the transaction goes on: a
// shared lock writes nothing that a writer on another node would collide with.
func (s *Scope) RLock(ctx context.Context, key Key) (Grant, error) {
	return s.one(ctx, key, request{verb: "lock shared", shared: true, atMost: s.atMost})
}

// TryRLock is RLock that doesn't wait, as TryLock is.
func (s *Scope) TryRLock(ctx context.Context, key Key) (Grant, error) {
	return s.one(ctx, key, request{verb: "try to lock shared", shared: true, try: true})
}

// LockAny takes the first of the keys that is free, in the order given, without
// waiting. It returns ErrBusy where none is, and otherwise what TryLock returns.
func (s *Scope) LockAny(ctx context.Context, keys ...Key) (Grant, error) {
	if err := checkKeys(keys); err != nil {
		return Grant{}, err
	}
	for _, key := range keys {
		grant, err := s.TryLock(ctx, key)
		if !errors.Is(err, ErrBusy) || errors.Is(err, ErrTxDoomed) {
			return grant, err
		}
	}
	return Grant{}, fmt.Errorf("lock any of %d keys: %w", len(keys), ErrBusy)
}

// Held returns the lock that the transaction holds on a key, exclusive or shared,
// without asking the server. A lock that was taken after a savepoint doesn't count when
// the transaction has gone back to that since, which may have freed it: lock it again.
// One that was taken before the savepoint stays. On a plain pool only what
// this scope has taken is known, and savepoints are not.
func (s *Scope) Held(key Key) (Grant, bool) {
	if s.book != nil && s.book.Err() != nil {
		return Grant{}, false
	}
	h, certain := s.holdOf(key.record())
	return h.grant, certain
}

// Guarded tells whether the transaction is one of a guarded pool, which keeps book of it. A
// wrapper around such a pool that drops the context of what it hands on makes it a plain
// one.
func (s *Scope) Guarded() bool { return s.book != nil }

// Verify asks the server whether the transaction is still open, and so whether
// the grants still hold. It returns ErrTxDoomed where a deadlock, DDL or the like
// has ended it, and ErrNoTransaction after Commit and Rollback. Nothing of the
// transaction changes, its savepoints included. A transaction that was ended and
// begun again by hand is not told apart on a plain pool.
func (s *Scope) Verify(ctx context.Context) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.probe(ctx); err != nil {
		return s.failed("verify", err)
	}
	return nil
}

// own marks the context of a statement as the scope's.
func (s *state) own(ctx context.Context, c guard.Call) context.Context {
	if s.book == nil {
		return ctx
	}
	c.Tx = s.book
	return guard.WithCall(ctx, c)
}

// stamp numbers a lock that is about to be taken, where savepoints are known.
func (s *state) stamp() int {
	if s.book == nil {
		return 0
	}
	return s.book.Stamp()
}

// holdOf returns what is held of a record, and whether it is for certain: no
// savepoint from before it was rolled back since.
func (s *state) holdOf(r record) (h hold, certain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[r]
	return h, ok && (s.book == nil || s.book.Stands(h.stamp))
}

// keep notes a lock that was given, and asked for at the time.
func (s *state) keep(ctx context.Context, r record, h hold, asked time.Time) {
	h.since = s.granted(ctx, h.grant, asked)
	s.mu.Lock()
	if s.held == nil {
		s.held = make(map[record]hold, 4)
	}
	if old := s.held[r]; old.grant.token == h.grant.token {
		h.base, h.compared = old.base, old.compared
	}
	s.held[r] = h
	first := len(s.held) == 1
	s.mu.Unlock()
	if first && s.book != nil {
		s.book.Hold()
	}
}
