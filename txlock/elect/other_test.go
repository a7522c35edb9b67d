//go:build tidb || vitess

package elect_test

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
)

// TestOnOtherEngines proves that of three processes one leads, that another follows it when it resigns,
// and that what it writes afterwards is refused.
func TestOnOtherEngines(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, testdb.Engines()[0])
	key := txlock.Named("test:" + rand.Text())
	table := db.CreateTable(t, "written", "id BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED")
	ctx, cancel := context.WithCancel(t.Context())
	terms, ended, pool := make(chan *elect.Term, 100), make(chan error, 3), leasetest.Pool(t, db, true)
	var leading atomic.Int64
	for range 3 {
		stand(ctx, t, pool, key, ended, func(ctx context.Context, term *elect.Term) error {
			leasetest.Equal(t, "leaders", leading.Add(1), 1)
			wants(t, "a write", write(pool, table, term), nil)
			terms <- term
			<-ctx.Done()
			leading.Add(-1)
			return nil
		}, elect.TTL(10*time.Second))
	}
	last := <-terms
	for range 4 {
		last.Resign()
		term := <-terms
		testdb.ErrorIf(t, term.Token() <= last.Token(), "term %d after %d", term.Token(), last.Token())
		wants(t, "a write after the term", write(pool, table, last), txlock.ErrNotHeld)
		last = term
	}
	cancel()
	for range 3 {
		wants(t, "Run", <-ended, context.Canceled)
	}
}
