package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// record is the model of the records that locks protect. The plugin locks its key before
// it is written.
type record struct {
	Name  string `gorm:"primaryKey"`
	Value int64
	Token uint64
}

// TableName is GORM's name for the table.
func (record) TableName() string { return "counters" }

// LockKeys names the lock that a write of the record needs.
func (r *record) LockKeys(tx *gorm.DB) ([]txlock.Key, error) {
	return []txlock.Key{keyOf(r.Name)}, tx.Error
}

// article is a record with a version.
type article struct {
	Name    string `gorm:"primaryKey"`
	Value   int64
	Version lockgorm.Version
}

// openGorm opens GORM over the pool of a client, without asking the server anything.
func (c *client) openGorm(prepared, bare bool) (*gorm.DB, error) {
	db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: c.pool, SkipInitializeWithVersion: true, DontSupportForShareClause: c.Engine == testdb.MariaDB}),
		&gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true, PrepareStmt: prepared, SkipDefaultTransaction: bare})
	if err != nil {
		return nil, err
	}
	return db, db.Use(lockgorm.New())
}

// gormed is a runner by GORM, with the handle of the transaction that runs.
type gormed struct{ tx *gorm.DB }

// under makes a runner of one of lockgorm or GORM.
func (g *gormed) under(begin func(ctx context.Context, fn func(tx *gorm.DB) error) error) runner {
	return func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		return begin(ctx, func(tx *gorm.DB) error {
			g.tx = tx
			raw, err := rawOf(tx)
			if err != nil {
				return err
			}
			return fn(raw)
		})
	}
}

// rawOf returns the transaction of database/sql that one of GORM is.
func rawOf(tx *gorm.DB) (*sql.Tx, error) {
	of, err := lockgorm.SQLTx(tx)
	if err != nil {
		return nil, err
	}
	raw, ok := of.(*sql.Tx)
	if !ok {
		return nil, fmt.Errorf("the transaction of GORM is a %T", of)
	}
	return raw, nil
}

// save writes a record of GORM's, and the row of its commit.
func (t *transaction) save(tx *gorm.DB, name string, value int64, update func(tx *gorm.DB) error) error {
	if err := update(tx); err != nil {
		return err
	}
	t.wrote = append(t.wrote, name)
	return tx.Exec("INSERT INTO commits VALUES (?, ?, ?, 0)", t.id, name, value).Error
}

// gormTransaction is lockgorm.Transaction of several keys.
func (w *worker) gormTransaction() outcome {
	names := w.some(lockKeys, 1)
	keys, options := keysOf(names), w.isolation()
	if w.Without == "lock" {
		keys = nil
	}
	var g gormed
	run := g.under(func(ctx context.Context, fn func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(w.gorm.WithContext(ctx), keys, fn, options)
	})
	return w.transact(w.begin("gorm transaction", names...), run, func(ctx context.Context, t *transaction) error {
		for _, name := range names {
			value, err := t.value(ctx, name)
			if err != nil {
				return err
			}
			w.think(t.w.TTL / 300)
			err = t.save(g.tx, name, value+1, func(tx *gorm.DB) error {
				return tx.Table("counters").Where("name = ?", name).Update("value", value+1).Error
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

var errOnPurpose = errors.New("rolled back on purpose")

// gormPlugin locks by the plugin, before it reads, in GORM's own transaction, and rolls
// a nested one back in some.
func (w *worker) gormPlugin() outcome {
	name, nests := w.one(lockKeys), w.IntN(3) == 0
	options := w.isolation()
	var g gormed
	run := g.under(func(ctx context.Context, fn func(tx *gorm.DB) error) error {
		return w.gorm.WithContext(ctx).Transaction(fn, options)
	})
	return w.transact(w.begin("gorm plugin", name), run, func(_ context.Context, t *transaction) error {
		var c record
		read := g.tx.Clauses(lockgorm.On(keyOf(name)))
		if w.Without == "plugin" {
			read = g.tx.Clauses(lockgorm.On(lockgorm.NoLock...))
		}
		if err := read.Take(&c, "name = ?", name).Error; err != nil {
			return err
		}
		if nests {
			err := g.tx.Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Exec("UPDATE counters SET value = value + 1000 WHERE name = ?", name).Error, errOnPurpose)
			})
			if !errors.Is(err, errOnPurpose) || err.Error() != errOnPurpose.Error() {
				return err
			}
		}
		w.think(w.TTL / 300)
		next := c.Value + 1
		return t.save(g.tx, name, next, func(tx *gorm.DB) error {
			if w.Without == "plugin" {
				tx = tx.Clauses(lockgorm.On(lockgorm.NoLock...))
			}
			return tx.Model(&c).Updates(map[string]any{"value": next, "token": 0}).Error
		})
	})
}

// hooked finds the function in a context that the hook of a record calls.
type hooked struct{}

// AfterUpdate calls that function, if there is one, between the write and the end of the
// transaction, which may be the statement's own.
func (record) AfterUpdate(tx *gorm.DB) error {
	fn, ok := tx.Statement.Context.Value(hooked{}).(func(tx *sql.Tx) error)
	if !ok {
		return nil
	}
	raw, err := rawOf(tx)
	if err != nil {
		return err
	}
	return fn(raw)
}

// gormCondition raises the records that a condition chooses, in a transaction of the statement's
// own or in one of several statements.
func (w *worker) gormCondition() outcome {
	names, own, options := w.some(lockKeys, 1), w.IntN(2) == 0, w.isolation()
	run := func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		raise := func(db *gorm.DB) error {
			db = db.WithContext(context.WithValue(ctx, hooked{}, fn))
			if w.Without == "plugin" {
				db = db.Clauses(lockgorm.On(lockgorm.NoLock...))
			}
			return db.Model(&record{}).Where("name IN ? AND value >= ?", names, 0).Updates(map[string]any{"value": gorm.Expr("value + 1"), "token": 0}).Error
		}
		if own {
			return raise(w.gorm)
		}
		return lockgorm.Transaction(w.gorm.WithContext(ctx), nil, raise, options)
	}
	return w.transact(w.begin("gorm condition", names...), run, func(ctx context.Context, t *transaction) error {
		for _, name := range names {
			value, err := t.value(ctx, name)
			if err == nil {
				err = t.note(ctx, name, value, 0)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// gormVersion loads a record with a version, saves it in a transaction that is rolled
// back in half of the cases, and saves it in another, which is begun again after a
// deadlock. What others have committed meanwhile must be a conflict.
func (w *worker) gormVersion() outcome {
	name := w.one(versionKeys)
	o := w.begin("gorm version", name)
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	db := w.gorm.WithContext(ctx)
	var a article
	err := db.Take(&a, "name = ?", name).Error
	next := a.Value + 1
	update := func(tx *gorm.DB) error {
		if w.Without == "version" {
			tx = tx.Clauses(lockgorm.AnyVersion)
		}
		return tx.Model(&a).Update("value", next).Error
	}
	if err == nil && (w.IntN(2) == 0 || w.Without == "prediction") {
		w.think(w.TTL / 100)
		if err = db.Transaction(func(tx *gorm.DB) error { return errors.Join(update(tx), errOnPurpose) }); err.Error() == errOnPurpose.Error() {
			err = nil
		}
	}
	w.think(w.TTL / 5) // for others, who save it meanwhile
	if err == nil && w.Without == "prediction" {
		// As if the version that was rolled back were that of another's commit.
		err = db.Model(&article{}).Select("version").Where("name = ?", name).Scan(&a.Version).Error
	}
	if err != nil {
		w.journal.write(op{ID: o.ID, Return: w.now(), Outcome: failed, Err: err.Error()})
		return failed
	}
	var g gormed
	run := g.under(func(ctx context.Context, fn func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(w.gorm.WithContext(ctx), nil, fn)
	})
	return w.transact(o, run, func(ctx context.Context, t *transaction) error {
		if err := t.touch(ctx, w.one(spots)); err != nil {
			return err
		}
		if err := t.save(g.tx, name, next, update); err != nil {
			return err
		}
		return t.touch(ctx, w.one(spots))
	})
}

// isDeadlock tells whether the server has said so, whatever the library makes of it.
func isDeadlock(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 1213
}
