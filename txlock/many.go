package txlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// chunk is how many rows one statement of LockAll takes. MariaDB makes a subquery of a
// list of 1,000 (in_predicate_conversion_threshold), which 10.6.7 answers with too few
// rows.
const chunk = 900

// LockAll takes the locks of all keys exclusively, in one order for every
// transaction, so that calls of LockAll don't deadlock among themselves on keys
// that have been locked before. It waits for each in turn, at most for WaitAtMost
// in all, and takes all or none of them: when it fails, locks that it has waited
// for may stay with the transaction until its end, but none is granted. The grants
// are in the order of the keys; a key given twice is granted twice and locked
// once. It returns what Lock returns.
func (s *Scope) LockAll(ctx context.Context, keys ...Key) ([]Grant, error) {
	if err := checkKeys(keys); err != nil {
		return nil, err
	}
	if s.bad != nil {
		return nil, s.bad
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	todo, err := s.missingOf(keys)
	if err != nil {
		return nil, err
	}
	if err := s.acquireAll(ctx, todo, s.atMost); err != nil {
		return nil, err
	}
	grants := make([]Grant, len(keys))
	for i, key := range keys {
		h, _ := s.holdOf(key.record())
		grants[i] = h.grant
		grants[i].key = key
	}
	return grants, nil
}

// checkKeys returns ErrInvalidKey for the first key that can't be locked.
func checkKeys(keys []Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("%w: no key was given", ErrInvalidKey)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// missingOf returns the keys that are not held for certain, sorted by the row
// that they lock, each row once.
func (s *state) missingOf(keys []Key) ([]Key, error) {
	var todo []Key
	for _, key := range keys {
		_, done, err := s.reenter(key, key.record(), false)
		if err != nil {
			return nil, err
		}
		if !done {
			todo = append(todo, key)
		}
	}
	return sorted(todo), nil
}

// sorted returns the keys in the order in which they are locked, one for each row.
func sorted(keys []Key) []Key {
	keys = slices.SortedFunc(slices.Values(keys), func(a, b Key) int { return compareRecords(a.record(), b.record()) })
	return slices.CompactFunc(keys, func(a, b Key) bool { return a.record() == b.record() })
}

// compareRecords orders named rows by name, and behind them the center rows by
// slot: by key the transactions would meet the slots in different orders.
func compareRecords(a, b record) int {
	switch {
	case a.hashed != b.hashed && b.hashed:
		return -1
	case a.hashed != b.hashed:
		return 1
	case a.hashed:
		return cmp.Compare(a.slot, b.slot)
	}
	return strings.Compare(a.name, b.name)
}

// acquireAll takes the sorted keys: several in one statement where the server can
// do that within the limit.
func (s *state) acquireAll(ctx context.Context, keys []Key, atMost time.Duration) error {
	if len(keys) == 0 {
		return nil
	}
	if len(keys) == 1 || atMost > 0 && !s.server.MariaDB {
		return s.acquireEach(ctx, keys, atMost)
	}
	asked := s.asked()
	if err := s.stillOpen(ctx); err != nil {
		return s.refused(ctx, keys[0], false, asked, s.failure("lock all from", keys[0], err))
	}
	end := time.Now().Add(atMost)
	stamp, snapshot := s.stamp(), s.mayHaveSnapshot()
	given := make([]Grant, 0, len(keys))
	for part := range partsOf(keys) {
		m := &many{state: s, keys: part, owner: ownerOf(ctx), snapshot: snapshot}
		if atMost > 0 {
			m.atMost = max(1, time.Until(end))
		}
		tokens, err := m.run(ctx)
		if errors.Is(err, guard.ErrReads) {
			m.snapshot = true // another goroutine has read meanwhile
			tokens, err = m.run(ctx)
		}
		if err != nil {
			return s.refused(ctx, part[0], false, asked, s.failure(fmt.Sprintf("lock all %d keys from", len(part)), part[0], err))
		}
		for _, key := range part {
			token := tokens[key.record()]
			if token == 0 {
				return s.refused(ctx, key, false, asked, s.failure("lock all from", key, key.record().missing()))
			}
			given = append(given, Grant{key: key, token: token})
		}
	}
	for _, grant := range given {
		s.keep(ctx, grant.key.record(), hold{grant: grant, stamp: stamp}, asked)
	}
	return nil
}

// acquireEach takes the sorted keys one by one, within the limit in all.
func (s *state) acquireEach(ctx context.Context, keys []Key, atMost time.Duration) error {
	end := time.Now().Add(atMost)
	asked, snapshot := s.asked(), s.mayHaveSnapshot()
	given := make([]hold, 0, len(keys))
	for _, key := range keys {
		q := request{verb: "lock"}
		if atMost > 0 {
			q.atMost = max(1, time.Until(end))
		}
		old, _ := s.holdOf(key.record())
		h, err := s.newAttempt(ctx, key.record(), q, old, snapshot).run(ctx, key)
		if err != nil {
			return s.refused(ctx, key, false, asked, err)
		}
		given = append(given, h)
	}
	for _, h := range given {
		s.keep(ctx, h.grant.key.record(), h, asked)
	}
	return nil
}

// partsOf cuts sorted keys into what one statement takes: of one table, and no
// more than a chunk.
func partsOf(keys []Key) func(yield func([]Key) bool) {
	return func(yield func([]Key) bool) {
		for len(keys) > 0 {
			n := 1
			for n < len(keys) && n < chunk && keys[n].hashed == keys[0].hashed {
				n++
			}
			if !yield(keys[:n]) {
				return
			}
			keys = keys[n:]
		}
	}
}

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
	err = m.atMostOnMariaDB(m.atMost, func(variables ...string) error {
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
	table, n, prefix := m.table(), len(m.keys), ""
	if m.snapshot && m.server.SnapshotIsolation {
		variables = append(variables, rawsql.RefuseStale)
	}
	if variables != nil {
		prefix = rawsql.For(variables...)
	}
	fresh := guard.Call{Fresh: !m.snapshot}
	if m.server.MariaDB && (!m.snapshot || m.server.SnapshotIsolation) {
		tokens, err := m.query(ctx, fresh, prefix+table.LockManyReturning(n), m.ownedArguments())
		if err != nil || !slices.Contains(slices.Collect(maps.Values(tokens)), 0) {
			return tokens, err
		}
		return m.query(ctx, guard.Call{}, table.LockManyReturning(n), m.ownedArguments()) // some were made
	}
	if m.snapshot {
		if _, err := m.exec(ctx, guard.Call{}, prefix+table.TouchMany(n), m.arguments()); err != nil {
			return nil, err
		}
		if _, err := m.query(ctx, guard.Call{Reads: true}, table.SnapshotMany(n), m.arguments()); err != nil {
			return nil, err
		}
	}
	affected, err := m.exec(ctx, fresh, table.LockMany(n), m.ownedArguments())
	if err == nil && affected < 2*int64(n) { // some were made
		_, err = m.exec(ctx, guard.Call{}, table.LockMany(n), m.ownedArguments())
	}
	if err != nil {
		return nil, err
	}
	return m.query(ctx, guard.Call{}, table.TokensMany(n), m.arguments())
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

// ownedArguments are the key and the owner of each row.
func (m *many) ownedArguments() []any {
	arguments := make([]any, 0, 2*len(m.keys))
	for _, key := range m.keys {
		arguments = append(arguments, m.argument(key), m.owner)
	}
	return arguments
}

func (m *many) exec(ctx context.Context, call guard.Call, query string, arguments []any) (affected int64, err error) {
	result, err := m.tx.ExecContext(m.own(ctx, call), query, arguments...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query reads rows of key and token, and where there is a third column compares
// the token with it, that of the snapshot.
func (m *many) query(ctx context.Context, call guard.Call, query string, arguments []any) (_ map[record]uint64, err error) {
	rows, err := m.tx.QueryContext(m.own(ctx, call), query, arguments...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	tokens := make(map[record]uint64, len(m.keys))
	var name []byte
	var slot uint16
	var token uint64
	var old sql.Null[uint64]
	into := []any{&name, &token}
	if m.keys[0].hashed {
		into[0] = &slot
	}
	if columns, err := rows.Columns(); err != nil {
		return nil, err
	} else if len(columns) > len(into) {
		into = append(into, &old)
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		if old.Valid && old.V != token {
			return nil, fmt.Errorf("%w: token %d in the snapshot, %d in the row", ErrStaleSnapshot, old.V, token)
		}
		tokens[record{name: string(name), slot: slot, hashed: m.keys[0].hashed}] = token
	}
	return tokens, rows.Err()
}
