package locktest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/lease/memstore"
)

// rowID is a row of one of lockstep's tables.
type rowID struct{ table, name string }

// The tables.
const (
	named   = "lockstep_locks"
	centers = "lockstep_centers"
	onces   = "lockstep_once"
	jobs    = "lockstep_jobs"
)

// row is what a row contains. Each table uses its part. A row is never changed, but replaced.
type row struct {
	gone     bool // deleted by the transaction that has written it
	token    uint64
	owner    []byte
	conn     uint64
	lockedUs int64

	fingerprint, result []byte
	doneUs, keepUs      int64

	job gen.ListJobsRow
}

// server has the rows of lockstep's tables and their locks.
type server struct {
	mu       sync.Mutex // for all below, and for the transactions
	rows     map[rowID]row
	locks    map[rowID]*rowLock
	granted  map[rowID]uint64 // the last tokens, also of transactions that were rolled back
	open     map[*tx]struct{}
	sessions uint64
	news     chan struct{}          // closed when a transaction begins to wait
	choose   func(circle []*tx) *tx // who is rolled back of those that wait for each other
}

// rowLock is the lock of a row, whether that is there or not.
type rowLock struct {
	holders map[*tx]bool // true: shared
	queue   []*waiter    // first come, first served
}

// waiter is a transaction that waits for a row.
type waiter struct {
	tx     *tx
	id     rowID
	shared bool
	done   chan struct{} // closed when the row is locked, or the wait has failed
	err    error
}

// tx is a transaction: of the program, or of one statement.
type tx struct {
	session uint64
	number  int // in the log, 0 for one that isn't in it yet
	options driver.TxOptions

	written    map[rowID]row
	holds      map[rowID]bool // what the log says of it; true: shared
	snapshot   map[rowID]row  // nil before a plain read
	rowLocks   map[rowID]bool // its locks on the server; true: shared
	savepoints []savepoint    // oldest first
	waits      *waiter        // nil unless it waits
	changed    int64          // rows, by the program
	over       bool           // committed or rolled back
	leases     *memstore.Tx   // its part of the leases
	guards     bool           // and it has used that

	begun  driver.Tx // of the program's database, nil until a statement needs it
	asText bool      // it was begun by a statement of the program
}

// at reports whether the isolation level is one of these.
func (t *tx) at(levels ...sql.IsolationLevel) bool {
	return slices.Contains(levels, sql.IsolationLevel(t.options.Isolation))
}

type savepoint struct {
	name    string
	written map[rowID]row
	holds   map[rowID]bool
	first   bool // nothing was read or locked before
}

// release releases all row locks of a transaction, as a server does that rolls it back to a savepoint
// before which it has done nothing.
func (s *server) release(t *tx) {
	for id := range t.rowLocks {
		l := s.locks[id]
		delete(l.holders, t)
		s.wake(id, l)
	}
	clear(t.rowLocks)
	t.snapshot = nil
}

// lockWait is the servers' innodb_lock_wait_timeout.
const lockWait = 50 * time.Second

func newServer() *server {
	return &server{
		rows: make(map[rowID]row), locks: make(map[rowID]*rowLock), granted: make(map[rowID]uint64), open: make(map[*tx]struct{}),
		news: make(chan struct{}), choose: lightest,
	}
}

// What follows is called under server.mu.

func (s *server) begin(session uint64, options driver.TxOptions) *tx {
	t := &tx{session: session, options: options, written: make(map[rowID]row), holds: make(map[rowID]bool), rowLocks: make(map[rowID]bool)}
	s.open[t] = struct{}{}
	return t
}

// end ends a transaction, and lets others have its locks.
func (s *server) end(t *tx, commit bool) {
	if t.over {
		return
	}
	t.over = true
	delete(s.open, t)
	if commit {
		for id, r := range t.written {
			if r.gone {
				delete(s.rows, id)
			} else {
				s.rows[id] = r
			}
		}
	}
	s.release(t)
	if t.leases != nil {
		_ = t.leases.Rollback() // unless it was committed before
	}
}

// current returns a row as it was committed last, or as the transaction has written it.
func (s *server) current(t *tx, id rowID) (row, bool) {
	if r, ok := t.written[id]; ok {
		return r, !r.gone
	}
	r, ok := s.rows[id]
	return s.center(id, r, ok)
}

// center is a row of lockstep_centers, all of which are there.
func (s *server) center(id rowID, r row, ok bool) (row, bool) {
	return r, ok || id.table == centers
}

// read takes the snapshot of a transaction that reads by one, if it has none yet.
func (s *server) read(t *tx) {
	if t.snapshot != nil || t.at(sql.LevelReadCommitted, sql.LevelReadUncommitted) {
		return
	}
	t.snapshot = maps.Clone(s.rows)
	if t.leases != nil {
		t.leases.Read()
	}
}

// shown returns a row as a plain read shows it.
func (s *server) shown(t *tx, id rowID) (row, bool) {
	s.read(t)
	if _, own := t.written[id]; own || t.snapshot == nil {
		if t.at(sql.LevelReadUncommitted) {
			for other := range s.open {
				if r, written := other.written[id]; written {
					return r, !r.gone
				}
			}
		}
		return s.current(t, id)
	}
	r, ok := t.snapshot[id]
	return s.center(id, r, ok)
}

// next is the token of a grant that follows another: one that rises over rollbacks, too, as a
// clock does, also where time stands still.
func (s *server) next(id rowID, last uint64) uint64 {
	s.granted[id] = max(last+1, s.granted[id]+1, uint64(clock()))
	return s.granted[id]
}

// all returns the rows of a table, those that a transaction has written too, by name.
func (s *server) all(t *tx, table string) (ids []rowID) {
	rows := maps.Clone(s.rows)
	maps.Copy(rows, t.written)
	for id := range rows {
		if id.table == table {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b rowID) int { return strings.Compare(a.name, b.name) })
	return ids
}

// lock locks a row, there or not, and waits for that as the variables say.
func (s *server) lock(ctx context.Context, t *tx, id rowID, shared bool, v variables) error {
	if mode, has := t.rowLocks[id]; has && (shared || !mode) {
		return nil
	}
	l := s.locks[id]
	if l == nil {
		l = &rowLock{holders: make(map[*tx]bool)}
		s.locks[id] = l
	}
	if len(l.blockers(t, shared, l.queue)) == 0 {
		s.give(t, id, l, shared)
		return nil
	}
	if v.noWait {
		return errTimeout
	}
	w := &waiter{tx: t, id: id, shared: shared, done: make(chan struct{})}
	t.waits, l.queue = w, append(l.queue, w)
	if circle := s.circle(t, t, make(map[*tx]bool)); circle != nil {
		victim := s.choose(circle)
		lost := victim.waits
		s.leave(lost, s.locks[lost.id])
		lost.err = errDeadlock
		s.end(victim, false)
		close(lost.done)
	}
	close(s.news)
	s.news = make(chan struct{})
	return s.await(ctx, w, l, v.atMost)
}

// await waits for the row, without server.mu. The limit is 0 for that of the servers.
func (s *server) await(ctx context.Context, w *waiter, l *rowLock, atMost time.Duration) error {
	late := errStatementTime
	if atMost == 0 {
		atMost, late = lockWait, errTimeout
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	s.mu.Unlock()
	var err error
	select {
	case <-w.done:
	case <-timer.C:
		err = late
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	if w.tx.waits != w { // it was answered meanwhile
		return w.err
	}
	s.leave(w, l)
	return err
}

// leave takes a waiter out of the queue.
func (s *server) leave(w *waiter, l *rowLock) {
	w.tx.waits = nil
	l.queue = slices.DeleteFunc(l.queue, func(other *waiter) bool { return other == w })
	s.wake(w.id, l)
}

// blockers returns those that keep a transaction from the row: holders, and waiters ahead of it.
func (l *rowLock) blockers(t *tx, shared bool, ahead []*waiter) (others []*tx) {
	for holder, sharing := range l.holders {
		if holder != t && (!shared || !sharing) {
			others = append(others, holder)
		}
	}
	for _, w := range ahead {
		if w.tx != t && (!shared || !w.shared) {
			others = append(others, w.tx)
		}
	}
	return others
}

func (s *server) give(t *tx, id rowID, l *rowLock, shared bool) {
	l.holders[t], t.rowLocks[id] = shared, shared
}

// wake gives the row to those who can have it now.
func (s *server) wake(id rowID, l *rowLock) {
	for i := 0; i < len(l.queue); {
		w := l.queue[i]
		if len(l.blockers(w.tx, w.shared, l.queue[:i])) > 0 {
			i++
			continue
		}
		l.queue = slices.Delete(l.queue, i, i+1)
		w.tx.waits = nil
		s.give(w.tx, id, l, w.shared)
		close(w.done)
	}
	if len(l.holders) == 0 && len(l.queue) == 0 {
		delete(s.locks, id)
	}
}

// share lets others share a row that the transaction has locked and doesn't write.
func (s *server) share(t *tx, id rowID) {
	l := s.locks[id]
	s.give(t, id, l, true)
	s.wake(id, l)
}

// circle returns the transactions on a way of waits from one to another, or nil. It begins with
// the one that they wait for.
func (s *server) circle(from, to *tx, been map[*tx]bool) []*tx {
	been[from] = true
	w := from.waits
	if w == nil {
		return nil
	}
	l := s.locks[w.id]
	for _, other := range l.blockers(from, w.shared, l.queue[:slices.Index(l.queue, w)]) {
		if other == to {
			return []*tx{from}
		}
		if been[other] {
			continue
		}
		if way := s.circle(other, to, been); way != nil {
			return append([]*tx{from}, way...)
		}
	}
	return nil
}

// lightest returns who is rolled back of those that wait for each other, as servers choose: the
// one that has locked and changed the fewest rows. Of equals it is the one that came last.
func lightest(circle []*tx) *tx {
	weight := func(t *tx) int64 { return int64(len(t.rowLocks)) + t.changed }
	return slices.MinFunc(circle, func(a, b *tx) int { return cmp.Compare(weight(a), weight(b)) })
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
	errReadOnly      = answer(1792, "25006", "Cannot execute statement in a READ ONLY transaction")
)

func errNoSavepoint(name string) error {
	return answer(1305, "42000", fmt.Sprintf("SAVEPOINT %s does not exist", name))
}
