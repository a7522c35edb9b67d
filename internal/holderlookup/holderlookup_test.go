package holderlookup_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/holderlookup"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestAfter proves that a look is made once, when its time has come and not before, that its end interrupts it,
// and that nothing of it is left then: the bubble would say so.
func TestAfter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lasts, takes time.Duration // the wait, and the look
		want, looks  int           // what End returns
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
				return taking(ctx, c.takes, 7)
			})
			time.Sleep(c.lasts)
			begun := time.Now()
			for range 2 {
				if seen := l.End(); seen != c.want || looks != c.looks || time.Since(begun) != 0 {
					t.Errorf("%s: %d after %d looks and %v, want %d after %d", name, seen, looks, time.Since(begun), c.want, c.looks)
				}
			}
		})
	}
}

// taking is a look that takes so long, and shows n, or -1 where it was ended.
func taking(ctx context.Context, long time.Duration, n int) int {
	if long == 0 {
		return n
	}
	select {
	case <-ctx.Done():
		return -1
	case <-time.After(long):
		return n
	}
}

// TestSharedLook proves that those who look at the same thing at once share a look, which ends with the last of
// them or after its limit, and that each returns with its own context.
func TestSharedLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shared holderlookup.Shared[string, int]
		var looks, ended atomic.Int64
		var all sync.WaitGroup
		now := func(ctx context.Context, key string, took time.Duration) int {
			return shared.Now(ctx, key, func(ctx context.Context) int {
				n := taking(ctx, took, int(looks.Add(1)))
				if n < 0 {
					ended.Add(1)
				}
				return n
			})
		}
		sees := func(ctx context.Context, who, key string, want int) {
			all.Go(func() {
				seen := now(ctx, key, 50*time.Millisecond)
				testdb.ErrorIf(t, seen != want, "%s has seen %d", who, seen)
				if ctx.Err() != nil && time.Since(time.Unix(946684800, 0)) > 10*time.Millisecond { // the bubble began then
					t.Error("it waited for the look")
				}
			})
		}
		first, leave := context.WithCancel(t.Context())
		sees(first, "who left", "a", 0)
		synctest.Wait()
		for range 600 {
			sees(t.Context(), "who stayed", "a", 1)
		}
		sees(t.Context(), "who looks at something else", "b", 2)
		time.Sleep(10 * time.Millisecond)
		leave()
		all.Wait()
		seen := now(t.Context(), "a", 0)
		testdb.ErrorIf(t, seen != 3 || looks.Load() != 3 || ended.Load() != 0, "the next has seen %d, of %d looks %d were ended", seen, looks.Load(), ended.Load())

		short, cancel := context.WithCancel(t.Context())
		for range 2 {
			all.Go(func() { now(short, "a", time.Hour) })
		}
		synctest.Wait()
		cancel()
		all.Wait()
		testdb.ErrorIf(t, looks.Load() != 4 || ended.Load() != 1, "of %d looks %d were ended, want the last", looks.Load(), ended.Load())
		begun := time.Now()
		now(t.Context(), "a", time.Hour)
		took := time.Since(begun)
		testdb.ErrorIf(t, took != holderlookup.Limit, "a look took %v", took)
	})
}
