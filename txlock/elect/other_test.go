//go:build tidb || vitess

package elect_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestOnOtherEngines proves that of three processes one leads, that another follows it when it resigns,
// and that what it writes afterwards is refused.
func TestOnOtherEngines(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, testdb.Engines()[0])
	key := txlock.Named("test:" + rand.Text())
	table := db.CreateTable(t, "written", "id BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED")
	ctx, cancel := context.WithCancel(t.Context())
	terms := make(chan *elect.Term, 100)
	var leading atomic.Int64
	var all sync.WaitGroup
	pool, err := guarded(db.DSN())
	must(t, err)
	defer func() { must(t, pool.Close()) }()
	for range 3 {
		leases, err := lease.NewManager(pool)
		must(t, err)
		e, err := elect.New(leases, key, elect.TTL(10*time.Second))
		must(t, err)
		all.Go(func() {
			err := e.Run(ctx, func(ctx context.Context, term *elect.Term) error {
				if n := leading.Add(1); n > 1 {
					t.Errorf("%d lead", n)
				}
				if err := write(pool, table, term); err != nil {
					t.Error(err)
				}
				terms <- term
				<-ctx.Done()
				leading.Add(-1)
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
			must(t, leases.Close(context.WithoutCancel(ctx)))
		})
	}
	last := <-terms
	for range 4 {
		last.Resign()
		term := <-terms
		if term.Token() <= last.Token() {
			t.Errorf("term %d after %d", term.Token(), last.Token())
		}
		wants(t, "a write after the term", write(pool, table, last), txlock.ErrNotHeld)
		last = term
	}
	cancel()
	all.Wait()
}
