package locksqlc_test

import (
	"database/sql"
	"testing"

	"github.com/dca00107/lockstep/txlock"
)

// TestOpeningShared begins a read-only transaction by a shared lock, which writes only where
// the row is missing, or where the process doesn't know it yet, and may fail to.
func TestOpeningShared(t *testing.T) {
	onOpenings(t, &sql.TxOptions{ReadOnly: true}, func(t *testing.T, o *opening) {
		unknown := uniqueKey(t, "unknown")
		_, err := o.db.Admin().ExecContext(t.Context(), "INSERT INTO lockstep_locks VALUES (?, 7, '-', 0, 0)", unknown.String())
		check(t, err)
		for _, key := range []txlock.Key{unknown, o.free} {
			check(t, second(o.RLock(t.Context(), key)))
			wantLocked(t, "the lock doesn't exclude", o.db, key)
		}
		_, err = o.RLock(t.Context(), uniqueKey(t, "missing"))
		wants(t, err, txlock.ErrReadOnly, 1792)
		check(t, o.tx.Commit())
		wantFree(t, o.db, unknown, o.free)
		o.closed(t)
	})
}

// TestOpeningAgain begins a transaction by a key of Once that was used before.
func TestOpeningAgain(t *testing.T) {
	onOpenings(t, nil, func(t *testing.T, o *opening) {
		check(t, second(join(t, o.holder).Once(t.Context(), o.free)))
		check(t, o.holder.Commit())
		first, err := o.Once(t.Context(), o.free)
		if err != nil || first {
			t.Errorf("Once is first: %t, %v", first, err)
		}
		o.goesOn(t, sql.LevelRepeatableRead)
	})
}
