package lockgorm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// Locker is a model that names the keys which its creation, update and deletion
// need. LockKeys is called on a pointer to the model as the statement has it, for
// each element of a batch, with a *gorm.DB of the statement's transaction. It
// returns at least one key, or NoLock; an error ends the statement.
type Locker interface {
	LockKeys(tx *gorm.DB) ([]txlock.Key, error)
}

// NoLock is what LockKeys returns for a write that needs no lock: the creation of
// a record whose identifier the database makes.
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
// ErrInvalidKey, unless On names the keys. The default is none.
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
// keys for one statement, queries included.
//
// A statement is ended with ErrInvalidKey where the keys can't be known: the update
// or delete of a model without its primary key, such as Delete(&Order{}, 42) or an
// update by a where clause; name them by On. Outside of a transaction, under
// SkipDefaultTransaction for example, it is ended with ErrNoTransaction. What
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
	const name = "lockstep:lock"
	callbacks := db.Callback()
	return errors.Join(
		callbacks.Create().After("gorm:begin_transaction").Before("gorm:before_create").Register(name, p.beforeCreate),
		callbacks.Update().After("gorm:setup_reflect_value").Before("gorm:before_update").Register(name, p.beforeChange),
		callbacks.Delete().After("gorm:begin_transaction").Before("gorm:before_delete").Register(name, p.beforeChange),
		callbacks.Query().Before("gorm:query").Register(name, p.beforeRead),
		callbacks.Row().Before("gorm:row").Register(name, p.beforeRow),
		callbacks.Raw().Before("gorm:raw").Register(name, p.beforeRead),
	)
}

// On names the keys that one statement needs: db.Clauses(lockgorm.On(key)).
// It takes the place of what the model names. On(NoLock...) says that it needs
// none.
func On(keys ...txlock.Key) clause.Expression { return on(keys) }

type on []txlock.Key

const onSetting = "lockstep:on"

// ModifyStatement notes the keys with the statement.
func (o on) ModifyStatement(stmt *gorm.Statement) { stmt.Settings.Store(onSetting, o) }

// Build adds nothing to the SQL.
func (o on) Build(clause.Builder) {}

// beforeCreate locks before a create, whose models may have no identifier yet.
func (p *Plugin) beforeCreate(db *gorm.DB) { p.before(db, p.keysOfWrite, false) }

// beforeChange locks before an update or a delete.
func (p *Plugin) beforeChange(db *gorm.DB) { p.before(db, p.keysOfWrite, true) }

// beforeRead locks before a query or Exec.
func (p *Plugin) beforeRead(db *gorm.DB) { p.before(db, p.keysOfText, false) }

// beforeRow is beforeRead for Row, which has no error of its own to return: a
// refusal must come out of its Scan.
func (p *Plugin) beforeRow(db *gorm.DB) {
	p.beforeRead(db)
	if rows, ok := db.Get("rows"); db.Error == nil || db.DryRun || ok && rows == true {
		return
	}
	if pool, err := db.DB(); err == nil {
		db.Statement.Dest = failedRow(pool, db.Error)
	}
}

// failedRow returns a row whose Scan returns the error.
func failedRow(pool *sql.DB, err error) *sql.Row {
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
	var keys []txlock.Key
	var err error
	if named, ok := db.Statement.Settings.Load(onSetting); ok {
		keys = named.(on)
		if len(keys) == 0 {
			err = fmt.Errorf("%w: lockgorm.On names no key", txlock.ErrInvalidKey)
		}
	} else {
		keys, err = keysOf(db, needsID)
	}
	if err == nil && len(keys) > 0 && !isNoLock(keys) {
		_, err = LockAll(db, keys...)
	}
	if err != nil {
		// The statement is GORM's own here, whose callbacks report by AddError.
		_ = db.AddError(err)
	}
}

// keysOfText fails for a text that writes to a registered table.
func (p *Plugin) keysOfText(db *gorm.DB, _ bool) ([]txlock.Key, error) {
	text := db.Statement.SQL.String()
	if text == "" || len(p.tables) == 0 {
		return nil, nil
	}
	if w := sqltext.Words(text, 1); len(w) > 0 && (w[0] == "SELECT" || w[0] == "SHOW" || w[0] == "EXPLAIN" || w[0] == "DESCRIBE") {
		return nil, nil
	}
	if table := sqltext.Mentions(text, p.tables); table != "" {
		return nil, unnamed(table)
	}
	return nil, nil
}

// keysOfWrite asks the models of a create, update or delete for their keys.
func (p *Plugin) keysOfWrite(db *gorm.DB, needsID bool) ([]txlock.Key, error) {
	stmt := db.Statement
	if text := stmt.SQL.String(); text != "" {
		return p.keysOfText(db, needsID)
	}
	if stmt.Schema == nil || !reflect.PointerTo(stmt.Schema.ModelType).Implements(reflect.TypeFor[Locker]()) {
		if p.tables[strings.ToLower(stmt.Table)] {
			return nil, unnamed(stmt.Table)
		}
		return nil, nil
	}
	var all []txlock.Key
	for model, err := range modelsOf(stmt) {
		if err != nil {
			return nil, err
		}
		if needsID && !hasID(stmt, model) {
			return nil, fmt.Errorf("%w: this statement on %s doesn't say by a primary key which records it changes: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table)
		}
		keys, err := model.Addr().Interface().(Locker).LockKeys(db.Session(&gorm.Session{NewDB: true}))
		if err != nil {
			return nil, err
		}
		if len(keys) == 0 {
			return nil, fmt.Errorf("%w: LockKeys of %s names no key: return lockgorm.NoLock where none is needed", txlock.ErrInvalidKey, stmt.Schema.Name)
		}
		if !isNoLock(keys) {
			all = append(all, keys...)
		}
	}
	return all, nil
}

// unnamed is the error of a write to a registered table without keys.
func unnamed(table string) error {
	return fmt.Errorf("%w: a write to %s needs a lock: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, table)
}

// modelsOf yields the addressable models of a statement: one, or a batch's.
func modelsOf(stmt *gorm.Statement) func(yield func(reflect.Value, error) bool) {
	return func(yield func(reflect.Value, error) bool) {
		switch v := stmt.ReflectValue; v.Kind() {
		case reflect.Slice, reflect.Array:
			for i := range v.Len() {
				if !yield(modelOf(stmt, v.Index(i))) {
					return
				}
			}
		default:
			yield(modelOf(stmt, v))
		}
	}
}

// modelOf returns the value of a model that LockKeys can be called on.
func modelOf(stmt *gorm.Statement, v reflect.Value) (reflect.Value, error) {
	v = reflect.Indirect(v)
	if !v.IsValid() || v.Type() != stmt.Schema.ModelType {
		return v, fmt.Errorf("%w: this statement on %s has no model of type %s to name the keys: name them by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, stmt.Schema.Name)
	}
	if !v.CanAddr() {
		model := reflect.New(v.Type()).Elem()
		model.Set(v)
		v = model
	}
	return v, nil
}

// hasID tells whether every part of the model's primary key is set.
func hasID(stmt *gorm.Statement, model reflect.Value) bool {
	for _, field := range stmt.Schema.PrimaryFields {
		if _, zero := field.ValueOf(stmt.Context, model); zero {
			return false
		}
	}
	return len(stmt.Schema.PrimaryFields) > 0
}
