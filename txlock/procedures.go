package txlock

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// This file takes locks by the procedures of package schema: on a guarded pool of a MySQL
// that has them. What a procedure does, and its reply, is said in
// schema/mysql/0005_procedures.sql.

// procedures reports whether locks are taken by procedures.
func (s *state) procedures() bool { return s.txState != nil && s.txState.Procedures() }

// byProcedure reports whether there is a procedure for what is asked for. A version is compared
// by a cheaper statement, unless the transaction may begin or end with it.
func (a *attempt) byProcedure() bool {
	return a.procedures() && (!a.compares || !a.bounded() && (a.commits || !a.snapshot))
}

// callFor takes the lock by the procedure for what is asked for.
func (a *attempt) callFor(ctx context.Context) (uint64, error) {
	var r outcome
	var err error
	switch {
	case a.keys != nil:
		return 0, a.callMany(ctx)
	case a.bounded():
		return a.callTry(ctx)
	case a.shared:
		return a.callShare(ctx)
	case a.compares:
		r, err = a.call(ctx, a.fresh(), rawsql.CompareProcedure, a.version, a.owner, a.ours, 0)
	case a.snapshot:
		r, err = a.call(ctx, a.fresh(), rawsql.CompareProcedure, nil, a.owner, a.ours, 0)
	default:
		r, err = a.call(ctx, a.fresh(), rawsql.LockProcedure, a.owner, a.ours)
	}
	return a.granted(r, err)
}

// The values of p_look: what lockstep_try_1 does about a row that is not known to exist.
const (
	knownRow = iota
	lookForRow
	leaveRow
)

// callTry does what bySelect does, and leaves it to the same statements if the row is
// locked or missing.
func (a *attempt) callTry(ctx context.Context) (uint64, error) {
	before, look := a.snapshot, a.look()
	r, err := a.call(ctx, a.fresh(), "lockstep_try_1", a.owner, a.ours, flag(a.shared), flag(before), look)
	if look == lookForRow && !fault.NoProcedure(err) && (err != nil || r.old.Valid) { // it has read, and not begun the transaction
		a.txState.Read()
		a.snapshot = true
	}
	token, err := a.granted(r, err)
	if errors.Is(err, ErrBusy) && !a.try {
		token, err = a.selectAtMost(ctx)
	}
	return a.afterTry(ctx, before, token, err)
}

// callShare does what shareRow does, and leaves it to the same statements if the row is gone,
// or can't be made in a transaction that writes nothing.
func (a *attempt) callShare(ctx context.Context) (uint64, error) {
	r, err := a.call(ctx, a.fresh(), "lockstep_share_1", flag(!known.has(a.server.Name, a.record)), flag(a.snapshot))
	switch {
	case errors.Is(err, sql.ErrNoRows), errors.Is(fault.Interpret(err).Sentinel, ErrReadOnly):
		return a.takeRow(ctx)
	case r.old.Valid && r.old.V != r.token.V:
		r.what.V = "other"
	}
	return a.granted(r, err)
}

// granted returns the token, or the error that the outcome stands for.
func (a *attempt) granted(r outcome, err error) (uint64, error) {
	switch {
	case err != nil:
		return 0, err
	case r.what.V == "busy":
		return 0, fmt.Errorf("%w: NOWAIT", ErrBusy)
	case r.what.V == "missing":
		return 0, a.missing()
	case r.what.V == "other" && a.compares:
		return 0, conflict(a.version)
	case r.what.V == "other":
		return 0, fmt.Errorf("%w: token %d in the snapshot, %d in the row", ErrStaleSnapshot, r.old.V, r.token.V)
	}
	if r.what.V == "made" {
		known.drop(a.server.Name, a.record)
	}
	committed := r.what.V == "granted" && !a.snapshot && !a.shared
	if r.old.Valid {
		committed = r.old.V > 0
	}
	if committed && a.ours == noToken {
		known.add(a.server.Name, a.record)
	}
	return r.token.V, nil
}

// call calls a procedure that takes the key and these arguments.
func (a *attempt) call(ctx context.Context, mark guard.Call, procedure string, args ...any) (outcome, error) {
	reply, err := a.replyTo(ctx, mark, a.called(procedure, args...))
	if err != nil {
		return outcome{}, err
	}
	return readOutcome(a.server.Replies, procedure, a.shared, reply)
}

// callNumber calls a procedure that answers with a number.
func (s *state) callNumber(ctx context.Context, mark guard.Call, procedure string, args ...any) (uint64, error) {
	reply, err := s.replyTo(ctx, mark, rawsql.Statement{Procedure: procedure, Args: args})
	if err != nil {
		return 0, err
	}
	return readNumber(s.server.Replies, procedure, reply)
}

// called is the call of a procedure that takes the key and these arguments.
func (r record) called(procedure string, args ...any) rawsql.Statement {
	return rawsql.Statement{Procedure: procedure, Args: append(r.keyed(), args...)}
}

// keyed are the arguments p_name and p_slot.
func (r record) keyed() []any {
	if r.hashed {
		return []any{nil, uint32(r.slot)}
	}
	return []any{[]byte(r.name), nil}
}

// flag is a BOOL for a procedure.
func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// without reports whether the server doesn't have the procedure, and notes it.
func (s *state) without(err error) bool {
	none := fault.NoProcedure(err)
	if none {
		s.txState.NoProcedures()
	}
	return none
}

// callMany takes the rows of several keys.
func (a *attempt) callMany(ctx context.Context) error {
	var list strings.Builder
	for i, key := range a.keys {
		if i > 0 {
			list.WriteByte(',')
		}
		if key.hashed {
			list.WriteString(strconv.Itoa(int(key.Slot())))
		} else {
			list.WriteString(`"` + hex.EncodeToString([]byte(key.name)) + `"`)
		}
	}
	names, slots := any("["+list.String()+"]"), any(nil)
	if a.hashed {
		names, slots = slots, names
	}
	call := rawsql.Statement{Procedure: "lockstep_lock_all_1", Args: []any{names, slots, a.owner, flag(a.snapshot)}}
	return a.query(ctx, a.tx, a.fresh(), call.Procedure, rawsql.Granted, call)
}

// versionOf reads the version of a key, 0 for a key without a row: by a procedure where that
// may begin the transaction.
func (s *state) versionOf(ctx context.Context, r record) (version uint64, err error) {
	if s.procedures() && !s.mayHaveSnapshot() {
		version, err = s.callNumber(ctx, guard.Call{Reads: true}, "lockstep_version_1", r.keyed()...)
		if !s.without(err) {
			return version, err
		}
	}
	return r.tokenOrZero(s.own(ctx, guard.Call{Reads: true}), s.regardless(false, nil))
}
