package lockgorm_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

const (
	workers = 4
	rounds  = 5
)

// together runs fn in several goroutines and returns their errors.
func together(n int, fn func(worker int) error) error {
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() { errs[i] = fn(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// manyTimes calls fn in turn in several goroutines.
func manyTimes(fn func() error) error {
	return together(workers, func(int) error {
		for range rounds {
			if err := fn(); err != nil {
				return err
			}
		}
		return nil
	})
}

// increment updates an order. Its hook reads note 1 and writes it back, raised by one.
// Only a lock taken before the hook keeps two of them apart.
func increment(db *gorm.DB, order int64) error {
	return withHook(db, func(tx *gorm.DB, _ int64) error {
		var note Note
		if err := tx.First(&note, 1).Error; err != nil {
			return err
		}
		return tx.Model(&note).Update("n", note.N+1).Error
	}).Model(&Order{ID: order}).Update("name", "x").Error
}

// TestNoUpdateIsLost reads and writes back under a lock that the plugin takes before the hooks, that
// On takes with the read, and that Transaction takes first, on new keys.
func TestNoUpdateIsLost(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Note{ID: 1}).Error)
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, manyTimes(func() error { return increment(db, id) }))
		raise := func(read, tx *gorm.DB) error {
			var order Order
			if err := read.First(&order, id).Error; err != nil {
				return err
			}
			return tx.Model(&order).Update("n", order.N+1).Error
		}
		noError(t, manyTimes(func() error {
			return db.Transaction(func(tx *gorm.DB) error { return raise(tx.Clauses(lockgorm.On(orders.Key(id))), tx) })
		}))
		noError(t, manyTimes(func() error {
			return lockgorm.Transaction(db, []txlock.Key{orders.Key(id), items.Key(id)}, func(tx *gorm.DB) error { return raise(tx, tx) })
		}))
		e.wantRows(t, "an update was lost", 1, "Note", "n = ?", workers*rounds)
		e.wantRows(t, "an update was lost", 1, "Order", "id = ? AND n = ?", id, 2*workers*rounds)
	})
}

// Barrel stands on a shelf, which has an index.
type Barrel struct {
	ID    int64 `lockstep:"barrel"`
	Shelf int64
	N     int64
}

// TestRowsBesideEverything writes by conditions, by primary keys and by Save, then also moves rows
// by SQL between the shelves that the conditions name, at each level and on guarded and plain pools:
// nothing is lost, and no write fails that has a transaction of its own or takes its locks first,
// unless reads lock.
// Without moves there is no deadlock; with them a few, after which the write begins again. Last,
// transactions of the program write by two conditions, and so take locks late: they may deadlock
// with each other and with any write.
func TestRowsBesideEverything(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			server := testdb.Dedicated(t, engine) // whose deadlocks are those of this test
			for i, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
				for _, guarded := range []bool{true, false} {
					if testdb.Meet(i, guarded) {
						besideEverything(t, &env{DB: server.OpenNamed(t), guarded: guarded, names: names{tables: map[string]string{}}}, level)
					}
				}
			}
		})
	}
}

func besideEverything(t *testing.T, e *env, level sql.IsolationLevel) {
	what := fmt.Sprintf("guarded=%t, %v", e.guarded, level)
	table := e.CreateTable(t, "Barrel", "id BIGINT PRIMARY KEY, shelf BIGINT NOT NULL, n BIGINT NOT NULL DEFAULT 0, KEY by_shelf (shelf)")
	e.names.tables["Barrel"] = table
	db := e.openPlugin(t)
	poolOf(t, db).SetMaxOpenConns(24)
	barrels, options := txlock.NewFamily[int64]("barrel"), &sql.TxOptions{Isolation: level}
	const rows, shelves, workers, moves = 24, 4, 10, 4
	rounds := testdb.Long(6, 50)
	for id := range int64(rows) {
		noError(t, db.Create(&Barrel{ID: id + 1, Shelf: id % shelves}).Error)
	}
	var added, again atomic.Int64
	late := false
	// Where reads lock, or others lock late, all ten tries of a transaction may deadlock.
	transaction := func(id int64, fn func(tx *gorm.DB) error) error {
		added.Add(1)
		for {
			err := lockgorm.Transaction(db, barrels.Keys(id), fn, options)
			if !late && level != sql.LevelSerializable || !txlock.Retryable(err) {
				return err
			}
		}
	}
	more := clause.Expr{SQL: "n + 1"}
	writes := []func(id, shelf int64) error{
		func(_, shelf int64) error { // rows that a condition selects by an index
			got := db.Model(&Barrel{}).Where("shelf = ?", shelf).Update("n", more)
			added.Add(got.RowsAffected)
			return got.Error
		},
		func(id, _ int64) error { // and without one
			got := db.Model(&Barrel{}).Where("id + 0 IN ?", []int64{id, id%rows + 1}).Update("n", more)
			if added.Add(got.RowsAffected); got.Error == nil && got.RowsAffected != 2 {
				t.Errorf("%s: %d rows of two", what, got.RowsAffected)
			}
			return got.Error
		},
		func(id, _ int64) error {
			got := db.Model(&Barrel{}).Where("id = ?", id).Update("n", more)
			added.Add(got.RowsAffected)
			return got.Error
		},
		func(id, _ int64) error {
			return transaction(id, func(tx *gorm.DB) error {
				var c Barrel
				if err := tx.Take(&c, id).Error; err != nil {
					return err
				}
				c.N++
				return tx.Save(&c).Error
			})
		},
		moves: func(id, shelf int64) error { // moves a row, by SQL under a lock of the program's
			return transaction(id, func(tx *gorm.DB) error {
				return tx.Exec("UPDATE "+table+" SET shelf = ?, n = n + 1 WHERE id = ?", shelf, id).Error
			})
		},
	}
	all := func(writes []func(id, shelf int64) error) {
		noError(t, together(workers, func(w int) (all error) {
			for i := range rounds {
				err := writes[(w+i)%len(writes)](int64(w*7+i*5)%rows+1, int64(w+i*3)%shelves)
				if err != nil && (!late || !txlock.Retryable(err)) {
					all = errors.Join(all, fmt.Errorf("%s, write %d: %w", what, (w+i)%len(writes), err))
				}
			}
			return all
		}))
		var sum int64
		noError(t, e.Admin().QueryRowContext(context.Background(), "SELECT SUM(n) FROM "+table).Scan(&sum))
		equal(t, what+": the rows, of what was added", sum, added.Load())
	}
	before := e.deadlocks(t)
	all(writes[:moves])
	still := e.deadlocks(t) - before
	if still > 0 && level != sql.LevelSerializable { // where reads lock
		t.Errorf("%s: %d deadlocks where no row moves", what, still)
	}
	all(writes)
	moving := e.deadlocks(t) - before - still
	late = true
	all(append(writes, func(_, shelf int64) error { // two shelves in one transaction, whose second locks are late
		for {
			var changed int64
			err := db.Transaction(func(tx *gorm.DB) error {
				changed = 0
				for _, at := range []int64{shelf, (shelf + 1) % shelves} {
					got := tx.Model(&Barrel{}).Where("shelf = ?", at).Update("n", more)
					changed += got.RowsAffected
					if got.Error != nil {
						return got.Error
					}
				}
				return nil
			}, options)
			if !txlock.Retryable(err) {
				added.Add(changed)
				return err
			}
			again.Add(1)
		}
	}))
	t.Logf("%s: deadlocks of %d writes each: %d where no row moves, %d where rows move, %d beside transactions of two conditions, which began again %d times",
		what, workers*rounds, still, moving, e.deadlocks(t)-before-still-moving, again.Load())
}

// deadlocks returns how many the server has seen.
func (e *env) deadlocks(t *testing.T) (n int64) {
	t.Helper()
	query := "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'INNODB_DEADLOCKS'"
	if e.Engine() == testdb.MySQL {
		query = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
	}
	noError(t, e.Admin().QueryRowContext(context.Background(), query).Scan(&n))
	return n
}
