package shards

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = txlock.Internal(bridge.Pass{})

// Shards is a set of databases, over which keys are spread. Its methods may be called from
// any goroutine.
type Shards struct {
	set    set
	by     *by
	shards map[string]*shard
	// lookAgain is for how long the process relies on what it has read of a record.
	lookAgain time.Duration
}

// by is what RouteBy routes by.
type by struct{ part func(key txlock.Key) string }

// Option is an option of New.
type Option interface{ toShards(*Shards) }

type option func(*Shards)

func (f option) toShards(s *Shards) { f(s) }

// RouteBy routes keys by a part of them, so that keys with the same part are in one shard: all that
// belongs to a customer, for example. The function must return the same for the same key always
// and in all processes; where it returns "", the whole key counts. Its name is recorded with
// the set: a process without it, or with another name, is refused. A program that changes what
// the function returns gives it another name, and changes the set by Begin. The default is the
// whole key.
func RouteBy(name string, part func(key txlock.Key) string) Option {
	return option(func(s *Shards) { s.set.by, s.by = name, &by{part} })
}

// New returns the set of these databases. Their names, not their addresses, decide where
// keys go: all programs give the same names to the same databases, and a database that moves
// to another host keeps its name. A name has 1 to 64 of the characters A-Z a-z 0-9 _ . - and
// begins with a letter or a digit. One database may have several names, to get more of the
// keys, or to be divided later. New sends nothing, and the pools stay the caller's.
//
// It returns txlock.ErrInvalidOption for a set without databases, a nil pool, and a name or
// an option out of its range.
func New(pools map[string]*sql.DB, options ...Option) (*Shards, error) {
	s := &Shards{shards: make(map[string]*shard, len(pools)), lookAgain: 5 * time.Second}
	s.set.names = slices.Sorted(maps.Keys(pools))
	for _, o := range options {
		o.toShards(s)
	}
	if len(pools) == 0 {
		return nil, fmt.Errorf("%w: New needs at least one database", txlock.ErrInvalidOption)
	}
	if s.by != nil {
		if err := checkName("RouteBy", s.set.by); err != nil {
			return nil, err
		}
		if s.by.part == nil {
			return nil, fmt.Errorf("%w: RouteBy(%q) needs a function, got nil", txlock.ErrInvalidOption, s.set.by)
		}
	}
	for name, pool := range pools {
		if err := checkName("a shard", name); err != nil {
			return nil, err
		}
		if pool == nil {
			return nil, fmt.Errorf("%w: shard %s: the *sql.DB is nil", txlock.ErrInvalidOption, name)
		}
		s.shards[name] = &shard{name: name, db: pool, looking: make(chan struct{}, 1)}
	}
	return s, nil
}

// Names returns the names of the shards, in order.
func (s *Shards) Names() []string { return slices.Clone(s.set.names) }

// Name returns the name of the shard that has a key, whether or not it can be used at the
// moment. It sends nothing: it is for grouping keys and for moving data.
func (s *Shards) Name(key txlock.Key) string {
	plain, _ := inner.Asked(key)
	return route(s.set.names, s.text(plain))
}

// text returns what a key is routed by.
func (s *Shards) text(key txlock.Key) string {
	if s.by == nil {
		return key.String()
	}
	return cmp.Or(s.by.part(key), key.String())
}

// For returns the database that has the keys, to be given to locksqlc.Run or BeginTx. Keys
// that are locked together must be in one shard: see RouteBy. A key that txlock.Shared has marked
// is in the shard of the key. Call For for every transaction, and don't keep what it returns.
//
// For reads the record of that shard, by one SELECT, unless it has done so within the last 5
// seconds. It asks no other shard: where one is down, only its keys are refused, with the
// error of the driver, and no key ever goes elsewhere.
//
// It returns txlock.ErrInvalidKey, ErrSplit for keys of several shards, ErrSet if the
// database says that the set is another one, ErrMoving while the set is changed, for keys
// that move, and the errors of the driver.
func (s *Shards) For(ctx context.Context, keys ...txlock.Key) (*sql.DB, error) {
	if ctx == nil {
		return nil, errors.New("shards: For needs a context, got nil")
	}
	at, err := s.one(keys)
	if err != nil {
		return nil, err
	}
	r, err := at.recent(ctx, s.lookAgain)
	if err != nil {
		return nil, err
	}
	if s.allows(at, r, keys) == nil {
		return at.db, nil
	}
	if err := s.Confirm(ctx, keys...); err != nil { // may be allowed since
		return nil, err
	}
	return at.db, nil
}

// Confirm makes sure that the keys are in their shard at the moment: it reads the record.
// Call it when a lease was granted, before its work begins, and release the lease if Confirm
// fails: Acquire may have waited for longer than For looks ahead. What is confirmed holds as
// long as the lease is held, since Begin waits for it. Its errors are those of For.
func (s *Shards) Confirm(ctx context.Context, keys ...txlock.Key) error {
	if ctx == nil {
		return errors.New("shards: Confirm needs a context, got nil")
	}
	at, err := s.one(keys)
	if err != nil {
		return err
	}
	r, err := at.recent(ctx, 0)
	if err != nil {
		return err
	}
	return s.allows(at, r, keys)
}

// Guard does what Confirm does in a transaction that holds the locks of keys: they stay in
// this shard until the transaction has ended, since Begin waits for it. Call it after the
// locks. Without it a process that stands still between For and its lock, for more than 5
// seconds and in the middle of a change, may lock a key that has moved. Guard costs one
// statement.
//
// It returns the errors of For and of Scope.RLock, schema.ErrMultiPrimary on a multi-primary
// cluster among them. Roll the transaction back then.
func (s *Shards) Guard(ctx context.Context, scope *txlock.Scope, keys ...txlock.Key) error {
	if ctx == nil {
		return errors.New("shards: Guard needs a context, got nil")
	}
	at, err := s.one(keys)
	if err != nil {
		return err
	}
	if scope == nil {
		return fmt.Errorf("%w: the *txlock.Scope is nil: join the transaction by locksqlc.Join or lockgorm.Join", txlock.ErrNoTransaction)
	}
	if err := inner.OnePrimary(ctx, scope); err != nil {
		return err
	}
	plain, _ := inner.Asked(keys[0])
	var r record
	err = inner.Include(ctx, scope, "guard the shard of", plain, func(ctx context.Context, in *bridge.Included) (err error) {
		in.Fence = true
		r, err = at.locked(ctx, in.Tx)
		return err
	})
	if err != nil {
		return err
	}
	return s.allows(at, r, keys)
}

// one returns the shard that has all of the keys.
func (s *Shards) one(keys []txlock.Key) (*shard, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: no key is given, and a key says which shard it is", txlock.ErrInvalidKey)
	}
	for _, key := range keys {
		plain, _ := inner.Asked(key)
		if err := plain.Validate(); err != nil {
			return nil, err
		}
	}
	name := s.Name(keys[0])
	for _, key := range keys[1:] {
		if other := s.Name(key); other != name {
			return nil, fmt.Errorf("%w: %q is in %s and %q in %s: a transaction has one database; keys that are locked together need a part in common, and shards.RouteBy",
				ErrSplit, fault.Clipped(keys[0].String()), name, fault.Clipped(key.String()), other)
		}
	}
	return s.shards[name], nil
}

// allows returns nil if the record lets this set use the keys in that shard.
func (s *Shards) allows(at *shard, r record, keys []txlock.Key) error {
	if !r.knows(s.set) {
		return at.refuse(r, s.set)
	}
	for _, key := range keys {
		plain, _ := inner.Asked(key)
		if r.moves(s.text(plain)) {
			return fmt.Errorf("%w: %q, by the change %s", ErrMoving, fault.Clipped(key.String()), r)
		}
	}
	return nil
}

// Each has something of each shard: a lease.Manager, or a *gorm.DB.
type Each[P any] struct {
	shards *Shards
	each   map[string]P
}

// Of makes something for each shard, in the order of their names. It returns the error of
// the function, with what was made before it, so that the caller can close that.
//
//	leases, err := shards.Of(s, func(_ string, db *sql.DB) (*lease.Manager, error) { return lease.NewManager(db) })
//	manager, err := leases.For(ctx, key)
func Of[P any](s *Shards, make func(name string, db *sql.DB) (P, error)) (*Each[P], error) {
	e := &Each[P]{s, map[string]P{}}
	for _, name := range s.set.names {
		p, err := make(name, s.shards[name].db)
		if err != nil {
			return e, fmt.Errorf("shard %s: %w", name, err)
		}
		e.each[name] = p
	}
	return e, nil
}

// For returns that of the shard which has the keys. Its errors are those of Shards.For.
func (e *Each[P]) For(ctx context.Context, keys ...txlock.Key) (P, error) {
	if _, err := e.shards.For(ctx, keys...); err != nil {
		var none P
		return none, err
	}
	return e.each[e.shards.Name(keys[0])], nil
}

// All returns what was made, by the names of the shards, in order: to close it, for example.
func (e *Each[P]) All() iter.Seq2[string, P] {
	return func(yield func(string, P) bool) {
		for _, name := range slices.Sorted(maps.Keys(e.each)) {
			if !yield(name, e.each[name]) {
				return
			}
		}
	}
}
