package lockgorm_test

import (
	"context"
	"database/sql"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

func TestSuite(t *testing.T) { locksuite.Run(t, adapters...) }

var adapters = []locksuite.Adapter{
	{Name: "gorm-guarded", Guarded: true, Open: openPool(true, false)},
	{Name: "gorm-plain", Open: openPool(false, false)},
	{Name: "gorm-prepared-guarded", Guarded: true, Open: openPool(true, true)},
	{Name: "gorm-prepared-plain", Open: openPool(false, true)},
}

// pool is GORM over a pool of database/sql.
type pool struct {
	sql  *sql.DB
	gorm *gorm.DB
}

func openPool(guarded, prepared bool) func(testing.TB, *driver.Config) locksuite.Pool {
	return func(tb testing.TB, cfg *driver.Config) locksuite.Pool {
		tb.Helper()
		connector, err := driver.NewConnector(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		if guarded {
			connector = txlock.Internal(bridge.Pass{}).Guarded(connector)
		}
		db := sql.OpenDB(connector)
		tb.Cleanup(func() {
			if err := db.Close(); err != nil {
				tb.Errorf("close the pool: %v", err)
			}
		})
		g, err := gorm.Open(mysql.New(mysql.Config{Conn: db}), &gorm.Config{
			Logger: logger.Discard, PrepareStmt: prepared, PrepareStmtTTL: tenYears,
		})
		if err != nil {
			tb.Fatal(err)
		}
		return pool{db, g}
	}
}

func (p pool) DB() *sql.DB { return p.sql }

func (p pool) Begin(ctx context.Context, level sql.IsolationLevel) (locksuite.Session, error) {
	tx := p.gorm.WithContext(ctx).Begin(&sql.TxOptions{Isolation: level})
	return session{tx}, tx.Error
}

// session joins a transaction of GORM.
type session struct{ tx *gorm.DB }

func (s session) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return lockgorm.Join(s.tx.WithContext(ctx), options...)
}

func (s session) Exec(ctx context.Context, query string, args ...any) error {
	return s.tx.WithContext(ctx).Exec(query, args...).Error
}

func (s session) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.tx.WithContext(ctx).Raw(query, args...).Scan(&n).Error
	return n, err
}

func (s session) Rows(ctx context.Context, query string) (*sql.Rows, error) {
	return s.tx.WithContext(ctx).Raw(query).Rows()
}

func (s session) Savepoint(ctx context.Context, name string) error {
	return s.tx.WithContext(ctx).SavePoint(name).Error
}

func (s session) RollbackTo(ctx context.Context, name string) error {
	return s.tx.WithContext(ctx).RollbackTo(name).Error
}

func (s session) Commit() error   { return s.tx.Commit().Error }
func (s session) Rollback() error { return s.tx.Rollback().Error }
