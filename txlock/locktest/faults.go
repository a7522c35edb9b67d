package locktest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock"
)

// A Fault is a rare event on a server.
type Fault int

// The faults.
const (
	// Deadlock rolls the transaction back: ErrDeadlock.
	Deadlock Fault = iota + 1
	// Timeout ends the wait for a lock, and leaves the transaction open: ErrWaitTimeout, or
	// ErrBusy of TryLock.
	Timeout
	// LostConnection ends the session, and with it the transaction: ErrTxDoomed, and
	// ErrUnknownOutcome at COMMIT.
	LostConnection
	// Stale refuses a lock because the transaction's snapshot is older than its last holder's commit,
	// and rolls the transaction back: ErrStaleSnapshot.
	Stale
	// UnknownOutcome is for COMMIT only: the transaction is committed, and the answer is lost.
	UnknownOutcome
)

// faultsOf has the name of each fault, and what a server answers.
var faultsOf = map[Fault]struct {
	name   string
	answer error
}{
	Deadlock:       {"deadlock", errDeadlock},
	Timeout:        {"timeout", errTimeout},
	LostConnection: {"lost connection", mysql.ErrInvalidConn},
	Stale:          {"stale snapshot", errStale},
	UnknownOutcome: {"unknown outcome", mysql.ErrInvalidConn},
}

// String returns its name.
func (f Fault) String() string { return cmp.Or(faultsOf[f].name, fmt.Sprintf("Fault(%d)", int(f))) }

// armed is a fault that a test has requested, and where it comes.
type armed struct {
	fault  Fault
	where  string
	rows   []rowID // at a lock or a key of Once
	word   string  // at what begins or ends a transaction
	text   string  // at a statement that contains it, if there is neither
	came   bool
	seenBy *tx // it was the answer to a try, after which a wait may follow
}

// FailLock makes the next call that locks the key, or requests it with Once, fail. Once is never Stale.
func (k *Kit) FailLock(key txlock.Key, f Fault) {
	k.t.Helper()
	key, _ = inner.Asked(key)
	id := idOf(key)
	k.arm(&armed{fault: f, where: "the lock of " + lockName(false, id), rows: []rowID{id, {onces, key.String()}}})
}

// FailStatement makes the program's next statement that contains the text fail. It isn't sent to the
// program's database. A text that begins or ends a transaction, such as COMMIT, is for the next that
// does, also by database/sql. At BEGIN and ROLLBACK there is only LostConnection.
func (k *Kit) FailStatement(text string, f Fault) {
	k.t.Helper()
	k.arm(&armed{fault: f, where: strconv.Quote(text), word: wordsOf(text).boundary(), text: text})
}

func (k *Kit) arm(a *armed) {
	k.t.Helper()
	_, known := faultsOf[a.fault]
	others := a.word == "COMMIT" || a.word == "" && a.fault != UnknownOutcome // than LostConnection
	if !known || !others && a.fault != LostConnection {
		k.t.Errorf("locktest: there is no %v at %s", a.fault, a.where)
		return
	}
	k.rows.Mu.Lock()
	defer k.rows.Mu.Unlock()
	k.faults = append(k.faults, a)
}

// faultAt returns the fault of a statement of the program, 0 if there is none. The word is that of one
// that begins or ends a transaction.
func (k *Kit) faultAt(word, query string) Fault {
	for _, a := range k.faults {
		if !a.came && a.rows == nil && (a.word == "" && contains(shown(query), a.text) || a.word != "" && a.word == word) {
			a.came = true
			return a.fault
		}
	}
	return 0
}

// faultAtLock returns the answer to a statement that locks a row in a transaction, if there is a fault for it.
func (k *Kit) faultAtLock(q *statement, id rowID) error {
	for _, a := range k.faults {
		if !q.open || !slices.Contains(a.rows, id) || a.fault == Stale && id.table == onces || a.came && a.seenBy != q.tx {
			continue
		}
		switch a.came, a.seenBy = true, nil; {
		case a.fault != Timeout:
			k.end(q.tx, false)
		case q.noWait:
			a.seenBy = q.tx
		}
		return faultsOf[a.fault].answer
	}
	return nil
}
