package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// holderOf returns the connection that holds a key.
func holderOf(t *testing.T, db *testdb.DB, key txlock.Key) int64 {
	t.Helper()
	all, err := txlock.Holders(t.Context(), newPool(t, db.Config(), false), key)
	check(t, err)
	if len(all) != 1 {
		t.Fatalf("the holders of %v are %+v", key, all)
	}
	return int64(all[0].Session)
}

// background calls Do in the background. It returns the context of fn as soon as fn runs;
// fn ends when the test tells it to.
func background(ctx context.Context, t *testing.T, pool *sql.DB, key txlock.Key) (working context.Context, end func(error) error) {
	t.Helper()
	started, result, done := make(chan context.Context), make(chan error, 1), make(chan error, 1)
	go func() {
		done <- locksqlc.Do(ctx, pool, key, func(ctx context.Context) error {
			started <- ctx
			return <-result
		})
	}()
	select {
	case working = <-started:
	case err := <-done:
		t.Fatalf("Do returned before it has called fn: %v", err)
	}
	var once sync.Once
	var err error
	end = func(why error) error {
		once.Do(func() {
			result <- why
			err = <-done
		})
		return err
	}
	t.Cleanup(func() { _ = end(nil) }) // where the test has failed
	return working, end
}

// noticed is how long a test waits until Do notices a loss, which takes it two seconds at
// most on an idle machine. TestDoLooksAtItsSocket shows how soon it does.
const noticed = time.Minute

// ends waits for the context's end and returns how long that took.
func ends(ctx context.Context, t *testing.T, since time.Time) time.Duration {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(noticed):
		t.Fatalf("the context of fn has not ended within %v", noticed)
	}
	return time.Since(since)
}

// TestDoLooksAtItsSocket ends the connection from outside while fn runs. Do finds it closed before
// its next ping, a second after it has begun. The quickest of several tries counts: the machine
// may be slow.
func TestDoLooksAtItsSocket(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		quickest := time.Hour
		for try := 0; try < 5 && quickest > 500*time.Millisecond; try++ {
			key := uniqueKey(t, "do")
			working, end := background(t.Context(), t, pool, key)
			id := holderOf(t, db, key)
			db.Kill(t, id)
			db.WaitGone(t, id)
			quickest = min(quickest, ends(working, t, time.Now()))
			isError(t, "the cause", context.Cause(working), txlock.ErrLost)
			no := errors.New("no")
			if err := end(no); !errors.Is(err, txlock.ErrLost) || !errors.Is(err, no) {
				t.Errorf("Do: %v, want ErrLost and the error of fn", err)
			}
			idle(t, pool)
			wantFree(t, db, key)
		}
		if quickest > 500*time.Millisecond {
			t.Errorf("a closed socket is noticed after %v at the earliest", quickest)
		}
	})
}

// TestErrorOfFnIsItself proves that if nothing else fails, the error of a program's
// function is returned unchanged, so that it can be compared.
func TestErrorOfFnIsItself(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB, _ bool) {
		funds, key := errors.New("no funds"), uniqueKey(t, "own")
		leases := managerOf(t, pool)
		ctx, inTx := t.Context(), func(*sql.Tx) error { return funds }
		for name, err := range map[string]error{
			"Run":        locksqlc.Run(ctx, pool, []txlock.Key{key}, inTx),
			"at a level": locksqlc.Run(ctx, pool, nil, inTx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}),
			"Optimistic": locksqlc.Optimistic(ctx, pool, key, inTx),
			"Do":         locksqlc.Do(ctx, pool, key, func(context.Context) error { return funds }),
			"lease.Do":   leases.Do(ctx, key, func(context.Context, *lease.Lease) error { return funds }),
		} {
			if err != funds { //nolint:errorlint // what is tested
				t.Errorf("%s returns %#v, want the error itself", name, err)
			}
		}
	})
}

// TestDoNoticesLossAtTheEnd ends the connection when fn is about to return, before Do has
// looked at it: fn has worked without the lock.
func TestDoNoticesLossAtTheEnd(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for range 5 {
			key := uniqueKey(t, "do")
			err := locksqlc.Do(t.Context(), pool, key, func(context.Context) error {
				id := holderOf(t, db, key)
				db.Kill(t, id)
				db.WaitGone(t, id)
				return nil
			})
			if !errors.Is(err, txlock.ErrLost) || strings.Count(err.Error(), txlock.ErrLost.Error()) != 1 {
				t.Errorf("Do: %v, want ErrLost once", err)
			}
			idle(t, pool)
		}
	})
}

// TestDoOutlivesItsContext ends the caller's context: the lock is kept until fn
// has returned.
func TestDoOutlivesItsContext(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key, why := uniqueKey(t, "do"), errors.New("the shop closes")
		ctx, cancel := context.WithCancelCause(t.Context())
		working, end := background(ctx, t, pool, key)
		cancel(why)
		ends(working, t, time.Now())
		if !errors.Is(working.Err(), context.Canceled) || !errors.Is(context.Cause(working), why) {
			t.Errorf("the context of fn ended with %v for %v", working.Err(), context.Cause(working))
		}
		wantLocked(t, "while fn runs", db, key)
		if err := end(working.Err()); !errors.Is(err, context.Canceled) || errors.Is(err, txlock.ErrLost) {
			t.Errorf("Do: %v", err)
		}
		idle(t, pool)
		wantFree(t, db, key)
	})
}

// TestDoCommitsItsToken proves that whoever locks later with an older snapshot is told
// that somebody has held the lock meanwhile.
func TestDoCommitsItsToken(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		table, key := numbers(t, db), uniqueKey(t, "do")
		late := begin(t, newPool(t, db.Config(), guarded))
		count(t, late, "SELECT v FROM "+table)
		no := errors.New("no")
		isError(t, "Do", locksqlc.Do(t.Context(), pool, key, func(context.Context) error { return no }), no)
		if v, err := txlock.ReadVersion(t.Context(), pool, key); v == 0 || err != nil {
			t.Errorf("its version is %d, %v", v, err)
		}
		isError(t, "the lock under an older snapshot", second(join(t, late).Lock(t.Context(), key)), txlock.ErrStaleSnapshot)
	})
}

// TestDoNoticesSilence cuts the network without any packet: while the function runs, which only
// the ping can notice, sent once a second with a second for the answer, and when it is about to
// return, so that Do can't report whether the lock was held to the end.
func TestDoNoticesSilence(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for _, atTheEnd := range []bool{false, true} {
			t.Run(fmt.Sprintf("at the end=%t", atTheEnd), func(t *testing.T) {
				t.Parallel()
				silent := new(atomic.Bool)
				pool := newPool(t, db.Config(testdb.Dialled(t, func(conn *net.TCPConn) net.Conn {
					t.Cleanup(func() { _ = conn.Close() }) // the driver may have closed it
					return muted{conn, silent}
				})), guarded)
				working, end := background(t.Context(), t, pool, uniqueKey(t, "do"))
				silent.Store(true)
				if !atTheEnd {
					t.Logf("the context of fn ended %v after the last packet", ends(working, t, time.Now()))
					isError(t, "the cause", context.Cause(working), txlock.ErrLost)
				}
				began := time.Now()
				err := end(nil)
				if !errors.Is(err, txlock.ErrLost) || txlock.Retryable(err) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Do: %v, want ErrLost, and no deadline that is not the caller's", err)
				}
				if took := time.Since(began); took > noticed {
					t.Errorf("Do returned %v after fn", took)
				}
				idle(t, pool)
			})
		}
	})
}

// muted passes nothing once it is silent, and nobody is told.
type muted struct {
	net.Conn
	silent *atomic.Bool
}

func (m muted) Read(p []byte) (n int, err error) {
	for {
		if n, err = m.Conn.Read(p); err != nil || !m.silent.Load() {
			return n, err
		}
	}
}

func (m muted) Write(p []byte) (int, error) {
	if m.silent.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// TestTryDo proves that TryDo holds the lock while its function runs, and returns at once
// where somebody else has it.
func TestTryDo(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for _, key := range []txlock.Key{uniqueKey(t, "try"), hashed.Key(7)} {
			other, failed := newPool(t, db.Config(), true), errors.New("failed")
			beside := func(context.Context) error { return errors.New("called beside the holder") }
			err := locksqlc.TryDo(t.Context(), pool, key, func(ctx context.Context) error {
				wantLocked(t, "TryDo", db, key)
				isError(t, "TryDo beside the holder", locksqlc.TryDo(ctx, other, key, beside), txlock.ErrBusy)
				return errors.Join(ctx.Err(), failed)
			})
			if !errors.Is(err, failed) || errors.Is(err, txlock.ErrLost) {
				t.Errorf("TryDo: %v, want the error of fn", err)
			}
			idle(t, pool)
			idle(t, other)
			wantFree(t, db, key)
			check(t, locksqlc.TryDo(t.Context(), other, key, func(context.Context) error { return nil }))
		}
	})
}
