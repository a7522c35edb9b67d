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
	id    uint64 // of its session

	sending chan struct{}   // of one place: who includes statements
	fenced  map[string]bool // the keys, while somebody includes statements

	unguarded bool // see Unguarded

	// Under Server.mu:
	repeatable bool
	snapshot   map[store.Row]rules.Row // nil before something was read
	written    map[store.Row]rules.Row // what others see after the commit
	locked     map[store.Row]struct{}
	waits      *waiter
	over       error // why it takes no more statements
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
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	t.plain()
}

// Commit commits the transaction. It returns sql.ErrTxDone for one that has ended, and
// txlock.ErrTxDoomed for one that the server has rolled back.
func (t *Tx) Commit() error {
	return t.store.perform(context.Background(), "Commit", store.Row{}, func() error {
		t.db.mu.Lock()
		defer t.db.mu.Unlock()
		return doomed(t.commit())
	})
}

// Rollback rolls the transaction back. It returns sql.ErrTxDone for one that has ended.
func (t *Tx) Rollback() error {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if errors.Is(t.over, sql.ErrTxDone) {
		return t.over
	}
	t.end(sql.ErrTxDone)
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

// What follows is called under Server.mu.

// commit makes what was written visible.
func (t *Tx) commit() error {
	if t.over != nil {
		return t.over
	}
	maps.Copy(t.db.rows, t.written)
	t.end(sql.ErrTxDone)
	return nil
}

// end ends the transaction, and gives its rows to who waits for them.
func (t *Tx) end(why error) {
	t.over, t.written = why, nil
	if t.waits != nil {
		t.db.leave(t.waits, why)
	}
	for at := range t.locked {
		t.db.unlock(at)
	}
	t.locked = nil
}

// plain returns what a plain read shows: at REPEATABLE READ the snapshot, which it takes,
// else what is committed, and what the transaction has written.
func (t *Tx) plain() map[store.Row]rules.Row {
	if !t.repeatable {
		return t.latest()
	}
	if t.snapshot == nil {
		t.snapshot = maps.Clone(t.db.rows)
	}
	return t.with(t.snapshot)
}

// latest returns what is committed, and what the transaction has written.
func (t *Tx) latest() map[store.Row]rules.Row { return t.with(t.db.rows) }

// with lays what the transaction has written over rows.
func (t *Tx) with(rows map[store.Row]rules.Row) map[store.Row]rules.Row {
	if len(t.written) == 0 {
		return rows
	}
	rows = maps.Clone(rows)
	maps.Copy(rows, t.written)
	return rows
}

// current returns a row as it was committed last, or as the transaction has written it.
func (t *Tx) current(at store.Row) (rules.Row, bool) {
	r, ok := t.written[at]
	if !ok {
		r, ok = t.db.rows[at]
	}
	return r, ok
}

// lock locks a row, there or not, unless another transaction has.
func (t *Tx) lock(at store.Row) bool {
	l := t.db.locks[at]
	if l == nil {
		t.db.locks[at] = &lock{holder: t}
		t.locked[at] = struct{}{}
		return true
	}
	return l.holder == t
}

// take locks a row to write it. It reports whether it could: the row may be missing, or
// locked by another transaction.
func (t *Tx) take(at store.Row) (r rules.Row, ok bool) {
	if r, ok = t.current(at); !ok || !t.lock(at) {
		return rules.Row{}, false
	}
	return r, true
}

// await locks a row, and waits in its queue for that, without Server.mu: until the
// context ends, which is the end of the transaction as well, or for the time given, 0 for
// as long as it takes.
func (t *Tx) await(ctx context.Context, at store.Row, atMost time.Duration) error {
	if t.lock(at) {
		return nil
	}
	if t.closesCircle(at) {
		t.end(fmt.Errorf("%w: %w", txlock.ErrTxDoomed, errDeadlock))
		return errDeadlock
	}
	w := &waiter{tx: t, at: at, done: make(chan error, 1)}
	t.waits = w
	t.db.locks[at].queue = append(t.db.locks[at].queue, w)
	close(t.db.news)
	t.db.news = make(chan struct{})
	waiting := ctx
	if atMost > 0 {
		limited, cancel := context.WithTimeout(ctx, atMost)
		defer cancel()
		waiting = limited
	}
	t.db.mu.Unlock()
	select {
	case err := <-w.done:
		t.db.mu.Lock()
		return err
	case <-waiting.Done():
	}
	t.db.mu.Lock()
	if t.waits != w { // it was answered meanwhile
		return <-w.done
	}
	t.db.leave(w, nil)
	if ctx.Err() != nil {
		t.end(driver.ErrBadConn)
		return ctx.Err()
	}
	return errTimeout
}

// The errors of waits, as servers say them: fault.Unknown knows that they have answered.
var (
	errTimeout  = fmt.Errorf("%w: %w", txlock.ErrWaitTimeout, &mysql.MySQLError{Number: 1205, Message: "Lock wait timeout exceeded"})
	errDeadlock = fmt.Errorf("%w: %w", txlock.ErrDeadlock, &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock"})
)

// closesCircle reports whether whoever has a row locked waits, by way of others, for the
// transaction.
func (t *Tx) closesCircle(at store.Row) bool {
	for {
		holder := t.db.locks[at].holder
		if holder == t || holder.waits == nil {
			return holder == t
		}
		at = holder.waits.at
	}
}
