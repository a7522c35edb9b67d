package lockgorm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// A Locker is a model that names the keys to lock for its creation, update and deletion. LockKeys
// is called on a pointer to the model as the statement has it, for each element of a batch, with a
// *gorm.DB of the statement's transaction, and again if a hook sets or changes the primary key. It
// returns at least one key, or NoLock; an error ends the statement. When a record is created whose
// primary key is not set yet, keys of the zero identifier are left out, since no one can name the
// record before COMMIT.
//
// A model whose one key is that of a family for its primary key needs no method, but a tag
// on that field, or on the embedded struct that has it:
//
//	ID   int64  `lockstep:"order"`                                // txlock.NewFamily[int64]("order")
//	Code string `lockstep:"cart,hashed" gorm:"type:varbinary(99)"` // with txlock.Hashed()
//	Name string `lockstep:"user,fold=utf8mb4_0900_ai_ci"`          // with txlock.Fold("utf8mb4_0900_ai_ci")
//
// If a model has both, the method is used. In puts the families of all tags into a namespace.
//
// Keys are compared byte by byte. If the collation of a string primary key considers two strings
// equal, such as Bob and bob, then one row has two keys, which don't exclude each other: make the
// column VARBINARY and the family with txlock.Exact(), or fold the keys by the collation of the
// column. A string that can't be folded exactly makes the write fail with ErrInvalidKey, and so
// does a tag that can't be followed; the error names the fix. If a string isn't declared binary,
// as Code is above, the first write to each table looks its column up, by one more statement in
// its transaction, which locks no row and fixes no snapshot. A test with a mock expects that
// SELECT, or declares the type. Check looks all columns up when the program starts.
type Locker interface {
	LockKeys(tx *gorm.DB) ([]txlock.Key, error)
}

// NoLock is what LockKeys returns for a write that needs no lock.
var NoLock = []txlock.Key{{}}

// isNoLock reports whether the list is NoLock itself.
func isNoLock(keys []txlock.Key) bool { return len(keys) == 1 && &keys[0] == &NoLock[0] }

// A Plugin acquires the locks that models and statements name, before the statements are sent. See
// New.
type Plugin struct {
	family   []txlock.FamilyOption // of the tags
	checks   []any                 // the models of Check
	unlocked []string              // the dialects of Unlocked
	most     int                   // of AtMostRows

	tags    sync.Map // *schema.Schema to *tag
	columns sync.Map // a model and its table to why its column doesn't fit, ""
	primary sync.Map // a table to whether it has an index of that name
	isMySQL atomic.Bool
}

// An Option configures New.
type Option func(*Plugin)

// In puts the families that tags name into a namespace, as txlock.In does. With
// In("shop") the tag lockstep:"order" names the family
//
//	txlock.NewFamily[int64]("order", txlock.In("shop"))
//
// LockKeys and On name their namespace by themselves. If it is not valid, db.Use returns
// ErrInvalidKey. The default is none.
func In(n txlock.Namespace) Option {
	return func(p *Plugin) { p.family = []txlock.FamilyOption{txlock.In(n)} }
}

// Check makes db.Use check models, given as &Order{}, before the program writes one. It returns
// ErrInvalidKey or ErrVersion, with the fix, if a model has neither keys nor a Version, if its tag
// can't be followed, or if its table has no such columns or ones of another type or collation. So
// the tables must exist. It sends one SELECT for each column, which reads no row. In DryRun mode it
// sends nothing, and checks only the models. The default is none.
func Check(models ...any) Option {
	return func(p *Plugin) { p.checks = append(p.checks, models...) }
}

// New returns the plugin, for db.Use. With it, every create, update and delete of a Locker first
// locks its keys: in the transaction of the statement, before the model's own hooks, the keys of a
// batch in one LockAll. On names keys for one statement, which may be a query: a transaction that
// reads a record and then writes it should read it with On. A lock that is acquired only at the
// write is refused with ErrStaleSnapshot if another transaction has written in between, unless the
// level is READ COMMITTED, which has no snapshot. If a hook panics, the transaction of its
// statement ends with the statement's context, as in GORM, and its locks with it. Under
// SkipDefaultTransaction a statement that may have keys to lock begins and ends one of its own.
//
// An update or delete locks its models. If these have no primary key and the model has a tag, it
// locks the records that its conditions name: Delete(&Order{}, 42), Where("id = ?", 42) or
// Where("id IN ?", ids), with others that AND joins to them. These cost no statement but the lock.
//
// Any other conditions select records. The plugin reads their keys outside of the transaction,
// locks them, reads the records again FOR UPDATE, and confines the statement to those: two
// statements more, which query callbacks don't see. If another record matches meanwhile, a
// transaction of the statement's own acquires that lock if it is free, and otherwise retries; one
// of the program's waits for it, and may deadlock with any other write. In a transaction of the
// program the first read is on another connection. If none is free within 200 ms, it fixes the
// snapshot: a lock that another transaction has held since is then refused with ErrStaleSnapshot.
// Rows that a foreign key changes by CASCADE are not locked.
//
// A statement fails with ErrInvalidKey if it isn't certain which records it changes, and the error
// says why: On names the keys of such a statement. So it does with a clause that isn't GORM's own,
// except comments and index hints, and if a create would write the zero value, or a constant that is
// declared as the default, as a primary key, or an upsert leaves that to a default of the column. If
// an upsert finds a row by another unique key, the server returns an error and changes nothing.
// Models with a Version are compared; see Version.
//
// Nothing is locked for a write without a model that names keys: by Exec, and by Table() as gorm.G
// updates a many to many association. What bypasses GORM's callbacks, such as
// tx.Statement.ConnPool, bypasses the plugin.
func New(options ...Option) *Plugin {
	p := &Plugin{most: atMostRows}
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
	const begin, lock, check = "lockstep:begin", "lockstep:lock", "lockstep:check_guard"
	const send, sent, guard, end = "lockstep:send", "lockstep:sent", "lockstep:guard", "lockstep:end"
	const gormsBegin, commit = "gorm:begin_transaction", "gorm:commit_or_rollback_transaction"
	const every = "*" // under SkipDefaultTransaction GORM has no BEGIN and COMMIT callbacks to name
	all := db.Callback()
	switch locks, err := p.checkDialect(db); {
	case err != nil:
		return err
	case !locks:
		return errors.Join(all.Update().Before(every).Register(begin, setLoaded), all.Delete().Before(every).Register(begin, setLoaded))
	}
	if err := p.check(db); err != nil {
		return err // before anything is registered
	}
	updates, deletes := gormsBegin, gormsBegin
	if db.SkipDefaultTransaction { // then there is none
		updates, deletes = "gorm:setup_reflect_value", "gorm:before_delete"
	}
	registerBuilders(db)
	return errors.Join(
		all.Create().Before(every).Register(begin, beginCreate),
		all.Create().After(gormsBegin).Before("gorm:before_create").Register(lock, p.beforeCreate),
		all.Create().After(lock).Before("gorm:before_create").Register(check, checkGuard),
		all.Create().After("gorm:save_before_associations").Before("gorm:create").Register(send, p.sendCreate),
		all.Create().After("gorm:create").Before("gorm:save_after_associations").Register(sent, explainUpsert),
		all.Create().After("gorm:after_create").Before(commit).Register(guard, guardStatement),
		all.Create().After(every).Register(end, endWrite),

		all.Update().Before(every).Register(begin, beginUpdate),
		all.Update().Before(updates).Register(lock, p.beforeUpdate),
		all.Update().After(lock).Before("gorm:before_update").Register(check, checkGuard),
		all.Update().After("gorm:save_before_associations").Before("gorm:update").Register(send, sendChange),
		all.Update().After("gorm:update").Before("gorm:save_after_associations").Register(sent, verifyVersions),
		all.Update().After("gorm:after_update").Before(commit).Register(guard, guardStatement),
		all.Update().After(every).Register(end, endWrite),

		all.Delete().Before(every).Register(begin, beginDelete),
		all.Delete().Before(deletes).Register(lock, p.beforeDelete),
		all.Delete().After(lock).Before("gorm:before_delete").Register(check, checkGuard),
		all.Delete().After("gorm:delete_before_associations").Before("gorm:delete").Register(send, sendChange),
		all.Delete().After("gorm:delete").Before("gorm:after_delete").Register(sent, verifyVersions),
		all.Delete().After("gorm:after_delete").Before(commit).Register(guard, guardStatement),
		all.Delete().After(every).Register(end, endWrite),

		all.Query().Before("gorm:query").Register(lock, beforeQuery),
		all.Query().After("gorm:query").Register(sent, noteRead),
		all.Row().Before("gorm:row").Register(lock, beforeRow),
		all.Row().After("gorm:row").Register(sent, noteRows),
		all.Raw().Before("gorm:raw").Register(lock, beforeExec),
	)
}

// On names the keys that one statement needs: db.Clauses(lockgorm.On(key)). They replace those
// that the model names. On(NoLock...) declares that it needs none. Associations that GORM saves
// with the model name their own keys in addition.
func On(keys ...txlock.Key) clause.Expression { return option{onOption, keys} }

// beforeCreate locks before a create. Its models may have no primary key yet.
func (p *Plugin) beforeCreate(db *gorm.DB) {
	planOwn(db, false)
	_ = db.AddError(enterOwn(db)) // also where no lock is needed before the hooks
	lockBefore(db, p.keysOfCreate, lockWrite)
}

// sendCreate locks the models to which the hooks of a create have given a primary key, or another
// one, and gives them their first version.
func (p *Plugin) sendCreate(db *gorm.DB) {
	planOwn(db, false)
	_ = db.AddError(enterOwn(db))
	keys, err := p.keysOfSaved(db)
	if db.AddError(err) == nil && len(keys) > 0 {
		_ = db.AddError(lockWrite(db, keys))
	}
	watchText(db, true)
	last(db)
	firstVersions(db)
}

// beforeUpdate locks before an update, and before GORM begins its transaction, in which callbacks
// of others may write.
func (p *Plugin) beforeUpdate(db *gorm.DB) {
	callbacks.SetupUpdateReflectValue(db) // which GORM does later
	p.beforeDelete(db)
}

// beforeDelete locks before a delete, as beforeUpdate does.
func (p *Plugin) beforeDelete(db *gorm.DB) {
	planOwn(db, true)
	lockBefore(db, p.lockChange, lockWrite)
}

// beforeExec locks before Exec, which may commit.
func beforeExec(db *gorm.DB) {
	refuseLoaded(db)
	beforeRead(db)
	last(db)
}

// beforeQuery locks before a query, which can't commit.
func beforeQuery(db *gorm.DB) {
	notLast(db)
	beforeRead(db)
}

// beforeRead locks before a query or Exec, which takes the locks with it if it can: keys that On
// names, and no model.
func beforeRead(db *gorm.DB) {
	lockBefore(db, func(*gorm.DB) ([]txlock.Key, error) { return nil, nil }, lockWith)
	guardStatement(db)
}

// lockWith lets the statement take the locks with it.
func lockWith(db *gorm.DB, keys []txlock.Key) error {
	scope, err := scopeFor(db, keys...)
	if scope == nil {
		return err
	}
	if _, guards := leaseOf(db); guards || txStateOf(db) != nil { // a lease is guarded before the statement, and Optimistic compares versions before a lock
		return lockAll(scope, db, keys)
	}
	ctx := scope.LockWith(db.Statement.Context, keys...)
	if err := ctx.Err(); err != nil {
		return err
	}
	db.Statement.Context = ctx
	return nil
}

// beforeRow does what beforeQuery does, for Row and Rows. Since Row returns no error, its Scan must
// return the refusal, as that of a statement that isn't sent.
func beforeRow(db *gorm.DB) {
	if beforeQuery(db); db.Error != nil && !db.DryRun {
		refuse(db.Statement, db.Error)
		db.Error = nil
	}
}

// lockWrite locks the keys of a create, update or delete.
func lockWrite(db *gorm.DB, keys []txlock.Key) error {
	err := enterOwn(db)
	if err == nil {
		var scope *txlock.Scope
		if scope, err = scopeFor(db, keys...); scope != nil {
			err = lockAll(scope, db, keys)
		}
	}
	return err
}

// lockBefore takes the locks of one statement, whose keys On names or else its model, or makes it
// fail.
func lockBefore(db *gorm.DB, ofModel func(db *gorm.DB) ([]txlock.Key, error), lock func(db *gorm.DB, keys []txlock.Key) error) {
	if db.Error != nil || db.DryRun {
		return
	}
	keys, err := keysOn(db, ofModel)
	if err == nil && len(keys) > 0 {
		err = lock(db, keys)
	}
	_ = db.AddError(err) // in GORM's callbacks errors are reported so
}

// keysOn returns the keys that On names, or otherwise those of the model.
func keysOn(db *gorm.DB, ofModel func(db *gorm.DB) ([]txlock.Key, error)) ([]txlock.Key, error) {
	stmt := db.Statement
	keys, ok := optionOf[[]txlock.Key](stmt, onOption)
	if !ok {
		return ofModel(db)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: lockgorm.On names no key", txlock.ErrInvalidKey)
	}
	if isNoLock(keys) {
		keys = nil
	}
	if !isInner(stmt) || !isLocker(stmt) {
		return keys, nil
	}
	own, err := ofModel(db)
	return slices.Concat(keys, own), err
}
