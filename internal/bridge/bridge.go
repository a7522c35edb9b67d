// Package bridge is the door between the public packages of lockstep. A public package that does
// for the others what no program calls has one exported function, Internal, which takes a [Pass]
// and returns a value with methods for that.
package bridge

import (
	"context"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Pass lets in only packages that may import this one. A composite literal of another package
// has another type, because of the field that isn't exported.
type Pass struct{ _ struct{} }

// Included is what Include hands to its function.
type Included struct {
	// Tx sends the statements. Those that skip a locked row fail there instead: ErrBusy or
	// ErrWaitTimeout.
	Tx rawsql.DBTX
	// Snapshot tells that plain reads of the transaction may show data from
	// before the statements' locks.
	Snapshot bool
	// Fenced tells that a lock of the same name was fenced before, and holds.
	Fenced bool
	// Session is the transaction's, on the server: CONNECTION_ID().
	Session uint64
	// Reading is the context for plain reads, which fix the snapshot.
	Reading context.Context
	// Fence is to be set where the transaction must not be committed without
	// what the statements have locked.
	Fence bool
}
