package leaseutil

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTasksAreDone proves that each task is done once, that Wait waits for all of
// them, that none is taken after End, and that no goroutine is left.
func TestTasksAreDone(t *testing.T) {
	for range 200 {
		e := NewTasks()
		var taken, done atomic.Int64
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for e.Go(func() { done.Add(1) }) {
					if taken.Add(1) == 300 {
						e.End()
					}
				}
			})
		}
		asking.Wait()
		e.Wait()
		e.End()
		if taken.Load() < 300 || done.Load() != taken.Load() {
			t.Fatalf("%d tasks were taken, %d done", taken.Load(), done.Load())
		}
		if e.Go(func() { t.Error("done after the end") }) {
			t.Fatal("a task was taken after the end")
		}
	}
}

// TestTasksWaitForNone proves that a task begins however many others are under way.
func TestTasksWaitForNone(t *testing.T) {
	e := NewTasks()
	defer e.Wait()
	defer e.End()
	for round := range 2 { // new goroutines, and then those that were kept
		for round > 0 && e.resting() < mostIdle {
			runtime.Gosched()
		}
		began, end := make(chan struct{}), make(chan struct{})
		for range 3 * mostIdle {
			e.Go(func() {
				began <- struct{}{}
				<-end
			})
		}
		for i := range 3 * mostIdle {
			select {
			case <-began:
			case <-time.After(time.Minute):
				t.Errorf("only %d have begun", i)
			}
		}
		close(end)
	}
}

func (e *Tasks) resting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.idle
}
