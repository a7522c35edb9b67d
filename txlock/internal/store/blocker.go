package store

import (
	"fmt"
	"time"
)

// Blocker is an open transaction that has written a row of a key: it guards the lease, or
// has acquired it.
type Blocker struct {
	Written
	Over time.Duration // for how long the lease has been over; negative while it isn't
}

// Written identifies what a transaction has written to a row.
type Written struct {
	Slot                   int64
	Token, Guards, Session uint64
}

// String says which session has the row locked.
func (b Blocker) String() string {
	return fmt.Sprintf("an open transaction of session %d has its row locked", b.Session)
}
