package locktest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/memdb"
)

// rowID is a row of one of lockstep's tables.
type rowID struct{ table, name string }

// The tables.
const (
	named     = "lockstep_locks"
	centers   = "lockstep_centers"
	onces     = "lockstep_once"
	jobs      = "lockstep_jobs"
	leaseRows = "lockstep_leases"
)

// row is what a row contains. Each table uses its part. A row is never changed, but replaced.
type row struct {
	gone     bool // deleted
	token    uint64
	owner    []byte
	conn     uint64
	lockedUs int64

	fingerprint, result []byte
	doneUs, keepUs      int64

	job gen.ListJobsRow
}

// rowTx is what a transaction has locked and written.
type rowTx = memdb.Tx[rowID, row]

// tx is a transaction: of the program, or of one statement.
type tx struct {
	*rowTx
	number  int // in the log, 0 for one that isn't in it yet, -1 for that of a single statement
	options sql.TxOptions

	holds      map[rowID]bool // what the log says of it; true: shared
	savepoints []savepoint    // oldest first
	leases     *memstore.Tx   // its part of the leases
	reads      bool           // it has used a table, with a snapshot or without
	begun      driver.Tx      // of the program's database, nil until a statement needs it
}

// at reports whether the isolation level is one of these.
func (t *tx) at(levels ...sql.IsolationLevel) bool {
	return slices.Contains(levels, t.options.Isolation)
}

// latest are the levels at which plain reads are of no snapshot.
var latest = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelReadUncommitted, sql.LevelSerializable}

type savepoint struct {
	name    string
	written map[rowID]row
	holds   map[rowID]bool
	first   bool // no table was used before
}

// lockWait is the servers' innodb_lock_wait_timeout.
const lockWait = 50 * time.Second

// lightest returns who is rolled back of those that wait for each other, as servers choose: the
// one that has locked and changed the fewest rows. Of equals it is the one that came last.
func lightest(circle []*rowTx) *rowTx {
	weight := func(t *rowTx) int64 { return int64(len(t.Locked)) + t.Changed }
	return slices.MinFunc(circle, func(a, b *rowTx) int { return cmp.Compare(weight(a), weight(b)) })
}

// What follows is called under Kit.rows.Mu.

func (k *Kit) begin(session uint64, options sql.TxOptions) *tx {
	t := &tx{rowTx: k.rows.Begin(session), options: options, holds: make(map[rowID]bool)}
	begin := k.sessions.Begin
	if t.at(latest...) {
		begin = k.sessions.BeginReadCommitted
	}
	t.leases = begin()
	k.open[t] = true
	return t
}

// killed reports whether the session of a transaction has ended for its leases, and the transaction with it.
func (k *Kit) killed(t *tx) bool {
	if _, err := k.sessions.Join(context.Background(), t.leases); err != nil && t.Over == nil {
		t.End(mysql.ErrInvalidConn)
		k.end(t, false)
	}
	return errors.Is(t.Over, mysql.ErrInvalidConn)
}

// end ends a transaction, and lets others have its locks.
func (k *Kit) end(t *tx, commit bool) {
	if commit && t.Over == nil {
		_ = t.leases.Commit() // unless its session was killed meanwhile
		_ = t.Commit()
	}
	_ = t.leases.Rollback() // unless it is over
	if t.Over == nil {
		t.End(sql.ErrTxDone)
	}
	clear(t.holds)
	t.savepoints = nil
	delete(k.open, t)
}

// there returns a row unless it is missing or deleted. All rows of lockstep_centers are there.
func (id rowID) there(r row, found bool) (row, bool) {
	return r, found && !r.gone || id.table == centers
}

// current returns a row as it was committed last, or as the transaction has written it.
func (t *tx) current(id rowID) (row, bool) { return id.there(t.Current(id)) }

// read takes the snapshot of a transaction that reads by one, if it has none yet.
func (t *tx) read() {
	t.reads = true
	if t.Snapshot == nil && !t.at(latest...) {
		t.Read()
		t.leases.Read()
	}
}

// shown returns a row as a plain read shows it.
func (k *Kit) shown(t *tx, id rowID) (row, bool) {
	t.read()
	_, own := t.Written[id]
	if !own && t.Snapshot != nil {
		r, found := t.Snapshot[id]
		return id.there(r, found)
	}
	if !own && t.at(sql.LevelReadUncommitted) {
		for other := range k.rows.Open {
			if r, written := other.Written[id]; written {
				return id.there(r, true)
			}
		}
	}
	return t.current(id)
}

// next is the token of a grant that follows another: one that rises over rollbacks, too, as a
// clock does, also where time stands still.
func (k *Kit) next(id rowID, last uint64) uint64 {
	k.granted[id] = max(last+1, k.granted[id]+1, uint64(clock()))
	return k.granted[id]
}

// all returns the rows of a table, those that a transaction has written too, by name.
func (k *Kit) all(t *tx, table string) []rowID {
	rows := maps.Clone(k.rows.Committed)
	maps.Copy(rows, t.Written)
	maps.DeleteFunc(rows, func(id rowID, _ row) bool { return id.table != table })
	return slices.SortedFunc(maps.Keys(rows), func(a, b rowID) int { return strings.Compare(a.name, b.name) })
}

// The answers of servers.
func answer(number uint16, state, message string) error {
	err := &mysql.MySQLError{Number: number, Message: message}
	copy(err.SQLState[:], state)
	return err
}

var (
	errTimeout       = answer(1205, "HY000", "Lock wait timeout exceeded; try restarting transaction")
	errStatementTime = answer(1969, "70100", "Query execution was interrupted (max_statement_time exceeded)")
	errDeadlock      = answer(1213, "40001", "Deadlock found when trying to get lock; try restarting transaction")
	errStale         = answer(1020, "HY000", "Record has changed since last read in table 'lockstep_locks'")
	errInProgress    = answer(1568, "25001", "Transaction characteristics can't be changed while a transaction is in progress")
	errReadOnly      = answer(1792, "25006", "Cannot execute statement in a READ ONLY transaction")
)

func errNoSavepoint(name string) error {
	return answer(1305, "42000", "SAVEPOINT "+name+" does not exist")
}
