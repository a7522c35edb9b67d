package locksuite_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// tokenVerbs are all ways to the token of a key, which the second key only stands beside.
var tokenVerbs = []struct {
	name string
	lock func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (uint64, error)
}{
	{"Lock", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		return tokenOf(s.Lock(ctx, key))
	}},
	{"TryLock", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		return tokenOf(s.TryLock(ctx, key))
	}},
	{"WaitAtMost", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		return tokenOf(s.WaitAtMost(time.Minute).Lock(ctx, key))
	}},
	{"LockAll", func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (uint64, error) {
		return first(s.LockAll(ctx, key, beside))
	}},
	{"WaitAtMost.LockAll", func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (uint64, error) {
		return first(s.WaitAtMost(time.Minute).LockAll(ctx, key, beside))
	}},
	{"CompareAndBump", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		version, err := s.Version(ctx, key)
		if err == nil {
			err = s.CompareAndBump(ctx, key, version)
		}
		grant, _ := s.Held(key)
		return grant.Token(), err
	}},
}

func tokenOf(grant txlock.Grant, err error) (uint64, error) { return grant.Token(), err }

// first is the token of the first grant.
func first(grants []txlock.Grant, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	return grants[0].Token(), nil
}

// TestTokensOfFreshKeysRise locks keys that are never committed by many at once, and
// rolls back: a row that is made again each time doesn't take the token back, although
// the statement that makes it began before others were granted the key. Keys that have rows
// do the same.
func TestTokensOfFreshKeysRise(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for _, pool := range []struct {
			name          string
			guarded, made bool
			set           func(*mysql.Config)
			options       []txlock.FamilyOption
		}{
			{"guarded", true, false, interpolating, nil},
			{"guarded, prepared", true, false, func(*mysql.Config) {}, nil},
			{"plain", false, false, interpolating, nil},
			{"made before", true, true, interpolating, nil},
			{"hashed", true, true, interpolating, []txlock.FamilyOption{txlock.Hashed()}},
		} {
			for _, verb := range tokenVerbs {
				t.Run(fmt.Sprintf("%s/%s/%s", engine, pool.name, verb.name), func(t *testing.T) {
					t.Parallel()
					db := testdb.Open(t, engine)
					family := txlock.NewFamily[string](fmt.Sprintf("fresh-tokens/%s/%s", verb.name, pool.name), append(pool.options, txlock.Exact())...)
					// Between two rows, so that the gap which a rollback closes is this test's alone.
					check(t, txlock.Ensure(t.Context(), db.Admin(), family.Key("a"), family.Key("z")))
					key, beside := family.Key("key"), family.Key("key beside")
					if pool.made {
						check(t, txlock.Ensure(t.Context(), db.Admin(), key, beside))
					}
					tokens := risingTokens{}
					pool := poolOf(t, db, pool.guarded, pool.set)
					tokens.rollAllBack(t, pool, func(s *txlock.Scope) (uint64, error) { return verb.lock(t.Context(), s, key, beside) })
					tokens.check(t, map[bool]int{true: 1, false: 10}[verb.name == "TryLock"])
				})
			}
		}
	}
}

// TestTokensRiseBesideClean does the same while Clean removes the row, which one commits
// before each round, as soon as it may.
func TestTokensRiseBesideClean(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		key, tokens, pool := txlock.Named("cleaned"), risingTokens{}, guarded(t, db)
		lock := func(s *txlock.Scope) (uint64, error) { return tokenOf(s.Lock(t.Context(), key)) }
		for range 5 {
			check(t, inTx(t.Context(), pool, func(s *txlock.Scope) error {
				token, err := lock(s)
				tokens.note(token, err)
				return err
			}))
			db.Exec(t, "UPDATE lockstep_locks SET locked_us = 0")
			removed := make(chan error, 1)
			go func() {
				for {
					n, err := txlock.Purge(t.Context(), db.Admin(), time.Hour)
					if n > 0 || err != nil {
						removed <- err
						return
					}
				}
			}()
			tokens.rollAllBack(t, pool, lock)
			if err := <-removed; err != nil {
				t.Fatalf("clean: %v", err)
			}
		}
		tokens.check(t, 100)
	})
}

// risingTokens are the tokens of one key in the order of its grants.
type risingTokens struct {
	mu     sync.Mutex
	last   uint64
	grants int
	fell   []string
}

// note is called under the lock.
func (r *risingTokens) note(token uint64, err error) {
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if token <= r.last {
		r.fell = append(r.fell, fmt.Sprintf("%d after %d", token, r.last))
	}
	r.last = token
	r.grants++
}

// rollAllBack takes the lock ten times in each of eight goroutines, and rolls back. Who makes a
// row is waited for by the others, and its rollback is a deadlock among these.
func (r *risingTokens) rollAllBack(t *testing.T, pool *sql.DB, lock func(s *txlock.Scope) (uint64, error)) {
	t.Helper()
	each(t, 8, func(ctx context.Context, _ int) error {
		for range 10 {
			err := inTx(ctx, pool, func(s *txlock.Scope) error {
				token, err := lock(s)
				r.note(token, err)
				return cmp.Or(err, errRollback)
			})
			if !errors.Is(err, errRollback) && !errors.Is(err, txlock.ErrDeadlock) && !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrStaleSnapshot) && !errors.Is(err, txlock.ErrConflict) {
				return err
			}
		}
		return nil
	})
}

func (r *risingTokens) check(t *testing.T, least int) {
	t.Helper()
	if len(r.fell) > 0 {
		t.Errorf("%d of %d tokens are not higher than the one before: %v", len(r.fell), r.grants, r.fell[:min(3, len(r.fell))])
	}
	if r.grants < least {
		t.Errorf("only %d grants", r.grants)
	}
}
