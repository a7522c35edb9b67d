package lockgorm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// manager is a manager of leases on the pool of db.
func manager(t *testing.T, db *gorm.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(poolOf(t, db), options...)
	noError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		noError(t, m.Close(ctx))
	})
	return m
}

// take acquires the lease of a key that no other test has.
func take(t *testing.T, m *lease.Manager) *lease.Lease {
	t.Helper()
	l, err := m.Acquire(t.Context(), onceKey())
	noError(t, err)
	return l
}

// takeAway gives the lease to somebody else.
func (e *env) takeAway(t *testing.T, l *lease.Lease) {
	t.Helper()
	e.Exec(t, fmt.Sprintf("UPDATE lockstep_leases SET token = token + 1, owner = 'somebody' WHERE name = '%s' AND token = %d", l.Key(), l.Token()))
}

// guardedWrites are the statements that the plugin guards.
var guardedWrites = map[string]func(db *gorm.DB) error{
	"create":         func(db *gorm.DB) error { return db.Create(&Note{ID: 2}).Error },
	"create batches": func(db *gorm.DB) error { return db.CreateInBatches([]Note{{ID: 2}, {ID: 3}, {ID: 4}}, 2).Error },
	"save":           func(db *gorm.DB) error { return db.Save(&Note{ID: 1, N: 7}).Error },
	"update":         func(db *gorm.DB) error { return db.Model(&Note{ID: 1}).Update("n", 7).Error },
	"delete":         func(db *gorm.DB) error { return db.Delete(&Note{ID: 1}).Error },
}

// TestGuardedStatement proves that a guarded statement is committed while the lease is held, and
// leaves nothing after it was taken away, both in GORM's own transaction and in the program's.
func TestGuardedStatement(t *testing.T) {
	each(t, []string{"Note"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		m := manager(t, db)
		reset := func() {
			noError(t, db.Where("1 = 1").Delete(&Note{}).Error)
			noError(t, db.Create(&Note{ID: 1}).Error)
		}
		same := func() bool { return e.count(t, "Note", "id = 1 AND n = 0") == 1 && e.count(t, "Note", "1 = 1") == 1 }
		for _, explicit := range []bool{false, true} {
			for name, write := range guardedWrites {
				l, what := take(t, m), fmt.Sprintf("%s, explicit=%t", name, explicit)
				run := func() error {
					if !explicit {
						return write(db.Clauses(lockgorm.Guard(l)))
					}
					return db.Transaction(func(tx *gorm.DB) error { return write(tx.Clauses(lockgorm.Guard(l))) })
				}
				reset()
				if wantError(t, what, run(), nil); same() {
					t.Errorf("%s was not committed", what)
				}
				reset()
				e.takeAway(t, l)
				if wantError(t, what+", whose lease was taken away", run(), txlock.ErrLost); !same() {
					t.Errorf("%s was committed after its lease was taken away", what)
				}
				wantError(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
			}
		}
	}))
}

// TestGuardedAfterHooks proves that the guard comes after the hooks, so that what they write is
// guarded too.
func TestGuardedAfterHooks(t *testing.T) {
	each(t, []string{"Order", "Item"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		l, hooks := take(t, manager(t, db)), 0
		hooked := withHook(db, func(*gorm.DB, int64) error {
			if hooks++; hooks == 1 {
				e.takeAway(t, l) // the row is not guarded yet: this doesn't wait
			}
			return nil
		})
		err := hooked.Clauses(lockgorm.Guard(l)).Create(&Order{Name: "one", Items: []Item{{Name: "a"}}}).Error
		if wantError(t, "Create", err, txlock.ErrLost); hooks == 0 || e.count(t, "Order", "1 = 1") != 0 {
			t.Errorf("%d hooks, or an order was written", hooks)
		}
	}))
}

// TestGuardedNeeds proves that a guarded statement isn't sent outside of a transaction, nor without
// the plugin.
func TestGuardedNeeds(t *testing.T) {
	each(t, []string{"Note"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		l := take(t, manager(t, db))
		skipping := db.Session(&gorm.Session{SkipDefaultTransaction: true})
		for name, write := range guardedWrites {
			if name != "create batches" {
				wantError(t, name+" outside of a transaction", write(skipping.Clauses(lockgorm.Guard(l))), txlock.ErrNoTransaction)
			}
			for what, err := range map[string]error{
				"without the plugin":          write(e.open(t).Clauses(lockgorm.Guard(l))),
				"with On, without the plugin": write(e.open(t).Clauses(lockgorm.On(orders.Key(1)))),
				"guarded by nil":              write(db.Clauses(lockgorm.Guard(nil))),
			} {
				wantFailure(t, name+" "+what, err)
			}
		}
		wantError(t, "Find outside of a transaction", db.Clauses(lockgorm.Guard(l)).Find(&[]Note{}).Error, txlock.ErrNoTransaction)
		wantError(t, "Exec outside of a transaction", db.Clauses(lockgorm.Guard(l)).Exec("DO 1").Error, txlock.ErrNoTransaction)
		e.wantRows(t, "notes were written", 0, "Note", "1 = 1")
		noError(t, db.Session(&gorm.Session{DryRun: true}).Clauses(lockgorm.Guard(l)).Create(&Note{ID: 9}).Error)
	}))
}

// TestGuardAgainThroughSessions proves that a transaction may guard a lease again, through any of
// GORM's sessions and with prepared statements, without waiting for the row that it has locked itself.
func TestGuardAgainThroughSessions(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		db := e.open(t)
		l := take(t, manager(t, db, lease.TTL(9*time.Second)))
		tx := db.Begin()
		noError(t, tx.Error)
		noError(t, guard(tx, l))
		for l.Remaining() > 5*time.Second { // otherwise Guard has nothing to renew
			time.Sleep(10 * time.Millisecond)
		}
		delays, start, session := testdb.Delays(t), time.Now(), tx
		for range 3 {
			session = session.Session(&gorm.Session{PrepareStmt: true}) // one inside the other
			noError(t, guard(session, l))
		}
		if took := time.Since(start); took > 1500*time.Millisecond+delays() {
			t.Errorf("to guard again took %v", took)
		}
		noError(t, tx.Commit().Error)
		if err := l.Release(t.Context()); !errors.Is(err, lease.ErrGuarded) { // a renewal may have the row on a busy machine
			noError(t, err)
		}
	})
}
