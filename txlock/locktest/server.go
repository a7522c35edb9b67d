package locktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

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
	token    uint64
	owner    []byte
	conn     uint64
	lockedUs int64

	fingerprint, result []byte
	doneUs, keepUs      int64

	job jobRow
}

// server has the rows of lockstep's tables and their locks.
type server struct {
	mu       sync.Mutex // for all below, and for the transactions
	rows     map[rowID]row
	locks    map[rowID]*rowLock
	granted  map[rowID]uint64 // the last tokens, also of transactions that were rolled back
	open     map[*tx]struct{}
	sessions uint64
	news     chan struct{}               // closed when a transaction begins to wait
	choose   func(sessions []uint64) int // of tests: see lightest
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
	level   level

	written    map[rowID]*row // nil: deleted
	holds      map[rowID]bool // what the log says of it; true: shared
	snapshot   map[rowID]row  // nil before a plain read
	rowLocks   map[rowID]bool // its locks on the server; true: shared
	savepoints []savepoint    // oldest first
	waits      *waiter        // nil unless it waits
	changed    int64          // rows, by the program
	over       bool           // committed or rolled back
	leases     *memstore.Tx   // its part of the leases
	guards     bool           // and it has used that
}

// level is how a transaction reads.
type level struct {
	uncommitted, committed, serializable bool
	readOnly                             bool
}

type savepoint struct {
	name    string
	written map[rowID]*row
	holds   map[rowID]bool
	first   bool // nothing was read or locked before
}

// free frees all row locks of a transaction, as a server does that rolls it back to a savepoint
// before which it has done nothing.
func (s *server) free(t *tx) {
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
	return &server{rows: make(map[rowID]row), locks: make(map[rowID]*rowLock), granted: make(map[rowID]uint64), open: make(map[*tx]struct{}), news: make(chan struct{})}
}

// What follows is called under server.mu.

func (s *server) begin(session uint64, l level) *tx {
	t := &tx{session: session, level: l, written: make(map[rowID]*row), holds: make(map[rowID]bool), rowLocks: make(map[rowID]bool)}
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
			if r == nil {
				delete(s.rows, id)
			} else {
				s.rows[id] = *r
			}
		}
	}
	s.free(t)
	if t.leases != nil {
		_ = t.leases.Rollback() // unless it was committed before
	}
}

// current returns a row as it was committed last, or as the transaction has written it.
func (s *server) current(t *tx, id rowID) (row, bool) {
	if r, ok := t.written[id]; ok {
		if r == nil {
			return row{}, false
		}
		return *r, true
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
	if t.snapshot != nil || t.level.committed || t.level.uncommitted {
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
		if t.level.uncommitted {
			for other := range s.open {
				if r := other.written[id]; r != nil {
					return *r, true
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

// put writes a row that the transaction has locked.
func (t *tx) put(id rowID, r row) { t.written[id] = &r }

// all returns the rows of a table as the transaction reads them now, by name.
func (s *server) all(t *tx, table string) (ids []rowID) {
	for id := range s.rows {
		if id.table == table {
			ids = append(ids, id)
		}
	}
	for id := range t.written {
		if _, there := s.rows[id]; id.table == table && !there {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b rowID) int { return strings.Compare(a.name, b.name) })
	return ids
}

// lock locks a row, there or not, and waits for that as the limit says.
func (s *server) lock(ctx context.Context, t *tx, id rowID, shared bool, limit limit) error {
	if mode, has := t.rowLocks[id]; has && (shared || !mode) {
		return nil
	}
	l := s.locks[id]
	if l == nil {
		l = &rowLock{holders: make(map[*tx]bool)}
		s.locks[id] = l
	}
	if l.free(t, shared, l.queue) {
		s.give(t, id, l, shared)
		return nil
	}
	if limit.noWait {
		return errTimeout()
	}
	w := &waiter{tx: t, id: id, shared: shared, done: make(chan struct{})}
	t.waits, l.queue = w, append(l.queue, w)
	if victim := s.lightest(s.circle(t, t, make(map[*tx]bool))); victim != nil {
		lost := victim.waits
		s.leave(lost, s.locks[lost.id])
		lost.err = errDeadlock()
		s.end(victim, false)
		close(lost.done)
	}
	close(s.news)
	s.news = make(chan struct{})
	return s.await(ctx, w, l, limit)
}

// await waits for the row, without server.mu.
func (s *server) await(ctx context.Context, w *waiter, l *rowLock, limit limit) error {
	atMost, late := lockWait, errTimeout
	if limit.atMost > 0 {
		atMost, late = limit.atMost, errStatementTime
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	s.mu.Unlock()
	var err error
	select {
	case <-w.done:
	case <-timer.C:
		err = late()
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

// free reports whether a transaction can have the row before the waiters ahead of it.
func (l *rowLock) free(t *tx, shared bool, ahead []*waiter) bool {
	for holder, sharing := range l.holders {
		if holder != t && (!shared || !sharing) {
			return false
		}
	}
	return !slices.ContainsFunc(ahead, func(w *waiter) bool { return w.tx != t && (!shared || !w.shared) })
}

func (s *server) give(t *tx, id rowID, l *rowLock, shared bool) {
	l.holders[t], t.rowLocks[id] = shared, shared
}

// wake gives the row to those who can have it now.
func (s *server) wake(id rowID, l *rowLock) {
	for i := 0; i < len(l.queue); {
		w := l.queue[i]
		if !l.free(w.tx, w.shared, l.queue[:i]) {
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
	for _, other := range s.blockers(from) {
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
func (s *server) lightest(circle []*tx) (victim *tx) {
	if circle != nil && s.choose != nil {
		sessions := make([]uint64, len(circle))
		for i, t := range circle {
			sessions[i] = t.session
		}
		if i := s.choose(sessions); i >= 0 {
			return circle[i]
		}
	}
	for _, t := range circle {
		if victim == nil || t.weight() < victim.weight() {
			victim = t
		}
	}
	return victim
}

func (t *tx) weight() int64 { return int64(len(t.rowLocks)) + t.changed }

// blockers are those that a transaction waits for.
func (s *server) blockers(t *tx) (others []*tx) {
	w := t.waits
	if w == nil {
		return nil
	}
	l := s.locks[w.id]
	for holder, sharing := range l.holders {
		if holder != t && (!w.shared || !sharing) {
			others = append(others, holder)
		}
	}
	for _, other := range l.queue[:slices.Index(l.queue, w)] {
		if !w.shared || !other.shared {
			others = append(others, other.tx)
		}
	}
	return others
}

// The answers of servers.
func answer(number uint16, state, message string) error {
	err := &mysql.MySQLError{Number: number, Message: message}
	copy(err.SQLState[:], state)
	return err
}

func errTimeout() error {
	return answer(1205, "HY000", "Lock wait timeout exceeded; try restarting transaction")
}

func errStatementTime() error {
	return answer(1969, "70100", "Query execution was interrupted (max_statement_time exceeded)")
}

func errDeadlock() error {
	return answer(1213, "40001", "Deadlock found when trying to get lock; try restarting transaction")
}

func errStale() error {
	return answer(1020, "HY000", "Record has changed since last read in table 'lockstep_locks'")
}

func errNoSavepoint(name string) error {
	return answer(1305, "42000", fmt.Sprintf("SAVEPOINT %s does not exist", name))
}

var errReadOnly = answer(1792, "25006", "Cannot execute statement in a READ ONLY transaction")
