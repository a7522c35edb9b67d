package memstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Tx is a transaction. It takes no SQL: Store.Join sends statements in it.
type Tx struct {
	noSQL
	db    *Server
	store *Store // that it was begun by, nil for one of the statements' own

	sending chan struct{}   // of one place: who includes statements
	fenced  map[string]bool // the keys, while somebody includes statements

	unguarded bool // see Unguarded

	// Under Server.Mu:
	*rowTx
	repeatable bool
}

var _ txlock.Tx = (*Tx)(nil)

// lockWait is for how long a transaction waits for a row: the servers'
// innodb_lock_wait_timeout.
const lockWait = 50 * time.Second

// Unguarded makes the transaction one of a plain pool, which doesn't know what was read in
// it. It is called before anything is done in it.
func (t *Tx) Unguarded() { t.unguarded = true }

// Read stands in for a plain SELECT of the program: the first one takes the snapshot.
func (t *Tx) Read() {
	t.db.Mu.Lock()
	defer t.db.Mu.Unlock()
	t.plain()
}

// Commit commits the transaction. It returns sql.ErrTxDone for one that has ended, and
// txlock.ErrTxDoomed for one that the server has rolled back.
func (t *Tx) Commit() error {
	return t.store.perform(context.Background(), "Commit", store.Row{}, func() error {
		t.db.Mu.Lock()
		defer t.db.Mu.Unlock()
		return doomed(t.rowTx.Commit())
	})
}

// Rollback rolls the transaction back. It returns sql.ErrTxDone for one that has ended.
func (t *Tx) Rollback() error {
	t.db.Mu.Lock()
	defer t.db.Mu.Unlock()
	if errors.Is(t.Over, sql.ErrTxDone) {
		return t.Over
	}
	t.End(sql.ErrTxDone)
	return nil
}

// doomed adds to the error of a transaction what it means for that.
func doomed(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", txlock.ErrNoTransaction, err)
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("%w: %w", txlock.ErrTxDoomed, err)
	}
	return err
}

// What follows is called under Server.Mu.

// plain returns what a plain read shows: at REPEATABLE READ the snapshot, which it takes,
// else what is committed, and what the transaction has written.
func (t *Tx) plain() map[store.Row]rules.Row {
	if !t.repeatable {
		return t.latest()
	}
	t.rowTx.Read()
	return t.with(t.Snapshot)
}

// latest returns what is committed, and what the transaction has written.
func (t *Tx) latest() map[store.Row]rules.Row { return t.with(t.db.Committed) }

// with lays what the transaction has written over rows.
func (t *Tx) with(rows map[store.Row]rules.Row) map[store.Row]rules.Row {
	if len(t.Written) == 0 {
		return rows
	}
	rows = maps.Clone(rows)
	maps.Copy(rows, t.Written)
	return rows
}

// lock locks a row, there or not, unless another transaction has.
func (t *Tx) lock(at store.Row) bool { return t.TryLock(at, false) }

// take locks a row to write it. It reports whether it could: the row may be missing, or
// locked by another transaction.
func (t *Tx) take(at store.Row) (r rules.Row, ok bool) {
	if r, ok = t.Current(at); !ok || !t.lock(at) {
		return rules.Row{}, false
	}
	return r, true
}

// await locks a row, and waits in its queue for that, without Server.Mu: until the
// context ends, which is the end of the transaction as well, or for the time given, 0 for
// as long as it takes.
func (t *Tx) await(ctx context.Context, at store.Row, atMost time.Duration) error {
	err := t.Lock(ctx, at, false, atMost, errTimeout)
	switch {
	case errors.Is(err, errDeadlock):
		t.End(fmt.Errorf("%w: %w", txlock.ErrTxDoomed, err))
	case err != nil && errors.Is(err, ctx.Err()):
		t.End(driver.ErrBadConn)
	}
	return err
}

// The errors of waits, as servers say them: fault.Unknown knows that they have answered.
var (
	errTimeout  = fmt.Errorf("%w: %w", txlock.ErrWaitTimeout, &mysql.MySQLError{Number: 1205, Message: "Lock wait timeout exceeded"})
	errDeadlock = fmt.Errorf("%w: %w", txlock.ErrDeadlock, &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock"})
)
