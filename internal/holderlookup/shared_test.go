package holderlookup_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/holderlookup"
)

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

// TestSharedLooksRace lets many come and go at every moment of a look.
func TestSharedLooksRace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shared holderlookup.Shared[int, int]
		for i := range 32 {
			go func() {
				for j := range 200 {
					ctx, cancel := context.WithCancel(t.Context())
					if (i+j)%3 == 0 {
						go cancel()
					}
					seen := shared.Now(ctx, j%2, func(ctx context.Context) int {
						if (i+j)%15 == 0 {
							<-ctx.Done()
							return 0
						}
						return 7 + j%2
					})
					if seen != 7+j%2 && seen != 0 {
						t.Errorf("seen %d of %d", seen, j%2)
					}
					cancel()
				}
			}()
		}
	})
}
