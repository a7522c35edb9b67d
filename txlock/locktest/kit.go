package locktest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/memdb"
	"github.com/dca00107/lockstep/txlock"
)

// Kit stands in for the server of one test. Its methods may be called from any goroutine.
type Kit struct {
	t        testing.TB
	name     string  // of the database
	program  *sql.DB // nil for none
	pool     *sql.DB
	leases   leaseStore
	sessions *memstore.Store       // the way of transactions to the leases, which Disconnect doesn't cut
	conns    atomic.Uint64         // how many were opened
	rows     *memdb.DB[rowID, row] // of lockstep's tables, with their locks

	// Under rows.Mu, as the transactions:
	granted map[rowID]uint64 // the last tokens, also of transactions that were rolled back
	open    map[*tx]bool     // that have not ended
	events  []Event          // in the order in which they have happened
	txs     int              // that are in it
	faults  []*armed         // that the test has requested
}

var kits atomic.Int64

// Open returns a Kit in which nothing is locked. It answers the statements of lockstep itself, and
// passes those of the program to another database, usually a mock of
// github.com/DATA-DOG/go-sqlmock. If that is nil, a statement of the program returns an error.
//
// At the end of the test Open closes the pool of the Kit, but not the program's database, and the
// test fails if a requested fault has not occurred.
func Open(t testing.TB, program *sql.DB) *Kit {
	t.Helper()
	rows, leases := memdb.New[rowID, row](errDeadlock), memstore.New()
	rows.Victim = lightest
	k := &Kit{t: t, name: fmt.Sprintf("locktest/%d/test", kits.Add(1)), program: program, sessions: leases.Store(), rows: rows, granted: make(map[rowID]uint64), open: make(map[*tx]bool)}
	k.leases = leaseStore{leases.Store(), k}
	k.pool = sql.OpenDB(inner.Guarded(k.Connector()))
	t.Cleanup(func() {
		t.Helper()
		if err := k.pool.Close(); err != nil {
			t.Errorf("locktest: close the pool: %v", err)
		}
		k.rows.Mu.Lock()
		defer k.rows.Mu.Unlock()
		for _, f := range k.faults {
			if !f.came {
				t.Errorf("locktest: the %v at %s has not come: no such statement was sent", f.fault, f.where)
			}
		}
	})
	return k
}

// DB returns the pool, the same each time: a guarded one, as locksqlc.Open and lockgorm.Open
// open it. lease.NewManager, job.New and elect.New take it, too.
func (k *Kit) DB() *sql.DB { return k.pool }

// Connector returns the connector of DB without the guard: for sql.OpenDB, if the program uses
// an unguarded pool, or for locksqlc.Connector with options.
func (k *Kit) Connector() driver.Connector { return connector{k} }

// Disconnect makes every call of a lease manager on this Kit fail from now on, as if the connection
// were lost. Leases are not renewed then, and are lost when their TTL has passed.
func (k *Kit) Disconnect() { k.leases.Down(nil) }

// Reconnect ends Disconnect.
func (k *Kit) Reconnect() { k.leases.Up() }

// AwaitWaiting returns when n transactions wait for the lock of a key, or with the error of the
// context.
func (k *Kit) AwaitWaiting(ctx context.Context, key txlock.Key, n int) error {
	return k.rows.AwaitWaiting(ctx, n, func(id rowID) bool { return id == idOf(key) })
}

// idOf is the row that a key locks.
func idOf(key txlock.Key) rowID {
	if key.Hashed() {
		return rowID{centers, strconv.Itoa(int(key.Slot()))}
	}
	return rowID{named, key.String()}
}

// leaseOf stands for the lease of a key that guards a transaction.
func leaseOf(key txlock.Key) rowID { return rowID{leaseRows, key.String()} }

// An Event is one thing that happened on a Kit.
type Event struct {
	// Tx numbers the transactions in the order of their first events. It is 0 for a statement
	// outside of a transaction.
	Tx int
	// What is for example "lock order:42", "lock shared order:42", "once payment:1", "guard
	// reports", "BEGIN", "COMMIT", "ROLLBACK", or the text of a statement of the program. The
	// row of a hashed key is named by its number, as in "lock center 4711".
	What string
	// Err is the error that it returned, or nil.
	Err error

	program bool
	commits bool           // it has committed the transaction, DDL before its own work
	holds   map[rowID]bool // by the transaction at this moment; true: shared
}

// String returns for example "tx 1: lock order:42".
func (e Event) String() string {
	text := e.What
	if e.Tx > 0 {
		text = fmt.Sprintf("tx %d: %s", e.Tx, text)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// lockName names a lock in the log, for example "shared order:42".
func lockName(shared bool, id rowID) (name string) {
	if shared {
		name = "shared "
	}
	if id.table == centers {
		name += "center "
	}
	return name + id.name
}

// note notes an event, of a transaction unless that is one of a single statement.
func (k *Kit) note(t *tx, e Event) {
	if t != nil && t.number == 0 {
		k.txs++
		t.number = k.txs
		k.events = append(k.events, Event{Tx: t.number, What: "BEGIN"})
	}
	if t != nil {
		e.Tx, e.holds = t.number, maps.Clone(t.holds)
	}
	if e.Tx >= 0 {
		k.events = append(k.events, e)
	}
}

// Log returns what has happened: the locks that were acquired, the statements of the program, and
// the beginnings and ends of transactions. A transaction that has done nothing isn't in it.
func (k *Kit) Log() []Event {
	k.rows.Mu.Lock()
	defer k.rows.Mu.Unlock()
	return slices.Clone(k.events)
}

// Locked reports whether a transaction has locked the key, or was guarded by its lease,
// whatever became of the transaction.
func (k *Kit) Locked(key txlock.Key) bool {
	key, _ = inner.Asked(key)
	return slices.ContainsFunc(k.Log(), func(e Event) bool {
		_, held := e.holds[idOf(key)]
		_, guarded := e.holds[leaseOf(key)]
		return held || guarded
	})
}

// Before fails the test unless a statement that contains the text has run, and every such statement
// ran in a transaction that held the lock of the key, or was guarded by its lease. The lock must be
// exclusive, unless txlock.Shared has marked the key. Guard may follow the statement: if the lease has
// guarded any transaction, those that didn't commit need no Guard. A blank in the text matches any
// white space, and case doesn't matter. Before returns false if it has failed the test.
func (k *Kit) Before(key txlock.Key, text string) bool {
	k.t.Helper()
	found, fine := false, true
	events := k.Log()
	for i, e := range events {
		if !e.program || !contains(e.What, text) {
			continue
		}
		found = true
		if why := e.without(key); why != "" && !guardedLater(events, i, key) {
			k.t.Errorf("locktest: %s ran without the lock of %s: %s", clipped(e.What), key, why)
			fine = false
		}
	}
	if !found {
		k.t.Errorf("locktest: no statement with %q has run, so that nothing shows whether %s is locked before it", text, key)
	}
	return found && fine
}

// without returns why a statement has run without a lock, or "".
func (e Event) without(key txlock.Key) string {
	key, sharing := inner.Asked(key)
	shared, held := e.holds[idOf(key)]
	_, guarded := e.holds[leaseOf(key)]
	switch {
	case e.Tx == 0:
		return "it ran outside of a transaction"
	case guarded, held && (!shared || sharing):
		return ""
	case held:
		return "its transaction had locked it shared only"
	case len(e.holds) == 0:
		return "its transaction had locked nothing: lock before you read and write"
	}
	names := make([]string, 0, len(e.holds))
	for id, shared := range e.holds {
		names = append(names, lockName(shared, id))
	}
	slices.Sort(names)
	return "its transaction had locked " + strings.Join(names, ", ")
}

// guardedLater reports whether the lease of a key has guarded any transaction, and that of an event isn't
// committed without it.
func guardedLater(events []Event, i int, key txlock.Key) bool {
	key, _ = inner.Asked(key)
	guarded := func(e Event) bool { _, is := e.holds[leaseOf(key)]; return is }
	number := events[i].Tx
	if number == 0 || !slices.ContainsFunc(events, guarded) {
		return false
	}
	last := false // whether it was guarded after its last event
	for _, e := range events[i:] {
		switch {
		case e.Tx != number:
		case e.commits:
			return last
		default:
			last = guarded(e)
		}
	}
	return true
}

// shown is the text of a statement in the log: without sqlc's comment, and on one line.
func shown(query string) string {
	for strings.HasPrefix(query, "-- ") {
		_, query, _ = strings.Cut(query, "\n")
	}
	return strings.Join(strings.Fields(query), " ")
}

func contains(text, part string) bool {
	return strings.Contains(strings.ToUpper(text), strings.ToUpper(strings.Join(strings.Fields(part), " ")))
}

func clipped(text string) string {
	if text = shown(text); len(text) > 100 {
		return text[:100] + "..."
	}
	return text
}
