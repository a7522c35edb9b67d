package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Call marks a lock statement: one that package txlock sends, not the program.
type Call struct {
	// Tx is the transaction that it belongs to. In any other it isn't sent.
	Tx *TxState
	// Fresh: it is sent only while MayHaveSnapshot is false. Otherwise the answer is
	// ErrReads.
	Fresh bool
	// Reads: it is a plain read, which takes the snapshot.
	Reads bool
	// Reply receives the reply to a CALL that is sent by ExecContext, if the connection is
	// Direct: rows of database/sql cost a goroutine.
	Reply *Reply
	// Commits: where it raises a token, it commits the transaction with it, if the server
	// can do both in one statement; see TxState.Finished.
	Commits bool
	// Make is the name of a key whose row is made before the transaction, if it is missing:
	// where the statement goes with BEGIN and no wrapper has changed it, perhaps to use
	// another table, where the transaction may write, and where what is sent before it
	// commits by itself.
	Make string
	// Borrows: it sets a variable of the session for what follows. A connection to whose session
	// that isn't given back is closed.
	Borrows bool
	// Restores: it restores a variable of the session. Since the session outlives the
	// transaction, it is sent even if the server has ended that.
	Restores bool
}

// Reply is what a statement with rows was answered. One without rows has no columns.
type Reply struct {
	Columns int
	Rows    [][]driver.Value
}

// question is what Ask sends with its context. The connection writes the answer into it.
type question struct {
	chooses bool // see Choose
	guarded bool
	tx      *TxState
}

// inBand is a context that carries a value to the guarded connection: like
// context.WithValue, in one allocation.
type inBand[T any] struct {
	context.Context
	value T
}

type inBandKey[T any] struct{}

func (c *inBand[T]) Value(key any) any {
	if key == (inBandKey[T]{}) {
		return &c.value
	}
	return c.Context.Value(key)
}

// valueOf returns the value of this type that the context carries, or nil.
func valueOf[T any](ctx context.Context) *T {
	value, _ := ctx.Value(inBandKey[T]{}).(*T)
	return value
}

// WithCall marks the statements under the context as lock statements.
func WithCall(ctx context.Context, c Call) context.Context {
	return &inBand[Call]{Context: ctx, value: c}
}

// Execer is the method of a transaction that Ask needs.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Ask asks the connection of a transaction for its state, by a statement that a guarded
// connection answers itself. The transaction state is nil if the connection is guarded and has no
// transaction. If there is a state, reply is why no lock would hold on the session, as far as
// that is known. If the connection is not guarded, the statement reaches the server, and reply
// is the server's answer, for fault.TransactionOpen.
func Ask(ctx context.Context, tx Execer) (txState *TxState, guarded bool, reply error) {
	q := &inBand[question]{Context: ctx}
	_, reply = tx.ExecContext(q, rawsql.Probe)
	return q.value.tx, q.value.guarded, reply
}

// Choose has a transaction of a guarded connection begin at READ COMMITTED where BEGIN would take
// the snapshot, so that every lock that waits would end as stale. It does nothing if the program has
// chosen a level, or if something was sent; see TxState.Unchecked.
func Choose(ctx context.Context, tx Execer) error {
	_, err := tx.ExecContext(&inBand[question]{Context: ctx, value: question{chooses: true}}, rawsql.Probe)
	return err
}
