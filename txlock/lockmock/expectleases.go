package lockmock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/sqlstore"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Leases is what a mock expects of one lease.Manager, from its first call on and in the
// order in which the program makes the calls. As on a pool of one connection each
// statement is prepared once. The rows of all keys exist, and are those of shared leases
// and of semaphores where that is asked for; nobody has read under what is acquired.
//
// Renew, Guard, Downgrade and Release name their lease by its key. Where several leases
// of a key are held, as readers and permits can be, they mean the one that was granted
// last.
//
// What a manager does in the background can't be expected. Give it a TTL of an hour, so
// that it renews nothing while the test runs, and release what is acquired before it is
// closed. Waits (of Acquire and of Resize) ask the server again and again, and can't be
// expected either; nor can ForceRelease. For these use locktest.Memory.
//
// When the mock refuses a statement, the manager can't know whether a lease was granted:
// for the TTL it tries in the background to release it. So close the manager under a
// context that ends; in t.Cleanup, t.Context() is one.
//
// When a lease is lost, the contexts of its transactions end, and database/sql may close
// their connection. A mock is closed with its last connection: for such a test open
// another one by sql.DB.Conn first.
type Leases struct {
	settings
	t       testing.TB
	mock    sqlmock.Sqlmock
	stage   *stage
	manager *lease.Manager
	held    map[string][]*lease.Lease
	calls   []*call
	grants  int64  // of permits
	epoch   string // of the database

	what string // what is rehearsed
	play play
}

// ExpectLeases is for a manager that is new. Its own copy of the manager, which knows
// what is prepared and held, ends with the test, whose log then names the calls that were
// expected and not made.
func ExpectLeases(t testing.TB, mock sqlmock.Sqlmock, options ...Option) *Leases {
	t.Helper()
	l := &Leases{settings: settingsOf(mock, options), t: t, mock: mock, held: make(map[string][]*lease.Lease), epoch: newName("data"), play: calm}
	l.stage = &stage{answer: l.answer}
	db := sql.OpenDB(l.stage)
	var err error
	if l.manager, err = lease.NewManager(db, lease.TTL(lease.MaxTTL), lease.Janitor(0, time.Second)); err != nil {
		t.Fatalf("lockmock: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.manager.Close(context.Background()), db.Close()); err != nil {
			t.Errorf("lockmock: close the copy of the manager: %v", err)
		}
		for _, c := range l.calls {
			if !c.made() {
				t.Logf("lockmock: %s was expected and not made%s", c.what, c.instead())
			}
		}
	})
	return l
}

// ExpectAcquire expects Acquire, TryAcquire or the beginning of Do or TryDo. Of the
// options, Fair changes the statement, that of the manager included, and HoldAtLeast that
// of the release.
func (l *Leases) ExpectAcquire(key txlock.Key, options ...lease.AcquireOption) *ExpectedAcquire {
	options = append(options, lease.TTL(lease.MaxTTL))
	return l.acquire("Acquire", key, refused, func(ctx context.Context) (*lease.Lease, error) {
		return l.manager.TryAcquire(ctx, key, options...)
	})
}

// ExpectAcquireTx expects AcquireTx in an open transaction.
func (l *Leases) ExpectAcquireTx(key txlock.Key) *ExpectedAcquire {
	return l.acquire("AcquireTx", key, refused, func(ctx context.Context) (*lease.Lease, error) {
		tx, err := l.stage.transaction()
		if err != nil {
			return nil, err
		}
		return l.manager.AcquireTx(ctx, tx, key)
	})
}

// ExpectAcquireShared expects AcquireShared, TryAcquireShared or the beginning of DoShared.
func (l *Leases) ExpectAcquireShared(key txlock.Key) *ExpectedAcquire {
	return l.acquire("AcquireShared", key, written, func(ctx context.Context) (*lease.Lease, error) {
		return l.manager.TryAcquireShared(ctx, key)
	})
}

// ExpectDowngrade expects Lease.Downgrade, which takes the reader's lease and releases
// the writer's. It is Busy where the writer's lease is somebody else's by now.
func (l *Leases) ExpectDowngrade(key txlock.Key) *ExpectedAcquire {
	return l.acquire("Downgrade", key, written, func(ctx context.Context) (*lease.Lease, error) {
		writer := l.last(key, naming("Downgrade", key))
		reader, err := writer.Downgrade(ctx)
		if err == nil {
			l.drop(writer)
		}
		return reader, err
	})
}

// ExpectPermit expects Acquire or TryAcquire of a semaphore of so many permits, or the
// beginning of its Do.
func (l *Leases) ExpectPermit(key txlock.Key, permits int) *ExpectedAcquire {
	e := l.acquire(fmt.Sprintf("Semaphore(%d).Acquire", permits), key, taken(permits), func(ctx context.Context) (*lease.Lease, error) {
		s, err := l.manager.Semaphore(key, permits)
		if err != nil {
			return nil, err
		}
		return s.TryAcquire(ctx)
	})
	e.permit = true
	return e
}

func (l *Leases) acquire(verb string, key txlock.Key, busy play, call func(context.Context) (*lease.Lease, error)) *ExpectedAcquire {
	return &ExpectedAcquire{leases: l, key: key, what: naming(verb, key), busy: busy, call: call}
}

// ExpectedAcquire is a lease that is asked for.
type ExpectedAcquire struct {
	leases *Leases
	key    txlock.Key
	what   string
	busy   play // of the server that refuses it
	permit bool
	call   func(ctx context.Context) (*lease.Lease, error)
}

// Granted gives the lease with a token, which is at least 16: smaller numbers are the
// server's refusals. It is less than 1<<62.
func (e *ExpectedAcquire) Granted(token uint64) {
	p := play{token: token, reply: int64(token), look: free}
	if e.permit {
		e.leases.grants++
		p.permit = e.leases.grants % lease.MaxPermits
	}
	checkToken(e.what, token)
	e.leases.expect(e.what, e.key, p, nil, func() error {
		l, err := e.call(context.Background())
		if err == nil {
			e.leases.held[e.key.String()] = append(e.leases.held[e.key.String()], l)
		}
		return err
	})
}

func checkToken(what string, token uint64) {
	if token < 16 || token >= sqlstore.SharedBit {
		panic(fmt.Sprintf("lockmock: %s can't be granted with token %d: it is at least 16 and less than %d", what, token, uint64(sqlstore.SharedBit)))
	}
}

// Busy refuses the lease, which somebody else holds: the Try methods and AcquireTx return
// txlock.ErrBusy.
func (e *ExpectedAcquire) Busy() { e.refused(e.busy, txlock.ErrBusy) }

// Fails makes the statement fail with an error of the server.
func (e *ExpectedAcquire) Fails(err *mysql.MySQLError) {
	final(e.what, err)
	e.refused(play{err: err, look: free}, err)
}

func (e *ExpectedAcquire) refused(p play, want error) {
	e.leases.expect(e.what, e.key, p, want, func() error {
		_, err := e.call(context.Background())
		return err
	})
}

// final makes sure that a manager hands on an error of the server.
func final(what string, err *mysql.MySQLError) {
	if fault.Unknown(err) || txlock.Retryable(err) {
		panic(fmt.Sprintf("lockmock: %s can't be expected to fail with %v, after which a manager tries again", what, err))
	}
}

// ExpectResize expects Semaphore.Resize from a number of permits to another, of which
// none too many is held.
func (l *Leases) ExpectResize(key txlock.Key, from, to int) *ExpectedResize {
	return &ExpectedResize{l, key, from, to}
}

// ExpectedResize is a Resize that is expected.
type ExpectedResize struct {
	leases   *Leases
	key      txlock.Key
	from, to int
}

// Succeeds sets the number.
func (e *ExpectedResize) Succeeds() { e.expect(nil) }

// Fails makes the statement that sets the number fail with an error of the server.
func (e *ExpectedResize) Fails(err *mysql.MySQLError) {
	final("Resize", err)
	e.expect(err)
}

func (e *ExpectedResize) expect(fails error) {
	p := play{reply: sqlstore.UsedFor + int64(e.from), err: fails, look: gen.LookLeaseRow{Owner: []byte("-"), UsedFor: -int64(e.from)}}
	e.leases.expect(fmt.Sprintf("Semaphore(%d).Resize(%q, %d)", e.from, e.key, e.to), e.key, p, fails, func() error {
		s, err := e.leases.manager.Semaphore(e.key, e.from)
		if err == nil {
			_, err = s.Resize(context.Background(), e.to)
		}
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
func (l *Leases) ExpectRenew(key txlock.Key) *ExpectedRenew {
	return &ExpectedRenew{ExpectedHeld{l, key, naming("Renew", key), func(ctx context.Context, held *lease.Lease) error {
		return held.Renew(ctx)
	}}}
}

// ExpectGuard expects Lease.Guard in an open transaction, or lockgorm.Guarded. NothingRead
// is an option of it.
func (l *Leases) ExpectGuard(key txlock.Key, options ...txlock.JoinOption) *ExpectedGuard {
	return &ExpectedGuard{ExpectedHeld{l, key, naming("Guard", key), func(ctx context.Context, held *lease.Lease) error {
		tx, err := l.stage.transaction()
		if err != nil {
			return err
		}
		return held.Guard(ctx, tx, options...)
	}}}
}

// Succeeds lets the call succeed.
func (e *ExpectedHeld) Succeeds() { e.expect(play{}, nil) }

// Lost says that the lease is somebody else's by now: txlock.ErrLost.
func (e *ExpectedHeld) Lost() { e.expect(refused, txlock.ErrLost) }

func (e *ExpectedHeld) expect(p play, want error) {
	held := e.leases.last(e.key, e.what)
	e.leases.expect(e.what, e.key, p.about(held), want, func() error { return e.call(context.Background(), held) })
}

// ExpectedGuard is a Guard that is expected.
type ExpectedGuard struct{ ExpectedHeld }

// Stale says that the transaction has read before the lease was acquired:
// txlock.ErrStaleSnapshot. It can't be where nothing was read.
func (e *ExpectedGuard) Stale() { e.expect(play{stale: true}, txlock.ErrStaleSnapshot) }

// ExpectRelease expects Lease.Release, or the end of Do or TryDo.
func (l *Leases) ExpectRelease(key txlock.Key) *ExpectedRelease {
	return &ExpectedRelease{l, key}
}

// ExpectedRelease is a Release that is expected.
type ExpectedRelease struct {
	leases *Leases
	key    txlock.Key
}

// Succeeds gives the lease back.
func (e *ExpectedRelease) Succeeds() { e.expect(play{}, nil) }

// NotHeld says that the lease was somebody else's already: txlock.ErrNotHeld.
func (e *ExpectedRelease) NotHeld() { e.expect(refused, txlock.ErrNotHeld) }

func (e *ExpectedRelease) expect(p play, want error) {
	what := naming("Release", e.key)
	held := e.leases.last(e.key, what)
	e.leases.drop(held)
	e.leases.expect(what, e.key, p.about(held), want, func() error { return held.Release(context.Background()) })
}

// last returns the copy of the lease of a key that was granted last.
func (l *Leases) last(key txlock.Key, what string) *lease.Lease {
	held := l.held[key.String()]
	if len(held) == 0 {
		panic(fmt.Sprintf("lockmock: %s is expected of a lease that wasn't granted, or was released: say ExpectAcquire(%q).Granted before", what, key))
	}
	return held[len(held)-1]
}

// drop forgets a lease that is not held any more.
func (l *Leases) drop(held *lease.Lease) {
	key := held.Key().String()
	l.held[key] = slices.DeleteFunc(l.held[key], func(other *lease.Lease) bool { return other == held })
}

// expect rehearses a call, and makes the mock expect what it has sent.
func (l *Leases) expect(what string, key txlock.Key, p play, want error, do func() error) {
	l.expectOf(what, []txlock.Key{key}, p, want, do)
}

func (l *Leases) expectOf(what string, keys []txlock.Key, p play, want error, do func() error) {
	l.stage.take()
	l.what, l.play = what, p
	err := do()
	l.play = calm
	if want == nil && err != nil || !errors.Is(err, want) {
		panic(fmt.Sprintf("lockmock: %s can't be expected to return %v: what it returns is %v", what, want, err))
	}
	c := newCall(l.mock, l.settings, what)
	l.calls = append(l.calls, c)
	// The row of a lease has the name of its key, hashed or not.
	names := make([]txlock.Key, len(keys))
	for i, key := range keys {
		names[i] = txlock.KeyOf(key.String())
	}
	c.expect(l.stage.take(), names, false)
}
