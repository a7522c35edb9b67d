package lockgorm_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestAfterCommit proves that the functions of a transaction are called when it is committed, in
// order, whoever has begun it: Transaction, Optimistic, GORM's Transaction, or GORM for one write
// of a model with hooks; that those of a nested block are called with the outer one, and not if the
// block is rolled back; and none after a rollback. An unguarded pool refuses them.
func TestAfterCommit(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db, called := e.open(t), make(chan string, 16)
		then := func(tx *gorm.DB, name string) error {
			scope, err := lockgorm.Join(tx)
			if err != nil {
				return err
			}
			return scope.AfterCommit(func() { called <- name })
		}
		if !e.guarded {
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				wantError(t, "on an unguarded pool", then(tx, "never"), txlock.ErrUnguarded)
				return nil
			}))
			return
		}
		wants := func(what string, want ...string) {
			t.Helper()
			var got []string
			testdb.Await(time.Minute, func() bool {
				for len(called) > 0 {
					got = append(got, <-called)
				}
				return len(got) >= len(want)
			})
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q were called, want %q", what, got, want)
			}
		}
		work := func(fails error) func(tx *gorm.DB) error {
			return func(tx *gorm.DB) error {
				noError(t, then(tx, "outer"))
				noError(t, tx.Transaction(func(tx *gorm.DB) error { return then(tx, "inner") }))
				wantError(t, "a block", tx.Transaction(func(tx *gorm.DB) error {
					noError(t, then(tx, "rolled back"))
					return errInner
				}), errInner)
				noError(t, lockgorm.Transaction(tx, []txlock.Key{newKey()}, func(tx *gorm.DB) error { return then(tx, "locked") }))
				return fails
			}
		}
		ways := maps.Clone(outermost)
		ways["GORM's Transaction"] = func(db *gorm.DB, _ txlock.Key, fn func(tx *gorm.DB) error) error { return db.Transaction(fn) }
		for what, transaction := range ways {
			noError(t, transaction(db, newKey(), work(nil)))
			wants(what, "outer", "inner", "locked")
			wantError(t, what, transaction(db, newKey(), work(errInner)), errInner)
			wants(what + ", rolled back")
		}
		hooked := withHook(db, func(tx *gorm.DB, _ int64) error { return then(tx, "hook") })
		noError(t, hooked.Create(&Order{ID: newID()}).Error)
		wants("a write of GORM's own transaction", "hook")
	})
}
