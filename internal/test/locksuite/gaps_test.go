package locksuite_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestNeighboursAreFree holds a key by each verb, new and known, and locks keys
// right before and after it: no verb closes the gap around its row.
func TestNeighboursAreFree(t *testing.T) {
	verbs := map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
		"Lock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.Lock(ctx, key)
			return err
		},
		"TryLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.TryLock(ctx, key)
			return err
		},
		"TryLock behind another": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			if _, err := s.Lock(ctx, txlock.Named(key.String()+"m")); err != nil {
				return err
			}
			_, err := s.TryLock(ctx, key)
			return err
		},
		"RLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.RLock(ctx, key)
			return err
		},
		"TryRLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.TryRLock(ctx, key)
			return err
		},
		"LockAny": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.LockAny(ctx, key)
			return err
		},
		"LockAll": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.LockAll(ctx, key, txlock.Named(key.String()+"m"))
			return err
		},
		"WaitAtMost": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			_, err := s.WaitAtMost(time.Second).Lock(ctx, key)
			return err
		},
		"after a read": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			if _, err := s.Lock(ctx, key); err != nil {
				return err
			}
			_, err := s.LockAll(ctx, txlock.Named(key.String()+"m"), txlock.Named(key.String()+"n"))
			return err
		},
	}
	for _, engine := range testdb.Engines() {
		// Of its own: what other tests roll back closes gaps, see TestGapOfARollback.
		db := testdb.Shared(t, engine).Open(t)
		for name, verb := range verbs {
			for _, ensured := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/ensured=%t", engine, name, ensured), func(t *testing.T) {
					t.Parallel()
					base := fmt.Sprintf("gap/%s/%t/", name, ensured)
					key := txlock.Named(base + "k")
					if ensured {
						if err := txlock.Ensure(t.Context(), db.Admin(), key); err != nil {
							t.Fatal(err)
						}
					}
					pool := guarded(t, db)
					tx, scope := begin(t, pool)
					if name == "after a read" {
						var n int
						if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lockstep_leases").Scan(&n); err != nil {
							t.Fatal(err)
						}
					}
					if err := verb(t.Context(), scope, key); err != nil {
						t.Fatal(err)
					}
					_, stranger := begin(t, pool)
					for _, beside := range []string{"j", "k0", "l", "n"} {
						if _, err := stranger.WaitAtMost(5*time.Second).Lock(t.Context(), txlock.Named(base+beside)); err != nil {
							t.Errorf("%s beside a held key: %v", beside, err)
						}
					}
				})
			}
		}
	}
}

// TestGapOfARollback rolls back the first lock of a key while another waits for it. Who is
// granted it then has the gap around it as well, until its end: a try of a new key beside
// it is refused, and one that was made beforehand is free.
func TestGapOfARollback(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			pool, family := guarded(t, db), txlock.NewFamily[int]("rolled")
			if err := txlock.Ensure(t.Context(), db.Admin(), family.Key(1), family.Key(9)); err != nil {
				t.Fatal(err)
			}
			holder, first := begin(t, pool)
			waiter, second := begin(t, pool)
			if _, err := first.Lock(t.Context(), family.Key(5)); err != nil {
				t.Fatal(err)
			}
			id, granted := testdb.ConnID(t, waiter), make(chan error, 1)
			go func() {
				_, err := second.Lock(t.Context(), family.Key(5))
				granted <- err
			}()
			db.WaitForLockWait(t, id)
			if err := errors.Join(holder.Rollback(), <-granted); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[int]error{1: nil, 4: txlock.ErrBusy, 6: txlock.ErrBusy, 9: nil} {
				_, stranger := begin(t, pool)
				if _, err := stranger.TryLock(t.Context(), family.Key(id)); !errors.Is(err, want) {
					t.Errorf("a try of key %d beside one that was rolled back: %v, want %v", id, err, want)
				}
			}
			if err := waiter.Rollback(); err != nil {
				t.Fatal(err)
			}
			_, stranger := begin(t, pool)
			if _, err := stranger.TryLock(t.Context(), family.Key(4)); err != nil {
				t.Errorf("a try when the gap is free: %v", err)
			}
		})
	}
}
