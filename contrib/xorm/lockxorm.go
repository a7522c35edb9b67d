// Package lockxorm provides the locks of package txlock in sessions of xorm.io/xorm, and lets
// xorm.NewEngine open guarded pools by the name locksqlc.DriverName:
//
//	engine, err := xorm.NewEngine(locksqlc.DriverName, dsn)
//	...
//	session := engine.NewSession().Context(ctx)
//	defer session.Close() // rolls back what is not committed
//	if err := session.Begin(); err != nil {
//		return err
//	}
//	locks, err := lockxorm.Join(ctx, session)
package lockxorm

import (
	"context"
	"errors"
	"fmt"

	"xorm.io/xorm"
	"xorm.io/xorm/dialects"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func init() { dialects.RegisterDriver(locksqlc.DriverName, dialects.QueryDriver("mysql")) }

// Join returns the scope of the transaction that a session has begun, which acquires its
// locks. It returns txlock.ErrNoTransaction if the session has begun none, or has ended it,
// and the errors of locksqlc.Join. The transaction stays open.
func Join(ctx context.Context, session *xorm.Session, options ...txlock.JoinOption) (*txlock.Scope, error) {
	if session == nil {
		return nil, errors.New("lockxorm: Join needs a *xorm.Session, got nil")
	}
	if !session.IsInTx() {
		return nil, fmt.Errorf("%w: call Begin of the session first", txlock.ErrNoTransaction)
	}
	return locksqlc.Join(ctx, session.Tx().Tx, options...)
}
