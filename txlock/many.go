package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// chunk is how many rows one statement of LockAll takes. MariaDB makes a subquery of a
// list of 1,000 (in_predicate_conversion_threshold), which 10.6.7 answers with too few
// rows.
const chunk = 900

// takeRows takes the rows of several keys, by db where it waits for them.
func (a *attempt) takeRows(ctx context.Context, db *rawsql.Text) error {
	table, n := rawsql.Named, len(a.keys)
	if a.hashed {
		table = rawsql.Centers
	}
	if a.server.Compound && !a.guardsSnapshot() {
		lock := rawsql.Statement{Query: table.LockManyReturning(n), Args: a.owned()}
		err := a.query(ctx, db, a.fresh(), "LockManyReturning", rawsql.Present, lock)
		if err == nil && slices.Contains(slices.Collect(maps.Values(a.tokens)), 0) { // some were made
			err = a.query(ctx, a.tx, guard.Call{}, "LockManyReturning", rawsql.Granted, lock)
		}
		return err
	}
	if a.guardsSnapshot() {
		if _, err := a.exec(ctx, db, a.fresh(), rawsql.Statement{Query: table.TouchMany(n), Args: a.arguments()}); err != nil {
			return err
		}
		if err := a.query(ctx, a.tx, guard.Call{Reads: true}, "SnapshotMany", rawsql.Present, rawsql.Statement{Query: table.SnapshotMany(n), Args: a.arguments()}); err != nil {
			return err
		}
	}
	lock := rawsql.Statement{Query: table.LockMany(n), Args: a.owned()}
	affected, err := a.exec(ctx, a.tx, a.fresh(), lock)
	all, err := a.changed("LockMany", affected, err)
	if err == nil && !all { // some were made
		affected, err = a.exec(ctx, a.tx, guard.Call{}, lock)
		_, err = a.changed("LockMany", affected, err)
	}
	if err != nil {
		return err
	}
	return a.query(ctx, a.tx, guard.Call{}, "TokensMany", rawsql.Granted, rawsql.Statement{Query: table.TokensMany(n), Args: a.arguments()})
}

// argument is what the key column holds.
func (k Key) argument() any {
	if k.hashed {
		return uint32(k.Slot())
	}
	return []byte(k.name)
}

func (a *attempt) arguments() []any {
	arguments := make([]any, len(a.keys))
	for i, key := range a.keys {
		arguments[i] = key.argument()
	}
	return arguments
}

// owned are the key and the owner of each row.
func (a *attempt) owned() []any {
	arguments := make([]any, 0, 2*len(a.keys))
	for _, key := range a.keys {
		arguments = append(arguments, key.argument(), a.owner)
	}
	return arguments
}

func (a *attempt) exec(ctx context.Context, db *rawsql.Text, call guard.Call, lock rawsql.Statement) (affected int64, err error) {
	result, err := db.Exec(a.own(ctx, call), lock)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query sends a statement that answers with key and token of each row, and keeps the tokens.
// Where there is a third column it compares the token with it, that of the snapshot. The tokens
// are what is wanted: present, or granted.
func (a *attempt) query(ctx context.Context, db *rawsql.Text, call guard.Call, statement string, tokens rawsql.Column, lock rawsql.Statement) (err error) {
	rows, err := db.Query(a.own(ctx, call), lock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var name []byte
	var slot uint16
	var token, old sql.Null[uint64]
	into := []any{&name, &token}
	if a.hashed {
		into[0] = &slot
	}
	if columns, err := rows.Columns(); err != nil {
		return err
	} else if len(columns) > len(into) {
		into = append(into, &old)
	}
	var all []manyRow
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return fault.Read(statement, err)
		}
		all = append(all, manyRow{record{name: string(name), slot: slot, hashed: a.hashed}, token, old})
	}
	if err := rows.Err(); err != nil {
		return err
	}
	a.tokens, err = a.tokensOf(statement, tokens, all)
	return err
}

// manyRow is a row of the reply to a statement for several keys.
type manyRow struct {
	record
	token, old sql.Null[uint64]
}

// tokensOf reads such a reply: a row for each key, each once. Only lockstep_lock_all_1 answers
// with the row of one key if its token isn't the snapshot's.
func (a *attempt) tokensOf(statement string, tokens rawsql.Column, rows []manyRow) (map[record]uint64, error) {
	missing, found := make(map[record]bool, len(a.keys)), make(map[record]uint64, len(a.keys))
	for _, key := range a.keys {
		missing[key.record()] = true
	}
	for _, row := range rows {
		other := row.old.Valid && row.old.V != row.token.V
		if other {
			tokens = rawsql.Present
		}
		if !missing[row.record] || !tokens.Has(row.token) || !rawsql.Anything.Has(row.old) {
			return nil, fault.UnknownReply(statement, fmt.Sprintf("the row (%q, %d, %v, %v)", fault.Clipped(row.name), row.slot, row.token, row.old))
		}
		if other {
			return nil, fmt.Errorf("%w: token %d in the snapshot, %d in the row", ErrStaleSnapshot, row.old.V, row.token.V)
		}
		delete(missing, row.record)
		found[row.record] = row.token.V
	}
	if len(missing) > 0 {
		return nil, a.tooFew(statement, len(rows))
	}
	return found, nil
}

// tooFew is the error of a reply with too few rows: of keys that others have removed, or of
// centers that nobody has made.
func (a *attempt) tooFew(statement string, rows int) error {
	if a.hashed {
		return fmt.Errorf("%w: lockstep_centers has not all of %d rows", ErrSchema, len(a.keys))
	}
	return fault.UnknownReply(statement, fmt.Sprintf("%d rows for %d keys", rows, len(a.keys)))
}

// changed returns how many rows of a statement for several keys were there before: it counts
// one for each that it has made, and two for each that it has changed, or three in a table
// WITH SYSTEM VERSIONING.
func (a *attempt) changed(statement string, n int64, err error) (all bool, _ error) {
	if most := int64(len(a.keys)); err == nil && (n < most || n > 3*most) {
		return false, fault.UnknownReply(statement, fmt.Sprintf("%d changed rows for %d keys", n, most))
	}
	return n >= 2*int64(len(a.keys)), err
}
