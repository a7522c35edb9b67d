package locktest

import "database/sql/driver"

// database/sql looks for these.
var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// Waiting returns how many transactions wait for a lock.
func (k *Kit) Waiting() (n int) {
	k.rows.Mu.Lock()
	defer k.rows.Mu.Unlock()
	for t := range k.rows.Open {
		if t.Waits() {
			n++
		}
	}
	return n
}

// Choose sets who is rolled back of the sessions that wait for each other: the index of one, or
// -1 for the Kit's own choice.
func (k *Kit) Choose(f func(sessions []uint64) int) {
	k.rows.Victim = func(circle []*rowTx) *rowTx {
		sessions := make([]uint64, len(circle))
		for i, t := range circle {
			sessions[i] = t.Session
		}
		if i := f(sessions); i >= 0 {
			return circle[i]
		}
		return lightest(circle)
	}
}

// Knows reports whether the Kit executes a statement of lockstep's own.
func Knows(text string) bool { return find(text) != nil }
