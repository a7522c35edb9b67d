package outerpool

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"example.com/shop/helper"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
)

type keeper struct {
	*sql.DB
	service *service
}

func (s *service) auditNow(ctx context.Context) error { return s.record(ctx, "now") }

func (s *service) record(ctx context.Context, text string) error {
	_, err := s.db.ExecContext(ctx, "INSERT INTO audit VALUES (?)", text)
	return err
}

func (s *service) recordElsewhere(ctx context.Context) error {
	_, err := s.audit.ExecContext(ctx, "INSERT INTO audit VALUES (1)")
	return err
}

func (s *service) tally(ctx context.Context) error {
	_, err := s.queries.Tally(ctx)
	return err
}

func (s *service) pay(tx *sql.Tx) error {
	if _, err := tx.Exec(pay, 1); err != nil {
		return err
	}
	return s.record(context.Background(), "paid")
}

// payWhole is all in the transaction.
func (s *service) payWhole(tx *sql.Tx) error {
	_, err := tx.Exec(pay, 1)
	return err
}

type txKey struct{}

// recordIn uses the transaction of the context, if there is one.
func (s *service) recordIn(ctx context.Context) error {
	if tx, ok := ctx.Value(txKey{}).(*sql.Tx); ok {
		_, err := tx.ExecContext(ctx, pay, 1)
		return err
	}
	return s.record(ctx, "alone")
}

func (s *service) orders(ctx context.Context) *gorm.DB { return s.orm.WithContext(ctx).Model(&order{}) }

// ordersIn is of the transaction, if there is one.
func (s *service) ordersIn(ctx context.Context, tx *gorm.DB) *gorm.DB {
	if tx != nil {
		return tx.Model(&order{})
	}
	return s.orders(ctx)
}

func (s *service) methods(ctx context.Context) error {
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		if err := s.auditNow(ctx); err != nil { // want `s.auditNow uses s.db, the pool, not the transaction of locksqlc.Run`
			return err
		}
		if err := s.tally(ctx); err != nil { // want `s.tally uses s.queries, the pool`
			return err
		}
		now := s.auditNow
		if err := now(ctx); err != nil { // want `now uses s.db, the pool`
			return err
		}
		defer s.record(ctx, "deferred") // want `s.record uses s.db, the pool`
		go func() {
			_ = s.record(ctx, "beside") // want `s.record uses s.db, the pool`
		}()
		if err := helper.Twice(func() error { return s.record(ctx, "twice") }); err != nil { // want `s.record uses s.db, the pool`
			return err
		}
		var group sync.WaitGroup
		group.Go(func() {
			_ = s.record(ctx, "group") // want `s.record uses s.db, the pool`
		})
		group.Wait()
		self := s
		if err := self.record(ctx, "self"); err != nil { // want `self.record uses s.db, the pool`
			return err
		}
		if err := locksqlc.Run(ctx, s.db, nil, s.payWhole); err != nil { // want `s.db is the pool`
			return err
		}
		return errors.Join(s.recordElsewhere(ctx), s.recordIn(ctx), s.payWhole(tx))
	})
}

func (s *service) named(ctx context.Context) error {
	if err := locksqlc.Run(ctx, s.db, nil, s.pay); err != nil { // want `s.pay uses s.db, the pool`
		return err
	}
	work := func(tx *sql.Tx) error {
		return s.record(ctx, "named") // want `s.record uses s.db, the pool`
	}
	if err := locksqlc.Run(ctx, s.db, nil, work); err != nil {
		return err
	}
	return locksqlc.Run(ctx, s.db, nil, s.payWhole)
}

func (s *service) closures(ctx context.Context) error {
	save := func() error {
		_, err := s.db.ExecContext(ctx, pay, 1)
		return err
	}
	saveIn := func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, pay, 1)
		return err
	}
	saveBy := func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, pay, 1)
		return err
	}
	err := locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		if err := saveBy(s.db); err != nil { // want `saveBy uses s.db, the pool`
			return err
		}
		if err := saveBy(s.audit); err != nil {
			return err
		}
		if err := save(); err != nil { // want `save uses s.db, the pool`
			return err
		}
		if err := helper.Twice(save); err != nil { // want `save uses s.db, the pool`
			return err
		}
		helper.Later(save)
		return saveIn(tx)
	})
	return errors.Join(err, save())
}

func (k *keeper) embedded(ctx context.Context) error {
	return locksqlc.Run(ctx, k.DB, nil, func(tx *sql.Tx) error {
		if err := k.service.record(ctx, "other"); err != nil { // perhaps another pool
			return err
		}
		_, err := k.ExecContext(ctx, pay, 1) // want `k is the pool`
		return err
	})
}

func aliases(ctx context.Context, s *service) error {
	pool, audit := s.db, s.audit
	return locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
		db := s.db
		if _, err := db.ExecContext(ctx, pay, 1); err != nil { // want `db uses s.db, the pool`
			return err
		}
		if err := s.record(ctx, "alias"); err != nil { // want `s.record uses s.db, the pool`
			return err
		}
		q := s.queries
		if _, err := q.Tally(ctx); err != nil { // want `q uses s.queries, the pool`
			return err
		}
		bound := s.queries.WithTx(tx)
		if _, err := bound.Tally(ctx); err != nil {
			return err
		}
		made := shopdb.New(tx)
		if _, err := made.Tally(ctx); err != nil {
			return err
		}
		_, err := audit.ExecContext(ctx, pay, 1)
		return err
	})
}

func made(ctx context.Context, db, audit *sql.DB) error {
	same, other, kept := &service{db: db}, service{db: audit}, keeper{db, nil}
	return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		if err := same.record(ctx, "same"); err != nil { // want `same.record uses db, the pool`
			return err
		}
		if _, err := kept.ExecContext(ctx, pay, 1); err != nil { // want `kept uses db, the pool`
			return err
		}
		return other.record(ctx, "other")
	})
}

// chosen is one of two pools.
func chosen(ctx context.Context, s *service, far bool) error {
	db := s.db
	if far {
		db = s.audit
	}
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		_, err := db.ExecContext(ctx, pay, 1)
		return err
	})
}

func packages(ctx context.Context, store, other *helper.Store) error {
	err := locksqlc.Run(ctx, store.DB(), nil, func(tx *sql.Tx) error {
		if _, err := store.Count(ctx); err != nil { // want `store.Count uses store.db, the pool`
			return err
		}
		if _, err := store.CountIn(ctx, tx); err != nil {
			return err
		}
		_, err := other.Count(ctx)
		return err
	})
	if err != nil {
		return err
	}
	err = store.Locked(ctx, 1, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := other.DB().ExecContext(ctx, pay, 1); err != nil {
			return err
		}
		_, err := store.DB().ExecContext(ctx, pay, 1) // want `store.DB\(\) uses store.db, the pool, not the transaction of Locked`
		return err
	})
	if err != nil {
		return err
	}
	return locksqlc.Run(ctx, helper.Audits, nil, func(tx *sql.Tx) error {
		return helper.Audit(ctx) // want `helper.Audit uses Audits, the pool`
	})
}

func auditFar(ctx context.Context) error {
	_, err := helper.Audits.ExecContext(ctx, pay, 1)
	return err
}

func packageVariable(ctx context.Context, other *sql.DB) error {
	err := locksqlc.Run(ctx, helper.Audits, nil, func(tx *sql.Tx) error {
		return auditFar(ctx) // want `auditFar uses Audits, the pool`
	})
	if err != nil {
		return err
	}
	return locksqlc.Run(ctx, other, nil, func(tx *sql.Tx) error { return auditFar(ctx) })
}

func gormNames(ctx context.Context, db *gorm.DB, s *service) error {
	scoped := db.WithContext(ctx)
	err := lockgorm.Transaction(db, helper.Orders.Keys(1), func(tx *gorm.DB) error {
		if err := scoped.Save(&order{}).Error; err != nil { // want `scoped uses db, the pool`
			return err
		}
		inner := tx.WithContext(ctx)
		return inner.Save(&order{}).Error
	})
	if err != nil {
		return err
	}
	return lockgorm.Transaction(s.orm, helper.Orders.Keys(1), func(tx *gorm.DB) error {
		if err := s.orders(ctx).Where("id", 1).Delete(nil).Error; err != nil { // want `s.orders\(ctx\) uses s.orm, the pool`
			return err
		}
		err := tx.Transaction(func(tx *gorm.DB) error {
			return s.orm.Save(&order{}).Error // want `s.orm is the pool`
		})
		return errors.Join(err, s.ordersIn(ctx, tx).Delete(nil).Error)
	})
}

func (s *service) byGorm(ctx context.Context) error {
	raw, err := s.orm.DB()
	if err != nil {
		return err
	}
	orders := gorm.G[order](s.orm)
	return lockgorm.Transaction(s.orm, nil, func(tx *gorm.DB) error {
		if _, err := gorm.G[order](s.orm).Where("id = ?", 1).First(ctx); err != nil { // want `s.orm is the pool, not the transaction of lockgorm.Transaction`
			return err
		}
		if err := orders.Create(ctx, &order{}); err != nil { // want `orders uses s.orm, the pool`
			return err
		}
		if err := s.orm.Model(&order{}).Association("Items").Append(1); err != nil { // want `s.orm is the pool`
			return err
		}
		if _, err := raw.ExecContext(ctx, pay, 1); err != nil { // want `raw uses s.orm, the pool`
			return err
		}
		inner, err := s.orm.DB()
		if err != nil {
			return err
		}
		if _, err := inner.ExecContext(ctx, pay, 1); err != nil { // want `inner uses s.orm, the pool`
			return err
		}
		if inner.Stats().OpenConnections > 1 {
			return nil
		}
		return gorm.G[order](tx).Create(ctx, &order{})
	})
}

func (s *service) bySQL(ctx context.Context) error {
	raw, err := s.orm.DB()
	if err != nil {
		return err
	}
	return locksqlc.Run(ctx, raw, nil, func(tx *sql.Tx) error {
		return s.orm.Save(&order{}).Error // want `s.orm is the pool, not the transaction of locksqlc.Run`
	})
}

// A fix would begin a savepoint of the transaction, end it, or leave its connection busy.
func (s *service) severalByGorm(ctx context.Context) error {
	return lockgorm.Transaction(s.orm, nil, func(tx *gorm.DB) error {
		inner := s.orm.Begin() // want `s.orm is the pool`
		if err := inner.Save(&order{}).Error; err != nil {
			return err
		}
		if err := inner.Commit().Error; err != nil {
			return err
		}
		err := s.orm.Transaction(func(tx *gorm.DB) error { // want `s.orm is the pool`
			return tx.Save(&order{}).Error
		})
		if err != nil {
			return err
		}
		err = lockgorm.Transaction(s.orm, nil, func(tx *gorm.DB) error { // want `s.orm is the pool`
			return tx.Save(&order{}).Error
		})
		if err != nil {
			return err
		}
		if err := saveBy(s.orm); err != nil { // want `s.orm is the pool`
			return err
		}
		if err := s.orm.Exec("TRUNCATE orders").Error; err != nil { // want `s.orm is the pool`
			return err
		}
		if err := s.orm.Exec(pay, 1).Error; err != nil { // want `s.orm is the pool`
			return err
		}
		rows, err := s.orm.Model(&order{}).Rows() // want `s.orm is the pool`
		if err != nil {
			return err
		}
		return rows.Close()
	})
}

func saveBy(db *gorm.DB) error { return db.Save(&order{}).Error }

func (s *service) severalBySQL(ctx context.Context) error {
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		stmt, err := s.db.PrepareContext(ctx, pay) // want `s.db is the pool.* not part of the transaction$`
		if err != nil {
			return err
		}
		var n int
		if err := s.db.QueryRowContext(ctx, "SELECT 1").Scan(&n); err != nil { // want `s.db is the pool`
			return err
		}
		row := s.db.QueryRowContext(ctx, "SELECT 1") // want `s.db is the pool.*; no fix`
		return errors.Join(stmt.Close(), row.Scan(&n))
	})
}

type orders struct{ *sql.Rows }

func (s *service) openRows(ctx context.Context) error {
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		if _, err := s.db.ExecContext(ctx, pay, 1); err != nil { // want `s.db is the pool.* not part of the transaction$`
			return err
		}
		found, err := tx.QueryContext(ctx, "SELECT id FROM orders")
		if err != nil {
			return err
		}
		for all := (orders{found}); all.Next(); {
			if _, err := s.queries.Tally(ctx); err != nil { // want `s.queries queries the pool.*; no fix: the transaction may have open rows`
				return err
			}
		}
		return nil
	})
}

func (s *service) openElsewhere(ctx context.Context, all orders, first bool, ids func(yield func(int) bool)) error {
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		for first && all.Next() {
			if _, err := s.queries.Tally(ctx); err != nil { // want `s.queries queries the pool.*; no fix: the transaction may have open rows`
				return err
			}
		}
		for id := range ids {
			if _, err := s.db.ExecContext(ctx, pay, id); err != nil { // want `s.db is the pool.*; no fix`
				return err
			}
		}
		for id := range 3 {
			if _, err := s.db.ExecContext(ctx, pay, id); err != nil { // want `s.db is the pool.* not part of the transaction$`
				return err
			}
		}
		if rows, err := tx.QueryContext(ctx, "SELECT id FROM orders"); err == nil && rows.Next() {
			_, err = s.db.ExecContext(ctx, pay, 1) // want `s.db is the pool.*; no fix`
			return err
		}
		_, err := s.db.ExecContext(ctx, pay, 1) // want `s.db is the pool.* not part of the transaction$`
		return err
	})
}

func (s *service) openByGorm() error {
	return lockgorm.Transaction(s.orm, nil, func(tx *gorm.DB) error {
		rows, err := tx.Model(&order{}).Rows()
		if err != nil {
			return err
		}
		for rows.Next() {
			if err := s.orm.Save(&order{}).Error; err != nil { // want `s.orm is the pool.*; no fix`
				return err
			}
		}
		return rows.Close()
	})
}

// bank embeds its Queries, and has its own function around Run.
type bank struct {
	*shopdb.Queries
	db     *sql.DB
	shared *shopdb.Queries
}

func (b *bank) execTx(ctx context.Context, fn func(q *shopdb.Queries) error) error {
	return locksqlc.Run(ctx, b.db, helper.Orders.Keys(1), func(tx *sql.Tx) error { return fn(b.WithTx(tx)) })
}

func (b *bank) inExecTx(ctx context.Context) error {
	if _, err := b.Tally(ctx); err != nil {
		return err
	}
	return b.execTx(ctx, func(q *shopdb.Queries) error {
		if _, err := q.Tally(ctx); err != nil {
			return err
		}
		if _, err := b.shared.Tally(ctx); err != nil { // want `b.shared queries the pool, not the transaction of execTx`
			return err
		}
		other := b.shared
		if _, err := other.Tally(ctx); err != nil { // want `other uses b.shared, the pool`
			return err
		}
		_, err := b.Tally(ctx) // want `b queries the pool, not the transaction of execTx`
		return err
	})
}

func (b *bank) inRun(ctx context.Context) error {
	return locksqlc.Run(ctx, b.db, nil, func(tx *sql.Tx) error {
		bound := bank{Queries: b.WithTx(tx)}
		if _, err := bound.Tally(ctx); err != nil {
			return err
		}
		_, err := b.Tally(ctx) // want `b queries the pool, not the transaction of locksqlc.Run`
		return err
	})
}

// What the function is given is of another type.
func (b *bank) inOwn(ctx context.Context, own *queries) error {
	return own.Run(ctx, func(q *queries) error {
		_, err := b.shared.Tally(ctx)
		return err
	})
}

// A copy has its own Queries.
func (b *bank) copied(ctx context.Context) error {
	return locksqlc.Run(ctx, b.db, nil, func(tx *sql.Tx) error {
		bound := *b
		bound.Queries, bound.shared = b.WithTx(tx), b.WithTx(tx)
		if _, err := bound.Tally(ctx); err != nil {
			return err
		}
		_, err := bound.shared.Tally(ctx)
		return err
	})
}

// A DryRun sends nothing.
func (s *service) dry() error {
	return lockgorm.Transaction(s.orm, nil, func(tx *gorm.DB) error {
		text := s.orm.Session(&gorm.Session{DryRun: true}).Find(&order{}).Statement.SQL.String()
		if err := s.orm.Session(&gorm.Session{DryRun: false}).Find(&order{}).Error; err != nil { // want `s.orm is the pool`
			return err
		}
		return tx.Exec(text).Error
	})
}

func (s *service) work(ctx context.Context) func(*sql.Tx) error {
	return func(*sql.Tx) error { return s.record(ctx, "work") }
}

func (s *service) workWhole(ctx context.Context) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, pay, 1)
		return err
	}
}

// workSoon records before it returns the function.
func (s *service) workSoon(ctx context.Context) func(*sql.Tx) error {
	if err := s.record(ctx, "soon"); err != nil {
		return func(*sql.Tx) error { return err }
	}
	return s.payWhole
}

func (s *service) makers(ctx context.Context) error {
	work := s.work(ctx)
	return errors.Join(
		locksqlc.Run(ctx, s.db, nil, s.work(ctx)), // want `s.work\(ctx\) uses s.db, the pool`
		locksqlc.Run(ctx, s.db, nil, work),        // want `work uses s.db, the pool`
		locksqlc.Run(ctx, s.audit, nil, work),
		locksqlc.Run(ctx, s.db, nil, s.workWhole(ctx)),
		locksqlc.Run(ctx, s.db, nil, s.workSoon(ctx)),
	)
}

func (s *service) values(ctx context.Context, other *service, alone bool) error {
	exec, either := s.db.ExecContext, s.db.ExecContext
	record := (*service).record
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		if _, err := exec(ctx, pay, 1); err != nil { // want `exec uses s.db, the pool`
			return err
		}
		if !alone {
			either = tx.ExecContext
		}
		if _, err := either(ctx, pay, 1); err != nil {
			return err
		}
		within := tx.ExecContext
		if _, err := within(ctx, pay, 1); err != nil {
			return err
		}
		return errors.Join(
			record(s, ctx, "one"), // want `record uses s.db, the pool`
			record(other, ctx, "one"),
			s.work(ctx)(tx), // want `s.work\(ctx\) uses s.db, the pool`
			s.workWhole(ctx)(tx),
		)
	})
}
