package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestEveryVerbAfterClose proves that no call of a manager that is closed, of its
// semaphores or of its leases sends anything, and that each says why. A method that is
// new has to be put in here.
func TestEveryVerbAfterClose(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		tap := new(wiretap)
		pool := newPool(t, db, true, tap.install)
		m := newManager(t, pool)
		s := semaphore(t, m, named(), 2)
		permit := permit(t, s)
		l, key := acquire(t, m, named()), named()
		tx := begin(t, pool, sql.LevelDefault)
		must(t, m.Close(t.Context()))
		ctx, before := t.Context(), tap.count()
		none := func(context.Context, *lease.Lease) error {
			t.Error("the function was called")
			return nil
		}
		first := func(_ any, err error) error { return err }
		quiet := errors.New("it sends nothing") // and may be called
		_, _, working := inner.Works(ctx, l)
		verbs := map[any]map[string]error{
			m: {
				"Acquire":          first(m.Acquire(ctx, key)),
				"TryAcquire":       first(m.TryAcquire(ctx, key)),
				"AcquireShared":    first(m.AcquireShared(ctx, key)),
				"TryAcquireShared": first(m.TryAcquireShared(ctx, key)),
				"AcquireTx":        first(m.AcquireTx(ctx, tx, key)),
				"AcquireAll":       first(m.AcquireAll(ctx, []txlock.Key{key})),
				"TryAcquireAll":    first(m.TryAcquireAll(ctx, []txlock.Key{key})),
				"Do":               m.Do(ctx, key, none),
				"TryDo":            m.TryDo(ctx, key, none),
				"DoShared":         m.DoShared(ctx, key, none),
				"Semaphore":        quiet,
				"List":             first(m.List(ctx)),
				"Inspect":          first(m.Inspect(ctx, key)),
				"ForceRelease":     m.ForceRelease(ctx, key),
				"Purge":            first(m.Purge(ctx)),
				"RequestRelease":   m.RequestRelease(ctx, key, ""),
				"Close":            errors.Join(quiet, m.Close(ctx)),
			},
			inner: {
				"Terms":      first(inner.Terms(m)),
				"Epoch":      first(inner.Epoch(ctx, m)),
				"BeginEpoch": first(inner.BeginEpoch(ctx, m, time.Hour)),
				"Works":      working,
				"Identity":   quiet, "OwnerOf": quiet, "RaiseToken": quiet,
			},
			s: {
				"Acquire":    first(s.Acquire(ctx)),
				"TryAcquire": first(s.TryAcquire(ctx)),
				"Do":         s.Do(ctx, none),
				"Resize":     first(s.Resize(ctx, 3)),
			},
			l: {
				"Renew":     l.Renew(ctx),
				"Guard":     l.Guard(ctx, tx),
				"Downgrade": first(l.Downgrade(ctx)),
				"Err":       l.Err(),
				"Release":   errors.Join(quiet, l.Release(ctx), permit.Release(ctx)),
				"Key":       quiet, "Token": quiet, "Owner": quiet, "Shared": quiet,
				"Valid": quiet, "Done": quiet, "ReleaseRequested": quiet, "ReleaseReason": quiet, "Context": quiet, "Remaining": quiet,
			},
		}
		for of, calls := range verbs {
			for i := range reflect.TypeOf(of).NumMethod() {
				name := reflect.TypeOf(of).Method(i).Name
				err, known := calls[name]
				switch {
				case !known:
					t.Errorf("%T.%s is not tested after Close", of, name)
				case err == nil:
					t.Errorf("%T.%s succeeds after Close", of, name)
				case errors.Is(err, quiet):
					if err.Error() != quiet.Error() {
						t.Errorf("%T.%s: %v", of, name, err)
					}
				case of == any(l):
					wants(t, fmt.Sprintf("%T.%s", of, name), err, txlock.ErrNotHeld)
				default:
					wants(t, fmt.Sprintf("%T.%s", of, name), err, lease.ErrClosed)
				}
			}
		}
		wants(t, "RaiseToken", inner.RaiseToken(ctx, l, 1<<50), txlock.ErrNotHeld)
		if n := tap.count() - before; n > 0 {
			t.Errorf("%d statements were sent: %q", n, tap.last(n))
		}
		rollback(t, tx)
	})
}

// TestCloseKeepsItsContext proves that Close returns with its context, however many
// leases are held, on a server that stands still; that it says what it could not release;
// that all holders are told at once; and that the leases are free when their time
// is over.
func TestCloseKeepsItsContext(t *testing.T) {
	onDedicated(t, func(t *testing.T, server *testdb.Server) {
		const leases, limit = 40, time.Second
		db := server.OpenLeases(t)
		type closed struct {
			m    *lease.Manager
			held []*lease.Lease
		}
		var all []closed
		for _, guarded := range []bool{true, false} { // with statements as text, and prepared
			c := closed{m: newManager(t, newPool(t, db, guarded, func(c *mysql.Config) { c.InterpolateParams = guarded }))}
			c.held = takeMixed(t, db, c.m, leases-1)
			c.held = append(c.held, acquire(t, c.m, named()))
			all = append(all, c)
		}
		must(t, server.Signal(syscall.SIGSTOP))
		for i, c := range all {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			begun, delays := time.Now(), testdb.Delays(t)
			err := c.m.Close(ctx)
			took := time.Since(begun) - delays()
			cancel()
			wants(t, "Close", err, context.DeadlineExceeded)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d leases were not released", leases)) {
				t.Errorf("pool %d: Close doesn't say that all %d are left: %.300v", i, leases, err)
			}
			if took > limit+10*time.Second { // the server stands still for longer
				t.Errorf("pool %d: Close took %v", i, took)
			}
			for _, l := range c.held {
				if !errors.Is(l.Err(), txlock.ErrNotHeld) {
					t.Fatalf("a holder is not told: %v", l.Err())
				}
			}
		}
		must(t, server.Signal(syscall.SIGCONT))
		// Whatever Close has sent has an end that nobody puts off.
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1")
		after := newManager(t, newPool(t, db, true))
		for _, c := range all {
			last := c.held[leases-1]
			l := acquire(t, after, last.Key(), lease.WaitAtMost(soon))
			higher(t, l, last)
			release(t, l)
		}
	})
}

// TestCloseBesideALongStatement proves that Close doesn't wait for what the program
// executes on the connections that the manager has used, too.
func TestCloseBesideALongStatement(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(2)
		// Its loop gives the pool's connection back that it has kept while it held something.
		m := newManager(t, pool, lease.RenewEvery(50*time.Millisecond))
		release(t, acquire(t, m, named())) // its statements stay prepared
		release(t, acquire(t, m, named()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		executing, ended := make(chan int64, 2), make(chan struct{}, 2)
		for range 2 {
			go func() {
				defer func() { ended <- struct{}{} }()
				conn, err := pool.Conn(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				executing <- testdb.ConnID(t, conn)
				_, _ = conn.ExecContext(ctx, "DO SLEEP(600)") // until the test ends it
			}()
		}
		for range 2 {
			within(t, "a connection", executing)
		}
		limited, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer end()
		begun, delays := time.Now(), testdb.Delays(t)
		wantsNone(t, "Close, which holds nothing", m.Close(limited))
		if took := time.Since(begun); took > 5*time.Second+delays() {
			t.Errorf("Close took %v", took)
		}
		cancel()
		for range 2 {
			within(t, "the end of a statement", ended)
		}
	})
}

// TestCloseAfterItsPool proves that Close of a manager whose pool was closed before
// doesn't try on until its context ends, and says at once what it could not release.
func TestCloseAfterItsPool(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, err := lease.NewManager(pool)
		must(t, err)
		held := []*lease.Lease{acquire(t, m, named()), acquire(t, m, named())}
		must(t, pool.Close())
		ctx := limited(t, time.Minute)
		begun, delays := time.Now(), testdb.Delays(t)
		err = m.Close(ctx)
		if took := time.Since(begun); took > 10*time.Second+delays() {
			t.Errorf("Close took %v", took)
		}
		for _, l := range held {
			if err == nil || !strings.Contains(err.Error(), l.Key().String()) || !strings.Contains(err.Error(), "2 leases were not released") {
				t.Errorf("Close doesn't say that %v was not released: %v", l.Key(), err)
			}
			wants(t, "a lease afterwards", l.Err(), txlock.ErrNotHeld)
		}
		wants(t, "Close", err, pool.PingContext(ctx)) // that of database/sql, which has no name
	})
}
