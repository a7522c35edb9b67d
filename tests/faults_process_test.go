package tests

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The environment of a process that holds a lease.
const (
	holderDSN = "LOCKSTEP_TEST_HOLDER_DSN"
	holderKey = "LOCKSTEP_TEST_HOLDER_KEY"
)

// init makes this test binary that process.
func init() {
	if dsn := os.Getenv(holderDSN); dsn != "" {
		if err := hold(dsn, txlock.Named(os.Getenv(holderKey))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// held is what the process has seen. Moments are nanoseconds since 1970.
type held struct {
	LastValid int64 // when Err was called last that said nil
	Revived   int64 // how often it said nil after it had told of the loss
	Told      int64 // when Err said the lease was lost
	Done      int64 // when Done was closed
	Ended     int64 // when the context ended
	Lost      bool  // errors.Is(ErrLost) of Err and of the context's cause
}

// hold acquires the lease and says so, stops when it is told to, and writes down
// what Err says until half a second after the lease is lost.
func hold(dsn string, key txlock.Key) error {
	pool, err := locksqlc.Open(dsn)
	if err != nil {
		return err
	}
	m, err := lease.NewManager(pool, lease.TTL(holderTTL))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, key)
	if err != nil {
		return err
	}
	working, stop := l.Context(ctx)
	defer stop()
	fmt.Println("held")
	var h held
	var last, revived, told, end atomic.Int64
	var checks sync.WaitGroup
	check := func() {
		asked := time.Now().UnixNano()
		switch {
		case l.Err() != nil:
			told.CompareAndSwap(0, time.Now().UnixNano())
		case told.Load() != 0 && asked > told.Load():
			revived.Add(1)
		default:
			for before := last.Load(); asked > before && !last.CompareAndSwap(before, asked); before = last.Load() {
			}
		}
	}
	checks.Go(func() {
		for end.Load() == 0 || time.Now().UnixNano() < end.Load() {
			check()
			time.Sleep(time.Millisecond)
		}
	})
	// On one processor, these calls come before any timer when the process goes on.
	checks.Go(func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		for range 1000 {
			check()
		}
	})
	checks.Go(func() {
		<-l.Done()
		h.Done = time.Now().UnixNano()
		<-working.Done()
		h.Ended = time.Now().UnixNano()
		end.Store(h.Ended + int64(500*time.Millisecond))
	})
	checks.Wait()
	h.LastValid, h.Revived, h.Told = last.Load(), revived.Load(), told.Load()
	h.Lost = errors.Is(l.Err(), txlock.ErrLost) && errors.Is(context.Cause(working), txlock.ErrLost)
	return errors.Join(json.NewEncoder(os.Stdout).Encode(h), m.Close(ctx), pool.Close())
}

// TestStoppedHolder proves that a process that stood still for longer than the time
// to live does not believe for a single call of Err that it holds its lease, and
// that Done and Context tell it soon after it goes on.
func TestStoppedHolder(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		other := faultManager(t, faultPool(t, db, network{}, guarded))
		key := txlock.Named("validity:" + rand.Text())
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), holderDSN+"="+db.DSN(), holderKey+"="+key.String(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		fatal(t, err)
		in, err := cmd.StdinPipe()
		fatal(t, err)
		fatal(t, cmd.Start())
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "held" {
			t.Errorf("the process says %q", lines.Text())
		}
		awaitRenewal(t, db, key)
		if _, err := fmt.Fprintln(in, "stop"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err = other.Acquire(ctx, key)
		if err != nil {
			t.Error(err)
		}
		granted, delays := time.Now().UnixNano(), testdb.Delays(t)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
		var h held
		if !lines.Scan() {
			t.Error("the process says nothing")
		} else if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		t.Logf("granted %v after the last valid call; told %v after, done %v after, context %v after the grant",
			time.Duration(granted-h.LastValid), time.Duration(h.Told-granted), time.Duration(h.Done-granted), time.Duration(h.Ended-granted))
		if h.LastValid == 0 || h.LastValid >= granted || h.Revived != 0 {
			t.Errorf("a stopped holder believes in its lease: %+v, somebody else was granted it at %d", h, granted)
		}
		if !h.Lost || time.Duration(max(h.Done, h.Ended)-granted) > 5*time.Second+delays() {
			t.Errorf("a stopped holder is not told, or late: %+v", h)
		}
	})
}
