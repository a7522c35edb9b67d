package lockgorm_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Readers and permits of a manager on GORM's pool guard GORM's transactions and
// statements as leases do, exclude writers, and refuse after they were taken away.
func TestSharedAndPermits(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		m := manager(t, db)
		s, err := m.Semaphore(txlock.Named(t.Name()+" permits"), 2)
		if err != nil {
			t.Fatal(err)
		}
		reader, err := m.AcquireShared(t.Context(), txlock.Named(t.Name()))
		if err != nil {
			t.Fatal(err)
		}
		permit, err := s.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for id, l := range []*lease.Lease{reader, permit} {
			written := 0
			write := func(tx *gorm.DB) error {
				written++
				return tx.Create(&Note{ID: int64(100*id + written)}).Error
			}
			ways := map[string]func() error{
				"Guard": func() error {
					return db.Transaction(func(tx *gorm.DB) error {
						return errors.Join(write(tx), guard(tx, l))
					})
				},
				"Guarded": func() error { return write(db.Clauses(lockgorm.Guard(l))) },
			}
			before, _ := state(t, db)
			for name, commit := range ways {
				if err := commit(); err != nil {
					t.Errorf("%s by %v: %v", name, l.Key(), err)
				}
			}
			if n, _ := state(t, db); n != before+2 {
				t.Errorf("%d notes under %v, want 2", n-before, l.Key())
			}
			if id == 0 {
				err := db.Transaction(func(tx *gorm.DB) error {
					_, err := acquireTx(tx, m, l.Key())
					return err
				})
				if !errors.Is(err, txlock.ErrBusy) {
					t.Errorf("AcquireTx beside a reader: %v", err)
				}
			}
			e.Exec(t, "UPDATE lockstep_leases SET token = token + 1 WHERE slot > 0 AND name = '"+l.Key().String()+"'")
			for name, commit := range ways {
				if err := commit(); !errors.Is(err, txlock.ErrLost) {
					t.Errorf("%s by %v, which was taken away: %v", name, l.Key(), err)
				}
			}
			if n, _ := state(t, db); n != before+2 {
				t.Errorf("%d notes were committed under %v after it was taken away", n-before-2, l.Key())
			}
			if err := l.Release(t.Context()); !errors.Is(err, txlock.ErrNotHeld) {
				t.Errorf("Release of what was taken away: %v", err)
			}
		}
	})
}

// While somebody has a part of a resource, a free part is taken in GORM's transaction
// without waiting, and the whole resource is refused.
func TestSegments(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		parts := txlock.Segments(txlock.Named(t.Name()), 2)
		for _, part := range parts { // makes its row
			err := db.Transaction(func(tx *gorm.DB) error { _, err := lockgorm.Lock(tx, part); return err })
			if err != nil {
				t.Fatal(err)
			}
		}
		err := db.Transaction(func(tx *gorm.DB) error {
			first, err := lockAny(tx, parts...)
			if err != nil {
				return err
			}
			return db.Transaction(func(tx *gorm.DB) error {
				second, err := lockAny(tx, parts...)
				if err != nil {
					return err
				}
				if first.Key() == second.Key() {
					t.Errorf("two transactions have %v", first.Key())
				}
				return db.Transaction(func(tx *gorm.DB) error {
					if _, err := lockAny(tx, parts...); !errors.Is(err, txlock.ErrBusy) {
						t.Errorf("LockAny of none: %v", err)
					}
					return nil
				})
			})
		})
		if err != nil {
			t.Error(err)
		}
		err = db.Transaction(func(tx *gorm.DB) error {
			grants, err := lockAll(tx, parts...)
			if len(grants) != len(parts) {
				t.Errorf("%d grants", len(grants))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
