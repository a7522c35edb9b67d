package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// chunk is how many rows one statement of LockAll takes. MariaDB makes a subquery of a
// list of 1,000 (in_predicate_conversion_threshold), which 10.6.7 answers with too few
// rows.
const chunk = 900

// many is one way through the statements that take several rows of a table.
type many struct {
	*state
	keys     []Key // sorted, of one table
	owner    []byte
	snapshot bool
	atMost   time.Duration // MariaDB only
}

// run takes the rows and returns their tokens. A wait with a limit begins with a try,
// which has none, as that for a single row does.
func (m *many) run(ctx context.Context) (tokens map[record]uint64, err error) {
	if m.atMost == 0 {
		return m.within(ctx)
	}
	err = m.byVariables(m.atMost, func(variables ...string) error {
		tokens, err = m.within(ctx, variables...)
		return err
	})
	return tokens, err
}

// within takes the rows with variables set for the statement that waits, on MariaDB
// only.
func (m *many) within(ctx context.Context, variables ...string) (map[record]uint64, error) {
	if m.procedures() {
		return m.callMany(ctx)
	}
	table, n := m.table(), len(m.keys)
	switch {
	case m.snapshot && m.server.SnapshotIsolation:
		variables = append(variables, rawsql.RefuseStale)
	case m.mayBeRefused(false):
		variables = append(variables, rawsql.AllowStale)
	}
	fresh := guard.Call{Fresh: !m.snapshot}
	if m.server.Compound && (!m.snapshot || m.server.SnapshotIsolation) {
		tokens, err := m.query(ctx, fresh, "LockManyReturning", rawsql.Present, rawsql.Statement{Query: table.LockManyReturning(n), Args: m.owned(), Variables: variables})
		if err != nil || !slices.Contains(slices.Collect(maps.Values(tokens)), 0) {
			return tokens, err
		}
		return m.query(ctx, guard.Call{}, "LockManyReturning", rawsql.Granted, rawsql.Statement{Query: table.LockManyReturning(n), Args: m.owned()}) // some were made
	}
	if m.snapshot {
		if _, err := m.exec(ctx, guard.Call{}, rawsql.Statement{Query: table.TouchMany(n), Args: m.arguments(), Variables: variables}); err != nil {
			return nil, err
		}
		if _, err := m.query(ctx, guard.Call{Reads: true}, "SnapshotMany", rawsql.Present, rawsql.Statement{Query: table.SnapshotMany(n), Args: m.arguments()}); err != nil {
			return nil, err
		}
	}
	lock := rawsql.Statement{Query: table.LockMany(n), Args: m.owned()}
	affected, err := m.exec(ctx, fresh, lock)
	all, err := m.changed("LockMany", affected, err)
	if err == nil && !all { // some were made
		affected, err = m.exec(ctx, guard.Call{}, lock)
		_, err = m.changed("LockMany", affected, err)
	}
	if err != nil {
		return nil, err
	}
	return m.query(ctx, guard.Call{}, "TokensMany", rawsql.Granted, rawsql.Statement{Query: table.TokensMany(n), Args: m.arguments()})
}

func (m *many) table() rawsql.Table {
	if m.keys[0].hashed {
		return rawsql.Centers
	}
	return rawsql.Named
}

// argument is what the key column holds.
func (m *many) argument(key Key) any {
	if key.hashed {
		return uint32(key.Slot())
	}
	return []byte(key.name)
}

func (m *many) arguments() []any {
	arguments := make([]any, len(m.keys))
	for i, key := range m.keys {
		arguments[i] = m.argument(key)
	}
	return arguments
}

// owned are the key and the owner of each row.
func (m *many) owned() []any {
	arguments := make([]any, 0, 2*len(m.keys))
	for _, key := range m.keys {
		arguments = append(arguments, m.argument(key), m.owner)
	}
	return arguments
}

func (m *many) exec(ctx context.Context, call guard.Call, lock rawsql.Statement) (affected int64, err error) {
	result, err := m.tx.Exec(m.own(ctx, call), lock)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query sends a statement that answers with key and token of each row, and where there is a
// third column compares the token with it, that of the snapshot. The tokens are what is
// wanted: present, or granted.
func (m *many) query(ctx context.Context, call guard.Call, statement string, tokens rawsql.Column, lock rawsql.Statement) (_ map[record]uint64, err error) {
	rows, err := m.tx.Query(m.own(ctx, call), lock)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var name []byte
	var slot uint16
	var token, old sql.Null[uint64]
	into := []any{&name, &token}
	if m.keys[0].hashed {
		into[0] = &slot
	}
	if columns, err := rows.Columns(); err != nil {
		return nil, err
	} else if len(columns) > len(into) {
		into = append(into, &old)
	}
	var all []manyRow
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, fault.Read(statement, err)
		}
		all = append(all, manyRow{record{name: string(name), slot: slot, hashed: m.keys[0].hashed}, token, old})
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return m.read(statement, tokens, all)
}

// manyRow is a row of the reply to a statement for several keys.
type manyRow struct {
	record
	token, old sql.Null[uint64]
}

// read reads such a reply: a row for each key, each once. Only lockstep_lock_all_1 answers
// with the row of one key if its token isn't the snapshot's.
func (m *many) read(statement string, tokens rawsql.Column, rows []manyRow) (map[record]uint64, error) {
	missing, found := make(map[record]bool, len(m.keys)), make(map[record]uint64, len(m.keys))
	for _, key := range m.keys {
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
		return nil, m.absent(statement, len(rows))
	}
	return found, nil
}

// absent is the error of a reply with too few rows: of keys that others have removed, or of
// centers that nobody has made.
func (m *many) absent(statement string, rows int) error {
	if m.keys[0].hashed {
		return fmt.Errorf("%w: lockstep_centers has not all of %d rows", ErrSchema, len(m.keys))
	}
	return fault.UnknownReply(statement, fmt.Sprintf("%d rows for %d keys", rows, len(m.keys)))
}

// changed returns how many rows of a statement for several keys were there before: it counts
// one for each that it has made, and two for each that it has changed, or three in a table
// WITH SYSTEM VERSIONING.
func (m *many) changed(statement string, n int64, err error) (all bool, _ error) {
	if most := int64(len(m.keys)); err == nil && (n < most || n > 3*most) {
		return false, fault.UnknownReply(statement, fmt.Sprintf("%d changed rows for %d keys", n, most))
	}
	return n >= 2*int64(len(m.keys)), err
}
