package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
)

var queries = gen.New()

// record is the row that a key locks: its own, or that of a center lock. It is
// what two keys share that exclude each other.
type record struct {
	name   string // of a named key
	slot   uint16 // of a hashed one
	hashed bool
}

func (k Key) record() record {
	if k.hashed {
		return record{slot: k.Slot(), hashed: true}
	}
	return record{name: k.name}
}

// noToken is what no row carries: a token is 0, never granted, or a time.
const noToken = 1

// rowInserted is the reply of a statement that had to make the row, which has no token yet:
// the same statement again raises it.
const rowInserted = 1

// statement returns the statement that locks the row and raises its token, and its name.
func (a *attempt) statement() (name string, _ rawsql.Statement) {
	sent, ctx := &a.noted, context.Background()
	switch { // the error is errUnsent
	case a.compares && a.hashed:
		name = "CompareAndBumpCenter"
		_, _ = queries.CompareAndBumpCenter(ctx, sent, gen.CompareAndBumpCenterParams{Held: a.ours, Version: a.version, Owner: a.owner, Slot: uint32(a.slot)})
	case a.compares:
		name = "CompareAndBumpNamed"
		_, _ = queries.CompareAndBumpNamed(ctx, sent, gen.CompareAndBumpNamedParams{Name: []byte(a.name), Version: int64(a.version), Owner: a.owner, Held: a.ours})
	case a.hashed:
		name = "LockCenter"
		_, _ = queries.LockCenter(ctx, sent, gen.LockCenterParams{Held: a.ours, Owner: a.owner, Slot: uint32(a.slot)})
	default:
		name = "LockNamed"
		_, _ = queries.LockNamed(ctx, sent, gen.LockNamedParams{Name: []byte(a.name), Owner: a.owner, Held: a.ours})
		sent.Inserts = true
	}
	return name, sent.Statement
}

// unsent notes a statement, and sends nothing.
type unsent struct {
	gen.DBTX
	rawsql.Statement
}

// ExecContext notes the statement.
func (u *unsent) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	u.Query, u.Args = query, args
	return nil, errUnsent
}

var errUnsent = errors.New("nothing is sent")

// touch takes the row, makes it if need be, and returns its committed token.
func (a *attempt) touch(ctx context.Context, db gen.DBTX) (uint64, error) {
	if a.hashed {
		return a.forUpdate(ctx, db)
	}
	token, err := queries.TouchNamed(ctx, db, []byte(a.name))
	token, err = knownID(a.server.Replies, "TouchNamed", token, err)
	return uint64(token), err
}

// ensure makes the row of a named key, or takes it shared where there is one.
func (r record) ensure(ctx context.Context, db gen.DBTX) error {
	if r.hashed {
		return nil
	}
	return queries.EnsureNamed(ctx, db, []byte(r.name))
}

// forUpdate takes an existing row exclusively and returns its token.
func (r record) forUpdate(ctx context.Context, db gen.DBTX) (uint64, error) {
	if r.hashed {
		return r.found(tokenOf("CenterForUpdate")(queries.CenterForUpdate(ctx, db, uint32(r.slot))))
	}
	return r.found(tokenOf("NamedForUpdate")(queries.NamedForUpdate(ctx, db, []byte(r.name))))
}

// forShare takes an existing row shared and returns its token.
func (r record) forShare(ctx context.Context, db gen.DBTX) (uint64, error) {
	if r.hashed {
		return r.found(tokenOf("CenterForShare")(queries.CenterForShare(ctx, db, uint32(r.slot))))
	}
	return r.found(tokenOf("NamedForShare")(queries.NamedForShare(ctx, db, []byte(r.name))))
}

// read returns the token that the transaction's snapshot shows.
func (r record) read(ctx context.Context, db gen.DBTX) (uint64, error) {
	if r.hashed {
		return r.found(tokenOf("CenterToken")(queries.CenterToken(ctx, db, uint32(r.slot))))
	}
	return r.found(tokenOf("NamedToken")(queries.NamedToken(ctx, db, []byte(r.name))))
}

// errMissing is returned for a named key without a row.
var errMissing = errors.New("the key has no row")

// found turns "no rows" into what it means for the record.
func (r record) found(token uint64, err error) (uint64, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return 0, r.missing()
	}
	return token, err
}

func (r record) missing() error {
	if r.hashed {
		return fmt.Errorf("%w: lockstep_centers has no row %d", ErrSchema, r.slot)
	}
	return errMissing
}

// existing are the named keys that this process has seen with a row, by database.
// It spares questions where a locking read of a missing row would close its gap
// to others. That a row is gone again (Clean) costs such a gap lock, no more.
type existing struct {
	mu sync.Mutex
	by map[string]map[record]struct{}
}

var known = existing{by: make(map[string]map[record]struct{})}

// maxKnown bounds the memory for one database; past it the learning starts anew.
const maxKnown = 1 << 16

func (e *existing) add(database string, r record) {
	if r.hashed {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	names := e.by[database]
	if names == nil || len(names) >= maxKnown {
		names = make(map[record]struct{})
		e.by[database] = names
	}
	names[r] = struct{}{}
}

func (e *existing) drop(database string, r record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.by[database], r)
}

// has reports whether the record has a row, as far as is known.
func (e *existing) has(database string, r record) bool {
	if r.hashed {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.by[database][r]
	return ok
}
