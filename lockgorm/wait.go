package lockgorm

import (
	"context"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// waitSetting holds the limit of WaitAtMost.
const waitSetting = "lockstep:wait"

// waitKey finds the limit of WaitAtMost in a context, for what GORM gives a handle without
// settings: hooks, and sessions with NewDB.
type waitKey struct{}

// WaitAtMost returns a handle of the transaction, or of the pool, under which every wait for a
// lock is limited to d, as with that of Scope: the functions of this package, Transaction, On and
// the plugin, also in hooks. It may be used for any number of statements. Calls of gorm.G, which
// drop the settings of a handle, need MaxWait. The limit doesn't apply to Optimistic's comparison.
func WaitAtMost(tx *gorm.DB, d time.Duration) *gorm.DB {
	if tx == nil || tx.Statement == nil {
		return tx // the functions then return ErrNoTransaction
	}
	return tx.Set(waitSetting, d).WithContext(context.WithValue(tx.Statement.Context, waitKey{}, d))
}

// MaxWait is WaitAtMost for one statement that locks by On or by its model:
//
//	gorm.G[Order](tx, lockgorm.On(key), lockgorm.MaxWait(time.Second))
//
// It needs the plugin: db.Use(lockgorm.New()).
func MaxWait(d time.Duration) clause.Expression { return atMost{d: d} }

type atMost struct {
	setting
	d time.Duration
}

// ModifyStatement keeps the limit with the statement.
func (a atMost) ModifyStatement(stmt *gorm.Statement) {
	needPlugin(stmt, "AtMost")
	stmt.Settings.Store(waitSetting, a.d)
}

// limited returns the scope with the limit of WaitAtMost, if tx has one.
func limited(tx *gorm.DB, scope *txlock.Scope) *txlock.Scope {
	limit, ok := tx.Get(waitSetting)
	if !ok {
		limit = tx.Statement.Context.Value(waitKey{})
	}
	if d, ok := limit.(time.Duration); ok {
		return scope.WaitAtMost(d)
	}
	return scope
}
