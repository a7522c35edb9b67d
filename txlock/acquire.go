package txlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// request is how a lock is asked for.
type request struct {
	verb   string // for errors
	shared bool
	try    bool          // don't wait
	atMost time.Duration // wait no longer; 0 is the server's limit

	version *uint64 // that of CompareAndBump, nil for a lock whatever the version
}

func (q request) bounded() bool { return q.try || q.atMost > 0 }

// tryLimit is how long a try may take on a MariaDB where NOWAIT would roll back
// the whole transaction. A shorter limit would refuse what is free.
const tryLimit = 20 * time.Millisecond

// one takes the lock of one key: locally where the transaction holds it already.
func (s *Scope) one(ctx context.Context, key Key, q request) (Grant, error) {
	if err := key.Validate(); err != nil {
		return Grant{}, err
	}
	if s.bad != nil {
		return Grant{}, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.acquire(ctx, key, key.record(), q)
}

// acquire is one under the mutex.
func (s *state) acquire(ctx context.Context, key Key, r record, q request) (Grant, error) {
	h, done, err := s.reenter(key, r, q.shared)
	if err != nil {
		return Grant{}, err
	}
	asked := s.asked()
	if q.version != nil && done {
		if _, ok := h.comparable(*q.version); !ok {
			err := fmt.Errorf("%w, but %d by this transaction's own lock", conflict(*q.version), h.grant.token)
			return Grant{}, s.refused(ctx, key, false, asked, s.failure(q.verb, key, err))
		}
	}
	if done {
		return h.grant, nil
	}
	h, err = s.send(ctx, key, r, q, h, s.mayHaveSnapshot())
	if err != nil {
		return Grant{}, s.refused(ctx, key, h.grant.shared, asked, err)
	}
	s.keep(ctx, r, h, asked)
	return h.grant, nil
}

// send takes the lock of a key that is not held for certain; old is what was held of it
// before. The lock is not kept yet.
func (s *state) send(ctx context.Context, key Key, r record, q request, old hold, snapshot bool) (hold, error) {
	held := max(noToken, old.grant.token)
	if q.version != nil {
		held, _ = old.comparable(*q.version)
	}
	if s.book == nil && old.grant.token > 0 && !old.grant.shared {
		q.shared = false // ours exclusively: ask for that again
	}
	h := hold{grant: Grant{key: key, shared: q.shared}, stamp: s.stamp()}
	if q.version != nil {
		h.base, h.compared = *q.version, true
	}
	a := &attempt{state: s, record: r, request: q, owner: ownerOf(ctx), held: held, snapshot: snapshot}
	err := s.stillOpen(ctx)
	if err == nil && q.shared {
		err = s.onePrimary(ctx)
	}
	if err == nil {
		h.grant.token, err = a.run(ctx)
	}
	if errors.Is(err, guard.ErrReads) {
		a.snapshot = true // another goroutine has read meanwhile
		h.grant.token, err = a.run(ctx)
	}
	if err != nil {
		return h, s.failure(q.verb, key, a.busy(err))
	}
	return h, nil
}

// reenter answers a request for what is held already, and refuses an upgrade.
func (s *state) reenter(key Key, r record, shared bool) (h hold, done bool, err error) {
	if s.book != nil {
		if err := s.book.Err(); err != nil {
			return hold{}, false, s.failure("lock", key, err)
		}
	}
	h, certain := s.holdOf(r)
	if certain && h.grant.shared && !shared {
		return hold{}, false, fmt.Errorf("lock %q: %w: take it exclusively from the beginning", key, ErrUpgrade)
	}
	if certain && s.book != nil {
		return h, true, nil
	}
	return h, false, nil
}

// stillOpen makes sure on a plain pool that the transaction was not ended by a
// statement of the program. A guarded pool sees to it with every statement.
func (s *state) stillOpen(ctx context.Context) error {
	if s.book != nil {
		return nil
	}
	return s.probe(ctx)
}

// probe asks the server whether the transaction is open.
func (s *state) probe(ctx context.Context) error {
	_, reply := s.tx.ExecContext(s.own(ctx, guard.Call{}), rawsql.Probe)
	open, err := transactionOpen(reply)
	if err == nil && !open {
		err = fmt.Errorf("%w: %w", ErrTxDoomed, errUnknown)
	}
	return err
}

// failure is the error of a call, with what it has done to the transaction.
func (s *state) failure(verb string, key Key, err error) error {
	return s.failed(fmt.Sprintf("%s %q", verb, clipped(key.name)), err)
}

// failed is failure for what concerns no single key.
func (s *state) failed(what string, err error) error {
	err = lockError(what, err, s.server)
	if s.book == nil || errors.Is(err, ErrDeadlock) || errors.Is(err, ErrStaleSnapshot) || errors.Is(err, ErrNoTransaction) {
		return err
	}
	if doom := s.book.Err(); doom != nil && !errors.Is(err, ErrTxDoomed) {
		return fmt.Errorf("%w: %w", err, ErrTxDoomed)
	}
	return err
}

// attempt is one way through the statements that take a lock.
type attempt struct {
	*state
	record
	request
	owner    []byte
	held     uint64 // the token that the row carries if it is ours already
	snapshot bool   // a plain read may show data from before the grant
}

// run takes the lock by as few statements as the server and the state of the
// transaction allow, and returns the token.
func (a *attempt) run(ctx context.Context) (uint64, error) {
	if a.snapshot && a.version != nil {
		return a.compareInSnapshot(ctx)
	}
	return a.sendAll(ctx)
}

// sendAll is run without a look at the version in the snapshot.
func (a *attempt) sendAll(ctx context.Context) (uint64, error) {
	if a.server.MariaDB {
		return a.onMariaDB(ctx)
	}
	if a.bounded() {
		return a.boundedOnMySQL(ctx)
	}
	return a.take(ctx, a.tx, a.guardsSnapshot())
}

// guardsSnapshot tells whether the row must be as the snapshot shows it. For a
// version compareInSnapshot sees to it.
func (a *attempt) guardsSnapshot() bool { return a.snapshot && a.version == nil }

// lock takes the row and its token, for good, by db, which bounds the wait. A row that
// this has made gets its token by the same statement again, which waits for nobody.
func (a *attempt) lock(ctx context.Context, call guard.Call, db gen.DBTX) (uint64, error) {
	token, err := a.raise(a.own(ctx, call), db)
	if err != nil {
		return 0, err
	}
	if token == made {
		return a.raise(a.then(ctx), a.tx)
	}
	if call.Fresh && a.held == noToken {
		known.add(a.server.Name, a.record) // others have committed it
	}
	return token, nil
}

// raise sends the statement that takes the row and raises its token.
func (a *attempt) raise(ctx context.Context, db gen.DBTX) (uint64, error) {
	if a.version != nil {
		return a.compareAndBump(ctx, db, a.owner, a.held, *a.version)
	}
	return a.record.lock(ctx, db, a.owner, a.held)
}

// mayHaveSnapshot tells whether the snapshot guard is needed.
func (s *state) mayHaveSnapshot() bool {
	if s.book != nil {
		return s.book.MayHaveSnapshot()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.fresh
	s.fresh = false
	return !fresh
}

// fresh marks the statement that takes the row. Where no snapshot guard follows,
// it is sent only if nothing was read before, which another goroutine might have.
func (a *attempt) fresh() guard.Call { return guard.Call{Fresh: !a.snapshot} }

// first is the context of that statement.
func (a *attempt) first(ctx context.Context) context.Context { return a.own(ctx, a.fresh()) }

// then marks a statement on the row that is taken already.
func (a *attempt) then(ctx context.Context) context.Context {
	return a.own(ctx, guard.Call{})
}

// onMariaDB sets the limit and the snapshot guard for the one statement. A wait with a
// limit begins with a try, which has none: a lock that is free is granted, however short
// the limit and however slow the server.
func (a *attempt) onMariaDB(ctx context.Context) (uint64, error) {
	switch {
	case !a.bounded():
		return a.within(ctx)
	case a.server.RollbackOnTimeout:
		return a.within(ctx, rawsql.AtMost(max(tryLimit, a.atMost)))
	}
	token, err := a.within(ctx, rawsql.NoWait)
	if a.try || !errors.Is(interpret(err).sentinel, ErrWaitTimeout) {
		return token, err
	}
	return a.within(ctx, rawsql.AtMost(a.atMost))
}

// within takes the lock with variables set for the statement that waits.
func (a *attempt) within(ctx context.Context, variables ...string) (uint64, error) {
	compare := a.guardsSnapshot()
	if a.snapshot && a.server.SnapshotIsolation {
		variable := rawsql.RefuseStale
		if a.version != nil {
			variable = rawsql.AllowStale // a conflict, where the other ends the transaction
		}
		variables = append(variables, variable)
		compare = false
	}
	if variables == nil {
		return a.take(ctx, a.tx, compare)
	}
	prefix := rawsql.For(variables...)
	return a.take(ctx, rewritten{a.tx, func(query string) string { return prefix + query }}, compare)
}

// take takes the row by db, which bounds the wait, and the token. To compare is
// the snapshot guard of servers that have none of their own: take the row as it
// is, read it from the snapshot, and only then write.
func (a *attempt) take(ctx context.Context, db gen.DBTX, compare bool) (uint64, error) {
	if a.shared {
		token, err := a.takeShared(ctx, db)
		if err != nil || !compare {
			return token, err
		}
		return token, a.compare(ctx, token)
	}
	if !compare {
		return a.lock(ctx, a.fresh(), db)
	}
	current, err := a.touch(a.first(ctx), db)
	if err != nil {
		return 0, err
	}
	if err := a.compare(ctx, current); err != nil {
		return 0, err
	}
	return a.lock(ctx, guard.Call{}, a.tx)
}

// takeShared takes the row shared. A locking read of a missing row would close
// the gap around it, so the row is made first, which takes an existing one shared
// and closes nothing.
func (a *attempt) takeShared(ctx context.Context, db gen.DBTX) (uint64, error) {
	if known.has(a.server.Name, a.record) {
		token, err := a.forShare(a.first(ctx), db)
		if !errors.Is(err, errMissing) {
			return token, err
		}
		known.drop(a.server.Name, a.record)
	}
	err := a.ensure(a.first(ctx), db)
	if err != nil && !errors.Is(interpret(err).sentinel, ErrReadOnly) {
		return 0, err // a read-only transaction can't make the row, but lock it
	}
	token, shareErr := a.forShare(a.first(ctx), db)
	if errors.Is(shareErr, errMissing) && err != nil {
		return 0, fmt.Errorf("%w: make the row beforehand by txlock.Ensure: %w", errMissing, err)
	}
	return token, shareErr
}

// compare is the snapshot guard: the row that was taken must be in the snapshot
// as it is, else plain reads show data from before the last holder's commit.
func (a *attempt) compare(ctx context.Context, current uint64) error {
	old, err := a.read(a.own(ctx, guard.Call{Reads: true}), a.tx)
	if err != nil && !errors.Is(err, errMissing) {
		return err
	}
	if old != current {
		return fmt.Errorf("%w: token %d in the snapshot, %d in the row", ErrStaleSnapshot, old, current)
	}
	if a.held == noToken && current > 0 {
		known.add(a.server.Name, a.record)
	}
	return nil
}

// busy is the error of a try that would have had to wait.
func (a *attempt) busy(err error) error {
	if s := interpret(err).sentinel; a.try && (errors.Is(s, ErrWaitTimeout) || errors.Is(s, ErrBusy)) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// rewritten is a transaction whose statements are changed on their way: given a
// prefix, or a hint, that sqlc can't write.
type rewritten struct {
	Tx
	rewrite func(query string) string
}
