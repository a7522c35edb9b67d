package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// tokenVerbs are all ways to the token of a key, which the second key only stands beside.
var tokenVerbs = []struct {
	name string
	lock func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (uint64, error)
}{
	{"Lock", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		grant, err := s.Lock(ctx, key)
		return grant.Token(), err
	}},
	{"TryLock", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		grant, err := s.TryLock(ctx, key)
		return grant.Token(), err
	}},
	{"WaitAtMost", func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (uint64, error) {
		grant, err := s.WaitAtMost(time.Minute).Lock(ctx, key)
		return grant.Token(), err
	}},
	{"LockAll", func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (uint64, error) {
		grants, err := s.LockAll(ctx, key, beside)
		if err != nil {
			return 0, err
		}
		return grants[0].Token(), nil
	}},
	{"WaitAtMost.LockAll", func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (uint64, error) {
		grants, err := s.WaitAtMost(time.Minute).LockAll(ctx, key, beside)
		if err != nil {
			return 0, err
		}
		return grants[0].Token(), nil
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

// TestTokensOfFreshKeysRise locks keys that are never committed by many at once, and
// rolls back: a row that is made again each time doesn't take the token back, although
// the statement that makes it began before others were granted the key.
func TestTokensOfFreshKeysRise(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for _, pool := range []struct {
			name                 string
			guarded, interpolate bool
		}{{"guarded", true, true}, {"guarded, prepared", true, false}, {"plain", false, true}} {
			for _, verb := range tokenVerbs {
				t.Run(fmt.Sprintf("%s/%s/%s", engine, pool.name, verb.name), func(t *testing.T) {
					t.Parallel()
					db := testdb.Open(t, engine)
					family := txlock.NewFamily[string](fmt.Sprintf("fresh-tokens/%s/%s", verb.name, pool.name), txlock.Exact())
					// Between two rows, so that the gap which a rollback closes is this test's alone.
					if err := txlock.Ensure(t.Context(), db.Admin(), family.Key("a"), family.Key("z")); err != nil {
						t.Fatal(err)
					}
					key, beside := family.Key("key"), family.Key("key beside")
					tokens := risingTokens{}
					pool := poolOf(t, db, pool.guarded, pool.interpolate)
					each(t, 8, func(ctx context.Context, _ int) error {
						for range 10 {
							if err := tokens.rollBack(ctx, pool, func(s *txlock.Scope) (uint64, error) { return verb.lock(ctx, s, key, beside) }); err != nil {
								return err
							}
						}
						return nil
					})
					tokens.check(t, map[bool]int{true: 1, false: 10}[verb.name == "TryLock"])
				})
			}
		}
	}
}

// TestTokensRiseBesideClean does the same while Clean removes the row, which one commits
// before each round, as soon as it may.
func TestTokensRiseBesideClean(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			key, tokens, pool := txlock.Named("cleaned"), risingTokens{}, poolOf(t, db, true, true)
			lock := func(s *txlock.Scope) (uint64, error) {
				grant, err := s.Lock(t.Context(), key)
				return grant.Token(), err
			}
			for range 5 {
				if err := inTx(t.Context(), pool, func(s *txlock.Scope) error {
					token, err := lock(s)
					tokens.note(token, err)
					return err
				}); err != nil {
					t.Fatal(err)
				}
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
				each(t, 8, func(ctx context.Context, _ int) error {
					for range 10 {
						if err := tokens.rollBack(ctx, pool, lock); err != nil {
							return err
						}
					}
					return nil
				})
				if err := <-removed; err != nil {
					t.Fatalf("clean: %v", err)
				}
			}
			tokens.check(t, 100)
		})
	}
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

// rollBack takes the lock in a transaction and rolls it back. Who makes a row is waited
// for by the others, and its rollback is a deadlock among these.
func (r *risingTokens) rollBack(ctx context.Context, pool *sql.DB, lock func(s *txlock.Scope) (uint64, error)) error {
	err := inTx(ctx, pool, func(s *txlock.Scope) error {
		token, err := lock(s)
		r.note(token, err)
		if err == nil || errors.Is(err, txlock.ErrDeadlock) || errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrStaleSnapshot) {
			return errRollback
		}
		return err
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
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

// poolOf is a pool of the application's user.
func poolOf(t *testing.T, db *testdb.DB, guarded, interpolate bool) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(db.Config(func(c *mysql.Config) { c.InterpolateParams, c.Logger = interpolate, &mysql.NopLogger{} }))
	if err != nil {
		t.Fatal(err)
	}
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}
