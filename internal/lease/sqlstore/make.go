package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// Make makes a row if it is missing. The server limits the wait for who has it locked, or the
// gap where it would be: a session whose client has given up would wait on.
func (s session) Make(ctx context.Context, at store.Row) error {
	pool, ok := s.db.(interface{ textual() *sql.DB })
	if !ok {
		return errMakeInTx
	}
	if err := s.s.clock.fresh(ctx, s.db); err != nil { // tells the kind of server, on which the limit depends
		return err
	}
	row := gen.EnsureLeaseParams{Name: []byte(at.Key), Slot: at.Slot}
	var err error
	if s.s.clock.engine().Compound {
		err = queries.EnsureLease(ctx, &rawsql.Text{DBTX: s.db, Rewrite: rawsql.Under(rawsql.NoWait)}, row)
	} else {
		err = s.s.withShortWait(ctx, pool.textual(), func(db gen.DBTX) error { return queries.EnsureLease(ctx, db, row) })
	}
	if refused(err) {
		return store.ErrLocked
	}
	return err
}

// errMakeInTx is returned for a row that is to be made in a transaction. There its gap would
// stay locked after a rollback to a savepoint, and who waits for the row would lock it.
var errMakeInTx = errors.New("lease: a row is not made in a transaction")

// withShortWait sends a statement on a connection whose waits for locks the server limits to a
// second, the least that MySQL has. Afterwards the limit is the one that it was. TiDB limits only the
// waits of transactions.
func (s *Store) withShortWait(ctx context.Context, pool *sql.DB, send func(db gen.DBTX) error) error {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	if _, err = conn.ExecContext(ctx, rawsql.ShortenLockWait); err != nil {
		discard(conn)
		return err
	}
	var sent error
	if s.clock.engine().Waits {
		sent = s.inTx(ctx, conn, send)
	} else {
		sent = send(&rawsql.Text{DBTX: conn, Inline: rawsql.TakesText(pool)})
	}
	if _, err = conn.ExecContext(ctx, rawsql.RestoreLockWait); err != nil {
		discard(conn)
		return sent
	}
	return errors.Join(sent, conn.Close())
}
