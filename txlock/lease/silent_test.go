package lease_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestWaitSurvivesAStandstill proves that waits without a limit outlast a server whose writes stand still, as
// for a backup, for longer than several attempts may take, leave few sessions on it and nothing that is
// held; and that a try and a wait with a limit say that it has not answered.
func TestWaitSurvivesAStandstill(t *testing.T) {
	onDedicated(t, func(t *testing.T, server *testdb.Server) {
		db := server.OpenLeases(t)
		m := newManager(t, newPool(t, db, true), lease.TTL(600*time.Millisecond))
		calls := maps.Clone(waitsWithoutLimit)
		calls["a try"], calls["a limit"] = tryExclusive.released, exclusive.under(lease.WaitAtMost(time.Second)).released
		keys := make(map[string]txlock.Key)
		for what, call := range calls {
			keys[what] = named()
			wantsGranted(t, what, call(t.Context(), m, keys[what])) // so that there are rows
		}
		backup := testdb.Got(db.Admin().Conn(t.Context()))(t)
		must(t, testdb.Err(backup.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK")))
		over := sync.OnceFunc(func() { wants(t, "the end of the backup", backup.Close(), nil) })
		defer over()
		var waiting sync.WaitGroup
		for what, call := range calls {
			waiting.Go(func() {
				err := call(t.Context(), m, keys[what])
				if waitsWithoutLimit[what] != nil {
					wantsGranted(t, what, err)
					return
				}
				wants(t, what, err, txlock.ErrWaitTimeout)
				// Its own first statement may have the row locked by then.
				testdb.ErrorIf(t, err != nil && !strings.Contains(err.Error(), "the server has not answered for ") && !strings.Contains(err.Error(), "its row was locked"),
					"%s: %v", what, err)
			})
		}
		time.Sleep(6 * time.Second)
		n := sessions(t, db)
		testdb.ErrorIf(t, n > int64(6*len(keys)), "%d sessions of %d waits", n, len(keys))
		must(t, testdb.Err(backup.ExecContext(t.Context(), "UNLOCK TABLES")))
		over()
		waiting.Wait()
		waitUntil(t, "nothing is held", func() bool {
			all, err := m.List(t.Context())
			return err == nil && len(all) == 0
		})
	})
}

// wantsGranted checks that a call was granted what it has waited for. On a busy machine that
// may be over before its release.
func wantsGranted(t testing.TB, what string, err error) {
	t.Helper()
	testdb.ErrorIf(t, err != nil && !errors.Is(err, txlock.ErrNotHeld) && !errors.Is(err, txlock.ErrLost), "%s: %v", what, err)
}

// freeze is a fault that lets calls stand until the server thaws. Those that are given up
// meanwhile keep a session of the server.
type freeze struct {
	only []string // the calls that stand; nil: all
	thaw chan struct{}

	mu    sync.Mutex
	stood int // calls that stood
	left  int // sessions of those that were given up
}

// writes are the calls that FLUSH TABLES WITH READ LOCK lets stand.
var writes = []string{"Take", "Make", "Use", "Release", "Reap", "Renew", "RenewMany", "Queued"}

// freezes are the ways in which a server stands still.
var freezes = map[string][]string{"for all": nil, "for writes": writes}

func (f *freeze) fault(ctx context.Context, op string, _ store.Row, call func() error) error {
	if f.only != nil && !slices.Contains(f.only, op) {
		return call()
	}
	f.mu.Lock()
	f.stood++
	f.mu.Unlock()
	select {
	case <-f.thaw:
		return call()
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		f.left++
		return ctx.Err()
	}
}

// frozen lets the server of a wire stand still for a while.
func (w *wire) frozen(only []string, d time.Duration) *freeze {
	f := &freeze{only: only, thaw: make(chan struct{})}
	w.SetFault(func(ctx context.Context, op string, at store.Row, call func() error) error {
		return w.pass(ctx, op, at, func() error { return f.fault(ctx, op, at, call) })
	})
	time.AfterFunc(d, func() { close(f.thaw) })
	return f
}

// aWait waits for something under a key, and releases what it is granted.
type aWait func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error

// waitsWithoutLimit are all that wait for as long as the context lives, unless the options
// say otherwise.
var waitsWithoutLimit = map[string]aWait{
	"Acquire": exclusive.released, "Acquire fairly": fairly.released, "AcquireShared": shared.released, "a permit": permitOf.released,
	"Do": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
		return m.Do(ctx, key, noWork, options...)
	},
	"DoShared": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
		return m.DoShared(ctx, key, noWork, options...)
	},
	"Do a permit": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
		s, err := m.Semaphore(key, 1)
		if err != nil {
			return err
		}
		return s.Do(ctx, noWork, options...)
	},
	"AcquireAll": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
		return acquiredAll(m.AcquireAll(ctx, []txlock.Key{key, txlock.Named(key.String() + ", too")}, options...))
	},
}

// released releases what was acquired.
func (v verb) released(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
	return acquired(v(ctx, m, key, options...))
}

func noWork(context.Context, *lease.Lease) error { return nil }

// acquired releases what was acquired.
func acquired(l *lease.Lease, err error) error {
	if err != nil {
		return err
	}
	return l.Release(context.Background())
}

func acquiredAll(all *lease.Leases, err error) error {
	if err != nil {
		return err
	}
	return all.Release(context.Background())
}

// TestWaitSurvivesASilentServer proves that no wait without a limit ends because the server
// stands still, whatever it waits for and however short the TTL is: it is granted when the
// server answers again. It leaves few sessions behind, however long that takes.
func TestWaitSurvivesASilentServer(t *testing.T) {
	for frozen, only := range freezes {
		for _, ttl := range []time.Duration{lease.MinTTL, 3 * time.Second, 30 * time.Second} {
			for how, options := range map[string][]lease.AcquireOption{"": nil, ", fair": {lease.Fair()}} {
				options = append(options, lease.TTL(ttl))
				for name, wait := range waitsWithoutLimit {
					for _, lasts := range []time.Duration{10 * time.Second, time.Hour} {
						runInMemory(t, name+how+", "+ttl.String()+", "+frozen+" "+lasts.String(), func(t *testing.T, db *memory) {
							m, wire := db.process()
							must(t, wait(t.Context(), m, job, options...)) // so that there are rows
							f := wire.frozen(only, lasts)
							begun := time.Now()
							must(t, wait(t.Context(), m, job, options...))
							took := time.Since(begun)
							testdb.ErrorIf(t, took < lasts || took > lasts+time.Second, "granted after %v", took)
							testdb.ErrorIf(t, f.left > 32, "%d sessions are left", f.left)
							synctest.Wait()
							nothingHeld(t, m)
						})
					}
				}
			}
		}
	}
}

// TestWriterSurvivesALateAnswer proves the same where the answer that the readers are gone comes when
// the writer's lease is over.
func TestWriterSurvivesALateAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		reader := share(t, db.manager(), job)
		m, wire := db.process()
		wire.fault("RenewMany", fails)
		late := times(1, func(_ context.Context, _ string, _ store.Row, call func() error) error {
			db.after(3500 * time.Millisecond)
			return call()
		})
		time.AfterFunc(time.Second, func() { wire.fault("Readers", late) })
		time.AfterFunc(2*time.Second, func() { release(t, reader) })
		release(t, acquire(t, m, job, lease.TTL(3*time.Second)))
		db.within("granted", 3500*time.Millisecond, 5*time.Second)
	})
}

// TestWaitSurvivesADialTimeout proves that a server which answers no new connection within
// the driver's timeout ends no wait either, whichever statement needs the connection.
func TestWaitSurvivesADialTimeout(t *testing.T) {
	for _, op := range []string{"ReadClock", "Look", "Take"} {
		runInMemory(t, op, func(t *testing.T, db *memory) {
			m, wire := db.process()
			release(t, acquire(t, m, job))
			db.after(time.Hour) // the clock is read again
			held := acquire(t, db.manager(), job)
			wire.fault(op, times(20, func(context.Context, string, store.Row, func() error) error {
				time.Sleep(time.Second)
				return &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded} // as Dialer.Timeout does
			}))
			time.AfterFunc(time.Second, func() { release(t, held) })
			release(t, acquire(t, m, job))
			db.within("granted", time.Hour+20*time.Second, time.Hour+30*time.Second)
		})
	}
}

// TestSilenceIsSaid proves that a wait whose limit or context ends while the server is
// silent, and a try, say that the server has not answered, and not that the lease was not
// free.
func TestSilenceIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		call           verb
		deadline, took time.Duration // in seconds
		says           string
	}{
		"a try":   {tryExclusive, 0, 4, `try to acquire lease "job": the server has not answered for 4s`},
		"a limit": {exclusive.under(lease.WaitAtMost(10 * time.Second)), 0, 10, `acquire lease "job": after 10s the server has not answered for 10s`},
		// The first try is outside.
		"a short limit":     {exclusive.under(lease.WaitAtMost(time.Second)), 0, 4, `acquire lease "job": after 1s the server has not answered for 4s`},
		"a deadline":        {exclusive, 10, 10, `the server has not answered for 10s`},
		"a deadline before": {exclusive, 3, 3, `the server has not answered for 3s`},
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			m, wire := db.process(lease.TTL(3 * time.Second))
			release(t, acquire(t, m, job))
			wire.frozen(writes, time.Minute)
			ctx, want := t.Context(), txlock.ErrWaitTimeout
			if c.deadline > 0 {
				ctx, want = limited(t, c.deadline*time.Second), context.DeadlineExceeded
			}
			_, err := c.call(ctx, m, job)
			wants(t, "the call", err, want)
			db.at("the end of the call", c.took*time.Second)
			testdb.ErrorIf(t, !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "timed out"), "%v", err)
			testdb.ErrorIf(t, errors.Is(err, context.DeadlineExceeded) == errors.Is(err, txlock.ErrWaitTimeout),
				"%v is of the caller and of the limit, or of neither", err)
			db.after(2 * time.Minute)
		})
	}
}

// tries are all calls that don't wait, by a manager on a wire.
func tries(w *wire) map[string]aWait {
	return map[string]aWait{
		"TryAcquire": tryExclusive.released, "TryAcquireShared": tryShared.released, "a permit": tryPermit.released, "AcquireTx": w.commits().released,
		"TryDo": func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) error {
			return m.TryDo(ctx, key, noWork)
		},
		"TryAcquireAll": func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) error {
			return acquiredAll(m.TryAcquireAll(ctx, []txlock.Key{key}))
		},
		"Acquire, with a limit": exclusive.under(lease.WaitAtMost(time.Second)).released,
	}
}

// TestATryOfASilentServerEnds proves that no try waits for a server that is silent, whichever
// statement of it has no answer, also where that is the first of its manager.
func TestATryOfASilentServerEnds(t *testing.T) {
	for name := range tries(nil) {
		for _, op := range []string{"ReadClock", "SharesLeases", "Take", "Look", "Make", "Use", "Permits", "Readers", "Blockers"} {
			if name == "AcquireTx" && op == "Take" {
				continue // on the caller's connection, under the caller's context
			}
			runInMemory(t, name+", "+op, func(t *testing.T, db *memory) {
				other, otherWire := db.process()
				must(t, tries(otherWire)[name](t.Context(), other, txlock.Named("another")))
				m, wire := db.process(lease.TTL(3 * time.Second))
				silent := wire.frozen([]string{op}, 2*time.Hour)
				err := tries(wire)[name](t.Context(), m, job)
				if silent.stood == 0 {
					must(t, err) // it needs no such statement
				} else {
					wants(t, "the try", err, txlock.ErrWaitTimeout)
					db.within("the try", 2*time.Second, 4*time.Second)
				}
				db.after(3 * time.Hour)
				nothingHeld(t, m)
			})
		}
	}
}

// TestNamedWaiterSurvivesASilentServer proves that one who waits behind another of its manager, and
// asks whether its owner has the lease already, waits on if that isn't answered.
func TestNamedWaiterSurvivesASilentServer(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		held := acquire(t, db.manager(), job)
		m, wire := db.process(lease.TTL(3 * time.Second))
		var waiting sync.WaitGroup
		for _, owner := range []string{"first", "second"} {
			waiting.Go(func() {
				wants(t, owner, acquired(m.Acquire(lease.WithOwner(t.Context(), owner), job)), nil)
			})
			db.after(time.Second)
			wire.frozen([]string{"Look"}, 20*time.Second)
		}
		release(t, held)
		waiting.Wait()
		db.within("granted", 21*time.Second, 30*time.Second)
	})
}

// TestRenewOfASilentServerLosesNothing proves that Renew gives up a connection that is silent while
// there is time for the manager's own renewals, on another one.
func TestRenewOfASilentServerLosesNothing(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.TTL(3 * time.Second))
		l := acquire(t, m, job)
		wire.fault("Renew", hangs)
		for range 5 {
			wants(t, "Renew", l.Renew(t.Context()), txlock.ErrWaitTimeout)
			must(t, l.Err())
		}
		release(t, l)
	})
}

// TestFairWaiterOnALostConnection proves that the first waiter of Fair takes a new place where its
// connection tells of nothing but the limit that has ended it.
func TestFairWaiterOnALostConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		held := acquire(t, db.manager(), job)
		m, wire := db.process(lease.TTL(3 * time.Second))
		var lost atomic.Bool
		wire.fault("Turn", func(_ context.Context, _ string, _ store.Row, call func() error) error {
			lost.Store(false)
			return call()
		})
		wire.fault("Look", func(_ context.Context, _ string, _ store.Row, call func() error) error {
			if lost.Load() {
				return fmt.Errorf("%w: its connection was lost: %w", txlock.ErrTxDoomed, context.DeadlineExceeded)
			}
			return call()
		})
		time.AfterFunc(5*time.Second, func() { lost.Store(true) })
		time.AfterFunc(10*time.Second, func() { release(t, held) })
		release(t, acquire(t, m, job, lease.Fair()))
		db.within("granted", 10*time.Second, 11*time.Second)
	})
}

// TestSilenceEndsWithAnAnswer proves that a wait which has had an answer counts only what the
// server was silent for since.
func TestSilenceEndsWithAnAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other := db.manager()
		m, wire := db.process(lease.TTL(3 * time.Second))
		release(t, acquire(t, m, job))
		wire.frozen(writes, 10*time.Second)
		time.AfterFunc(9*time.Second, func() {
			held := acquire(t, other, job)
			db.after(29 * time.Second)
			wire.frozen(writes, time.Minute)
			db.after(30 * time.Second)
			release(t, held)
		})
		_, err := m.Acquire(t.Context(), job, lease.WaitAtMost(time.Minute))
		wants(t, "Acquire", err, txlock.ErrWaitTimeout)
		says := "after 1m0s the server has not answered for 29."
		testdb.ErrorIf(t, !strings.Contains(err.Error(), says), "%v", err)
		db.after(2 * time.Minute)
	})
}

// TestSilentWaitsEnd proves that a wait on a silent server ends with its context and with
// Close, and that nothing is left under way for longer than after a first attempt.
func TestSilentWaitsEnd(t *testing.T) {
	for name, want := range map[string]error{"context": context.Canceled, "Close": lease.ErrClosed} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			m, wire := db.process(lease.TTL(3 * time.Second))
			release(t, acquire(t, m, job))
			f := wire.frozen(writes, time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			closed := make(chan error, 1)
			time.AfterFunc(30*time.Minute, func() {
				if name == "context" {
					cancel()
				}
				closed <- m.Close(context.Background())
			})
			wants(t, "Acquire", testdb.Err(m.Acquire(ctx, job)), want)
			db.at("the end of the wait", 30*time.Minute)
			must(t, <-closed)
			db.within("Close", 30*time.Minute, 30*time.Minute+10*time.Second)
			testdb.ErrorIf(t, f.left > 16, "%d sessions are left", f.left)
			db.after(2 * time.Hour)
		})
	}
}
