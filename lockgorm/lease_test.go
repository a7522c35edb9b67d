package lockgorm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// manager is a manager of leases on the pool of db.
func manager(t *testing.T, db *gorm.DB) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(poolOf(t, db))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return m
}

// take acquires the lease of a key that only this test uses.
func take(t *testing.T, m *lease.Manager) *lease.Lease {
	t.Helper()
	l, err := m.Acquire(t.Context(), txlock.Named(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// takeAway gives the lease to somebody else.
func (e *env) takeAway(t *testing.T, l *lease.Lease) {
	t.Helper()
	e.Exec(t, "UPDATE lockstep_leases SET token = token + 1, owner = 'somebody' WHERE name = '"+l.Key().String()+"'")
}

// The statements that the plugin guards, and how to undo each.
var guardedWrites = map[string]func(db *gorm.DB) error{
	"create":         func(db *gorm.DB) error { return db.Create(&Note{ID: 2}).Error },
	"create batches": func(db *gorm.DB) error { return db.CreateInBatches([]Note{{ID: 2}, {ID: 3}, {ID: 4}}, 2).Error },
	"save":           func(db *gorm.DB) error { return db.Save(&Note{ID: 1, N: 7}).Error },
	"update":         func(db *gorm.DB) error { return db.Model(&Note{ID: 1}).Update("n", 7).Error },
	"delete":         func(db *gorm.DB) error { return db.Delete(&Note{ID: 1}).Error },
}

// state is what the table of notes holds.
func state(t *testing.T, db *gorm.DB) (count, sum int64) {
	t.Helper()
	err := db.Session(&gorm.Session{NewDB: true}).Model(&Note{}).Select("COUNT(*), COALESCE(SUM(n), 0)").Row().Scan(&count, &sum)
	if err != nil {
		t.Fatal(err)
	}
	return count, sum
}

// A guarded statement is committed while the lease is held, and leaves nothing after it
// was taken away, both in GORM's own transaction and in the program's.
func TestGuardedStatement(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for _, explicit := range []bool{false, true} {
			for name, write := range guardedWrites {
				db := e.openPlugin(t)
				reset := func() {
					if err := db.Exec("DELETE FROM " + db.NamingStrategy.TableName("Note")).Error; err != nil {
						t.Fatal(err)
					}
					if err := db.Create(&Note{ID: 1}).Error; err != nil {
						t.Fatal(err)
					}
				}
				l := take(t, manager(t, db))
				run := func() error {
					if !explicit {
						return write(db.Clauses(lockgorm.Guard(l)))
					}
					return db.Transaction(func(tx *gorm.DB) error { return write(tx.Clauses(lockgorm.Guard(l))) })
				}
				reset()
				if err := run(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if c, sum := state(t, db); c == 1 && sum == 0 {
					t.Errorf("%s was not committed", name)
				}
				reset()
				e.takeAway(t, l)
				if err := run(); !errors.Is(err, txlock.ErrLost) {
					t.Errorf("%s of a lost lease: %v", name, err)
				}
				if c, sum := state(t, db); c != 1 || sum != 0 {
					t.Errorf("%s of a lost lease was committed: %d notes of %d", name, c, sum)
				}
				if err := l.Release(t.Context()); !errors.Is(err, txlock.ErrNotHeld) {
					t.Errorf("Release: %v", err)
				}
				e.Exec(t, "UPDATE lockstep_leases SET holders = '' WHERE name = '"+l.Key().String()+"'")
			}
		}
	})
}

// The guard comes after the hooks, so that what they write is guarded too.
func TestGuardedAfterHooks(t *testing.T) {
	each(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		l := take(t, manager(t, db))
		var hooks int
		hooked := withHook(db, func(_ *gorm.DB, _ int64) error {
			hooks++
			if hooks == 1 {
				e.takeAway(t, l) // the row is not guarded yet: this doesn't wait
			}
			return nil
		})
		err := hooked.Clauses(lockgorm.Guard(l)).Create(&Order{Name: "one", Items: []Item{{Name: "a"}}}).Error
		if !errors.Is(err, txlock.ErrLost) || hooks == 0 {
			t.Errorf("Create: %v after %d hooks", err, hooks)
		}
		var n int64
		if err := db.Model(&Order{}).Count(&n).Error; err != nil || n != 0 {
			t.Errorf("%d orders, %v", n, err)
		}
	})
}

// Outside of a transaction, and without the plugin, a guarded statement isn't sent.
func TestGuardedNeeds(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		l := take(t, manager(t, db))
		skipping := db.Session(&gorm.Session{SkipDefaultTransaction: true})
		for name, write := range guardedWrites {
			if err := write(skipping.Clauses(lockgorm.Guard(l))); name != "create batches" && !errors.Is(err, txlock.ErrNoTransaction) {
				t.Errorf("%s outside of a transaction: %v", name, err)
			}
			if err := write(e.open(t).Clauses(lockgorm.Guard(l))); err == nil {
				t.Errorf("%s without the plugin succeeds", name)
			}
			if err := write(e.open(t).Clauses(lockgorm.On(orders.Key(1)))); err == nil {
				t.Errorf("%s with On, but without the plugin, succeeds", name)
			}
			if err := write(db.Clauses(lockgorm.Guard(nil))); err == nil {
				t.Errorf("%s guarded by nil succeeds", name)
			}
		}
		if err := db.Clauses(lockgorm.Guard(l)).Find(&[]Note{}).Error; !errors.Is(err, txlock.ErrNoTransaction) {
			t.Errorf("Find outside of a transaction: %v", err)
		}
		if err := db.Clauses(lockgorm.Guard(l)).Exec("DO 1").Error; !errors.Is(err, txlock.ErrNoTransaction) {
			t.Errorf("Exec outside of a transaction: %v", err)
		}
		count, _ := state(t, db)
		if count != 0 {
			t.Errorf("%d notes were written", count)
		}
		dry := db.Session(&gorm.Session{DryRun: true})
		if err := dry.Clauses(lockgorm.Guard(l)).Create(&Note{ID: 9}).Error; err != nil {
			t.Errorf("DryRun: %v", err)
		}
	})
}

// Guard and AcquireTx run in the transaction of a *gorm.DB, also a prepared or nested
// one.
func TestLeaseVerbs(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for _, prepare := range []bool{false, true} {
			db := e.open(t, func(c *gorm.Config) { c.PrepareStmt = prepare })
			m := manager(t, db)
			if err := guard(db, nil); err == nil {
				t.Error("Guard by nil succeeds")
			}
			var l *lease.Lease
			err := db.Transaction(func(tx *gorm.DB) (err error) {
				l, err = acquireTx(tx, m, txlock.Named(t.Name()))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := guard(db, l); !errors.Is(err, txlock.ErrNoTransaction) {
				t.Errorf("Guard on a pool: %v", err)
			}
			if _, err := acquireTx(db, m, txlock.Named("x")); !errors.Is(err, txlock.ErrNoTransaction) {
				t.Errorf("AcquireTx on a pool: %v", err)
			}
			err = db.Transaction(func(tx *gorm.DB) error {
				return tx.Transaction(func(tx *gorm.DB) error {
					if _, err := m.TryAcquire(context.Background(), l.Key()); !errors.Is(err, txlock.ErrBusy) {
						t.Errorf("TryAcquire: %v", err)
					}
					return guard(tx, l)
				})
			})
			if err != nil {
				t.Error(err)
			}
			e.takeAway(t, l)
			err = db.Transaction(func(tx *gorm.DB) error {
				if err := tx.Create(&Note{}).Error; err != nil {
					return err
				}
				return guard(tx, l)
			})
			if !errors.Is(err, txlock.ErrLost) {
				t.Errorf("Guard of a lost lease: %v", err)
			}
			if n, _ := state(t, db); n != 0 {
				t.Errorf("%d notes", n)
			}
			if err := l.Release(t.Context()); !errors.Is(err, txlock.ErrNotHeld) {
				t.Errorf("Release: %v", err)
			}
			e.Exec(t, "UPDATE lockstep_leases SET holders = '' WHERE name = '"+l.Key().String()+"'")
		}
	})
}

// A transaction may guard a lease again, through any of GORM's sessions and with prepared
// statements, without waiting for the row that it has locked itself.
func TestGuardAgainThroughSessions(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		for _, prepared := range []bool{false, true} {
			db := e.open(t, func(c *gorm.Config) { c.PrepareStmt = prepared })
			m, err := lease.NewManager(poolOf(t, db), lease.TTL(9*time.Second))
			noError(t, err)
			l := take(t, m)
			tx := db.Begin()
			noError(t, tx.Error)
			session := tx.Session(&gorm.Session{PrepareStmt: true})
			noError(t, guard(session, l))
			for l.Remaining() > 5*time.Second { // otherwise Guard has nothing to renew
				time.Sleep(10 * time.Millisecond)
			}
			delays, start := testdb.Delays(t), time.Now()
			for range 3 {
				session = session.Session(&gorm.Session{PrepareStmt: true}) // one inside the other
				noError(t, guard(session, l))
			}
			if took := time.Since(start); took > 1500*time.Millisecond+delays() {
				t.Errorf("prepared %v: to guard again took %v", prepared, took)
			}
			noError(t, tx.Commit().Error)
			if err := l.Release(t.Context()); !errors.Is(err, lease.ErrGuarded) { // a renewal may have the row on a busy machine
				noError(t, err)
			}
			noError(t, m.Close(t.Context()))
		}
	})
}
