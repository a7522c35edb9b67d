package txlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/inside"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// What is in this file is going: it is for packages that don't use packages fault, inside
// and rawsql yet.

// Included is inside.Included.
type Included = inside.Included

// Explain is fault.Explain.
func Explain(what string, err error) error { return fault.Explain(what, err) }

// Unknown is fault.Unknown.
func Unknown(err error) bool { return fault.Unknown(err) }

// Overtaken is fault.Overtaken.
func Overtaken(err error) bool { return fault.Overtaken(err) }

// PastLimit is fault.PastLimit.
func PastLimit(err error, began time.Time, limit time.Duration) error {
	return fault.PastLimit(err, began, limit)
}

// NotPrepared is rawsql.NotPrepared.
func NotPrepared(err error) bool { return rawsql.NotPrepared(err) }

// TakesText is rawsql.TakesText.
func TakesText(pool *sql.DB) bool { return rawsql.TakesText(pool) }

// Guarded is inside.Lock.Guarded.
func Guarded(base driver.Connector, options ...PoolOption) driver.Connector {
	return guarded(base, options...)
}

// NewGrant is inside.Lock.NewGrant.
func NewGrant(key Key, token uint64, shared bool) Grant { return newGrant(key, token, shared) }

// OwnerOf is inside.Lock.OwnerOf.
func OwnerOf(ctx context.Context) string { return string(ownerOf(ctx)) }

// Include is inside.Lock.Include.
func (s *Scope) Include(ctx context.Context, verb string, key Key, send func(ctx context.Context, in *Included) error) error {
	return include(ctx, s, verb, key, send)
}

// OnePrimary is inside.Lock.OnePrimary.
func (s *Scope) OnePrimary(ctx context.Context) error { return onePrimary(ctx, s) }

// Confirm is inside.Lock.Confirm.
func (s *Scope) Confirm(ctx context.Context) error { return confirm(ctx, s) }
