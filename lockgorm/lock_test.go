package lockgorm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func guard(tx *gorm.DB, l *lease.Lease) error {
	of, err := lockgorm.SQLTx(tx)
	if err != nil {
		return err
	}
	return l.Guard(tx.Statement.Context, of)
}

// free reports whether somebody else could lock the key exclusively now.
func (e *env) free(t *testing.T, key txlock.Key) bool {
	t.Helper()
	tx, err := e.Admin().BeginTx(t.Context(), nil)
	noError(t, err)
	defer func() { noError(t, tx.Rollback()) }()
	scope, err := txlock.Join(t.Context(), tx)
	noError(t, err)
	_, err = scope.TryLock(t.Context(), key)
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		t.Fatal(err)
	}
	return err == nil
}

// ensured returns a new key whose row exists, so that a TryLock of it is quick.
func (e *env) ensured(t *testing.T) txlock.Key {
	t.Helper()
	key := newKey()
	noError(t, txlock.Ensure(t.Context(), e.Admin(), key))
	return key
}

func TestNoTransaction(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		db := e.open(t)
		finished := db.Begin()
		noError(t, finished.Commit().Error)
		rolledBack := db.Session(&gorm.Session{PrepareStmt: true}).Begin()
		noError(t, rolledBack.Rollback().Error)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		failed := db.WithContext(cancelled).Begin()
		failedPrepared := db.Session(&gorm.Session{PrepareStmt: true}).WithContext(cancelled).Begin()
		for name, handle := range map[string]*gorm.DB{
			"nil":                      nil,
			"the zero DB":              {},
			"a committed transaction":  finished,
			"one rolled back":          rolledBack,
			"a failed Begin":           failed,
			"a failed Begin, prepared": failedPrepared,
		} {
			wantError(t, name, second(lockgorm.Lock(handle, newKey())), txlock.ErrNoTransaction)
		}
		wantError(t, "a failed Begin", second(lockgorm.Lock(failed, newKey())), context.Canceled)
		noError(t, db.Connection(func(tx *gorm.DB) error {
			wantError(t, "a connection", second(lockgorm.Lock(tx, newKey())), txlock.ErrNoTransaction)
			return nil
		}))
		noError(t, db.Error)
		noError(t, finished.Error)
	})
}

func TestDryRunSendsNothing(t *testing.T) {
	each(t, []string{"Order"}, withPlugin(func(t *testing.T, _ *env, db *gorm.DB) {
		within(t, db, func(tx *gorm.DB) {
			sent := watch(tx)
			dry := sent.db.Session(&gorm.Session{DryRun: true, SkipDefaultTransaction: true})
			for _, key := range []txlock.Key{newKey(), txlock.Shared(newKey())} {
				grant, err := lockgorm.Lock(dry, key)
				noError(t, err)
				equal(t, "Lock", grant, txlock.Grant{})
			}
			// The plugin takes no locks for statements that are not sent.
			id := newID()
			noError(t, errors.Join(
				dry.Create(&Order{ID: id}).Error, dry.Model(&Order{ID: id}).Update("n", 1).Error, dry.Delete(&Order{ID: id}).Error,
				dry.Clauses(lockgorm.On(newKey())).First(&Order{}).Error, dry.Clauses(lockgorm.On(newKey())).Exec("DO 0").Error,
			))
			equal(t, "statements", sent.n, 0)
		})
		// Outside of a transaction, a DryRun session needs none.
		noError(t, second(lockgorm.Lock(db.Session(&gorm.Session{DryRun: true}), newKey())))
		text := db.ToSQL(func(tx *gorm.DB) *gorm.DB { return tx.Model(&Order{}).Where("id = 1").Update("n", 1) })
		if text == "" {
			t.Error("ToSQL of an update that would be refused writes nothing")
		}
	}))
}

// TestAssertLocked asserts locks with a *gorm.DB.
func TestAssertLocked(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		db, key := e.open(t).WithContext(t.Context()), newKey()
		shared := e.ensured(t)
		wantError(t, "on the pool", lockgorm.AssertLocked(db, key), txlock.ErrNoTransaction)
		wantError(t, "on nil", lockgorm.AssertLocked(nil, key), txlock.ErrNoTransaction)
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			wantError(t, "before the lock", lockgorm.AssertLocked(tx, key), txlock.ErrNotHeld)
			noError(t, lockgorm.AssertLocked(tx.Session(&gorm.Session{DryRun: true}), key))
			noError(t, second(lockgorm.Lock(tx, key)))
			noError(t, second(scopeOf(t, tx).RLock(t.Context(), shared)))
			wantError(t, "a shared lock", lockgorm.AssertLocked(tx, shared), txlock.ErrNotHeld)
			noError(t, lockgorm.AssertLocked(tx, txlock.Shared(shared)))
			return lockgorm.AssertLocked(tx, key)
		}))
	})
}

// TestMixedTransaction gives exclusive and shared keys to Transaction, On and Optimistic.
func TestMixedTransaction(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		own, common, other := e.ensured(t), e.ensured(t), e.ensured(t)
		held := func(name string) {
			t.Helper()
			e.wantHeld(t, name, own)
			noError(t, db.Transaction(func(other *gorm.DB) error { // another's, to which the shared one is open
				wantError(t, name+": TryLock by another", second(scopeOf(t, other).TryLock(t.Context(), common)), txlock.ErrBusy)
				return second(scopeOf(t, other).TryRLock(t.Context(), common))
			}))
		}
		keys := []txlock.Key{txlock.Shared(common), own}
		noError(t, lockgorm.Transaction(db, keys, func(*gorm.DB) error {
			held("Transaction")
			return nil
		}))
		noError(t, db.Use(lockgorm.New()))
		within(t, db, func(tx *gorm.DB) {
			var notes []Note
			noError(t, tx.Clauses(lockgorm.On(keys...)).Find(&notes).Error)
			held("On")
		})
		noError(t, lockgorm.Optimistic(db, own, func(tx *gorm.DB) error {
			for key, shared := range map[txlock.Key]bool{txlock.Shared(own): false, other: false, txlock.Shared(common): true} {
				grant, err := lockgorm.Lock(tx, key)
				noError(t, err)
				equal(t, "Lock under Optimistic is shared", grant.Shared(), shared)
			}
			return nil
		}))
	})
}

// TestWaitAtMost demands that all that locks under a limit, of a handle or of MaxWait, keeps to it,
// and goes on.
func TestWaitAtMost(t *testing.T) {
	const limit = 100 * time.Millisecond
	each(t, []string{"Parcel", "Note", "Order"}, func(t *testing.T, e *env) {
		db, ctx, id := e.openPlugin(t), t.Context(), newID()
		key := parcels.Key(id)
		once := parcels.Key(newID())
		noError(t, txlock.Ensure(ctx, poolOf(t, db), key))
		ways := map[string]func(tx *gorm.DB) error{
			"Lock": func(tx *gorm.DB) error { return second(lockgorm.Lock(tx, key)) },
			"LockAll, shared": func(tx *gorm.DB) error {
				return second(scopeOf(t, tx).LockAll(tx.Statement.Context, txlock.Shared(key)))
			},
			"On":         func(tx *gorm.DB) error { return tx.Clauses(lockgorm.On(key)).Find(&[]Note{}).Error },
			"the plugin": func(tx *gorm.DB) error { return tx.Create(&Parcel{ID: id}).Error },
			"gorm.G": func(tx *gorm.DB) error { // which drops the limit of a handle, and keeps its context
				return second(gorm.G[Note](tx, lockgorm.On(key)).Find(tx.Statement.Context))
			},
			"a hook": func(tx *gorm.DB) error {
				locks := func(tx *gorm.DB, _ int64) error { return second(lockgorm.Lock(tx, key)) }
				return withHook(tx, locks).Create(&Order{ID: newID()}).Error
			},
			"Once": func(tx *gorm.DB) error {
				return second(lockgorm.Once(tx, once, func(*gorm.DB) error { return nil }))
			},
			"OnceValue": func(tx *gorm.DB) error {
				_, _, err := lockgorm.OnceValue(tx, once, func(*gorm.DB) (int, error) { return 1, nil })
				return err
			},
			"On, MaxWait": func(tx *gorm.DB) error {
				return second(gorm.G[Note](tx, lockgorm.On(key), lockgorm.MaxWait(limit)).Find(ctx))
			},
			"a model, MaxWait": func(tx *gorm.DB) error {
				return gorm.G[Parcel](tx, lockgorm.MaxWait(limit)).Create(ctx, &Parcel{ID: id})
			},
		}
		e.hold(t, key)
		first := db.Begin()
		noError(t, second(scopeOf(t, first).Once(ctx, once)))
		defer first.Rollback()
		for name, wait := range ways {
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				short := tx
				if !strings.HasSuffix(name, "MaxWait") {
					short = lockgorm.WaitAtMost(tx, limit)
				}
				start := time.Now()
				wantError(t, name, wait(short), txlock.ErrWaitTimeout)
				if took := time.Since(start); took > 40*time.Second { // and not by the server's own limit, 50 seconds
					t.Fatalf("%s: waited for %v", name, took)
				}
				noError(t, short.Where("id = 1").Find(&[]Note{}).Error) // a handle for many statements
				noError(t, short.Save(&Note{ID: 2}).Error)
				var found []Note
				noError(t, short.Find(&found).Error)
				equal(t, name+", notes", len(found), 1)
				return scopeOf(t, tx).Verify(ctx)
			}))
		}
		short := lockgorm.WaitAtMost(db, limit)
		wantError(t, "Transaction", lockgorm.Transaction(short, []txlock.Key{key}, func(*gorm.DB) error { return nil }), txlock.ErrWaitTimeout)
		for _, pool := range []*gorm.DB{db, nil} {
			wantError(t, "no transaction", second(lockgorm.Lock(lockgorm.WaitAtMost(pool, limit), key)), txlock.ErrNoTransaction)
		}
		within(t, db, func(tx *gorm.DB) {
			wantError(t, "a limit below 0", second(lockgorm.Lock(lockgorm.WaitAtMost(tx, -1), key)), txlock.ErrInvalidOption)
			below := gorm.G[Note](tx, lockgorm.On(key), lockgorm.MaxWait(-1))
			wantError(t, "MaxWait below 0", second(below.Find(ctx)), txlock.ErrInvalidOption)
		})
	})
}

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
