package txlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestLabelsOfAllSizes hands a key on among holders whose labels have all sizes, and lets
// some roll back. If the row changed its size with the label, InnoDB would make another
// structure for each session that waits for it, at each hand-over, and look at all of them
// at the next: hundreds of sessions would take minutes to leave the queue. The database is its
// own: where another test's row splits a page, who waits in that has a structure more.
func TestLabelsOfAllSizes(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		lot := hashed()
		db := testdb.Shared(t, engine).OpenNamed(t, lot.Slot(), another(lot).Slot())
		for name, lock := range map[string]verb{"Lock": verbs["Lock"], "WaitAtMost": verbs["Lock"].within(time.Minute), "LockAll": verbs["LockAll"]} {
			for kind, key := range map[string]txlock.Key{"known": named(), "hashed": lot} {
				t.Run(name+"/"+kind, func(t *testing.T) { handOn(t, db, key, lock) })
			}
		}
	})
}

// handOn lets sessions wait for a key, one behind the other, ends one holder after the
// other, and looks at the last of the queue meanwhile.
func handOn(t *testing.T, db *testdb.DB, key txlock.Key, lock verb) {
	const waiters = 5
	committed(t, db, key)
	pool := newPool(t, db, true, func(cfg *mysql.Config) { cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1000"} })
	var queue []*session
	granted := make(chan error)
	for i := range waiters {
		s := begin(t, pool, nil)
		queue = append(queue, s)
		label := strings.Repeat("w", 1+11*i)
		if i == 0 {
			noError(t, second(lock(s.Scope, txlock.WithLabel(t.Context(), label), key)))
			continue
		}
		go func() {
			granted <- second(lock(s.Scope, txlock.WithLabel(context.WithoutCancel(t.Context()), label), key))
		}()
		db.WaitForLockWait(t, s.id)
	}
	last := queue[waiters-1]
	before := db.LockStructs(t, last.id)
	for i, s := range queue[:waiters-1] {
		if most := db.LockStructs(t, last.id); before == 0 || most > before {
			t.Errorf("who waits has %d structures of locks, and %d after %d holders", before, most, i)
		}
		if i%2 == 0 {
			s.commit(t)
		} else if err := s.tx.Rollback(); err != nil {
			t.Error(err)
		}
		noError(t, <-granted)
	}
	last.commit(t)
}
