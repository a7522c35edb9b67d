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
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/txlock"
)

// Kit stands in for the server of one test. Its methods may be called from any goroutine.
type Kit struct {
	t       testing.TB
	name    string  // of the database
	program *sql.DB // nil for none
	pool    *sql.DB
	leases  leaseStore
	server  *server
	log     log    // under server.Mu
	faults  faults // likewise
	strange sync.Map
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
	k := &Kit{t: t, name: fmt.Sprintf("locktest/%d/test", kits.Add(1)), program: program, server: newServer()}
	k.leases = leaseStore{memstore.New().Store(), k}
	k.pool = sql.OpenDB(inner.Guarded(k.Connector()))
	t.Cleanup(func() {
		t.Helper()
		if err := k.pool.Close(); err != nil {
			t.Errorf("locktest: close the pool: %v", err)
		}
		k.server.Mu.Lock()
		defer k.server.Mu.Unlock()
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
	return k.server.AwaitWaiting(ctx, n, func(id rowID) bool { return id == idOf(key) })
}

// idOf is the row that a key locks.
func idOf(key txlock.Key) rowID {
	if key.Hashed() {
		return rowID{centers, strconv.Itoa(int(key.Slot()))}
	}
	return rowID{named, key.String()}
}

// leaseOf stands for the lease of a key that guards a transaction.
func leaseOf(key txlock.Key) rowID { return rowID{"lockstep_leases", key.String()} }

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
	lock    *rowID
	holds   map[rowID]bool // by the transaction at this moment
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

// String returns the row as the log names it.
func (id rowID) String() string {
	if id.table == centers {
		return "center " + id.name
	}
	return id.name
}

// lockName names a lock in the log, for example "shared order:42".
func lockName(shared bool, id rowID) string {
	if shared {
		return "shared " + id.String()
	}
	return id.String()
}

// log has the events in the order in which they have happened.
type log struct {
	events []Event
	txs    int
}

// add notes an event, of a transaction if that is one of the program.
func (l *log) add(t *tx, e Event) {
	if t != nil {
		if t.number == 0 {
			l.txs++
			t.number = l.txs
			l.events = append(l.events, Event{Tx: t.number, What: "BEGIN"})
		}
		e.Tx, e.holds = t.number, maps.Clone(t.holds)
	}
	l.events = append(l.events, e)
}

// Log returns what has happened: the locks that were acquired, the statements of the program, and
// the beginnings and ends of transactions. A transaction that has done nothing isn't in it.
func (k *Kit) Log() []Event {
	k.server.Mu.Lock()
	defer k.server.Mu.Unlock()
	return slices.Clone(k.log.events)
}

// Locked reports whether a transaction has locked the key, or was guarded by its lease,
// whatever became of the transaction.
func (k *Kit) Locked(key txlock.Key) bool {
	key, _ = inner.Asked(key)
	return slices.ContainsFunc(k.Log(), func(e Event) bool {
		return e.lock != nil && (*e.lock == idOf(key) || *e.lock == leaseOf(key))
	})
}

// Before fails the test unless a statement that contains the text has run, and every such statement
// ran in a transaction that held the lock of the key, or was guarded by its lease. The lock must be
// exclusive, unless txlock.Shared has marked the key. A blank in the text matches any white space,
// and case doesn't matter. Before returns false if it has failed the test.
func (k *Kit) Before(key txlock.Key, text string) bool {
	k.t.Helper()
	found, fine := false, true
	for _, e := range k.Log() {
		if !e.program || !contains(e.What, text) {
			continue
		}
		found = true
		if why := e.without(key); why != "" {
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
	}
	names := make([]string, 0, len(e.holds))
	for id, shared := range e.holds {
		names = append(names, lockName(shared, id))
	}
	if len(names) == 0 {
		return "its transaction had locked nothing: lock before you read and write"
	}
	slices.Sort(names)
	return "its transaction had locked " + strings.Join(names, ", ")
}

// guarded notes that a lease guards a transaction.
func (k *Kit) guarded(t *tx, key txlock.Key) {
	k.server.Mu.Lock()
	defer k.server.Mu.Unlock()
	id := leaseOf(key)
	t.guards, t.holds[id] = true, false
	k.log.add(t, Event{What: "guard " + key.String(), lock: &id})
}

// unknown fails the test for a statement of lockstep's own that the Kit doesn't know.
func (k *Kit) unknown(text string) error {
	k.t.Helper()
	err := fmt.Errorf("locktest: the kit doesn't know the statement %q of lockstep: it answers those of locks, Once, versions, leases and jobs, and none of package schema or of commands", clipped(text))
	if _, known := k.strange.LoadOrStore(text, true); !known {
		k.t.Errorf("%v", err)
	}
	return err
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
