package lockmock

import (
	"context"
	"fmt"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/idempotent"
	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/txlock"
)

// once is what package txlock does for this one.
var once = inside.OnceOf[*txlock.Scope, txlock.Key, txlock.OnceOption]()

// ExpectOnce expects Scope.Once, with any options.
func (l *Locks) ExpectOnce(key txlock.Key) *ExpectedOnce {
	return &ExpectedOnce{expected{locks: l, what: naming("Once", key), keys: onceKeys(key), call: func() error {
		_, err := l.scope.Once(context.Background(), key, txlock.Fingerprint(nil))
		return err
	}}}
}

// onceKeys is the key as the statement of Once names it: by its name, a hashed one too.
func onceKeys(key txlock.Key) []txlock.Key {
	if key.Hashed() {
		key = txlock.KeyOf(key.String())
	}
	return []txlock.Key{key}
}

// ExpectedOnce is a call of Scope.Once that is expected.
type ExpectedOnce struct{ expected }

// First makes the transaction the first: Once returns true.
func (e *ExpectedOnce) First() { e.replies(nil, "") }

// Again makes another transaction the first: Once returns false.
func (e *ExpectedOnce) Again() { e.replies(nil, "-") }

// Mismatches makes another request the first: txlock.ErrMismatch, for a call that has a
// fingerprint.
func (e *ExpectedOnce) Mismatches() { e.replies(txlock.ErrMismatch, "of another request") }

// TimesOut lets the wait for the first end: txlock.ErrWaitTimeout.
func (e *ExpectedOnce) TimesOut() { e.timesOut() }

// replies makes who was first have this fingerprint; none: there is nobody.
func (e *ExpectedOnce) replies(want error, former string) {
	e.locks.rows.former = nil
	if former != "" {
		e.locks.rows.former = []byte(former)
		defer func() { e.locks.rows.former = nil }()
	}
	if want == nil {
		e.perform(nil)
		return
	}
	e.fails(want, nil)
}

// ExpectOnce expects Once or OnceValue of locksqlc or lockgorm up to the call of its
// function: begin, join, and the question whether the transaction is the first. After
// Deadlocks the library runs the transaction again: queue another ExpectOnce.
func ExpectOnce(mock sqlmock.Sqlmock, key txlock.Key, options ...Option) *ExpectedOnceRun {
	locks := began(mock, options, naming("Once", key))
	e := locks.ExpectOnce(key)
	e.failed = func() { (&Transaction{locks}).RollsBack() }
	return &ExpectedOnceRun{e, key}
}

// ExpectedOnceRun is a Once or OnceValue that is expected.
type ExpectedOnceRun struct {
	*ExpectedOnce
	key txlock.Key
}

// First makes it the first: the function is called. What it sends is expected next, then
// Stores if it is OnceValue, and then Commits or RollsBack.
func (e *ExpectedOnceRun) First() *OnceTransaction {
	e.ExpectedOnce.First()
	return &OnceTransaction{Transaction{e.locks}, e.key}
}

// Again makes another the first, for Once: the function is not called.
func (e *ExpectedOnceRun) Again() {
	e.ExpectedOnce.Again()
	(&Transaction{e.locks}).Commits()
}

// AgainWith makes another the first, for OnceValue, which has stored this value. It is of
// the type that OnceValue returns.
func (e *ExpectedOnceRun) AgainWith(value any) {
	result, err := idempotent.EncodeAny(value)
	if err != nil {
		panic(fmt.Sprintf("lockmock: %s can't have stored %v: %v", e.what, value, err))
	}
	e.ExpectedOnce.Again()
	e.locks.rows.result = result
	e.locks.rehearse("the result of "+e.what, e.keys, nil, func() error {
		_, err := once.Result(context.Background(), e.locks.scope, e.key)
		return err
	})
	(&Transaction{e.locks}).Commits()
}

// OnceTransaction is the first transaction of a key, whose function runs.
type OnceTransaction struct {
	Transaction
	key txlock.Key
}

// Stores expects that the function of OnceValue has returned a value, which is stored.
func (t *OnceTransaction) Stores() {
	t.locks.rehearse(naming("the value of Once", t.key), onceKeys(t.key), nil, func() error {
		return once.Answer(context.Background(), t.locks.scope, t.key, []byte("{}"))
	})
}
