package holderlookup_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/holderlookup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNowIsBounded proves that a look ends after its limit, and with the caller's context.
func TestNowIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ given, want time.Duration }{
		"the limit":   {time.Hour, holderlookup.Limit},
		"the context": {time.Millisecond, time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.given)
			defer cancel()
			begun := time.Now()
			err := holderlookup.Now(ctx, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			if took := time.Since(begun); took != c.want || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v after %v, want %v", name, err, took, c.want)
			}
		})
	}
}

// TestAfter proves that a look is made once, when its time has come and not before, that its
// end interrupts it, and that nothing of it is left then: the bubble would say so.
func TestAfter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lasts time.Duration // the wait
		takes time.Duration // the look
		want  int           // what End returns
		looks int
	}{
		"a short wait":               {time.Second - 1, 0, 0, 0},
		"a long one":                 {time.Minute, 0, 7, 1},
		"one that ends in the look":  {time.Second + time.Millisecond, time.Hour, -1, 1},
		"a look that takes too long": {time.Minute, time.Hour, -1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0
			l := holderlookup.After(t.Context(), time.Second, func(ctx context.Context) int {
				looks++
				if c.takes == 0 {
					return 7
				}
				select {
				case <-ctx.Done():
					return -1
				case <-time.After(c.takes):
					return 7
				}
			})
			time.Sleep(c.lasts)
			begun := time.Now()
			for range 2 {
				if seen := l.End(); seen != c.want || looks != c.looks {
					t.Errorf("%s: %d after %d looks, want %d after %d", name, seen, looks, c.want, c.looks)
				}
			}
			if took := time.Since(begun); took != 0 {
				t.Errorf("%s: the end takes %v", name, took)
			}
		})
	}
}

// TestNone proves that what isn't asked for costs nothing.
func TestNone(t *testing.T) {
	var none *holderlookup.Later[int]
	if n := testing.AllocsPerRun(100, func() {
		if none.End() != 0 {
			t.Error("nobody has looked")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSharedLook proves that those who look at the same thing at once share a look, which ends
// with the last of them, and that each returns with its own context.
func TestSharedLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shared holderlookup.Shared[string, int]
		var looks, ended atomic.Int64
		slow := func(took time.Duration) func(context.Context) int {
			return func(ctx context.Context) int {
				n := looks.Add(1)
				select {
				case <-ctx.Done():
					ended.Add(1)
					return -1
				case <-time.After(took):
					return int(n)
				}
			}
		}
		first, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if seen := shared.Now(first, "a", slow(50*time.Millisecond)); seen != 0 {
				t.Errorf("who left has seen %d", seen)
			}
			if time.Since(time.Unix(946684800, 0)) > 10*time.Millisecond { // the bubble began then
				t.Error("it waited for the look")
			}
		})
		synctest.Wait()
		for range 600 {
			all.Go(func() {
				if seen := shared.Now(t.Context(), "a", slow(50*time.Millisecond)); seen != 1 {
					t.Errorf("who stayed has seen %d", seen)
				}
			})
		}
		all.Go(func() {
			if seen := shared.Now(t.Context(), "b", slow(50*time.Millisecond)); seen != 2 {
				t.Errorf("who looks at something else has seen %d", seen)
			}
		})
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		leave()
		all.Wait()
		if seen := shared.Now(t.Context(), "a", slow(0)); seen != 3 || looks.Load() != 3 || ended.Load() != 0 {
			t.Errorf("the next has seen %d, of %d looks %d were ended", seen, looks.Load(), ended.Load())
		}

		short, cancel := context.WithCancel(t.Context())
		for range 2 {
			all.Go(func() { shared.Now(short, "a", slow(time.Hour)) })
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if looks.Load() != 4 || ended.Load() != 1 {
			t.Errorf("of %d looks %d were ended, want the last", looks.Load(), ended.Load())
		}
		begun := time.Now()
		shared.Now(t.Context(), "a", slow(time.Hour))
		if took := time.Since(begun); took != holderlookup.Limit {
			t.Errorf("a look took %v", took)
		}
	})
}
