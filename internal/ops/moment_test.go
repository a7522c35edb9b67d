package ops_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestHotKey proves that a picture is of one moment while processes lock the same key in turn: no
// row has two holders one of whom has it exclusively, and who holds a row exclusively doesn't wait
// for it.
func TestHotKey(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t)
		hot := txlock.Named("hot")
		must(t, txlock.Ensure(t.Context(), pool, hot))
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer func() { stop(); all.Wait() }()
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					increment(ctx, pool, hot)
				}
			})
		}
		room, held := ops.New(db.Admin()), 0
		for looks := testdb.Long(12, 300); looks > 0 || held == 0; looks-- {
			p, err := room.Look(t.Context())
			must(t, err)
			for _, wrong := range contradictions(p) {
				t.Errorf("%s: %#v, waits %#v", wrong, p.Locks, p.Waits)
			}
			held += len(p.Locks)
		}
	}, testdb.Open)
}

// TestGrantBefore proves that a look knows the grant before the one that is held, and that Updates
// counts both: from these top reads how often a key is granted.
func TestGrantBefore(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, hot, room := db.Connect(t), txlock.Named("hot"), ops.New(db.Admin())
		must(t, txlock.Ensure(t.Context(), pool, hot))
		_, err := room.Look(t.Context()) // by which it knows its server
		must(t, err)
		began, err := room.Updates(t.Context())
		must(t, err)
		tx, scope := beginTx(t, pool)
		first, err := scope.Lock(t.Context(), hot)
		must(t, err)
		must(t, tx.Commit())
		second, err := begin(t, pool).Lock(t.Context(), hot)
		must(t, err)
		p := lookUntil(t, room, func(p *ops.Picture) bool { return len(p.Locks) == 1 })
		if l := p.Locks[0]; l.Token != second.Token() || l.Before != first.Token() {
			t.Errorf("the lock is %#v, want the token %d after %d", l, second.Token(), first.Token())
		}
		if n, err := room.Updates(t.Context()); err != nil || n < began+2 {
			t.Errorf("before two grants there were %v updates, afterwards %v, %v", began, n, err)
		}
	})
}

// contradictions says what can't be true of one moment.
func contradictions(p *ops.Picture) (wrong []string) {
	for i, a := range p.Locks {
		for _, b := range p.Locks[:i] {
			if a.Row == b.Row && (a.Mode == ops.Exclusive || b.Mode == ops.Exclusive) {
				wrong = append(wrong, fmt.Sprintf("sessions %d and %d hold %s", a.Session, b.Session, a.Row))
			}
		}
		for _, w := range p.Waits {
			if a.Mode == ops.Exclusive && a.Row == w.Row && a.Session == w.Session {
				wrong = append(wrong, fmt.Sprintf("session %d holds %s and waits for it", a.Session, a.Row))
			}
		}
	}
	for _, w := range p.Waits {
		if len(w.Blockers) > 1 && !w.Unsure && w.Kind == ops.Named {
			wrong = append(wrong, fmt.Sprintf("session %d waits for the holders %v", w.Session, w.Blockers))
		}
	}
	return wrong
}

// increment locks the key in a transaction of its own.
func increment(ctx context.Context, pool *sql.DB, key txlock.Key) {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if scope, err := txlock.Join(ctx, tx); err == nil {
		if _, err := scope.Lock(ctx, key); err == nil {
			_ = tx.Commit() // it is cancelled at the end
		}
	}
}
