package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

// noWaitPool is a pool on which AcquireNoWait and ReleaseNoWait fail where they would wait
// for a row. MariaDB only.
type noWaitPool struct{ *prepared }

var refusal = rawsql.For(rawsql.NoWait)

// The texts are made once.
var acquireNoWait, releaseNoWait = refusal + gen.AcquireNoWait, refusal + gen.ReleaseNoWait

// noWaitPool returns such a pool if the session is one. In a transaction no statement must
// fail so: the server may roll back the transaction (innodb_rollback_on_timeout). With
// InTurn the session is no pool, because two rows are locked then.
func (s session) noWaitPool() (gen.DBTX, bool) {
	pool, ok := s.db.(*prepared)
	return noWaitPool{pool}, ok && s.s.clock.engine().Compound
}

// ExecContext sends one of the two statements.
func (p noWaitPool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	switch query {
	case gen.AcquireNoWait:
		query = acquireNoWait
	case gen.ReleaseNoWait:
		query = releaseNoWait
	}
	return p.prepared.ExecContext(ctx, query, args...)
}

// refused reports whether a statement has failed because it doesn't wait for a row.
func refused(err error) bool {
	if err == nil {
		return false
	}
	err = fault.Explain("", err)
	return errors.Is(err, txlock.ErrWaitTimeout) || errors.Is(err, txlock.ErrBusy)
}
