package locktest

import (
	"fmt"
	"slices"
	"strings"

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

// String returns its name.
func (f Fault) String() string {
	names := []string{"deadlock", "timeout", "lost connection", "stale snapshot", "unknown outcome"}
	if f < Deadlock || f > UnknownOutcome {
		return fmt.Sprintf("Fault(%d)", int(f))
	}
	return names[f-1]
}

func (f Fault) answer() error {
	switch f {
	case Deadlock:
		return errDeadlock()
	case Timeout:
		return errTimeout()
	case Stale:
		return errStale()
	}
	return mysql.ErrInvalidConn
}

// faults are those that have not come yet.
type faults []*armed

// armed is a fault and where it comes.
type armed struct {
	fault  Fault
	id     *rowID // at a lock or a key of Once
	once   *rowID
	text   string // at a statement
	seenBy *tx    // it was the answer to a try, after which a wait may follow
}

func (a *armed) where() string {
	if a.id != nil {
		return "the lock of " + strings.TrimPrefix(lockWords(false, *a.id), "lock ")
	}
	return fmt.Sprintf("%q", a.text)
}

// FailLock makes the next call that locks the key, or requests it with Once, fail.
func (k *Kit) FailLock(key txlock.Key, f Fault) {
	k.t.Helper()
	key, _ = inner.Asked(key)
	id, once := idOf(key), rowID{onces, key.String()}
	k.arm(&armed{fault: f, id: &id, once: &once})
}

// FailStatement makes the program's next statement that contains the text fail, or the next COMMIT.
// It isn't sent to the program's database.
func (k *Kit) FailStatement(text string, f Fault) {
	k.t.Helper()
	k.arm(&armed{fault: f, text: text})
}

func (k *Kit) arm(a *armed) {
	k.t.Helper()
	if a.fault < Deadlock || a.fault > UnknownOutcome || a.fault == UnknownOutcome && !strings.EqualFold(a.text, "COMMIT") {
		k.t.Errorf("locktest: there is no %v at %s", a.fault, a.where())
		return
	}
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	k.faults = append(k.faults, a)
}

// at takes the fault of a statement of the program, if there is one.
func (f *faults) at(text string) *Fault {
	for i, a := range *f {
		if a.id == nil && contains(text, a.text) {
			*f = slices.Delete(*f, i, i+1)
			return &a.fault
		}
	}
	return nil
}

// atLock returns the answer to a statement that locks a row, if there is a fault for it.
func (f *faults) atLock(q *statement, id rowID) error {
	i := slices.IndexFunc(*f, func(a *armed) bool {
		return a.id != nil && (*a.id == id || *a.once == id) && (a.seenBy == nil || a.seenBy == q.tx)
	})
	if i < 0 {
		return nil
	}
	a := (*f)[i]
	if a.fault == Timeout && q.limit.noWait {
		a.seenBy = q.tx
	} else {
		*f = slices.Delete(*f, i, i+1)
	}
	if a.fault != Timeout {
		q.kit.server.end(q.tx, false)
	}
	err := a.fault.answer()
	q.kit.log.add(q.tx, Event{What: lockWords(false, id), Err: err}, q.open)
	return err
}

// over removes the faults that a transaction has seen.
func (f *faults) over(t *tx) {
	*f = slices.DeleteFunc(*f, func(a *armed) bool { return a.seenBy == t })
}
