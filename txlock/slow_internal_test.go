package txlock

import (
	"context"
	"testing"
	"time"
)

// quiet is a scope's state whose waits nobody asks about; with names it has all but SlowWait.
func quiet() *state { return &state{pooled: pooled{watch: SlogObserver(nil)}} }

// TestSlowWaitCostsNothing proves that what isn't asked for allocates nothing.
func TestSlowWaitCostsNothing(t *testing.T) {
	s, ctx, key := quiet(), context.Background(), Named("order:42")
	if n := testing.AllocsPerRun(100, func() { s.slowly(ctx, true, key).End() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSlowWait shows what a lock pays for SlowWait that nobody has asked for.
func BenchmarkSlowWait(b *testing.B) {
	s, ctx, key := quiet(), context.Background(), Named("order:42")
	b.ReportAllocs()
	for b.Loop() {
		asked := asked{at: time.Time{}}
		asked.held = s.slowly(ctx, true, key).End()
		if asked.of(key) != nil {
			b.Fatal("nobody has looked")
		}
	}
}
