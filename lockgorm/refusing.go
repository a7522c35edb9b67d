package lockgorm

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"
)

// needPlugin makes a statement fail if the plugin that its clause needs is missing. An
// error added to its *gorm.DB would make GORM leave a transaction open (CreateInBatches).
func needPlugin(stmt *gorm.Statement, clause string) {
	if _, ok := stmt.Plugins[(*Plugin)(nil).Name()]; !ok {
		err := fmt.Errorf("lockgorm: the clause %s needs the plugin: call db.Use(lockgorm.New())", clause)
		stmt.ConnPool = refusing{ConnPool: stmt.ConnPool, err: err}
	}
}

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
