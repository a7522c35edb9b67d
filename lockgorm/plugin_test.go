package lockgorm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Wrong is a model whose LockKeys names no key.
type Wrong struct {
	ID   int64
	Want string `gorm:"-"`
}

var errWrong = errors.New("LockKeys fails")

// wrongKeys are the keys that a Wrong may want, each of which is refused.
var wrongKeys = map[string][]txlock.Key{"nil": nil, "empty": {}, "zero": {{}}, "copy of NoLock": slices.Clone(lockgorm.NoLock)}

func (w Wrong) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	if keys, ok := wrongKeys[w.Want]; ok {
		return keys, nil
	} else if w.Want == "error" {
		return []txlock.Key{newKey()}, errWrong
	}
	return lockgorm.NoLock, nil
}

func TestLockKeysWrong(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		e.names.tables["Wrong"] = e.names.tables["Note"]
		db := e.openPlugin(t)
		for _, want := range append(slices.Collect(maps.Keys(wrongKeys)), "error") {
			wantErr := map[bool]error{true: errWrong, false: txlock.ErrInvalidKey}[want == "error"]
			wantError(t, want, db.Create(&Wrong{ID: 1, Want: want}).Error, wantErr)
			wantError(t, want+" in a batch", db.Create([]Wrong{{ID: 1}, {ID: 2, Want: want}}).Error, wantErr)
			wantError(t, want+", update", db.Model(&Wrong{ID: 3, Want: want}).Update("id", 4).Error, wantErr)
			wantError(t, want+", delete", db.Delete(&Wrong{ID: 3, Want: want}).Error, wantErr)
		}
		noError(t, db.Create(&Wrong{ID: 3}).Error)
		e.wantRows(t, "rows, want the one of NoLock", 1, "Note", "1 = 1")
	})
}

// onStatements are statements that get keys only from On.
var onStatements = map[string]func(db *gorm.DB) error{
	"First":    func(db *gorm.DB) error { return db.First(&Order{}).Error },
	"Count":    func(db *gorm.DB) error { return db.Model(&Order{}).Count(new(int64)).Error },
	"Preload":  func(db *gorm.DB) error { return db.Preload("Items").Find(&[]Order{}).Error },
	"Row":      func(db *gorm.DB) error { return db.Model(&Order{}).Select("COUNT(*)").Row().Scan(new(int)) },
	"Raw.Scan": func(db *gorm.DB) error { return db.Raw("SELECT 1").Scan(new(int)).Error },
	"Raw.Row":  func(db *gorm.DB) error { return db.Raw("SELECT 2").Row().Scan(new(int)) },
	"Exec":     func(db *gorm.DB) error { return db.Exec("DO ?", 1).Error },
	"FindInBatches": func(db *gorm.DB) error {
		return db.FindInBatches(&[]Order{}, 1, func(*gorm.DB, int) error { return nil }).Error
	},
	"Rows":        func(db *gorm.DB) error { return scanned(db.Model(&Order{}), &Order{}) },
	"Association": func(db *gorm.DB) error { return db.Model(&Order{ID: 1}).Association("Items").Find(&[]Item{}) },
}

func TestOnStatements(t *testing.T) {
	each(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			noError(t, db.Save(&Order{ID: newID(), Items: []Item{{ID: newID()}}}).Error)
			for what, send := range onStatements {
				key, what := e.ensured(t), name+", "+what
				on := func(tx *gorm.DB, keys ...txlock.Key) error {
					return send(tx.Clauses(lockgorm.On(keys...)).Session(&gorm.Session{}))
				}
				noError(t, db.Transaction(func(tx *gorm.DB) error {
					wantError(t, what, on(tx, key), nil)
					e.wantHeld(t, what+": the key of On is free", key)
					wantError(t, what+", no key", on(tx), txlock.ErrInvalidKey)
					wantError(t, what+", the zero key", on(tx, txlock.Key{}), txlock.ErrInvalidKey)
					wantError(t, what+", NoLock", on(tx, lockgorm.NoLock...), nil)
					return errors.Join(send(tx), tx.Error)
				}))
				wantError(t, what+", outside", on(db, key), txlock.ErrNoTransaction)
				noError(t, db.Connection(func(tx *gorm.DB) error {
					wantError(t, what+", on a connection", on(tx, key), txlock.ErrNoTransaction)
					return nil
				}))
			}
		}
	})
}

// TestChildrenKeepTheirKeys: On names the keys of one statement only; the INSERT of the children has a transaction for its own keys.
func TestChildrenKeepTheirKeys(t *testing.T) {
	eachSetting(t, []string{"Order", "Item"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, on := range [][]txlock.Key{{newKey()}, lockgorm.NoLock} {
			item := newID()
			hooks := withHook(db, func(_ *gorm.DB, id int64) error {
				if id == item {
					e.wantHeld(t, fmt.Sprintf("the child, with On(%v) of the parent", on), items.Key(item))
				}
				return nil
			})
			noError(t, hooks.Clauses(lockgorm.On(on...)).Create(&Order{ID: newID(), Items: []Item{{ID: item}}}).Error)
			e.wantRows(t, "children", 1, "Item", "id = ?", item)
		}
	}))
}

// TestOptionsOfOneWrite: CommitWith and AnyVersion are those of a write and of its handle, and not of what its hooks send by clones of that.
func TestOptionsOfOneWrite(t *testing.T) {
	clones := map[string]func(tx *gorm.DB) *gorm.DB{
		"WithContext": func(tx *gorm.DB) *gorm.DB { return tx.WithContext(tx.Statement.Context) },
		"Session":     func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{}) },
	}
	eachGuarded(t, append([]string{"Order", "Item", "Note"}, versionedModels...), withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, clone := range clones {
			order, note := Order{ID: newID(), Name: "a"}, Note{ID: newID()}
			noError(t, db.Create(&order).Error)
			noError(t, db.Create(&note).Error)
			noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
				tx = withHook(tx, func(tx *gorm.DB, _ int64) error {
					return clone(tx).Exec("UPDATE "+e.names.TableName("Note")+" SET n = n + 1 WHERE id = ?", note.ID).Error
				})
				return tx.Clauses(lockgorm.CommitWith(1)).Omit(clause.Associations).Model(&order).Update("n", 5).Error
			}))
			e.wantRows(t, name+": the hook", 1, "Note", "n = 1 AND id = ?", note.ID)
			e.wantRows(t, name+": the write", 1, "Order", "n = 5 AND id = ?", order.ID)

			stale, d := newDoc(t, db), newDoc(t, db)
			noError(t, db.Model(load(t, db, stale.ID)).Update("n", 100).Error)
			any := withHook(db, func(tx *gorm.DB, id int64) error {
				if id != d.ID {
					return nil
				}
				return clone(tx).Model(stale).Update("n", 1).Error
			}).Model(&Doc{ID: d.ID}).Clauses(lockgorm.AnyVersion)
			wantError(t, name+": a write of a hook", any.Update("n", 7).Error, txlock.ErrConflict)
			d.ID = 0
			any.Error = nil
			noError(t, any.Update("n", 7).Error) // by the same handle
		}
	}))
}

// TestNewChildrenAgain: a create that has failed behind the creates of its children, which are undone with it, can be repeated.
func TestNewChildrenAgain(t *testing.T) {
	eachSetting(t, append([]string{"Shelf"}, versionedModels...), withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		fails := errInner
		create := func(d *Doc) error { return withHook(db, func(*gorm.DB, int64) error { return fails }).Create(d).Error }
		d := &Doc{Pages: []Page{{N: 1}, {N: 2}}, Author: &Author{Name: "a"}}
		wantError(t, "Create", create(d), errInner)
		testdb.Equal(t, "versions", [...]lockgorm.Version{d.Version, d.Pages[0].Lock, d.Pages[1].Lock, d.Author.Version}, [4]lockgorm.Version{})
		d.ID, d.Pages[0].ID, d.Pages[1].ID, d.Author.ID, fails = 0, 0, 0, 0, nil
		noError(t, create(d))
		e.wantRows(t, "pages", 2, "Page", "doc_id = ?", d.ID)
	}))
}

// TestGenericsVersion compares the Version of a loaded model with gorm.G.
func TestGenericsVersion(t *testing.T) {
	eachGuarded(t, []string{"Ledger"}, func(t *testing.T, e *env) {
		db, ctx := e.openPlugin(t), t.Context()
		l := &Ledger{}
		noError(t, gorm.G[Ledger](db).Create(ctx, l))
		old, first := *l, l.Version
		testdb.ErrorIf(t, first == 0, "Create has given no version")
		wantError(t, "an update that has nothing to compare", testdb.Err(gorm.G[Ledger](db).Where("id = ?", l.ID).Update(ctx, "n", 1)), lockgorm.ErrVersion)
		noError(t, testdb.Err(gorm.G[Ledger](db, lockgorm.Loaded(l)).Update(ctx, "n", 2)))
		testdb.ErrorIf(t, l.Version == first || l.N != 2, "after Update the model is %+v", l)
		noError(t, testdb.Err(gorm.G[Ledger](db, lockgorm.Loaded(l)).Updates(ctx, Ledger{N: 3})))
		wantError(t, "Update of an old version", testdb.Err(gorm.G[Ledger](db, lockgorm.Loaded(&old)).Update(ctx, "n", 4)), txlock.ErrConflict)
		wantError(t, "Updates of an old version", testdb.Err(gorm.G[Ledger](db, lockgorm.Loaded(&old)).Updates(ctx, Ledger{N: 4})), txlock.ErrConflict)
		wantError(t, "Delete of an old version", testdb.Err(gorm.G[Ledger](db, lockgorm.Loaded(&old)).Delete(ctx)), txlock.ErrConflict)
		quiet := db.Session(&gorm.Session{SkipHooks: true}) // for a model with hooks GORM needs a pointer, which Loaded gives it
		rows, err := gorm.G[Ledger](quiet, lockgorm.AnyVersion, lockgorm.On(ledgers.Key(l.ID))).Where("id = ? AND version = ?", l.ID, first).Update(ctx, "n", 5)
		testdb.ErrorIf(t, rows != 0 || err != nil, "AnyVersion with a condition of its own: %d rows, %v", rows, err)
		e.wantRows(t, "the row of the model", 1, "Ledger", "n = 3 AND version = ?", l.Version)
		noError(t, testdb.Err(gorm.G[Ledger](db, lockgorm.Loaded(l)).Delete(ctx)))
	})
}

// TestLoadedRefused demands errors for what Loaded can't be.
func TestLoadedRefused(t *testing.T) {
	eachGuarded(t, []string{"Parcel", "Note", "Order", "Item"}, func(t *testing.T, e *env) {
		db, ctx := e.openPlugin(t), t.Context()
		a, b := &Parcel{ID: newID()}, &Parcel{ID: newID()}
		noError(t, db.Create([]*Parcel{a, b}).Error)
		for name, model := range map[string]any{"a value": *a, "nil": nil, "a nil pointer": (*Parcel)(nil), "another type": &Note{ID: 1}, "no key": &Parcel{}, "a slice": &[]Parcel{*a}} {
			wantError(t, name, testdb.Err(gorm.G[Parcel](db, lockgorm.Loaded(model)).Update(ctx, "n", 7)), txlock.ErrInvalidKey)
		}
		on := db.Clauses(lockgorm.Loaded(a)).Session(&gorm.Session{})
		wantError(t, "Model of another", on.Model(b).Update("n", 7).Error, txlock.ErrInvalidKey)
		wantError(t, "Updates of another", on.Updates(b).Error, txlock.ErrInvalidKey)
		wantError(t, "Delete of another", on.Delete(b).Error, txlock.ErrInvalidKey)
		wantError(t, "Create", on.Create(&Parcel{ID: newID()}).Error, txlock.ErrInvalidKey)
		wantError(t, "Save of a new one", on.Save(&Parcel{}).Error, txlock.ErrInvalidKey)
		wantError(t, "Exec", on.Exec("UPDATE "+e.names.tables["Parcel"]+" SET n = 7").Error, txlock.ErrInvalidKey)
		wantError(t, "Exec of gorm.G", gorm.G[Parcel](db, lockgorm.Loaded(a)).Exec(ctx, "UPDATE "+e.names.tables["Parcel"]+" SET n = 7"), txlock.ErrInvalidKey)
		wantError(t, "another table", on.Table("elsewhere").Updates(map[string]any{"n": 7}).Error, txlock.ErrInvalidKey)
		e.wantRows(t, "something was written", 2, "Parcel", "n = 0")
		e.wantRows(t, "something was written", 2, "Parcel", "1 = 1")
		plain := e.open(t)
		wantFailure(t, "Loaded without the plugin", plain.Clauses(lockgorm.Loaded(a)).Model(&Parcel{}).Update("n", 7).Error)
		e.wantRows(t, "Loaded without the plugin", 0, "Parcel", "n = 7")
		// With associations, which have models of their own.
		o := &Order{ID: newID()}
		noError(t, db.Create(o).Error)
		noError(t, db.Clauses(lockgorm.Loaded(o)).Updates(&Order{N: 5, Items: []Item{{Name: "x"}}}).Error)
		e.wantRows(t, "the order was not written", 1, "Order", "id = ? AND n = 5", o.ID)
	})
}

// free reports whether somebody else could lock the key exclusively now.
func (e *env) free(t *testing.T, key txlock.Key) bool {
	t.Helper()
	tx := testdb.Got(e.Admin().BeginTx(t.Context(), nil))(t)
	defer func() { noError(t, tx.Rollback()) }()
	scope := testdb.Got(txlock.Join(t.Context(), tx))(t)
	_, err := scope.TryLock(t.Context(), key)
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
		prepared := db.Session(&gorm.Session{PrepareStmt: true})
		finished, rolledBack := db.Begin(), prepared.Begin()
		noError(t, errors.Join(finished.Commit().Error, rolledBack.Rollback().Error))
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		failed := db.WithContext(cancelled).Begin()
		refused := func(name string, handle *gorm.DB) {
			t.Helper()
			wantError(t, name, testdb.Err(lockgorm.Lock(handle, newKey())), txlock.ErrNoTransaction)
			wantError(t, name+", AssertLocked", lockgorm.AssertLocked(handle, newKey()), txlock.ErrNoTransaction)
		}
		for name, handle := range map[string]*gorm.DB{
			"nil": nil, "the zero DB": {}, "a pool": db, "a committed transaction": finished, "one rolled back": rolledBack,
			"a failed Begin": failed, "a failed Begin, prepared": prepared.WithContext(cancelled).Begin(),
		} {
			refused(name, handle)
		}
		wantError(t, "a failed Begin", testdb.Err(lockgorm.Lock(failed, newKey())), context.Canceled)
		noError(t, db.Connection(func(tx *gorm.DB) error { refused("a connection", tx); return nil }))
		noError(t, errors.Join(db.Error, finished.Error))
	})
}

func TestDryRunSendsNothing(t *testing.T) {
	each(t, []string{"Order"}, withPlugin(func(t *testing.T, _ *env, db *gorm.DB) {
		within(t, db, func(tx *gorm.DB) {
			sent := watch(tx)
			dry := sent.db.Session(&gorm.Session{DryRun: true, SkipDefaultTransaction: true})
			for _, key := range []txlock.Key{newKey(), txlock.Shared(newKey())} {
				grant := testdb.Got(lockgorm.Lock(dry, key))(t)
				testdb.Equal(t, "Lock", grant, txlock.Grant{})
			}
			// The plugin takes no locks for statements that are not sent.
			id := newID()
			noError(t, errors.Join(
				dry.Create(&Order{ID: id}).Error, dry.Model(&Order{ID: id}).Update("n", 1).Error, dry.Delete(&Order{ID: id}).Error,
				dry.Clauses(lockgorm.On(newKey())).First(&Order{}).Error, dry.Clauses(lockgorm.On(newKey())).Exec("DO 0").Error,
			))
			noError(t, lockgorm.AssertLocked(tx.Session(&gorm.Session{DryRun: true}), newKey()))
			testdb.Equal(t, "statements", sent.n, 0)
		})
		// Outside of a transaction, a DryRun session needs none.
		noError(t, testdb.Err(lockgorm.Lock(db.Session(&gorm.Session{DryRun: true}), newKey())))
		text := db.ToSQL(func(tx *gorm.DB) *gorm.DB { return tx.Model(&Order{}).Where("id = 1").Update("n", 1) })
		testdb.ErrorIf(t, text == "", "ToSQL of an update that would be refused writes nothing")
	}))
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
				wantError(t, name+": TryLock by another", testdb.Err(scopeOf(t, other).TryLock(t.Context(), common)), txlock.ErrBusy)
				return testdb.Err(scopeOf(t, other).TryRLock(t.Context(), common))
			}))
		}
		keys := []txlock.Key{txlock.Shared(common), own}
		noError(t, lockgorm.Transaction(db, keys, func(tx *gorm.DB) error {
			held("Transaction")
			if !e.guarded {
				return nil // AssertLocked doesn't know
			}
			wantError(t, "AssertLocked of a shared lock", lockgorm.AssertLocked(tx, common), txlock.ErrNotHeld)
			return errors.Join(lockgorm.AssertLocked(tx, keys[0]), lockgorm.AssertLocked(tx, own))
		}))
		noError(t, db.Use(lockgorm.New()))
		within(t, db, func(tx *gorm.DB) {
			var notes []Note
			noError(t, tx.Clauses(lockgorm.On(keys...)).Find(&notes).Error)
			held("On")
		})
		noError(t, lockgorm.Optimistic(db, own, func(tx *gorm.DB) error {
			for key, shared := range map[txlock.Key]bool{txlock.Shared(own): false, other: false, txlock.Shared(common): true} {
				grant := testdb.Got(lockgorm.Lock(tx, key))(t)
				testdb.Equal(t, "Lock under Optimistic is shared", grant.Shared(), shared)
			}
			return nil
		}))
	})
}

// TestWaitAtMost demands that all that locks under a limit, of a handle or of MaxWait, keeps to it, and goes on.
func TestWaitAtMost(t *testing.T) {
	const limit = 100 * time.Millisecond
	each(t, []string{"Parcel", "Note", "Order"}, func(t *testing.T, e *env) {
		db, ctx, id := e.openPlugin(t), t.Context(), newID()
		key := parcels.Key(id)
		once := parcels.Key(newID())
		noError(t, txlock.Ensure(ctx, poolOf(t, db), key))
		ways := map[string]func(tx *gorm.DB) error{
			"Lock": func(tx *gorm.DB) error { return testdb.Err(lockgorm.Lock(tx, key)) },
			"LockAll, shared": func(tx *gorm.DB) error {
				return testdb.Err(scopeOf(t, tx).LockAll(tx.Statement.Context, txlock.Shared(key)))
			},
			"On":         func(tx *gorm.DB) error { return tx.Clauses(lockgorm.On(key)).Find(&[]Note{}).Error },
			"the plugin": func(tx *gorm.DB) error { return tx.Create(&Parcel{ID: id}).Error },
			"gorm.G": func(tx *gorm.DB) error { // which drops the limit of a handle, and keeps its context
				return testdb.Err(gorm.G[Note](tx, lockgorm.On(key)).Find(tx.Statement.Context))
			},
			"a hook": func(tx *gorm.DB) error {
				locks := func(tx *gorm.DB, _ int64) error { return testdb.Err(lockgorm.Lock(tx, key)) }
				return withHook(tx, locks).Create(&Order{ID: newID()}).Error
			},
			"Once":      func(tx *gorm.DB) error { return outermost["Once"](tx, once, func(*gorm.DB) error { return nil }) },
			"OnceValue": func(tx *gorm.DB) error { return outermost["OnceValue"](tx, once, func(*gorm.DB) error { return nil }) },
			"On, MaxWait": func(tx *gorm.DB) error {
				return testdb.Err(gorm.G[Note](tx, lockgorm.On(key), lockgorm.MaxWait(limit)).Find(ctx))
			},
			"a model, MaxWait": func(tx *gorm.DB) error {
				return gorm.G[Parcel](tx, lockgorm.MaxWait(limit)).Create(ctx, &Parcel{ID: id})
			},
		}
		e.hold(t, key)
		first := db.Begin()
		noError(t, testdb.Err(scopeOf(t, first).Once(ctx, once)))
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
				testdb.Equal(t, name+", notes", len(found), 1)
				return scopeOf(t, tx).Verify(ctx)
			}))
		}
		short := lockgorm.WaitAtMost(db, limit)
		wantError(t, "Transaction", lockgorm.Transaction(short, []txlock.Key{key}, func(*gorm.DB) error { return nil }), txlock.ErrWaitTimeout)
		for _, pool := range []*gorm.DB{db, nil} {
			wantError(t, "no transaction", testdb.Err(lockgorm.Lock(lockgorm.WaitAtMost(pool, limit), key)), txlock.ErrNoTransaction)
		}
		within(t, db, func(tx *gorm.DB) {
			wantError(t, "a limit below 0", testdb.Err(lockgorm.Lock(lockgorm.WaitAtMost(tx, -1), key)), txlock.ErrInvalidOption)
			below := gorm.G[Note](tx, lockgorm.On(key), lockgorm.MaxWait(-1))
			wantError(t, "MaxWait below 0", testdb.Err(below.Find(ctx)), txlock.ErrInvalidOption)
		})
	})
}

// manager is a manager of leases on the pool of db.
func manager(t *testing.T, db *gorm.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m := testdb.Got(lease.NewManager(poolOf(t, db), options...))(t)
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
	return testdb.Got(m.Acquire(t.Context(), onceKey()))(t)
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

// TestGuardedStatement: a guarded statement is committed while the lease is held, and leaves nothing after it was taken away. The guard comes
// after the hooks, so that what they write is guarded, too.
func TestGuardedStatement(t *testing.T) {
	each(t, []string{"Note", "Order", "Item"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
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
				wantError(t, what, run(), nil)
				testdb.ErrorIf(t, same(), "%s was not committed", what)
				reset()
				e.takeAway(t, l)
				wantError(t, what+", whose lease was taken away", run(), txlock.ErrLost)
				testdb.ErrorIf(t, !same(), "%s was committed after its lease was taken away", what)
				wantError(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
			}
		}
		l, hooks := take(t, m), 0
		hooked := withHook(db, func(*gorm.DB, int64) error {
			if hooks++; hooks == 1 {
				e.takeAway(t, l) // the row is not guarded yet: this doesn't wait
			}
			return nil
		})
		err := hooked.Clauses(lockgorm.Guard(l)).Create(&Order{Name: "one", Items: []Item{{Name: "a"}}}).Error
		wantError(t, "Create", err, txlock.ErrLost)
		testdb.ErrorIf(t, hooks == 0 || e.count(t, "Order", "1 = 1") != 0, "%d hooks, or an order was written", hooks)
	}))
}

// TestGuardedNeeds proves that a guarded statement isn't sent outside of a transaction, nor without the plugin.
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

// TestGuardAgainThroughSessions: a transaction may guard a lease again through any of GORM's sessions, and doesn't wait for its own row.
func TestGuardAgainThroughSessions(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		db := e.open(t)
		l := take(t, manager(t, db, lease.TTL(9*time.Second)))
		guard := func(tx *gorm.DB) { noError(t, l.Guard(t.Context(), testdb.Got(lockgorm.SQLTx(tx))(t))) }
		tx := db.Begin()
		noError(t, tx.Error)
		guard(tx)
		for l.Remaining() > 5*time.Second { // otherwise Guard has nothing to renew
			time.Sleep(10 * time.Millisecond)
		}
		delays, start, session := testdb.Delays(t), time.Now(), tx
		for range 3 {
			session = session.Session(&gorm.Session{PrepareStmt: true}) // one inside the other
			guard(session)
		}
		took := time.Since(start)
		testdb.ErrorIf(t, took > 1500*time.Millisecond+delays(), "to guard again took %v", took)
		noError(t, tx.Commit().Error)
		if err := l.Release(t.Context()); !errors.Is(err, lease.ErrGuarded) { // a renewal may have the row on a busy machine
			noError(t, err)
		}
	})
}

// TestBypass: a write by Exec, Raw, or Table without a model is sent without a lock, and On locks the keys that it names, as lockvet says.
func TestBypass(t *testing.T) {
	eachGuarded(t, []string{"Tally"}, func(t *testing.T, e *env) {
		db, tallies, table := e.openPlugin(t), txlock.NewFamily[int64]("tally"), e.names.tables["Tally"]
		update := "UPDATE " + table + " SET n = 2 WHERE id = ?"
		for what, write := range map[string]func(db *gorm.DB, id int64) *gorm.DB{
			"Exec":            func(db *gorm.DB, id int64) *gorm.DB { return db.Exec(update, id) },
			"Exec of a model": func(db *gorm.DB, id int64) *gorm.DB { return db.Model(&Tally{ID: id}).Exec(update, id) },
			"Raw": func(db *gorm.DB, id int64) *gorm.DB {
				return &gorm.DB{Error: scanned(db.Raw("DELETE FROM "+table+" WHERE id = ?", id), nil)}
			},
			"Update":        func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Where("id = ?", id).Update("n", 2) },
			"another model": func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Model(&Note{ID: id}).Update("n", 2) },
			"Create":        func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Create(map[string]any{"id": -id}) },
			"Delete":        func(db *gorm.DB, id int64) *gorm.DB { return db.Table(table).Where("id = ?", id).Delete(&Note{}) },
		} {
			id := newID()
			key := tallies.Key(id)
			noError(t, db.Create(&Tally{ID: id}).Error)
			within(t, db, func(tx *gorm.DB) {
				err := write(tx, id).Error
				testdb.ErrorIf(t, err != nil || e.held(t, key), "%s: %v, or it has locked %v: lockvet is wrong", what, err, key)
			})
			noError(t, db.Exec("DELETE FROM "+table).Error)
			e.lockedBy(t, db, what+" with On", key, func(tx *gorm.DB) error { return write(tx.Clauses(lockgorm.On(key)), id).Error })
		}
	})
}
