package locksuite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// behaviour is a promise, by a name that is a sentence.
type behaviour struct {
	name string
	show func(e *env)
}

// behaviours are the promises of locks.
var behaviours = []behaviour{
	{"an exclusive lock excludes until COMMIT", exclusive},
	{"ROLLBACK frees the lock and the token still rises", rollbackFrees},
	{"a waiter is granted at COMMIT with a higher token", waits},
	{"a waiter that locked first reads what the holder committed", readsFresh},
	{"a held key is given again with its token", reenters},
	{"shared locks share and exclude the exclusive", shares},
	{"shared to exclusive is refused", refusesUpgrade},
	{"WaitAtMost ends the wait and leaves the transaction alive", waitsAtMost},
	{"WaitAtMost is granted in time", waitsAtMostGranted},
	{"LockAll takes all in the order of the keys", locksAll},
	{"LockAll waits at most", locksAllAtMost},
	{"LockAny takes the first that is free", locksAny},
	{"a snapshot older than the lock is refused", refusesStale},
	{"a snapshot as old as the lock is not", acceptsFresh},
	{"LockAll refuses a stale snapshot", refusesStaleAll},
	{"LockAll takes some exclusively and others shared", locksMixed},
	{"LockAll of both kinds waits at most", locksMixedAtMost},
	{"LockAll of both kinds refuses a stale snapshot", refusesStaleMixed},
	{"RLockAll takes all shared", sharesAll},
	{"Held and Verify tell the truth", tells},
	{"Holders names the holder", namesHolder},
	{"bad keys are refused and nothing is lost", refusesBadKeys},
	{"a context that has ended sends nothing", endedContext},
	{"a cancelled wait is named and leaves no lock behind", cancelledWait},
	{"a deadlock is named and dooms", deadlocks},
	{"an implicit commit is named", implicitCommit},
	{"a finished transaction is named", finished},
	{"a savepoint rolled back makes a lock ask again", savepoint},
	{"open rows", openRows},
	{"goroutines may share a scope", concurrent},
}

func exclusive(e *env) {
	key := e.key()
	holder := e.begin()
	holder.lock(key)
	e.busy(key)
	holder.commit()
	e.free(key)
}

func rollbackFrees(e *env) {
	key := e.key()
	holder := e.begin()
	first := holder.lock(key)
	e.wants(holder.Rollback(), nil)
	if second := e.free(key); second.Token() <= first.Token() {
		e.Errorf("token %d after the rollback of %d", second.Token(), first.Token())
	}
}

func waits(e *env) {
	key := e.key()
	holder, waiter := e.begin(), e.begin()
	first := holder.lock(key)
	answered := waiter.waiting(func() (txlock.Grant, error) { return waiter.Lock(e.Context(), key) })
	holder.commit()
	second := <-answered
	e.wants(second.err, nil)
	if second.grant.Token() <= first.Token() {
		e.Errorf("token %d after %d", second.grant.Token(), first.Token())
	}
	e.busy(key)
	waiter.commit()
}

func readsFresh(e *env) {
	key := e.key()
	table := e.numbers()
	holder, waiter := e.begin(), e.begin()
	holder.lock(key)
	answered := waiter.waiting(func() (txlock.Grant, error) { return waiter.Lock(e.Context(), key) })
	e.wants(holder.Exec(e.Context(), "UPDATE "+table+" SET n = 7"), nil)
	holder.commit()
	e.wants((<-answered).err, nil)
	if n := waiter.read(table); n != 7 {
		e.Errorf("read %d under the lock, the last holder committed 7", n)
	}
}

func reenters(e *env) {
	key := e.key()
	s := e.begin()
	first := s.lock(key)
	for _, again := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.Lock, s.TryLock, s.RLock, s.TryRLock} {
		grant, err := again(e.Context(), key)
		e.wants(err, nil)
		if grant != first {
			e.Errorf("re-entered as %+v, first %+v", grant, first)
		}
	}
	e.busy(key)
}

func shares(e *env) {
	key := e.key()
	if e.cluster {
		e.refusesShared(key)
		return
	}
	e.free(key) // a first grant makes the row, if only for itself
	e.made(key) // and commits it: whoever makes a row has it alone
	a, b := e.begin(), e.begin()
	first, err := a.RLock(e.Context(), key)
	e.wants(err, nil)
	second, err := b.TryRLock(e.Context(), key)
	e.wants(err, nil)
	if !first.Shared() || first.Token() != second.Token() {
		e.Errorf("shared grants %+v and %+v", first, second)
	}
	e.busy(key)
	a.commit()
	e.busy(key)
	b.commit()
	exclusive := e.begin()
	if token := exclusive.lock(key).Token(); token <= first.Token() {
		e.Errorf("token %d after the shared %d", token, first.Token())
	}
	reader := e.begin()
	_, err = reader.TryRLock(e.Context(), key)
	e.wants(err, txlock.ErrBusy)
	e.wants(reader.Rollback(), nil)
	waiter := e.begin()
	answered := waiter.waiting(func() (txlock.Grant, error) { return waiter.RLock(e.Context(), key) })
	exclusive.commit()
	e.wants((<-answered).err, nil)
}

// refusesShared tells that a shared lock is refused, and nothing else with it.
func (e *env) refusesShared(key txlock.Key) {
	e.Helper()
	first := e.begin() // of the process, perhaps: it may keep the lock
	_, err := first.RLock(e.Context(), key)
	e.wants(err, schema.ErrMultiPrimary)
	e.wants(first.Rollback(), nil)
	s := e.begin()
	for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){s.RLock, s.TryRLock, s.WaitAtMost(time.Second).RLock} {
		_, err := verb(e.Context(), key)
		e.wants(err, schema.ErrMultiPrimary)
	}
	e.free(key)
	s.lock(key)
	e.busy(key)
	s.commit()
}

func refusesUpgrade(e *env) {
	key := e.key()
	if e.cluster {
		e.refusesShared(key)
		return
	}
	s := e.begin()
	_, err := s.RLock(e.Context(), key)
	e.wants(err, nil)
	_, err = s.Lock(e.Context(), key)
	e.wants(err, txlock.ErrUpgrade)
	_, err = s.LockAll(e.Context(), key, e.key())
	e.wants(err, txlock.ErrUpgrade)
	e.wants(s.Verify(e.Context()), nil)
	s.commit()
}

func waitsAtMost(e *env) {
	const limit = 120 * time.Millisecond
	key, other := e.key(), e.key()
	table := e.numbers()
	holder, waiter := e.begin(), e.begin()
	holder.lock(key)
	waiter.lock(other)
	e.wants(waiter.Exec(e.Context(), "UPDATE "+table+" SET n = 3"), nil)
	verbs := []func(context.Context, txlock.Key) (txlock.Grant, error){waiter.WaitAtMost(limit).Lock, waiter.WaitAtMost(limit).RLock}
	if e.cluster {
		verbs = verbs[:1]
	}
	for _, verb := range verbs {
		began := time.Now()
		_, err := verb(e.Context(), key)
		e.wants(err, txlock.ErrWaitTimeout)
		if waited := time.Since(began); waited < limit {
			e.Errorf("gave up after %v", waited)
		}
	}
	e.wants(waiter.Verify(e.Context()), nil)
	e.busy(other)
	_, err := waiter.WaitAtMost(-time.Second).Lock(e.Context(), e.key())
	e.wants(err, txlock.ErrInvalidOption)
	waiter.commit()
	if n := e.begin().read(table); n != 3 {
		e.Errorf("the write before the timeout is %d after COMMIT, want 3", n)
	}
}

func waitsAtMostGranted(e *env) {
	key := e.key()
	first := e.begin()
	first.lock(key)
	first.commit()
	holder := e.begin()
	holder.lock(key)
	waiter := e.begin()
	answered := waiter.waiting(func() (txlock.Grant, error) {
		return waiter.WaitAtMost(20*time.Second).Lock(e.Context(), key)
	})
	holder.commit()
	e.wants((<-answered).err, nil)
	e.busy(key)
}

func locksAll(e *env) {
	a, b, c := e.key(), e.key(), e.key()
	s := e.begin()
	first := s.lock(b)
	grants, err := s.LockAll(e.Context(), c, a, b, c)
	e.wants(err, nil)
	if len(grants) != 4 || grants[0].Key() != c || grants[1].Key() != a || grants[2].Key() != b || grants[3] != grants[0] {
		e.Fatalf("grants %+v", grants)
	}
	if e.adapter.Guarded && grants[2] != first {
		e.Errorf("re-entered as %+v, first %+v", grants[2], first)
	}
	for _, grant := range grants {
		if grant.Token() < 1e15 || grant.Shared() {
			e.Errorf("grant %+v", grant)
		}
		e.busy(grant.Key())
	}
	s.commit()
	for _, grant := range grants {
		if after := e.free(grant.Key()); after.Token() <= grant.Token() {
			e.Errorf("token %d after %d", after.Token(), grant.Token())
		}
	}
	_, err = e.begin().LockAll(e.Context())
	e.wants(err, txlock.ErrInvalidKey)
}

func locksAllAtMost(e *env) {
	a, b := e.key(), e.apart()
	holder, waiter := e.begin(), e.begin()
	holder.lock(b)
	_, err := waiter.WaitAtMost(100*time.Millisecond).LockAll(e.Context(), a, b)
	e.wants(err, txlock.ErrWaitTimeout)
	e.wants(waiter.Verify(e.Context()), nil)
	e.wants(waiter.Rollback(), nil)
	e.free(a)
}

func locksAny(e *env) {
	a, b, c := e.key(), e.key(), e.key()
	holder := e.begin()
	holder.lock(b)
	e.made(c) // it is tried: see kind.apart
	s := e.begin()
	grant, err := s.LockAny(e.Context(), b, c, a)
	e.wants(err, nil)
	if grant.Key() != c {
		e.Errorf("took %v, want the first that is free", grant.Key())
	}
	e.wants(s.Rollback(), nil)
	_, err = e.begin().LockAny(e.Context(), b)
	e.wants(err, txlock.ErrBusy)
}

func tells(e *env) {
	key := e.key()
	s := e.begin()
	if _, held := s.Held(key); held {
		e.Error("held before the lock")
	}
	grant := s.lock(key)
	if got, held := s.Held(key); !held || got != grant {
		e.Errorf("Held says %+v, %t", got, held)
	}
	e.wants(s.Verify(e.Context()), nil)
	s.commit()
	e.wants(s.Verify(e.Context()), txlock.ErrNoTransaction)
}

func namesHolder(e *env) {
	key, other := e.key(), e.key()
	s := e.begin()
	grant, err := s.Lock(txlock.WithLabel(e.Context(), "till 7"), key)
	e.wants(err, nil)
	holders, err := e.holders(other, key)
	e.wants(err, nil)
	if len(holders) != 1 || holders[0].Key != key || holders[0].Token != grant.Token() || holders[0].Label != "till 7" || e.memory == nil && holders[0].Session != uint64(s.id) {
		e.Errorf("holders %+v of %+v on connection %d", holders, grant, s.id)
	} else if age := time.Since(holders[0].Locked); age < -time.Minute || age > time.Minute {
		e.Errorf("locked %v ago", age)
	}
	s.commit()
	holders, err = e.holders(key)
	e.wants(err, nil)
	if len(holders) != 0 {
		e.Errorf("holders %+v after COMMIT", holders)
	}
}

func (e *env) holders(keys ...txlock.Key) ([]txlock.Holder, error) {
	if e.memory != nil {
		return e.memory.Holders(e.Context(), keys...)
	}
	return txlock.Holders(e.Context(), e.pool.DB(), keys...)
}

// numbers is a table of one row with a number.
func (e *env) numbers() string {
	e.Helper()
	if e.memory != nil {
		return e.memory.Numbers()
	}
	return spareNumbers.take(e, e.db)
}

// gone tells that the connection of a transaction is gone, and it with it.
func gone(err error) bool {
	return errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, context.Canceled) || errors.Is(err, txlock.ErrTxDoomed)
}

// unless drops the error of ending what the server has ended already.
func unless(err error) error {
	if gone(err) || errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

var _ testing.TB = (*env)(nil)
