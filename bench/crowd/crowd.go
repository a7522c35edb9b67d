// Package crowd has several processes use one key at the same time.
package crowd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
)

// Variable is set in the environment of a process of the crowd.
const Variable = "LOCKSTEP_BENCH_CROWD"

// Order is what a process of the crowd does.
type Order struct {
	Contender string
	Place     contender.Place
	Workers   int   // of this process
	First     int64 // the key of the first worker, for its first transaction
	Key       int64 // which all want
	For       time.Duration
}

// Span is one transaction, in nanoseconds since 1970.
type Span struct {
	Asked   int64 // before it was begun
	Granted int64 // when the lock was held
	Freed   int64 // before COMMIT, or what else releases the lock, was sent
}

// member is a process of the crowd.
type member struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Crowd is several processes that are ready.
type Crowd struct {
	members []*member
	stop    context.CancelFunc
}

// Gather starts processes that share the workers, and returns when all are connected.
func Gather(ctx context.Context, order Order, processes int) (*Crowd, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &Crowd{stop: stop}
	for i := range processes {
		one := order
		one.Workers = (order.Workers + i) / processes
		one.First = order.First + int64(i*order.Workers)
		m, err := begin(ctx, one)
		if err != nil {
			return nil, errors.Join(err, c.Disperse())
		}
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		if line, err := m.out.ReadString('\n'); err != nil || line != "ready\n" {
			return nil, errors.Join(fmt.Errorf("crowd of %s: it says %q: %w", order.Contender, line, err), c.Disperse())
		}
	}
	return c, nil
}

func begin(ctx context.Context, order Order) (*member, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &member{cmd: exec.CommandContext(ctx, program)}
	m.cmd.Env = append(os.Environ(), Variable+"=1")
	m.cmd.Stderr = os.Stderr
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewReader(out)
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	return m, json.NewEncoder(m.in).Encode(order)
}

// Go lets all workers begin.
func (c *Crowd) Go() error {
	var errs []error
	for _, m := range c.members {
		_, err := io.WriteString(m.in, "\"go\"\n")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Spans returns what the workers have done, when their time is over.
func (c *Crowd) Spans() ([]Span, error) {
	var all []Span
	for _, m := range c.members {
		var spans []Span
		if err := json.NewDecoder(m.out).Decode(&spans); err != nil {
			return nil, fmt.Errorf("crowd: %w", err)
		}
		all = append(all, spans...)
	}
	return all, nil
}

// Disperse ends the processes, whatever they do.
func (c *Crowd) Disperse() error {
	c.stop()
	for _, m := range c.members {
		_ = m.cmd.Wait() // they are killed
	}
	return nil
}

// Main is the main function of a process of the crowd.
func Main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench: a process of the crowd:", err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer) error {
	orders := json.NewDecoder(in)
	var order Order
	if err := orders.Decode(&order); err != nil {
		return err
	}
	ctx := context.Background()
	m, err := contender.ByName(order.Contender)
	if err != nil {
		return err
	}
	t, err := m.OpenTransactor(ctx, order.Place)
	if err != nil {
		return err
	}
	w := &workers{order: order, t: t}
	if err := w.all(func(key int64) error {
		_, err := w.once(ctx, key)
		return err
	}); err != nil {
		return err
	}
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	var begin string
	if err := orders.Decode(&begin); err != nil {
		return err
	}
	// What waits at the end is cut off with the process.
	ctx, cancel := context.WithTimeout(ctx, order.For)
	defer cancel()
	if err := w.all(func(int64) error { return w.loop(ctx) }); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(w.spans)
}

// workers are those of one process.
type workers struct {
	order Order
	t     contender.Transactor
	mu    sync.Mutex
	spans []Span
}

// all runs a function in each worker, with the worker's own key.
func (w *workers) all(f func(key int64) error) error {
	errs := make([]error, w.order.Workers)
	var running sync.WaitGroup
	for i := range errs {
		running.Go(func() { errs[i] = f(w.order.First + int64(i)) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// loop takes the key again and again.
func (w *workers) loop(ctx context.Context) error {
	var spans []Span
	for ctx.Err() == nil {
		span, err := w.once(ctx, w.order.Key)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		spans = append(spans, span)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spans = append(w.spans, spans...)
	return nil
}

// once is one business transaction under the lock.
func (w *workers) once(ctx context.Context, key int64) (span Span, err error) {
	span.Asked = time.Now().UnixNano()
	free := func() { span.Freed = time.Now().UnixNano() }
	err = w.t.Transact(contender.WithFreeing(ctx, free), []int64{key}, func(tx contender.Tx) error {
		span.Granted = time.Now().UnixNano()
		err := tx.Exec(ctx, "UPDATE "+contender.Stock+" SET n = n + 1 WHERE id = ?", key)
		free()
		return err
	})
	return span, err
}
