// Package jobtest is what the tests of contrib share.
package jobtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Node returns what a process has: a pool of its own, with leases and jobs.
func Node(t *testing.T, engine testdb.Engine, opts ...job.Option) (*job.Jobs, *lease.Manager) {
	t.Helper()
	db := testdb.Got(locksqlc.Open(testdb.Open(t, engine).DSN()))(t)
	leases := testdb.Got(lease.NewManager(db, lease.TTL(10*time.Minute)))(t) // a busy machine loses none
	jobs := testdb.Got(job.New(db, leases, opts...))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		testdb.Must(t, errors.Join(jobs.Close(ctx), leases.Close(ctx), db.Close()))
	})
	return jobs, leases
}

// Await waits until a condition is true, and reports whether it was within minutes.
func Await(condition func() bool) bool { return testdb.Await(5*time.Minute, condition) }

// Ticks are the instants that were begun.
type Ticks struct {
	mu sync.Mutex
	at []time.Time
}

// Observe is for job.Observe.
func (b *Ticks) Observe(_ context.Context, e job.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == job.Began {
		b.at = append(b.at, e.At)
	}
}

// Check fails the test unless so many ticks at least were begun, each once, and each has
// run.
func (b *Ticks) Check(t *testing.T, least, ran int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make(map[time.Time]bool)
	for _, at := range b.at {
		testdb.ErrorIf(t, seen[at], "the tick of %v has run twice", at)
		seen[at] = true
	}
	testdb.ErrorIf(t, len(seen) < least || ran != len(b.at), "%d ticks, %d runs", len(seen), ran)
}
