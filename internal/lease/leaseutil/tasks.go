package leaseutil

import "sync"

// Tasks are the work of a manager in the background, each in a goroutine. A few
// goroutines that have ended their task are kept for the next: a new one must first
// grow its stack to the depth of a statement, which takes longer than all else that a
// lease adds to a statement.
type Tasks struct {
	next    chan func()
	running sync.WaitGroup

	mu    sync.Mutex
	idle  int  // how many goroutines wait for the next task
	ended bool // End was called
	calls int  // how many are under way, see Enter
}

const mostIdle = 8

// NewTasks returns Tasks without work.
func NewTasks() *Tasks {
	return &Tasks{next: make(chan func(), mostIdle)}
}

// Enter counts a call that may have work for the background, until Leave: Wait waits for
// it, and Go takes its work after End too. After End it returns false and counts nothing.
func (t *Tasks) Enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.calls++
	t.running.Add(1)
	return true
}

// Leave ends a call, if Enter has counted it.
func (t *Tasks) Leave(counted bool) {
	if !counted {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls--
	t.running.Done()
}

// Go runs f in the background. After End, when no call is under way any more, it returns
// false and does nothing.
func (t *Tasks) Go(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended && t.calls == 0:
		return false
	case t.ended:
		t.running.Go(f)
	case t.idle > 0 && len(t.next) < mostIdle: // goroutines that were sent a task may not have received it yet
		t.idle--
		t.next <- f
	default:
		t.running.Go(func() { t.run(f) })
	}
	return true
}

// run does one task after the other, until enough goroutines wait for the next.
func (t *Tasks) run(f func()) {
	for ok := true; ok; f, ok = <-t.next {
		f()
		if !t.stay() {
			return
		}
	}
}

// stay reports whether the goroutine waits for the next task, and counts it.
func (t *Tasks) stay() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.idle == mostIdle {
		return false
	}
	t.idle++
	return true
}

// End makes Go refuse new tasks. Ending again does nothing.
func (t *Tasks) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended = true
		close(t.next)
	}
}

// Wait waits, after End, until all tasks have ended.
func (t *Tasks) Wait() { t.running.Wait() }
