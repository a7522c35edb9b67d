package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// refusing is a pool on which AcquireNoWait and ReleaseNoWait fail where they would wait
// for a row. MariaDB only.
type refusing struct{ *prepared }

var refusal = rawsql.For(rawsql.NoWait)

// The texts are made once.
var acquireNoWait, releaseNoWait = refusal + gen.AcquireNoWait, refusal + gen.ReleaseNoWait

// refusing returns such a pool if the session is one. In a transaction no statement must
// fail so: the server may roll back the transaction (innodb_rollback_on_timeout). With
// InTurn the session is no pool, because two rows are locked then.
func (s session) refusing() (gen.DBTX, bool) {
	pool, ok := s.db.(*prepared)
	return refusing{pool}, ok && s.s.clock.onMariaDB()
}

// ExecContext sends one of the two statements.
func (r refusing) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	switch query {
	case gen.AcquireNoWait:
		query = acquireNoWait
	case gen.ReleaseNoWait:
		query = releaseNoWait
	}
	return r.prepared.ExecContext(ctx, query, args...)
}

// locked tells whether a statement has refused to wait for a row.
func locked(err error) bool {
	var server *mysql.MySQLError
	return err != nil && errors.As(err, &server) && server.Number == 1205 // ER_LOCK_WAIT_TIMEOUT
}
