package lockgorm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// Locker is a model that names the keys which its creation, update and deletion
// need. LockKeys is called on a pointer to the model as the statement has it, for
// each element of a batch, with a *gorm.DB of the statement's transaction. It
// returns at least one key, or NoLock; an error ends the statement. Of the create of a record
// whose primary key is not set yet, keys of the zero identifier are left out, since nobody
// can name the record before COMMIT; where a hook sets it, LockKeys is called again.
//
// Keys are compared byte by byte. A string primary key whose collation takes two strings for
// one, as Bob and bob, has two keys for one row, which don't exclude each other: make the
// column VARBINARY, or fold the string to one spelling, in the model and in the key.
type Locker interface {
	LockKeys(tx *gorm.DB) ([]txlock.Key, error)
}

// NoLock is what LockKeys returns for a write that needs no lock.
var NoLock = []txlock.Key{{}}

// isNoLock tells NoLock itself from any other list.
func isNoLock(keys []txlock.Key) bool { return len(keys) == 1 && &keys[0] == &NoLock[0] }

// Plugin takes the locks that models and statements name, before the statements
// are sent. See New.
type Plugin struct {
	tables map[string]bool
}

// Option is an option of New.
type Option func(*Plugin)

// Tables names tables whose writes must not run without a lock: a create, update
// or delete by Table(), by a model that is no Locker, or by Exec fails with
// ErrInvalidKey, unless On names the keys. Exec may read such a table, and change its
// definition, as AutoMigrate does. An UPDATE or DELETE of several tables may read it where
// each column that is set is qualified, UPDATE a JOIN b SET a.n = b.n, by another. A Locker may
// write its own table only. Texts of PREPARE and EXECUTE IMMEDIATE must not have the name at all.
// What triggers, procedures, functions and views write is not seen, nor what is prepared
// from a variable or put together. The default is none.
func Tables(names ...string) Option {
	return func(p *Plugin) {
		for _, name := range names {
			p.tables[strings.ToLower(name)] = true
		}
	}
}

// New returns the plugin, for db.Use. Once used, every create, update and delete
// of a Locker takes the locks of its keys first: after GORM has begun the
// transaction, before the model's own hooks, a batch's in one LockAll. On names
// keys for one statement, queries included: a transaction that reads a record and
// then writes it reads it with On, since a lock that it takes only at the write
// is refused with ErrStaleSnapshot whenever somebody else has come between.
//
// A statement is ended with ErrInvalidKey where the keys can't be known: the update
// or delete of a model without its primary key, such as Delete(&Order{}, 42) or an
// update by a where clause; name them by On. So is one that might change other records than
// its models: conditions joined by OR outside of parentheses, with comments or with
// backslashes in quotes, several tables, another primary key in its values. What an upsert
// finds by another unique key is an error of the server, which has then changed nothing. Outside of a transaction, under
// SkipDefaultTransaction for example, it is ended with ErrNoTransaction. Models with a
// Version are compared, see there. What
// bypasses GORM's callbacks, as tx.Statement.ConnPool does, bypasses the plugin.
func New(options ...Option) *Plugin {
	p := &Plugin{tables: make(map[string]bool)}
	for _, option := range options {
		option(p)
	}
	return p
}

var _ gorm.Plugin = (*Plugin)(nil)

// Name is the name of the plugin.
func (p *Plugin) Name() string { return "lockstep" }

// Initialize registers the callbacks; db.Use calls it.
func (p *Plugin) Initialize(db *gorm.DB) error {
	const name, late, check, guard = "lockstep:lock", "lockstep:lock_late", "lockstep:check_guard", "lockstep:guard"
	const commit = "gorm:commit_or_rollback_transaction"
	callbacks := db.Callback()
	fenceUpserts(db)
	return errors.Join(
		callbacks.Update().Before("*").Register("lockstep:check_replace", checkReplace),
		callbacks.Create().After("gorm:begin_transaction").Before("gorm:before_create").Register(name, p.beforeCreate),
		callbacks.Update().After("gorm:setup_reflect_value").Before("gorm:before_update").Register(name, p.beforeChange),
		callbacks.Delete().After("gorm:begin_transaction").Before("gorm:before_delete").Register(name, p.beforeChange),
		callbacks.Create().After("gorm:save_before_associations").Before("gorm:create").Register(late, p.beforeInsert),
		callbacks.Create().After("gorm:create").Before("gorm:save_after_associations").Register("lockstep:explain_upsert", explainUpsert),
		callbacks.Query().Before("gorm:query").Register(name, p.beforeRead),
		callbacks.Row().Before("gorm:row").Register(name, p.beforeRow),
		callbacks.Raw().Before("gorm:raw").Register(name, p.beforeRead),
		callbacks.Create().After(name).Before("gorm:before_create").Register(check, checkGuard),
		callbacks.Update().After(name).Before("gorm:before_update").Register(check, checkGuard),
		callbacks.Delete().After(name).Before("gorm:before_delete").Register(check, checkGuard),
		callbacks.Create().After("gorm:after_create").Before(commit).Register(guard, guardStatement),
		callbacks.Update().After("gorm:after_update").Before(commit).Register(guard, guardStatement),
		callbacks.Delete().After("gorm:after_delete").Before(commit).Register(guard, guardStatement),
		registerVersions(db),
	)
}

// On names the keys that one statement needs: db.Clauses(lockgorm.On(key)).
// It takes the place of what the model names. On(NoLock...) says that it needs
// none. Associations that GORM saves with the model name their own keys besides.
func On(keys ...txlock.Key) clause.Expression { return on{keys: keys} }

type on struct {
	keys []txlock.Key
	by   *gorm.Statement // the one that has used it, nil for none yet
}

const onSetting = "lockstep:on"

// ModifyStatement notes the keys with the statement.
func (o on) ModifyStatement(stmt *gorm.Statement) {
	needPlugin(stmt, "On")
	stmt.Settings.Store(onSetting, o)
}

// Build adds nothing to the SQL.
func (o on) Build(clause.Builder) {}

// beforeCreate locks before a create, whose models may have no identifier yet.
func (p *Plugin) beforeCreate(db *gorm.DB) { p.before(db, p.keysOfWrite, false) }

// beforeInsert locks what the hooks of a create have given an identifier.
func (p *Plugin) beforeInsert(db *gorm.DB) {
	if keys, err := keysOfSaved(db); err != nil {
		_ = db.AddError(err)
	} else if len(keys) > 0 && db.Error == nil {
		_, err = LockAll(db, keys...)
		_ = db.AddError(err)
	}
}

// beforeChange locks before an update or a delete.
func (p *Plugin) beforeChange(db *gorm.DB) { p.before(db, p.keysOfWrite, true) }

// beforeRead locks before a query or Exec.
func (p *Plugin) beforeRead(db *gorm.DB) {
	p.before(db, p.keysOfText, false)
	guardStatement(db)
}

// beforeRow is beforeRead for Row, which has no error of its own to return: a
// refusal must come out of its Scan.
func (p *Plugin) beforeRow(db *gorm.DB) {
	p.beforeRead(db)
	if rows, ok := db.Get("rows"); db.Error == nil || db.DryRun || ok && rows == true {
		return
	}
	if pool, err := db.DB(); err == nil {
		db.Statement.Dest = failedRow(pool, db.Error)
	} else {
		db.Statement.Dest = failedRow(db.Statement.ConnPool, db.Error) // of db.Connection
	}
}

// failedRow returns a row whose Scan returns the error. Nothing is sent.
func failedRow(pool gorm.ConnPool, err error) *sql.Row {
	done := make(chan struct{})
	close(done)
	return pool.QueryRowContext(&failedContext{Context: context.Background(), done: done, err: err}, "")
}

// failedContext is a context that has ended with an error of our choice.
type failedContext struct {
	context.Context
	done chan struct{}
	err  error
}

func (c *failedContext) Done() <-chan struct{} { return c.done }
func (c *failedContext) Err() error            { return c.err }

// before takes the locks of one statement, or ends it with an error.
func (p *Plugin) before(db *gorm.DB, keysOf func(db *gorm.DB, needsID bool) ([]txlock.Key, error), needsID bool) {
	if db.Error != nil || db.DryRun {
		return
	}
	keys, err := keysOn(db, func() ([]txlock.Key, error) { return keysOf(db, needsID) })
	if err == nil && len(keys) > 0 {
		_, err = LockAll(db, keys...)
	}
	if err != nil {
		// The statement is GORM's own here, whose callbacks report by AddError.
		_ = db.AddError(err)
	}
}

// keysOn returns the keys that On names, or else those of the model.
func keysOn(db *gorm.DB, ofModel func() ([]txlock.Key, error)) ([]txlock.Key, error) {
	stmt := db.Statement
	named, ok := stmt.Settings.Load(onSetting)
	if !ok {
		return ofModel()
	}
	o := named.(on)
	if len(o.keys) == 0 {
		return nil, fmt.Errorf("%w: lockgorm.On names no key", txlock.ErrInvalidKey)
	}
	keys := o.keys
	if isNoLock(keys) {
		keys = nil
	}
	if o.by == nil || o.by == stmt {
		stmt.Settings.Store(onSetting, on{keys: o.keys, by: stmt})
		return keys, nil
	}
	// GORM has handed the setting on to the statement of an association.
	if !isLocker(stmt) {
		return keys, nil
	}
	own, err := ofModel()
	return slices.Concat(keys, own), err
}

// keysOfText fails for a text that writes to a registered table.
func (p *Plugin) keysOfText(db *gorm.DB, _ bool) ([]txlock.Key, error) {
	text := db.Statement.SQL.String()
	for text != "" && len(p.tables) > 0 {
		var statement string
		statement, text = sqltext.Next(text)
		if table := writes(statement, p.tables, db.Statement.Vars...); table != "" {
			return nil, unnamed(table)
		}
	}
	return nil, nil
}
