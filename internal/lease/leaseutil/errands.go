package leaseutil

import "sync"

// Errands are the work of a manager in the background, each in a goroutine. A few
// goroutines that have ended their errand are kept for the next: a new one must first
// grow its stack to the depth of a statement, which takes longer than all else that a
// lease adds to a statement.
type Errands struct {
	next    chan func()
	running sync.WaitGroup

	mu    sync.Mutex
	idle  int  // how many goroutines wait for the next errand
	ended bool // End was called
	calls int  // how many are under way, see Enter
}

const mostIdle = 8

// NewErrands returns Errands without work.
func NewErrands() *Errands {
	return &Errands{next: make(chan func(), mostIdle)}
}

// Enter counts a call that may have work for the background, until Leave: Wait waits for
// it, and Go takes its work after End too. After End it returns false and counts nothing.
func (e *Errands) Enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return false
	}
	e.calls++
	e.running.Add(1)
	return true
}

// Leave ends a call, if Enter has counted it.
func (e *Errands) Leave(counted bool) {
	if !counted {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls--
	e.running.Done()
}

// Go runs f in the background. After End, when no call is under way any more, it returns
// false and does nothing.
func (e *Errands) Go(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended && e.calls == 0:
		return false
	case e.ended:
		e.running.Go(f)
	case e.idle > 0 && len(e.next) < mostIdle: // goroutines that were sent an errand may not have received it yet
		e.idle--
		e.next <- f
	default:
		e.running.Go(func() { e.run(f) })
	}
	return true
}

// run does one errand after the other, until enough goroutines wait for the next.
func (e *Errands) run(f func()) {
	for ok := true; ok; f, ok = <-e.next {
		f()
		if !e.stay() {
			return
		}
	}
}

// stay reports whether the goroutine waits for the next errand, and counts it.
func (e *Errands) stay() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.idle == mostIdle {
		return false
	}
	e.idle++
	return true
}

// End makes Go refuse new errands. Ending again does nothing.
func (e *Errands) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.ended = true
		close(e.next)
	}
}

// Wait waits, after End, until all errands have ended.
func (e *Errands) Wait() { e.running.Wait() }
