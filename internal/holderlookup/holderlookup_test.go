package holderlookup_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/holderlookup"
)

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
