package lockgorm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

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

// verbs lock a key with a *gorm.DB. TestSuite has all verbs of the scope that Join returns.
var verbs = map[string]func(tx *gorm.DB, key txlock.Key) (txlock.Grant, error){
	"Lock":         lockgorm.Lock,
	"Lock, shared": func(tx *gorm.DB, key txlock.Key) (txlock.Grant, error) { return lockgorm.Lock(tx, txlock.Shared(key)) },
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

// TestVerbsLock proves that a lock neither depends on an error of the handle nor changes it: with an
// error GORM would send no ROLLBACK TO for a nested block.
func TestVerbsLock(t *testing.T) {
	handles := map[string]func(tx *gorm.DB) *gorm.DB{
		"the handle":    func(tx *gorm.DB) *gorm.DB { return tx },
		"NewDB":         func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{NewDB: true}) },
		"WithContext":   func(tx *gorm.DB) *gorm.DB { return tx.WithContext(context.Background()) },
		"PrepareStmt":   func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{PrepareStmt: true}) },
		"SkipDefault":   func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{SkipDefaultTransaction: true}) },
		"a chain":       func(tx *gorm.DB) *gorm.DB { return tx.Model(&Note{}).Where("id = ?", 1) },
		"Debug, NoNest": func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{DisableNestedTransaction: true}) },
		"one with an error": func(tx *gorm.DB) *gorm.DB {
			tx = tx.Session(&gorm.Session{})
			_ = tx.AddError(errInner)
			return tx
		},
	}
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		for name, handle := range handles {
			for verb, lock := range verbs {
				key := e.ensured(t)
				noError(t, db.Transaction(func(tx *gorm.DB) error {
					h := handle(tx)
					before := h.Error
					grant, err := lock(h, key)
					if err != nil || grant.Key() != key || grant.Shared() != strings.Contains(verb, "shared") {
						t.Errorf("%s on %s: %+v, %v", verb, name, grant, err)
					}
					if e.free(t, key) {
						t.Errorf("%s on %s: the key is free", verb, name)
					}
					_, err = lock(h, txlock.Key{})
					if wantError(t, verb+" of the zero key", err, txlock.ErrInvalidKey); !errors.Is(h.Error, before) || before == nil && h.Error != nil {
						t.Errorf("%s on %s: the handle has %v", verb, name, h.Error)
					}
					return tx.Error
				}))
				e.wantFree(t, verb+" on "+name+": the key is locked after the commit", key)
			}
		}
	})
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
		onConn := func(use func(tx *gorm.DB)) {
			noError(t, db.Connection(func(tx *gorm.DB) error { use(tx); return nil }))
		}
		for verb, lock := range verbs {
			for name, handle := range map[string]*gorm.DB{
				"nil":                      nil,
				"the zero DB":              {},
				"a pool":                   db,
				"a prepared pool":          db.Session(&gorm.Session{PrepareStmt: true}),
				"a committed transaction":  finished,
				"one rolled back":          rolledBack,
				"a failed Begin":           failed,
				"a failed Begin, prepared": failedPrepared,
			} {
				wantError(t, verb+" on "+name, second(lock(handle, newKey())), txlock.ErrNoTransaction)
			}
			wantError(t, verb+" on a failed Begin", second(lock(failed, newKey())), context.Canceled)
			onConn(func(tx *gorm.DB) {
				wantError(t, verb+" on a connection", second(lock(tx, newKey())), txlock.ErrNoTransaction)
			})
		}
		noError(t, db.Error)
		noError(t, finished.Error)
	})
}

func TestDryRunSendsNothing(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			dry := tx.Session(&gorm.Session{DryRun: true})
			sent := questions(t, tx, func() {
				for _, key := range []txlock.Key{newKey(), txlock.Shared(newKey())} {
					if grant, err := lockgorm.Lock(dry, key); err != nil || grant != (txlock.Grant{}) {
						t.Errorf("Lock: %+v, %v", grant, err)
					}
				}
				// The plugin takes no locks for statements that are not sent.
				id := newID()
				dry.Create(&Order{ID: id})
				dry.Model(&Order{ID: id}).Update("n", 1)
				dry.Delete(&Order{ID: id})
				dry.Clauses(lockgorm.On(newKey())).First(&Order{})
				dry.Clauses(lockgorm.On(newKey())).Exec("DO 0")
			})
			if sent != 0 {
				t.Errorf("%d statements were sent", sent)
			}
			return nil
		}))
		// Outside of a transaction, a DryRun session needs none.
		if _, err := lockgorm.Lock(db.Session(&gorm.Session{DryRun: true}), newKey()); err != nil {
			t.Error(err)
		}
		text := db.ToSQL(func(tx *gorm.DB) *gorm.DB { return tx.Model(&Order{}).Where("id = 1").Update("n", 1) })
		if text == "" {
			t.Error("ToSQL of an update that would be refused writes nothing")
		}
	})
}
