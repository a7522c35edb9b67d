package scale

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// inProcess is set in the environment of a process that works.
const inProcess = "LOCKSTEP_SCALE_PROCESS"

// order is what a process does.
type order struct {
	DSN    string
	Work   string
	Index  int
	Leases int // that it holds
	For    time.Duration
}

// result is what the processes have done together.
type result struct {
	Count int             // in the time
	Took  []time.Duration // of some of them, in order
	Lost  int             // leases
	over  time.Duration
}

func (r result) rate() float64 { return float64(r.Count) / r.over.Seconds() }

func (r result) at(part float64) time.Duration {
	if len(r.Took) == 0 {
		return 0
	}
	return r.Took[min(len(r.Took)-1, int(part*float64(len(r.Took))))]
}

const (
	samples = 2000 // of a process
	waiters = 4    // goroutines of a process that want the one key
	ttl     = 9 * time.Second
)

// runProcess is the main function of a process.
func runProcess() error {
	var o order
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return err
	}
	db, err := locksqlc.Open(o.DSN)
	if err != nil {
		return err
	}
	db.SetMaxIdleConns(waiters)
	m, err := lease.NewManager(db, lease.TTL(ttl))
	if err != nil {
		return err
	}
	ctx := context.Background()
	key := txlock.Named(fmt.Sprintf("scale:%d", o.Index))
	works := map[string]func(ctx context.Context) error{
		"lock": func(ctx context.Context) error {
			return locksqlc.Run(ctx, db, []txlock.Key{key}, func(*sql.Tx) error { return nil })
		},
		"wait": func(ctx context.Context) error {
			return locksqlc.Run(ctx, db, []txlock.Key{txlock.Named("scale:hot")}, func(*sql.Tx) error { return nil })
		},
		"lease": func(ctx context.Context) error {
			l, err := m.Acquire(ctx, key)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
		"look": func(ctx context.Context) error { _, err := m.Inspect(ctx, key); return err },
	}
	var held []*lease.Lease
	if o.Work == "hold" {
		for i := range o.Leases {
			l, err := m.Acquire(ctx, txlock.Named(fmt.Sprintf("scale:%d:%d", o.Index, i)))
			if err != nil {
				return err
			}
			held = append(held, l)
		}
	} else if err := works[o.Work](ctx); err != nil && !errors.Is(err, txlock.ErrWaitTimeout) { // which connects, and makes the row
		return err
	}
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	var r result
	if o.Work == "hold" {
		time.Sleep(o.For)
		for _, l := range held {
			if l.Valid() {
				r.Count++
			} else {
				r.Lost++
			}
		}
	} else {
		r, err = repeat(ctx, o, works[o.Work])
	}
	err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(r))
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	closed := m.Close(limited)
	if o.Work == "hold" {
		closed = nil // what is not released in time expires
	}
	return errors.Join(err, closed, db.Close())
}

// repeat works until the time is over.
func repeat(ctx context.Context, o order, work func(ctx context.Context) error) (r result, err error) {
	workers := 1
	if o.Work == "wait" {
		workers = waiters
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(o.For)
	for range workers {
		all.Go(func() {
			for {
				began := time.Now()
				if began.After(end) {
					return
				}
				failed := work(ctx)
				mu.Lock()
				if errors.Is(failed, txlock.ErrWaitTimeout) { // of the server, on a machine with other work
					failed = nil
				} else {
					r.Count++
				}
				if err = errors.Join(err, failed); err != nil {
					mu.Unlock()
					return
				}
				if took := time.Since(began); len(r.Took) < samples {
					r.Took = append(r.Took, took)
				} else if i := rand.IntN(r.Count + 1); i < samples {
					r.Took[i] = took
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return r, err
}

// measure has so many processes do the work, all at once.
func (e effort) measure(t *testing.T, dsn, work string, processes int, long time.Duration) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	type process struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	var all []process
	for i := range processes {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), inProcess+"=1"), os.Stderr
		in, err := cmd.StdinPipe()
		must(t, err)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		must(t, json.NewEncoder(in).Encode(order{DSN: dsn, Work: work, Index: i, Leases: e.leases, For: long}))
		all = append(all, process{cmd, in, bufio.NewReader(out)})
	}
	for _, p := range all {
		if line, err := p.out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("a process says %q: %v", line, err)
		}
	}
	for _, p := range all {
		_, err := io.WriteString(p.in, "go\n")
		must(t, err)
	}
	sum := result{over: long}
	for _, p := range all {
		var r result
		must(t, json.NewDecoder(p.out).Decode(&r))
		must(t, p.cmd.Wait())
		sum.Count, sum.Lost, sum.Took = sum.Count+r.Count, sum.Lost+r.Lost, append(sum.Took, r.Took...)
	}
	slices.Sort(sum.Took)
	return sum
}

var must = leasetest.Must
