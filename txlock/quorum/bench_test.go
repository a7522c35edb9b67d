package quorum_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock/quorum"
)

// BenchmarkAcquireRelease takes and releases a lease of five databases, beside five
// leases of one database each, one after the other, in turns, so that both meet the
// same load. It reports the time of each and their ratio, and the goroutines that are
// there while the lease is held beyond those before.
func BenchmarkAcquireRelease(b *testing.B) {
	nodes := newNodes(b, 5)
	m, singles := newQuorum(b, nodes), newLeases(b, nodes)
	key, ctx := named(), context.Background()
	var quorumTook, singlesTook time.Duration
	took := func(sum *time.Duration, do func()) {
		began := time.Now()
		do()
		*sum += time.Since(began)
	}
	several := func() *quorum.Lease { return acquire(b, m, key) }
	single := func() {
		for _, s := range singles {
			l, err := s.Acquire(ctx, key)
			if err != nil {
				b.Fatal(err)
			}
			release(b, l)
		}
	}
	free := func() { await(b, "all nodes are free", func() bool { return held(b, nodes, key) == 0 }) }
	release(b, several())
	free()
	single()
	before, during := runtime.NumGoroutine(), 0
	b.ReportAllocs()
	for b.Loop() {
		took(&quorumTook, func() {
			l := several()
			during += runtime.NumGoroutine() - before
			release(b, l)
		})
		free() // what is released in the background must not delay the others
		took(&singlesTook, single)
	}
	n := float64(b.N)
	b.ReportMetric(float64(quorumTook.Microseconds())/n, "quorum-µs/op")
	b.ReportMetric(float64(singlesTook.Microseconds())/n, "singles-µs/op")
	b.ReportMetric(float64(quorumTook)/float64(singlesTook), "quorum/singles")
	b.ReportMetric(float64(during)/n, "goroutines")
}
