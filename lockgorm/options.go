package lockgorm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// option is a clause that keeps something with its statement, and adds nothing to the SQL. It is a
// clause.Interface because gorm.io/gen takes no other ones.
type option struct {
	name string
	it   any
}

func (option) Name() string               { return "LOCKSTEP" }
func (option) Build(clause.Builder)       {}
func (option) MergeClause(*clause.Clause) {}

// ModifyStatement keeps what the option says, for optionOf. It makes the statement fail if the
// plugin is missing: an error added to its *gorm.DB would make GORM leave a transaction open
// (CreateInBatches).
func (o option) ModifyStatement(stmt *gorm.Statement) {
	if !hasPlugin(stmt) {
		err := fmt.Errorf("lockgorm: the clause %s needs the plugin: call db.Use(lockgorm.New())", o.name)
		refuse(stmt, err)
	}
	stmt.Settings.Store(o.name, o.it)
}

// refuse lets a statement return an error where it would be sent. GORM's store of prepared
// statements would return an empty row.
func refuse(stmt *gorm.Statement, err error) {
	stmt.ConnPool = senderOf(stmt)
	stmt.Context = bridge.Unsent(stmt.Context, err)
}

func hasPlugin(stmt *gorm.Statement) bool {
	_, ok := stmt.Plugins[(*Plugin)(nil).Name()]
	return ok
}

// The options, as they are kept with a statement.
const (
	onOption          = "lockgorm.On"
	loadedOption      = "lockgorm.Loaded"
	anyVersionOption  = "lockgorm.AnyVersion"
	keepVersionOption = "lockgorm.KeepVersion"
	commitWithOption  = "lockgorm.CommitWith"
	guardOption       = "lockgorm.Guard"
	maxWaitOption     = "lockgorm.MaxWait"
)

// optionOf returns what an option of a statement says, or, but for AnyVersion and CommitWith, of the one
// whose association this is: GORM passes settings on.
func optionOf[T any](stmt *gorm.Statement, name string) (it T, ok bool) {
	value, _ := stmt.Settings.Load(name)
	if s := writeOf(stmt); value == nil && s != nil {
		value = s.options[name]
	}
	it, ok = value.(T)
	return it, ok
}

// waitKey finds the limit of WaitAtMost in a context, for what GORM gives a handle without
// settings: hooks, and sessions with NewDB.
type waitKey struct{}

// WaitAtMost returns a handle of the transaction, or of the pool, under which every wait for a
// lock is limited to d, as with that of Scope: the functions of this package, Transaction, On and
// the plugin, also in hooks. It may be used for any number of statements. Calls of gorm.G, which
// drop the settings of a handle, need MaxWait. The limit doesn't apply to Optimistic's comparison.
func WaitAtMost(tx *gorm.DB, d time.Duration) *gorm.DB {
	if tx == nil || tx.Statement == nil {
		return tx // the functions then return ErrNoTransaction
	}
	return tx.Set(maxWaitOption, d).WithContext(context.WithValue(tx.Statement.Context, waitKey{}, d))
}

// MaxWait is WaitAtMost for one statement that locks by On or by its model:
//
//	gorm.G[Order](tx, lockgorm.On(key), lockgorm.MaxWait(time.Second))
//
// It needs the plugin: db.Use(lockgorm.New()).
func MaxWait(d time.Duration) clause.Expression { return option{maxWaitOption, d} }

// limited returns the scope with the limit of WaitAtMost, if tx has one.
func limited(tx *gorm.DB, scope *txlock.Scope) *txlock.Scope {
	d, ok := optionOf[time.Duration](tx.Statement, maxWaitOption)
	if !ok {
		d, ok = tx.Statement.Context.Value(waitKey{}).(time.Duration)
	}
	if ok {
		return scope.WaitAtMost(d)
	}
	return scope
}

// Guard makes one statement succeed only while a lease is held:
// db.Clauses(lockgorm.Guard(l)).Create(&order). A create, update or delete is guarded after the
// model's hooks and associations, before GORM commits; a query, Row or Exec before it is sent. The
// statement fails with the error of Lease.Guard. Outside of a transaction it fails with
// ErrNoTransaction, and nothing is sent. It needs the plugin: db.Use(lockgorm.New()).
func Guard(l *lease.Lease) clause.Expression { return option{guardOption, l} }

// leaseOf returns the lease that guards a statement.
func leaseOf(db *gorm.DB) (l *lease.Lease, ok bool) {
	l, ok = optionOf[*lease.Lease](db.Statement, guardOption)
	return l, ok && db.Error == nil && !db.DryRun
}

// checkGuard makes sure, before a create, update or delete is sent, that it can be
// guarded afterwards.
func checkGuard(db *gorm.DB) {
	guardBy(db, func(l *lease.Lease, _ txlock.Tx) error { return l.Err() })
}

// guardStatement guards the transaction of a statement.
func guardStatement(db *gorm.DB) {
	guardBy(db, func(l *lease.Lease, tx txlock.Tx) error { return l.Guard(db.Statement.Context, tx) })
}

// guardBy lets the lease that guards a statement decide about its transaction.
func guardBy(db *gorm.DB, do func(l *lease.Lease, tx txlock.Tx) error) {
	l, ok := leaseOf(db)
	if !ok {
		return
	}
	tx, err := transactionOf(db)
	switch {
	case l == nil:
		err = errors.New("lockgorm: Guard needs a *lease.Lease, got nil")
	case err == nil:
		err = do(l, tx)
	}
	_ = db.AddError(err) // GORM's callbacks report errors so
}

// Loaded names the loaded model of one update or delete, as db.Model(&order) does, for code
// without such a call: gorm.G and code that gorm.io/gen has generated.
//
//	gorm.G[Order](tx, lockgorm.Loaded(&order)).Update(ctx, "paid", true)
//	q.Order.WithContext(ctx).Clauses(lockgorm.Loaded(&order)).UpdateSimple(q.Order.Paid.Value(true))
//
// So the plugin locks the keys of that model, compares its Version, and changes its row
// only. A create, Exec, a statement on another type and one on another record fail with
// ErrInvalidKey. It needs the plugin: db.Use(lockgorm.New()).
func Loaded(model any) clause.Expression { return option{loadedOption, loaded{model}} }

type loaded struct{ model any }

// setLoaded makes the model of Loaded that of the statement, and not of those of its associations.
func setLoaded(db *gorm.DB) {
	stmt := db.Statement
	l, ok := optionOf[loaded](stmt, loadedOption)
	if !ok || db.Error != nil {
		return
	}
	model := reflect.ValueOf(l.model)
	switch {
	case model.Kind() != reflect.Pointer:
		_ = db.AddError(fmt.Errorf("%w: Loaded needs a pointer to a model, got %T", txlock.ErrInvalidKey, l.model))
	case model.IsNil():
		_ = db.AddError(fmt.Errorf("%w: Loaded needs a pointer to a model, this %T is nil", txlock.ErrInvalidKey, l.model))
	case stmt.Schema == nil || model.Elem().Type() != stmt.Schema.ModelType:
		_ = db.AddError(fmt.Errorf("%w: Loaded has a %T, this statement is on %s: give it one loaded model of the statement's type, or name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, l.model, stmt.Table))
	case !hasID(stmt, model.Elem()):
		_ = db.AddError(fmt.Errorf("%w: Loaded has a %T without its primary key: load it first", txlock.ErrInvalidKey, l.model))
	case namesAnother(stmt, model.Elem()):
		_ = db.AddError(fmt.Errorf("%w: this statement on %s names another record than that of Loaded: leave one of them out", txlock.ErrInvalidKey, stmt.Table))
	default:
		stmt.Settings.Delete(loadedOption)
		stmt.Model = l.model
	}
}

// refuseLoaded refuses a create or Exec with Loaded.
func refuseLoaded(db *gorm.DB) {
	if _, ok := optionOf[loaded](db.Statement, loadedOption); ok {
		_ = db.AddError(fmt.Errorf("%w: Loaded is for an update or a delete of GORM, this is a create or Exec: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey))
	}
}

// namesAnother reports whether a statement has another model than this, and of another
// record.
func namesAnother(stmt *gorm.Statement, model reflect.Value) bool {
	for _, other := range modelsIn(reflect.ValueOf(stmt.Model), stmt.Schema) {
		for _, key := range stmt.Schema.PrimaryFields {
			has, zero := key.ValueOf(stmt.Context, other)
			id, _ := key.ValueOf(stmt.Context, model)
			if !zero && !same(id, has) {
				return true
			}
		}
	}
	return false
}

// CommitWith makes a write the last statement of its transaction: it commits if it changes the
// given number of rows, in one round trip, as Scope.CommitWith does:
//
//	tx.Model(&product).Clauses(lockgorm.CommitWith(1)).Update("stock", product.Stock-1)
//
// The write fails with txlock.ErrRows if it changes another number, and the transaction stays
// open. It fails with txlock.ErrInvalidOption, and nothing is sent, if GORM would send more after
// it: for models with hooks that run after the write, unless the session has SkipHooks; for those
// with associations, unless these are left out by Omit(clause.Associations); for those with a
// Version; for slices, which may be batches; and under Guarded. A create whose id GORM requests
// with RETURNING, as it does on MariaDB, can't commit. It needs the plugin:
// db.Use(lockgorm.New()).
func CommitWith(rows int64) clause.Expression { return option{commitWithOption, rows} }

// last marks the statement as the last, unless more follows it.
func last(db *gorm.DB) {
	rows, ok := optionOf[int64](db.Statement, commitWithOption)
	if !ok || db.Error != nil || db.DryRun {
		return
	}
	if why := followed(db.Statement, rows); why != "" {
		_ = db.AddError(fmt.Errorf("%w: CommitWith of a write behind which GORM sends more: %s", txlock.ErrInvalidOption, why))
		return
	}
	if scope, err := Join(db); db.AddError(err) == nil {
		db.Statement.Context = scope.CommitWith(db.Statement.Context, rows)
	}
}

// followed says what follows the statement, or "".
func followed(stmt *gorm.Statement, rows int64) string {
	if _, guarded := leaseOf(stmt.DB); guarded {
		return "Guard checks the lease"
	}
	if k := stmt.ReflectValue.Kind(); k == reflect.Slice || k == reflect.Array {
		return "a slice may be one of several batches: let a write of one record commit, or an Exec"
	}
	model := stmt.Schema
	if model == nil {
		return ""
	}
	if version, err := versionOf(model); version != nil || err != nil {
		return "the model's Version is compared"
	}
	creates, updates := slices.Contains(stmt.BuildClauses, "INSERT"), slices.Contains(stmt.BuildClauses, "UPDATE")
	hooks := isDelete(stmt) && model.AfterDelete || creates && model.AfterCreate || updates && model.AfterUpdate || (creates || updates) && model.AfterSave
	switch {
	case updates && slices.Contains(stmt.Selects, "*") && rows < 1:
		return "Save creates the record where its UPDATE changes no row: give CommitWith the number of rows"
	case (creates || updates) && len(model.Relationships.Relations) > 0 && !slices.Contains(stmt.Omits, clause.Associations):
		return "the model has associations: use Omit(clause.Associations), or leave CommitWith out"
	case hooks && !stmt.SkipHooks:
		return "the model has hooks that run after it: use Session with SkipHooks, or leave CommitWith out"
	}
	return ""
}

// notLast refuses CommitWith for a statement that isn't a write.
func notLast(db *gorm.DB) {
	if _, ok := optionOf[int64](db.Statement, commitWithOption); ok {
		_ = db.AddError(fmt.Errorf("%w: CommitWith is for creates, updates, deletes and Exec", txlock.ErrInvalidOption))
	}
}
