package lockgorm

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
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
		stmt.ConnPool = refusing{ConnPool: stmt.ConnPool, err: err}
	}
	stmt.Settings.Store(o.name, o.it)
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

// optionOf returns what an option of a statement says, or of the one whose association this is:
// GORM passes settings on.
func optionOf[T any](stmt *gorm.Statement, name string) (it T, ok bool) {
	value, _ := stmt.Settings.Load(name)
	it, ok = value.(T)
	return it, ok
}

// note notes something of this very statement, for noteOf, by its type.
func note[T any](stmt *gorm.Statement, it T) { stmt.Settings.Store(noted[T]{}, noted[T]{stmt, &it}) }

// noted is what is noted of a statement, and the key of that in its zero value.
type noted[T any] struct {
	of *gorm.Statement
	it *T
}

// noteOf returns what is noted of this very statement, or the zero value.
func noteOf[T any](stmt *gorm.Statement) (it T) {
	value, _ := stmt.Settings.Load(noted[T]{})
	if n, ok := value.(noted[T]); ok && n.of == stmt {
		return *n.it
	}
	return it
}

// forget deletes a note.
func forget[T any](stmt *gorm.Statement) { stmt.Settings.Delete(noted[T]{}) }

// refusing is a pool or transaction that sends nothing and returns an error.
type refusing struct {
	gorm.ConnPool
	err error
}

var _ gorm.ConnPoolBeginner = refusing{}

func (r refusing) BeginTx(context.Context, *sql.TxOptions) (gorm.ConnPool, error) { return nil, r.err }

func (r refusing) PrepareContext(context.Context, string) (*sql.Stmt, error) { return nil, r.err }

func (r refusing) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return nil, r.err
}

func (r refusing) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, r.err
}

func (r refusing) QueryRowContext(context.Context, string, ...any) *sql.Row {
	return failedRow(r.ConnPool, r.err)
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
