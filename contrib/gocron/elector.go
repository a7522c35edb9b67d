package lockgocron

import (
	"context"
	"errors"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/dca00107/lockstep/txlock/elect"
)

// The errors of an Elector.
var (
	// ErrNotLeader is returned while another process leads, or none.
	ErrNotLeader = errors.New("lockgocron: this process doesn't lead")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("lockgocron: the elector is closed")
)

// Elector is a gocron.Elector: of all processes with the same election, one runs the jobs
// of its scheduler. Its methods may be called from any goroutine.
type Elector struct {
	end     context.CancelFunc
	found   context.CancelFunc // ends the search for the first leader
	settled chan struct{}      // closed when this process leads, another one does, or that can't be found out
	ended   chan struct{}      // closed when this process takes part no more, for the reason err
	err     error

	mu  sync.Mutex
	now *reign
}

var _ gocron.Elector = (*Elector)(nil)

// reign is a term of this process.
type reign struct {
	working context.Context // ends a grace before the term does
	term    *elect.Term
	tasks   sync.WaitGroup
}

// NewElector stands for an election until Close, by Election.Run; call that nowhere else. The
// options of the election say how soon a leader that has died is replaced (elect.TTL), and how
// long its tasks may continue when it can't lead any more (elect.Grace).
func NewElector(election *elect.Election) *Elector {
	ctx, end := context.WithCancel(context.Background())
	searching, found := context.WithCancel(ctx)
	e := &Elector{end: end, found: found, settled: make(chan struct{}), ended: make(chan struct{})}
	if election == nil {
		e.err = errors.New("lockgocron: NewElector needs an *elect.Election, got nil")
		close(e.settled)
		close(e.ended)
		return e
	}
	go func() {
		defer close(e.ended)
		e.err = election.Run(ctx, e.lead)
		if ctx.Err() != nil {
			e.err = ErrClosed
		}
		end()
	}()
	go func() {
		defer close(e.settled)
		for leader, err := range election.Observe(searching) {
			if !leader.Own && !errors.Is(err, elect.ErrNoLeader) { // its own term begins with lead
				return
			}
		}
	}()
	return e
}

// lead is what this process does when it leads. It returns when its tasks have.
func (e *Elector) lead(ctx context.Context, term *elect.Term) error {
	r := &reign{working: ctx, term: term}
	e.mu.Lock()
	e.now = r
	e.mu.Unlock()
	e.found()
	<-ctx.Done()
	e.mu.Lock()
	e.now = nil
	e.mu.Unlock()
	r.tasks.Wait()
	return nil
}

// IsLeader returns nil if this process leads, and else ErrNotLeader, ErrClosed, or what has
// ended Election.Run, such as txlock.ErrSchema. It compares the clock at every call: two
// processes never lead at once. When a program starts it waits until there is a leader, or the
// context ends, so that the first ticks aren't left out.
func (e *Elector) IsLeader(ctx context.Context) error {
	_, leave, err := e.enter(ctx)
	leave()
	return err
}

// Do calls fn if this process leads. The context of fn ends when only the grace of the term is
// left, or by Resign or Close; another process leads when fn has returned, or the grace period
// has passed. So what stops in time never runs beside that of another leader, which a task that
// isn't called by Do may. What fn writes in the database is fenced by Term.Guard.
//
// It returns what IsLeader returns, else the error of fn, joined by txlock.ErrLost if the
// term was lost before fn has returned.
func (e *Elector) Do(ctx context.Context, fn func(ctx context.Context, term *elect.Term) error) error {
	r, leave, err := e.enter(ctx)
	defer leave()
	if err != nil {
		return err
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.working, func() { cancel(context.Cause(r.working)) })()
	err = fn(working, r.term)
	if lost := r.term.Err(); lost != nil {
		return errors.Join(err, lost)
	}
	return err
}

// enter returns the term of this process, which waits for its end until leave is called.
func (e *Elector) enter(ctx context.Context) (r *reign, leave func(), err error) {
	select {
	case <-e.settled:
	case <-ctx.Done():
		return nil, func() {}, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.now; r != nil && r.working.Err() == nil && r.term.Err() == nil {
		r.tasks.Add(1)
		return r, r.tasks.Done, nil
	}
	select {
	case <-e.ended:
		return nil, func() {}, e.err
	default:
		return nil, func() {}, ErrNotLeader
	}
}

// Close takes part in the election no more: if this process leads, another one does when
// the functions of Do have returned, or after the grace. Close waits for them, until the
// context ends, whose error it returns then.
func (e *Elector) Close(ctx context.Context) error {
	e.end()
	for _, done := range []chan struct{}{e.ended, e.settled} {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
