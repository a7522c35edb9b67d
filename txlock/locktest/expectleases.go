package locktest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Leases is what a mock expects of one lease.Manager, from its first call on and in the
// order in which the program makes the calls. As on a pool of one connection each
// statement is prepared once.
//
// Nothing is expected of what a manager does behind its calls: give it a TTL of an
// hour, so that it renews nothing while the test runs, and release what is acquired
// before it is closed. A waiting Acquire, which looks again and again, is a case for
// Memory. Shared leases, semaphores and ForceRelease have no expectations.
//
// The loss of a lease ends the contexts of its transactions, upon which database/sql may
// throw their connection away, and a mock ends with its last one: for such a test open
// another by sql.DB.Conn beforehand.
type Leases struct {
	settings
	t       testing.TB
	mock    sqlmock.Sqlmock
	stage   *stage
	manager *lease.Manager
	leases  map[string]*lease.Lease

	what  string
	token uint64 // of the row
	reply int64  // to what is written, where it isn't the token
	err   error  // likewise
	stale bool
}

// ExpectLeases is for a manager that is new. Its own copy of the manager, which knows
// what is prepared and held, ends with the test.
func ExpectLeases(t testing.TB, mock sqlmock.Sqlmock, options ...Option) *Leases {
	t.Helper()
	l := &Leases{settings: settingsOf(mock, options), t: t, mock: mock, leases: make(map[string]*lease.Lease)}
	l.stage = &stage{answer: l.answer}
	db := sql.OpenDB(l.stage)
	var err error
	if l.manager, err = lease.NewManager(db, lease.TTL(lease.MaxTTL), lease.Janitor(0, time.Second)); err != nil {
		t.Fatalf("locktest: %v", err)
	}
	t.Cleanup(func() {
		l.reply, l.err = 0, nil
		if err := errors.Join(l.manager.Close(context.Background()), db.Close()); err != nil {
			t.Errorf("locktest: close the copy of the manager: %v", err)
		}
	})
	return l
}

// ExpectAcquire expects Acquire, TryAcquire or the beginning of Do. Of the options only
// Fair changes the statements, that of the manager included.
func (l *Leases) ExpectAcquire(key txlock.Key, options ...lease.AcquireOption) *ExpectedAcquire {
	options = append(options, lease.TTL(lease.MaxTTL))
	return &ExpectedAcquire{l, key, fmt.Sprintf("Acquire(%q)", key), func(ctx context.Context) (*lease.Lease, error) {
		return l.manager.TryAcquire(ctx, key, options...)
	}}
}

// ExpectAcquireTx expects AcquireTx in an open transaction, of a lease whose row exists.
func (l *Leases) ExpectAcquireTx(key txlock.Key) *ExpectedAcquire {
	return &ExpectedAcquire{l, key, fmt.Sprintf("AcquireTx(%q)", key), func(ctx context.Context) (*lease.Lease, error) {
		tx, err := l.stage.transaction()
		if err != nil {
			return nil, err
		}
		return l.manager.AcquireTx(ctx, tx, key)
	}}
}

// ExpectedAcquire is a lease that is asked for.
type ExpectedAcquire struct {
	leases *Leases
	key    txlock.Key
	what   string
	call   func(ctx context.Context) (*lease.Lease, error)
}

// Granted gives the lease with a token, which is at least 16: smaller numbers are the
// server's refusals.
func (e *ExpectedAcquire) Granted(token uint64) {
	e.leases.token = token
	e.leases.expect(e.what, e.key, nil, func() (err error) {
		e.leases.leases[e.key.String()], err = e.call(context.Background())
		return err
	})
}

// Busy refuses the lease, which somebody else holds: TryAcquire returns txlock.ErrBusy.
func (e *ExpectedAcquire) Busy() {
	e.leases.reply = 1
	e.refused(txlock.ErrBusy)
}

// Fails makes the statement fail with an error of the server.
func (e *ExpectedAcquire) Fails(err *mysql.MySQLError) {
	if txlock.Unknown(err) || txlock.Retryable(err) {
		panic(fmt.Sprintf("locktest: %s can't be expected to fail with %v, after which a manager tries again", e.what, err))
	}
	e.leases.err = err
	e.refused(err)
}

func (e *ExpectedAcquire) refused(want error) {
	e.leases.expect(e.what, e.key, want, func() error {
		_, err := e.call(context.Background())
		return err
	})
}

// ExpectedHeld is a call on a lease that is held.
type ExpectedHeld struct {
	leases *Leases
	key    txlock.Key
	what   string
	call   func(ctx context.Context, l *lease.Lease) error
}

// ExpectRenew expects Lease.Renew.
func (l *Leases) ExpectRenew(key txlock.Key) *ExpectedHeld {
	return &ExpectedHeld{l, key, fmt.Sprintf("Renew(%q)", key), func(ctx context.Context, held *lease.Lease) error {
		return held.Renew(ctx)
	}}
}

// ExpectGuard expects Lease.Guard in an open transaction, or lockgorm.Guard. NothingRead
// is an option of it.
func (l *Leases) ExpectGuard(key txlock.Key, options ...txlock.JoinOption) *ExpectedGuard {
	return &ExpectedGuard{ExpectedHeld{l, key, fmt.Sprintf("Guard(%q)", key), func(ctx context.Context, held *lease.Lease) error {
		tx, err := l.stage.transaction()
		if err != nil {
			return err
		}
		return held.Guard(ctx, tx, options...)
	}}}
}

// Succeeds lets the call succeed.
func (e *ExpectedHeld) Succeeds() { e.expect(nil) }

// Lost says that the lease is somebody else's by now: txlock.ErrLost.
func (e *ExpectedHeld) Lost() {
	e.leases.reply = 1
	e.expect(txlock.ErrLost)
}

func (e *ExpectedHeld) expect(want error) {
	held := e.leases.held(e.key, e.what)
	e.leases.expect(e.what, e.key, want, func() error { return e.call(context.Background(), held) })
}

// ExpectedGuard is a Guard that is expected.
type ExpectedGuard struct{ ExpectedHeld }

// Stale says that the transaction has read before the lease was acquired:
// txlock.ErrStaleSnapshot. It can't be where nothing was read.
func (e *ExpectedGuard) Stale() {
	e.leases.stale = true
	e.expect(txlock.ErrStaleSnapshot)
}

// ExpectRelease expects Lease.Release, or the end of Do.
func (l *Leases) ExpectRelease(key txlock.Key) *ExpectedRelease {
	return &ExpectedRelease{l, key}
}

// ExpectedRelease is a Release that is expected.
type ExpectedRelease struct {
	leases *Leases
	key    txlock.Key
}

// Succeeds gives the lease back.
func (e *ExpectedRelease) Succeeds() { e.expect(nil) }

// NotHeld says that the lease was somebody else's already: txlock.ErrNotHeld.
func (e *ExpectedRelease) NotHeld() {
	e.leases.reply = 1
	e.expect(txlock.ErrNotHeld)
}

func (e *ExpectedRelease) expect(want error) {
	what := fmt.Sprintf("Release(%q)", e.key)
	held := e.leases.held(e.key, what)
	delete(e.leases.leases, e.key.String())
	e.leases.expect(what, e.key, want, func() error { return held.Release(context.Background()) })
}

// held returns the copy of a lease that is held.
func (l *Leases) held(key txlock.Key, what string) *lease.Lease {
	held := l.leases[key.String()]
	if held == nil {
		panic(fmt.Sprintf("locktest: %s is expected of a lease that wasn't granted, or was released: say ExpectAcquire(%q).Granted before", what, key))
	}
	l.token = held.Token()
	return held
}

// expect rehearses a call, and makes the mock expect what it has sent.
func (l *Leases) expect(what string, key txlock.Key, want error, call func() error) {
	l.stage.take()
	l.what = what
	err := call()
	l.reply, l.err, l.stale = 0, nil, false
	if want == nil && err != nil || !errors.Is(err, want) {
		panic(fmt.Sprintf("locktest: %s can't be expected to return %v: what it returns is %v", what, want, err))
	}
	// The row of a lease has the name of its key, hashed or not.
	expect(l.mock, l.settings, l.stage.take(), []txlock.Key{txlock.Named(key.String())}, false)
}

// answer is what a server replies to a manager whose rows all exist.
func (l *Leases) answer(query string, _ []driver.Value) reply {
	switch query {
	case rawsql.Probe:
		return reply{err: serverError(1568, "a transaction is open (asked before "+l.what+")")}
	case rawsql.Facts:
		return row(l.version, int64(7), int64(0), newName())
	}
	switch nameOf(query) {
	case nameOf(gen.ServerClock):
		return rowLike(gen.ServerClockRow{NowUs: time.Now().UnixMicro(), Version: l.version})
	case nameOf(gen.LookLease):
		return rowLike(gen.LookLeaseRow{Owner: []byte("-")}) // free
	case nameOf(gen.LeaseInSnapshot):
		seen := gen.LeaseInSnapshotRow{Token: l.token}
		if l.stale {
			seen.Token--
		}
		return rowLike(seen)
	case nameOf(gen.LeaseAsItIs):
		return rowLike(gen.LeaseAsItIsRow{Token: l.token})
	case nameOf(gen.AcquireLease), nameOf(gen.RenewLease), nameOf(gen.ReleaseLease), nameOf(gen.GuardLease):
		switch {
		case l.err != nil:
			return reply{err: l.err}
		case l.reply != 0:
			return reply{id: l.reply}
		}
		return reply{id: int64(l.token)}
	}
	return reply{err: fmt.Errorf("locktest has no answer to %q", query)}
}
