package underlease

import "sync"

// Errands are what a manager does behind its calls, each in a goroutine. A few that
// have done theirs are kept for the next: a new one grows its stack to the depth of a
// statement first, and that takes longer than all else that a lease adds to one.
type Errands struct {
	next    chan func()
	running sync.WaitGroup

	mu    sync.Mutex
	idle  int  // how many wait for the next
	ended bool // nothing new
}

const mostIdle = 8

// NewErrands returns errands of which none is done yet.
func NewErrands() *Errands {
	return &Errands{next: make(chan func(), mostIdle)}
}

// Go runs f behind the call, unless End was called.
func (e *Errands) Go(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended:
		return false
	case e.idle > 0 && len(e.next) < mostIdle: // those that were called may not have come yet
		e.idle--
		e.next <- f
	default:
		e.running.Go(func() { e.run(f) })
	}
	return true
}

// run does one errand after the other, until there are enough that wait for the next.
func (e *Errands) run(f func()) {
	for ok := true; ok; f, ok = <-e.next {
		f()
		if !e.stay() {
			return
		}
	}
}

// stay counts one more that is idle, unless there are enough.
func (e *Errands) stay() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.idle == mostIdle {
		return false
	}
	e.idle++
	return true
}

// End refuses new errands. Ending again does nothing.
func (e *Errands) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.ended = true
		close(e.next)
	}
}

// Wait waits, after End, for the errands that are under way.
func (e *Errands) Wait() { e.running.Wait() }
