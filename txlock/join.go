package txlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// A Tx is a transaction: what sqlc calls a DBTX, with Commit and Rollback. These two are never
// called; they only ensure that a pool doesn't compile.
type Tx interface {
	gen.DBTX
	Commit() error
	Rollback() error
}

var _ Tx = (*sql.Tx)(nil)

// A JoinOption configures Join.
type JoinOption interface{ toJoin(*state) }

// An Option configures a guarded pool, for all its transactions, or Join.
type Option interface {
	PoolOption
	JoinOption
}

type joinOption func(*state)

func (f joinOption) toJoin(s *state) { f(s) }

// NothingRead declares that the transaction has run no plain SELECT yet, which an unguarded pool
// can't know: the next lock then needs no snapshot check. A guarded pool knows that itself and
// ignores the option. The default is to check.
func NothingRead() JoinOption { return joinOption(func(s *state) { s.fresh = true }) }

// Began is NothingRead for a transaction that was begun with these options.
func (internals) Began(options ...*sql.TxOptions) JoinOption {
	return joinOption(func(s *state) {
		s.fresh = true
		for _, o := range options {
			if o != nil {
				s.level = o.Isolation
			}
		}
	})
}

// RequireGuarded makes Join refuse a transaction of a pool that is not guarded, with ErrUnguarded.
// The default is to join it: its locks exclude as well.
func RequireGuarded() JoinOption { return joinOption(func(s *state) { s.requireGuarded = true }) }

// Join returns the scope of a transaction. On a guarded pool, opened with locksqlc.Open or
// lockgorm.Open, it sends nothing, and a transaction has one scope however often it is joined. On
// an unguarded pool it sends two queries, and every call returns a scope of its own.
//
// It returns ErrNoTransaction if no transaction is open, ErrTxDoomed if the server has ended it,
// ErrUnguarded if RequireGuarded was given, and schema.ErrSession if locks don't hold on its
// session, for example because of autocommit = 0. On a guarded pool that refers to the session
// when it was opened; if a statement has changed it since, the next call that locks checks the
// session and returns the error. Join returns schema.ErrEngine if the server is neither MySQL nor
// MariaDB; on TiDB and Vitess only for an unguarded pool. The transaction stays as it was.
func Join(ctx context.Context, tx Tx, options ...JoinOption) (*Scope, error) {
	if ctx == nil {
		return nil, errors.New("txlock: Join needs a context, got nil")
	}
	if err := fault.NilTx(tx); err != nil {
		return nil, err
	}
	txState, guarded, reply := guard.Ask(ctx, tx)
	if guarded && txState == nil {
		// Not begun through the driver: by a procedure, or under autocommit=0.
		_, reply = tx.ExecContext(ctx, rawsql.Probe)
	}
	if txState != nil {
		if err := txState.Err(); err != nil {
			return nil, fault.Of("join", err, txState.Server())
		}
		if reply != nil {
			return nil, fault.Of("join", reply, txState.Server())
		}
		kept := txState.Scope(func() guard.Scope { return newJoined(tx, txState, txState.Server()) })
		return &kept.(*joined).scope, nil
	}
	var wanted state
	for _, option := range options {
		option.toJoin(&wanted)
	}
	open, err := openBy(tx, reply)
	var server session.Server
	if err == nil || errors.Is(err, session.ErrEngine) {
		var unfit error
		server, unfit = introduce(ctx, tx) // before the reply counts: another engine gives others
		err = cmp.Or(unfit, err)
	}
	if err != nil {
		return nil, fault.Of("join", err, session.Server{})
	}
	if wanted.requireGuarded && !guarded {
		return nil, fmt.Errorf("join: %w", ErrUnguarded)
	}
	if !open {
		return nil, fmt.Errorf("%w: none was begun on this connection, or the server has ended it", ErrNoTransaction)
	}
	j := newJoined(tx, nil, server)
	j.state.unseen = guarded
	for _, option := range options {
		option.toJoin(&j.state)
	}
	return &j.scope, nil
}

// JoinDBTX is Join for a program that has its transaction only as the DBTX of sqlc, as with
// emit_methods_with_db_argument. It asks the server whether it is a transaction. It returns
// ErrNoTransaction for a *sql.DB, and for a *sql.Conn, whose transaction locksqlc.JoinConn joins.
func JoinDBTX(ctx context.Context, db gen.DBTX, options ...JoinOption) (*Scope, error) {
	switch tx := db.(type) {
	case Tx:
		return Join(ctx, tx, options...)
	case *sql.DB, *sql.Conn:
		return nil, fmt.Errorf("%w: a %T is none", ErrNoTransaction, db)
	case nil:
		return nil, fault.NilTx(nil)
	}
	return Join(ctx, transaction{db}, options...)
}

// transaction makes a Tx of a DBTX. Join never ends it.
type transaction struct{ gen.DBTX }

func (transaction) Commit() error   { return errors.ErrUnsupported }
func (transaction) Rollback() error { return errors.ErrUnsupported }

// joined is a scope and its state in one piece, kept with the transaction.
type joined struct {
	scope Scope
	state state
	tx    rawsql.Text
}

func newJoined(tx Tx, txState *guard.TxState, server session.Server) *joined {
	j := &joined{state: state{txState: txState, server: server}, tx: rawsql.Text{DBTX: tx, Inline: txState != nil && txState.Direct()}}
	j.scope.state, j.state.tx = &j.state, &j.tx
	if txState != nil {
		if p, ok := txState.Value().(*pooled); ok {
			j.state.pooled = *p
		}
	}
	return j
}

// Committed is called by the guarded connection when the transaction was
// committed: the rows of its keys exist.
func (j *joined) Committed() {
	j.state.mu.Lock()
	j.state.committed = true
	for r := range j.state.held {
		known.add(j.state.server.Name, r)
	}
	own := len(j.state.afters) > 0 && j.state.runner == 0 // else Run and the like call them
	j.state.mu.Unlock()
	if own {
		go callAll(j.state.takeAfters())
	}
}

// Ended is called by the guarded connection when the transaction ends.
func (j *joined) Ended(why error) {
	j.state.leave()
	if j.state.watch != nil {
		apart(func() { j.state.ended(why) })
	}
}

// openBy tells from the reply to rawsql.Probe whether a transaction is open. In a *sql.Tx of an
// unguarded pool it also looks at the flag of a success.
func openBy(tx gen.DBTX, reply error) (bool, error) {
	flag := false
	if reply == nil { // an error has none, and another goroutine may be sending by now
		flag, _ = guard.OpenAtLastReply(tx)
	}
	return fault.TransactionOpen(reply, flag)
}

// Unanswered is called by the guarded connection when the commit outcome is unknown.
func (j *joined) Unanswered(why error) {
	if j.state.watch != nil {
		apart(func() { j.state.doomed(why) })
	}
}

// introduce asks the session of an unguarded pool for its facts, which guarded connections know. It
// returns an error if no lock would hold there.
func introduce(ctx context.Context, db gen.DBTX) (session.Server, error) {
	facts, err := session.Ask(ctx, db)
	if err == nil {
		err = facts.Unfit
	}
	return session.NewServer(facts), err
}
