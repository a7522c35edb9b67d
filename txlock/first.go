package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// LockWith returns a context for the next statement of the transaction, which acquires the lock of
// a key with it: BEGIN, the lock and a SELECT are one round trip, and the SELECT reads what the
// last holder has committed.
//
//	err := tx.QueryRowContext(scope.LockWith(ctx, key), "SELECT n FROM stock WHERE id = ?", id).Scan(&n)
//
// Nothing is locked before that statement. It returns the errors of Lock as its own, and isn't
// executed then. Further statements under the same context are ordinary ones. With CommitWith, a
// locked read and write take two round trips.
//
// One statement does both if the transaction has sent nothing yet, on a guarded pool. LockWith
// itself acquires the lock if that isn't possible: for several keys, or one that is marked by
// Shared, held already, or limited by WaitAtMost; at SERIALIZABLE; after a read; and on an
// unguarded pool. The statement returns the error then. In all other cases the lock is acquired
// before the statement, in a round trip of its own: if the statement is not a SELECT or is a
// prepared one, if its text isn't ASCII, on a Galera Cluster, and in the cases of CommitWith. If
// they share a text, sql_select_limit and max_execution_time of the session don't apply to the
// SELECT, a column that is an argument may be named ?, and CommitWith describes arguments and warnings.
func (s *Scope) LockWith(ctx context.Context, keys ...Key) context.Context {
	if ctx == nil {
		return bridge.Unsent(context.Background(), errNoContext)
	}
	if guard.LocksFirst(ctx) {
		return bridge.Unsent(ctx, fmt.Errorf("%w: LockWith under the context of another LockWith: give one of them all keys", ErrInvalidOption))
	}
	if !s.locksWith(keys) {
		if _, err := s.LockAll(ctx, keys...); err != nil {
			return bridge.Unsent(ctx, err)
		}
		return ctx
	}
	key := keys[0]
	if err := s.ownWait(false, key); err != nil {
		return bridge.Unsent(ctx, s.failure("lock", key, err))
	}
	a := s.newAttempt(ctx, key.record(), request{verb: "lock"}, hold{}, false)
	_, plain := a.statement()
	lock := plain
	if s.server.Procedures {
		lock = a.called(rawsql.LockProcedure, a.owner, a.ours)
	}
	var at asked
	begun := false // when the statement is sent, which may be never
	ask := func() {
		if !begun {
			at, begun = s.asked(ctx, false, key), true
		}
	}
	took := func(reply guard.Reply, err error) error {
		ask()
		h, asked := hold{grant: Grant{key: key}, stamp: a.stamp()}, at
		begun = false // another statement may follow one that fails
		if errors.Is(err, guard.ErrReads) {
			err = fmt.Errorf("%w: %w since LockWith: call it immediately before the statement that is to take the lock, or call Lock; the transaction stays open", ErrInvalidOption, err)
		}
		if h.grant.token, err = a.took(reply, err); err != nil {
			err = s.failure(a.verb, key, err)
			return s.refused(ctx, asked, s.named(ctx, err, key), key)
		}
		s.keep(ctx, a.record, h, asked)
		return nil
	}
	first := &guard.First{Tx: s.txState, Lock: lock, Make: a.fresh().Make, Plain: plain, Sends: ask, Took: took}
	if s.watch != nil {
		first.Sends = func() { apart(ask) }
		first.Took = func(reply guard.Reply, err error) error {
			result := errors.New("the observer has ended its goroutine")
			apart(func() { result = took(reply, err) })
			return result
		}
	}
	return guard.WithFirst(ctx, first)
}

// locksWith reports whether a statement can take the lock of the keys with it.
func (s *Scope) locksWith(keys []Key) bool {
	if len(keys) != 1 || keys[0].shared || keys[0].Validate() != nil || s.bad != nil || s.atMost > 0 ||
		s.txState == nil || s.txState.Err() != nil || !s.txState.Direct() || s.txState.MayBeSerializable() || s.txState.MayHaveSnapshot() ||
		!s.server.Compound && !s.txState.Procedures() {
		return false
	}
	_, held := s.holdOf(keys[0].record())
	return !held
}

// took reads the reply to the lock statement.
func (a *attempt) took(reply guard.Reply, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	if a.server.Procedures && reply.Columns != 1 {
		r, err := readOutcome(a.server.Replies, rawsql.LockProcedure, false, reply)
		return a.granted(r, err)
	}
	var id sql.Null[int64]
	if err := readRow("LockNamed", reply, &id); err != nil {
		return 0, err
	}
	switch token, err := knownID(a.server.Replies, "LockNamed", id.V, nil); {
	case !id.Valid, err == nil && token == rowInserted:
		return 0, fault.UnknownReply("LockNamed", "the insert id "+strconv.FormatInt(id.V, 10))
	case id.V == 0 && a.hashed:
		return 0, a.missing()
	case err != nil:
		return 0, err
	}
	if a.ours == noToken {
		known.add(a.server.Name, a.record)
	}
	return uint64(id.V), nil
}
