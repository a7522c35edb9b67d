package txlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// Lock acquires an exclusive lock on key, and waits until it is free. The server grants it first
// come, first served; MySQL prefers a waiter that blocks others. It is one statement if it is the
// first of its transaction, or the isolation level is known to be READ COMMITTED; after other
// statements it also verifies that the transaction's snapshot is not older than the lock. A key
// that the transaction already holds costs no statement on a guarded pool, and keeps its token.
//
// If Lock, RLock or CompareAndBump begins the transaction on a guarded pool, the row of a key that
// is locked for the first time is created in the same round trip, before the transaction, so that
// it stays after a rollback. (On MySQL that needs the procedures, and no limit by WaitAtMost.
// TryLock does so on MariaDB.) After another statement, after a SET TRANSACTION of the program, on
// Galera and on an unguarded pool the transaction creates it: see Ensure.
//
// Lock may return ErrWaitTimeout, ErrDeadlock, ErrStaleSnapshot, ErrUpgrade, ErrTxDoomed,
// ErrNoTransaction, ErrOpenRows, ErrReadOnly, ErrSchema and ErrInvalidKey; each documents the
// state of the transaction. If the context ends while it waits, go-sql-driver closes the
// connection: the error matches the context's, and the transaction is doomed.
func (s *Scope) Lock(ctx context.Context, key Key) (Grant, error) {
	return s.lock(ctx, key, request{verb: "lock", atMost: s.atMost})
}

// TryLock is Lock without waiting: if another transaction holds the lock, or waits for it, it
// returns ErrBusy, and the transaction stays open. On MySQL it can take a second to detect a key
// that is being locked for the very first time. A key that was never locked may be refused while a
// transaction has the neighboring row locked: Ensure creates rows beforehand. On MySQL, for a
// named key that this process hasn't used, TryLock queries the row first, which fixes the
// transaction's snapshot, unless the transaction begins with it; see schema.Procedures.
func (s *Scope) TryLock(ctx context.Context, key Key) (Grant, error) {
	return s.lock(ctx, key, request{verb: "try to lock", try: true})
}

// RLock acquires a shared lock on key, which any number of transactions can hold. It waits while
// another transaction holds the key exclusively, and queues behind waiting writers. A transaction
// that already holds the key exclusively keeps that lock.
//
// On a multi-primary cluster RLock returns schema.ErrMultiPrimary, because a shared lock cannot
// exclude writers on other nodes; the transaction stays open. The first such call of a process may
// have locked the key until its end. RLock also returns the errors of Lock.
func (s *Scope) RLock(ctx context.Context, key Key) (Grant, error) {
	return s.lock(ctx, key, request{verb: "lock shared", shared: true, atMost: s.atMost})
}

// TryRLock is RLock without waiting, as TryLock is.
func (s *Scope) TryRLock(ctx context.Context, key Key) (Grant, error) {
	return s.lock(ctx, key, request{verb: "try to lock shared", shared: true, try: true})
}

// LockAny acquires the first of the keys that is free, in the order given, without waiting. It
// returns ErrBusy if none is, and otherwise the errors of TryLock. With NameHolders, ErrBusy names
// one holder for all keys.
func (s *Scope) LockAny(ctx context.Context, keys ...Key) (Grant, error) {
	if err := checkKeys(keys); err != nil {
		return Grant{}, err
	}
	for _, key := range keys {
		grant, err := s.lock(ctx, key, request{verb: "try to lock", try: true, oneOf: true})
		if !errors.Is(err, ErrBusy) || errors.Is(err, ErrTxDoomed) {
			return grant, err
		}
	}
	return Grant{}, s.named(ctx, fmt.Errorf("lock any of %d keys: %w", len(keys), ErrBusy), keys...)
}

// request is how a lock is asked for.
type request struct {
	verb   string // for errors
	shared bool
	try    bool          // don't wait
	oneOf  bool          // LockAny: another key may be free, so nobody looks who holds this one
	atMost time.Duration // wait no longer; 0 is the server's limit

	compares bool   // CompareAndBump
	version  uint64 // that of it
	commits  bool   // and commits, where the server can do both at once
}

func (q request) bounded() bool { return q.try || q.atMost > 0 }

// lock returns what the transaction holds of the key already, or attempts to lock it and
// keeps what it gets.
func (s *Scope) lock(ctx context.Context, key Key, q request) (Grant, error) {
	if err := key.Validate(); err != nil {
		return Grant{}, err
	}
	if err := s.usable(ctx); err != nil {
		return Grant{}, err
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	r := key.record()
	old, done, err := s.reenter(ctx, key, r, q.shared)
	if err != nil {
		return Grant{}, err
	}
	marked := key
	marked.shared = q.shared
	if done {
		if err := q.conflict(old); err != nil {
			return Grant{}, s.refused(ctx, s.asked(ctx, false, marked), s.failure(q.verb, key, err), marked)
		}
		return old.grant, nil
	}
	asked := s.asked(ctx, false, marked)
	if !q.try {
		if err := s.ownWait(false, marked); err != nil {
			return Grant{}, s.refused(ctx, asked, s.failure(q.verb, key, err), marked)
		}
	}
	slow := s.slowly(ctx, !q.try, key)
	h, err := s.newAttempt(ctx, r, q, old, s.mayHaveSnapshot()).run(ctx, key)
	asked.held = slow.End()
	if err != nil {
		if !q.oneOf {
			err = s.named(ctx, err, marked)
		}
		return Grant{}, s.refused(ctx, asked, err, marked)
	}
	s.keep(ctx, r, h, asked)
	return h.grant, nil
}

// attempt is one way through the statements that take locks which are not held for
// certain: that of one record, or of several.
type attempt struct {
	*state
	record // the first
	request
	keys     []Key             // several, sorted, of one table, and exclusive
	tokens   map[record]uint64 // of these
	owner    []byte
	ours     uint64 // the token that the row carries if it is ours already
	snapshot bool   // a plain read may show data from before the grant
	absent   bool   // and it shows no row
	noted    unsent // see statement
}

// newAttempt prepares an attempt; old is what was held of the record before.
func (s *state) newAttempt(ctx context.Context, r record, q request, old hold, snapshot bool) *attempt {
	ours := uint64(noToken)
	if !old.grant.shared { // which has the token of another's grant
		ours = max(ours, old.grant.token)
	}
	if q.compares {
		ours, _ = old.comparable(q.version)
	}
	if s.txState == nil && old.grant.token > 0 && !old.grant.shared {
		q.shared = false // ours exclusively: ask for that again
	}
	return &attempt{state: s, record: r, request: q, owner: ownerOf(ctx), ours: ours, snapshot: snapshot}
}

// run makes sure that a lock would hold, takes it by what the server has for what is asked for,
// and explains the error of that. The lock is not kept yet. A wait with a limit begins with a
// try, which has none: a lock that is free is granted, however short the limit and however slow
// the server.
func (a *attempt) run(ctx context.Context, key Key) (hold, error) {
	h := hold{grant: Grant{key: key, shared: a.shared}, stamp: a.stamp(), base: a.version, compared: a.compares}
	err := a.stillOpen(ctx)
	if err == nil && (!a.compares || !a.saw(a.record, a.version)) { // what Version has read is compared with the row
		err = a.checked(a.snapshot)
	}
	if err == nil && a.shared {
		err = a.mayShare(ctx, a.txState == nil) // of a guarded pool the question would begin the transaction
	}
	shown := a.version
	if err == nil && a.compares {
		shown, err = a.shownVersion(ctx)
	}
	token, called := &h.grant.token, a.byProcedure()
	switch {
	case err != nil:
	case called:
		*token, err = a.callFor(ctx)
	case !a.bounded():
		*token, err = a.takeRow(ctx)
	case a.server.Compound:
		err = a.byVariables(a.atMost, func(variables ...string) error {
			*token, err = a.takeRow(ctx, variables...)
			return err
		})
	default:
		*token, err = a.bySelect(ctx)
	}
	switch {
	case errors.Is(err, guard.ErrReads):
		a.snapshot, a.absent = true, false // another goroutine has read meanwhile
		return a.run(ctx, key)
	case called && a.without(err):
		return a.run(ctx, key)
	case err == nil && shown < a.version:
		err = fmt.Errorf("%w: version %d in the snapshot, %d in the row", ErrStaleSnapshot, shown, a.version)
	case err == nil && a.shared:
		err = a.mayShare(ctx, true)
	}
	if err != nil {
		return h, a.failure(a.verb, key, a.busy(err))
	}
	return h, nil
}

// byVariables takes something by a statement whose wait the variables limit; 0 is a
// try. A wait with a limit begins with a try, which has none.
func (s *state) byVariables(atMost time.Duration, take func(variables ...string) error) error {
	if s.server.RollbackOnTimeout {
		return take(rawsql.AtMost(max(rawsql.ShortLimit, atMost)))
	}
	err := take(rawsql.NoWait)
	if atMost == 0 || !errors.Is(fault.Interpret(err).Sentinel, ErrWaitTimeout) {
		return err
	}
	return take(rawsql.AtMost(atMost))
}

// takeRow takes the row by statements, with variables of MariaDB set for the one that waits. If
// it must be as the snapshot shows it, the server sees to that, or the row is taken as it is
// first.
func (a *attempt) takeRow(ctx context.Context, variables ...string) (uint64, error) {
	db := a.regardless(a.snapshot, variables) // of a version: a conflict, where the other ends the transaction
	if a.snapshot && !a.compares && a.server.SnapshotIsolation {
		db = a.withVariables(append(variables, rawsql.RefuseStale)...)
	}
	switch {
	case a.keys != nil:
		return 0, a.takeRows(ctx, db)
	case a.compares && a.server.OldID:
		token, err := a.touch(a.first(ctx), db)
		return a.compareAlone(ctx, token, err)
	case a.shared:
		token, err := a.shareRow(ctx, db)
		return a.goOn(ctx, token, err)
	case a.guardsSnapshot(), a.server.Early: // a token from before the wait may be less than that of who has rolled back
		token, err := a.touch(a.first(ctx), db)
		return a.goOn(ctx, token, err)
	}
	return a.raiseToken(ctx, a.fresh(), db)
}

// goOn goes on with a row that was taken as it is, if there was no error.
func (a *attempt) goOn(ctx context.Context, current uint64, err error) (uint64, error) {
	if err == nil && a.guardsSnapshot() {
		err = a.compare(ctx, current)
	}
	switch {
	case err != nil:
		return 0, err
	case a.shared:
		return current, nil
	}
	return a.raiseToken(ctx, guard.Call{}, a.tx)
}

// compareAlone compares the version of a row that was taken, where the statement that raises the
// token can't, and goes on with Lock's.
func (a *attempt) compareAlone(ctx context.Context, current uint64, err error) (uint64, error) {
	switch {
	case err != nil:
		return 0, err
	case current != a.version && current != a.ours:
		return 0, conflict(a.version)
	}
	lock := *a
	lock.compares = false
	return lock.raiseToken(ctx, guard.Call{}, a.tx)
}

// raiseToken takes the row exclusively, for good, by db, which bounds the wait, and raises
// its token unless it is ours already. A row that this has made gets its token by the same
// statement again, which waits for nobody.
func (a *attempt) raiseToken(ctx context.Context, call guard.Call, db *rawsql.Text) (uint64, error) {
	name, lock := a.statement()
	for again := false; ; again = true {
		result, err := db.Exec(a.own(ctx, call), lock)
		token, err := insertID(a.server.Replies, name, result, err)
		switch {
		case err != nil:
			return 0, err
		case token == rowInserted && !again:
			known.drop(a.server.Name, a.record)
			call, db = guard.Call{}, a.tx
			continue
		case token == 0 && a.compares:
			return 0, conflict(a.version)
		case token == 0:
			return 0, a.unchanged(ctx)
		case call.Fresh && a.ours == noToken:
			known.add(a.server.Name, a.record) // others have committed it
		}
		return uint64(token), nil
	}
}

// unchanged is the error of an UPDATE that has changed no row. MariaDB answers so, too, if
// it has interrupted the UPDATE, at its time limit or by KILL QUERY: then the row is there.
func (a *attempt) unchanged(ctx context.Context) error {
	if !a.server.Compound {
		return a.missing()
	}
	if _, err := a.read(a.own(ctx, guard.Call{Reads: true}), a.tx); err != nil {
		return err
	}
	return fmt.Errorf("%w: the server interrupted the statement", ErrWaitTimeout)
}

// rewritten is the transaction with its statements changed on their way.
func (s *state) rewritten(rewrite func(rawsql.Statement) rawsql.Statement) *rawsql.Text {
	return &rawsql.Text{DBTX: s.tx.DBTX, Rewrite: rewrite, Inline: s.tx.Inline}
}

// withVariables is the transaction with variables of MariaDB set for each statement.
func (s *state) withVariables(variables ...string) *rawsql.Text {
	if len(variables) == 0 {
		return s.tx
	}
	return s.rewritten(rawsql.Under(variables...))
}

// regardless is the transaction with variables of MariaDB for each statement: that a row
// has changed since a snapshot is no reason to refuse it.
func (s *state) regardless(snapshot bool, variables []string) *rawsql.Text {
	if s.server.Lacks.Shared != "" {
		return s.rewritten(rawsql.Edited(rawsql.ForUpdate))
	}
	if s.mayBeRefused(snapshot) {
		variables = append(slices.Clip(variables), rawsql.AllowStale)
	}
	return s.withVariables(variables...)
}

// mayBeRefused reports whether a MariaDB may refuse a row that has changed since a snapshot without
// being asked to, by innodb_snapshot_isolation of the session. At SERIALIZABLE that is so of the
// first statement, too, which has its snapshot before it waits for the row. On an unguarded pool
// nobody knows the level.
func (s *state) mayBeRefused(snapshot bool) bool {
	return s.server.SnapshotIsolation && (snapshot || s.txState == nil || s.txState.MayBeSerializable())
}

// fresh marks the statement that takes the row. Where no snapshot check follows,
// it is sent only if nothing was read before, which another goroutine might have. The row
// of one key, if it may be missing, is made before, so that it outlives a rollback; with a
// limit only where that limits the waits of an INSERT, and not its commit as well.
func (a *attempt) fresh() guard.Call {
	call := guard.Call{Fresh: !a.snapshot, Commits: a.commits}
	limits := a.server.Compound && !a.server.RollbackOnTimeout
	if a.keys == nil && (limits || !a.bounded()) && !known.has(a.server.Name, a.record) {
		call.Make = a.name
	}
	return call
}

// first is the context of that statement.
func (a *attempt) first(ctx context.Context) context.Context { return a.own(ctx, a.fresh()) }

// busy is the error of a try that would have had to wait.
func (a *attempt) busy(err error) error {
	if s := fault.Interpret(err).Sentinel; a.try && (errors.Is(s, ErrWaitTimeout) || errors.Is(s, ErrBusy)) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
