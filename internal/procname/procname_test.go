package procname

import (
	"runtime"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each of many goroutines has one value, before and after its stack was moved and it was
// woken by another thread, and all have different ones.
func TestGoroutine(t *testing.T) {
	const goroutines = 100
	values := make([]uintptr, goroutines)
	var all, done sync.WaitGroup
	all.Add(goroutines)
	for i := range values {
		done.Add(1)
		go func() {
			defer done.Done()
			values[i] = Goroutine()
			all.Done()
			all.Wait() // so that all run at once
			for range 10 {
				runtime.Gosched()
				deep := goroutineDeep(64)
				testdb.ErrorIf(t, deep != values[i], "a goroutine is %#x, and then %#x", values[i], deep)
			}
		}()
	}
	done.Wait()
	slices.Sort(values)
	testdb.ErrorIf(t, values[0] == 0 || len(slices.Compact(values)) != goroutines, "%d goroutines are %#x", goroutines, values)
}

//go:noinline
func goroutineDeep(frames int) uintptr {
	var frame [4096]byte
	if frames == 0 {
		return Goroutine()
	}
	frame[frames] = 1
	return goroutineDeep(frames-1) + uintptr(frame[0])
}

func BenchmarkGoroutine(b *testing.B) {
	for b.Loop() {
		Goroutine()
	}
}
