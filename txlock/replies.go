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

// This file reads the replies of the statements and procedures of locks, of Once and of versions,
// which the file of each engine lists in internal/rawsql. Any other is fault.ErrReply, which dooms
// the transaction: see state.failed.

// insertID returns the reply of a statement that answers with an insert id.
func insertID(known *rawsql.Replies, statement string, result sql.Result, err error) (int64, error) {
	var id int64
	if err == nil {
		id, err = result.LastInsertId()
	}
	return knownID(known, statement, id, err)
}

// knownID returns the insert id if it is known.
func knownID(known *rawsql.Replies, statement string, id int64, err error) (int64, error) {
	if err != nil {
		return 0, fault.Read(statement, err)
	}
	if others, has := known.IDs[statement]; !has || id <= rowInserted && !slices.Contains(others, id) {
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

// readOutcome reads the reply to a procedure that locks one row.
func readOutcome(known *rawsql.Replies, procedure string, shared bool, reply guard.Reply) (r outcome, err error) {
	words := known.Outcomes[procedure]
	if _, none := words[""]; none && reply.Columns == 3 && len(reply.Rows) == 0 {
		return r, sql.ErrNoRows
	}
	if err := readRow(procedure, reply, &r.token, &r.what, &r.old); err != nil {
		return outcome{}, err
	}
	o, has := words[r.what.V]
	if o.Token == rawsql.Granted && shared {
		o.Token = rawsql.Present
	}
	if !has || r.what.V == "" || !o.Token.Has(r.token) || !o.Old.Has(r.old) {
		return outcome{}, fault.UnknownReply(procedure, shown(reply))
	}
	return r, nil
}

// readNumber reads the reply to a procedure that answers with a number.
func readNumber(known *rawsql.Replies, procedure string, reply guard.Reply) (uint64, error) {
	var n sql.Null[uint64]
	if err := readRow(procedure, reply, &n); err != nil {
		return 0, err
	}
	if most, has := known.Numbers[procedure]; !has || !n.Valid || n.V > most {
		return 0, fault.UnknownReply(procedure, shown(reply))
	}
	return n.V, nil
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
