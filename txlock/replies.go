package txlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// This file has all replies of the statements and procedures of locks, of Once and of
// versions. Any other is fault.ErrReply, which dooms the transaction: see state.failed.

// insertIDs has, for each statement that answers with an insert id, the ids that are no
// token. A token is above all of them; 1, which no server grants, is one of mocks.
var insertIDs = map[string][]int64{
	"LockNamed":            {made},
	"LockCenter":           {0, 1},
	"CompareAndBumpNamed":  {0, made},
	"CompareAndBumpCenter": {0, 1},
	"TouchNamed":           {0, 1}, // the token of a row that it has made
}

// insertID returns the reply of such a statement.
func insertID(statement string, result sql.Result, err error) (int64, error) {
	var id int64
	if err == nil {
		id, err = result.LastInsertId()
	}
	return knownID(statement, id, err)
}

// knownID returns the insert id if it is known.
func knownID(statement string, id int64, err error) (int64, error) {
	if err != nil {
		return 0, fault.Read(statement, err)
	}
	if id <= made && !slices.Contains(insertIDs[statement], id) {
		return 0, fault.UnknownReply(statement, "the insert id "+strconv.FormatInt(id, 10))
	}
	return id, nil
}

// tokenOf returns the reply of a statement that reads the token of a row; 0 was never
// granted. sql.ErrNoRows is a reply, too.
func tokenOf(statement string) func(token uint64, err error) (uint64, error) {
	return func(token uint64, err error) (uint64, error) {
		if err == nil && token>>63 != 0 {
			return 0, fault.UnknownReply(statement, "the token "+strconv.FormatUint(token, 10))
		}
		return token, fault.Read(statement, err)
	}
}

// outcome is the reply to a procedure that locks one row.
type outcome struct {
	token sql.Null[uint64]
	what  sql.Null[string]
	old   sql.Null[uint64] // what the token was compared with, or the snapshot shows
}

// expected is what stands beside an outcome.
type expected struct {
	token, old wanted
}

// wanted is what a column of a reply has.
type wanted int

const (
	anything wanted = iota // NULL, too, but no token
	null
	zero
	present // a token, or 0, which was never granted
	granted // a token
)

// outcomes has the replies of each procedure that answers with an outcome. A shared grant has
// the token of the last exclusive one, which may be 0. If lockstep_share_1 answers with no row,
// there is none to lock.
var outcomes = map[string]map[string]expected{
	"lockstep_lock_1":    {"granted": {granted, null}, "made": {granted, null}, "missing": {anything, null}},
	"lockstep_compare_1": {"granted": {granted, present}, "other": {present, present}, "missing": {zero, present}},
	"lockstep_try_1":     {"granted": {granted, anything}, "other": {present, present}, "missing": {zero, anything}, "busy": {zero, anything}},
	"lockstep_share_1":   {"granted": {present, anything}},
}

// numbers has the highest number that each procedure answers with which answers with one.
var numbers = map[string]uint64{
	"lockstep_version_1": 1<<63 - 1,
	"lockstep_once_1":    1,
}

// tokenLists are the procedures that answer with a row for each key; see many.tokens.
var tokenLists = []string{"lockstep_lock_all_1"}

// readOutcome reads the reply to a procedure that locks one row.
func readOutcome(procedure string, shared bool, reply guard.Reply) (r outcome, err error) {
	if reply.Columns == 3 && len(reply.Rows) == 0 && procedure == "lockstep_share_1" {
		return r, sql.ErrNoRows
	}
	if err := readRow(procedure, reply, &r.token, &r.what, &r.old); err != nil {
		return outcome{}, err
	}
	e, known := outcomes[procedure][r.what.V]
	if e.token == granted && shared {
		e.token = present
	}
	if !known || !r.what.Valid || !e.token.has(r.token) || !e.old.has(r.old) {
		return outcome{}, fault.UnknownReply(procedure, shown(reply))
	}
	return r, nil
}

// readNumber reads the reply to a procedure that answers with a number.
func readNumber(procedure string, reply guard.Reply) (uint64, error) {
	var n sql.Null[uint64]
	if err := readRow(procedure, reply, &n); err != nil {
		return 0, err
	}
	if most, known := numbers[procedure]; !known || !n.Valid || n.V > most {
		return 0, fault.UnknownReply(procedure, shown(reply))
	}
	return n.V, nil
}

// has reports whether a column has what is wanted.
func (w wanted) has(n sql.Null[uint64]) bool {
	if n.Valid && n.V>>63 != 0 {
		return false
	}
	switch w {
	case null:
		return !n.Valid
	case zero:
		return n.Valid && n.V == 0
	case present:
		return n.Valid
	case granted:
		return n.Valid && n.V > 0
	}
	return true
}

// readRow reads the only row of a reply.
func readRow(procedure string, reply guard.Reply, into ...sql.Scanner) error {
	if reply.Columns != len(into) || len(reply.Rows) != 1 {
		return fault.UnknownReply(procedure, shown(reply))
	}
	for i, v := range reply.Rows[0] {
		if err := into[i].Scan(v); err != nil {
			return fault.UnknownReply(procedure, shown(reply))
		}
	}
	return nil
}

// shown is a reply for an error.
func shown(reply guard.Reply) string {
	if len(reply.Rows) != 1 {
		return fmt.Sprintf("%d rows of %d columns", len(reply.Rows), reply.Columns)
	}
	values := make([]string, len(reply.Rows[0]))
	for i, v := range reply.Rows[0] {
		switch v := v.(type) {
		case nil:
			values[i] = "NULL"
		case []byte:
			values[i] = fmt.Sprintf("%.40q", v)
		default:
			values[i] = fmt.Sprintf("%.40q", fmt.Sprint(v))
		}
	}
	return "the row (" + strings.Join(values, ", ") + ")"
}

// replyTo calls a procedure, and returns its reply. On a connection that takes text as it is, the
// guard reads the rows.
func (s *state) replyTo(ctx context.Context, mark guard.Call, call rawsql.Statement) (reply guard.Reply, err error) {
	if s.tx.Inline {
		mark.Reply = &reply
		_, err = s.tx.Exec(s.own(ctx, mark), call)
		return reply, err
	}
	rows, err := s.tx.Query(s.own(ctx, mark), call)
	if err != nil {
		return reply, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return reply, err
	}
	reply.Columns = len(columns)
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns)) // Scan stores NULL in an any alone
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return reply, err
		}
		row := make([]driver.Value, len(columns))
		for i, v := range values {
			row[i] = v
		}
		reply.Rows = append(reply.Rows, row)
	}
	return reply, rows.Err()
}
