package lockgorm_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

var halls = txlock.NewFamily[int64]("gorm-hall")

// TestRowsThatMove lets a property move between rows while it is written where it is: each write finds it, once.
func TestRowsThatMove(t *testing.T) {
	each(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		db, b := e.openPlugin(t), newID()*1000
		poolOf(t, db).SetMaxOpenConns(8)
		for i := range int64(4) {
			noError(t, db.Create(&Parcel{ID: b + i, N: 1 - min(i, 1)}).Error)
		}
		var done atomic.Bool
		var movers sync.WaitGroup
		for range 2 {
			movers.Go(func() {
				for i := int64(0); !done.Load(); i++ {
					err := lockgorm.Transaction(db, parcels.Keys(b, b+1, b+2, b+3), func(tx *gorm.DB) error {
						return tx.Exec("UPDATE "+e.names.tables["Parcel"]+" SET n = IF(id = ?, 1, 0)", b+i%4).Error
					})
					testdb.ErrorIf(t, err != nil, "move: %v", err)
				}
			})
		}
		for range testdb.Long(25, 100) {
			got := db.Model(&Parcel{}).Where("n = ?", 1).Update("n", gorm.Expr("n + 0 * id"))
			wantError(t, "a write", got.Error, nil)
			found := 0
			err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
				got := tx.Model(&Parcel{}).Where("n = ?", 1).Update("n", 2)
				if found = int(got.RowsAffected); got.Error != nil {
					return got.Error
				}
				return tx.Model(&Parcel{}).Where("n = ?", 2).Update("n", 1).Error
			})
			testdb.ErrorIf(t, err != nil && !txlock.Retryable(err) || err == nil && found != 1, "%d rows were found, %v", found, err)
		}
		done.Store(true)
		movers.Wait()
	})
}

// TestRowsOfItsOwn: rows which the transaction has inserted itself are found and locked, and the first read needs no second connection.
func TestRowsOfItsOwn(t *testing.T) {
	eachSetting(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		db, b := e.openPlugin(t), newID()*1000
		noError(t, db.Create(&Parcel{ID: b, N: 1}).Error)
		for i, most := range []int{1, 5} {
			poolOf(t, db).SetMaxOpenConns(most)
			n, id := 2*i+1, b+int64(i)+1
			noError(t, db.Model(&Parcel{}).Where("n = ?", n).Update("n", n+1).Error)
			within(t, db, func(tx *gorm.DB) {
				noError(t, tx.Exec(fmt.Sprintf("INSERT INTO %s (id, n) VALUES (?, ?)", e.names.tables["Parcel"]), id, n+1).Error)
				affects(t, fmt.Sprint(most, " connections"), tx.Model(&Parcel{}).Where("n = ?", n+1).Update("n", n+2), int64(i)+2)
				e.wantHeld(t, fmt.Sprint(most, " connections"), parcels.Key(b), parcels.Key(id))
			})
		}
	})
}

// affects fails the test unless a statement has changed so many rows.
func affects(t *testing.T, what string, got *gorm.DB, want int64) {
	t.Helper()
	testdb.ErrorIf(t, got.Error != nil || got.RowsAffected != want, "%s: %d rows, %v, want %d", what, got.RowsAffected, got.Error, want)
}

// always is a hook that never fails.
func always(do func(tx *gorm.DB)) func(tx *gorm.DB, id int64) error {
	return func(tx *gorm.DB, _ int64) error { do(tx); return nil }
}

// TestRowsThatComeLater: a row which is inserted between the locks and the write isn't changed: nobody has locked it.
func TestRowsThatComeLater(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Order{ID: id, N: 1}).Error)
		inserts := always(func(*gorm.DB) {
			e.Exec(t, fmt.Sprintf("INSERT INTO %s (id, n) VALUES (%d, 1)", e.names.tables["Order"], -id))
		})
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			affects(t, "beside one that comes", withHook(tx, inserts).Model(&Order{}).Where("n = ?", 1).Update("n", 2), 1)
			return nil
		}, &sql.TxOptions{Isolation: sql.LevelReadCommitted}))
		e.wantRows(t, "a row was changed that nobody has locked", 1, "Order", "id = ? AND n = 1", -id)
	})
}

// Shown is a model with a filter of reads, which writes don't have.
type Shown struct {
	ID   int64 `lockstep:"shown"`
	N    int64
	Seen visible
}

// visible filters reads, as a type of a program's may.
type visible int64

func (visible) QueryClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{clause.Where{Exprs: []clause.Expression{clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: f.DBName}, Value: 1}}}}
}

// Code has a primary key of text, of which a number finds several.
type Code struct {
	Code string `gorm:"primaryKey;type:varbinary(50)" lockstep:"code-of"`
	N    int64
}

// Couple has a primary key that a serializer writes.
type Couple struct {
	ID []string `gorm:"primaryKey;serializer:json"`
	N  int64
}

func (p *Couple) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	return []txlock.Key{txlock.Named(strings.Join(p.ID, "+"))}, nil
}

// Shifted has a primary key that is written as another number than it is read.
type Shifted struct {
	ID shifted `gorm:"primaryKey"`
	N  int64
}

type shifted int64

func (s shifted) Value() (driver.Value, error) { return int64(s) + 500, nil }

func (s *Shifted) LockKeys(*gorm.DB) ([]txlock.Key, error) { return halls.Keys(int64(s.ID)), nil }

func (c *Code) BeforeUpdate(tx *gorm.DB) error { return hooked(tx, c.N) }

// TestRowsOfOddStatements: nothing but the rows of a statement is changed where GORM, a plugin or the program does something of its own.
func TestRowsOfOddStatements(t *testing.T) {
	eachGuarded(t, []string{"Parcel", "Shown", "Code", "Order", "Couple"}, func(t *testing.T, e *env) {
		db, b := e.openPlugin(t), newID()*1000
		noError(t, db.Create([]*Parcel{{ID: b, N: 1}, {ID: b + 1, N: 1}, {ID: b + 2, N: 2}}).Error)
		var committed int
		noError(t, db.Callback().Update().After("gorm:commit_or_rollback_transaction").Register("test:behind_commit", func(*gorm.DB) {
			committed = e.count(t, "Parcel", "n = 3")
		}))
		before := e.open(t)
		noError(t, before.Callback().Update().Before("gorm:before_update").Register("test:writes", func(db *gorm.DB) {
			if db.Statement.Schema.Name == "Parcel" {
				noError(t, db.Session(&gorm.Session{NewDB: true}).Create(&Order{ID: b + 9}).Error)
			}
		}))
		noError(t, before.Use(lockgorm.New())) // later than the callback
		affects(t, "a callback before the hooks", before.Model(&Parcel{}).Where("n = ?", 2).Update("n", 5), 1)
		e.wantRows(t, "what a callback before the hooks has written is lost", 1, "Order", "id = ?", b+9)
		noError(t, before.Delete(&Order{}, b+9).Error)
		affects(t, "PrepareStmt", db.Session(&gorm.Session{PrepareStmt: true}).Model(&Parcel{}).Where("n = ?", 5).Update("n", 2), 1)
		e.Exec(t, "INSERT INTO "+e.names.tables["Couple"]+` (id, n) VALUES ('["a", "b"]', 1), ('["c","d"]', 2)`)
		wantError(t, "a key that is written otherwise", db.Model(&Couple{}).Where("n = ?", 1).Update("n", 3).Error, txlock.ErrInvalidKey)
		wantError(t, "a number that is written otherwise", db.Table(e.names.tables["Parcel"]).Model(&Shifted{}).Where("n = ?", 1).Update("n", 3).Error, txlock.ErrInvalidKey)
		affects(t, "a key of a serializer", db.Model(&Couple{}).Where("n = ?", 2).Update("n", 3), 1)
		affects(t, "a callback behind COMMIT", db.Model(&Parcel{}).Where("n = ?", 1).Update("n", 3), 2)
		testdb.Equal(t, "rows that a callback behind GORM's COMMIT sees", committed, 2)
		noError(t, db.Callback().Update().Remove("test:behind_commit"))

		noError(t, db.Create([]*Shown{{ID: b, N: 1}, {ID: b + 1, N: 1, Seen: 1}}).Error)
		affects(t, "a filter of reads", db.Model(&Shown{}).Where("n = ?", 1).Update("n", 2), 2)

		noError(t, db.Create([]*Code{{Code: "5", N: 1}, {Code: "6", N: 1}}).Error)
		inserts := always(func(*gorm.DB) { e.Exec(t, "INSERT INTO "+e.names.tables["Code"]+" (code, n) VALUES ('05', 1)") })
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			affects(t, "numbers of text", withHook(tx, inserts).Model(&Code{}).Where(map[string]any{"code": []int{5, 6}}).Update("n", 2), 2)
			return nil
		}, &sql.TxOptions{Isolation: sql.LevelReadCommitted}))

		noError(t, db.Create([]*Order{{ID: b, N: 1}, {ID: b + 1, N: 3}}).Error)
		or := always(func(tx *gorm.DB) {
			tx.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Or(clause.Eq{Column: "n", Value: 3})}})
		})
		wantError(t, "a hook that adds OR", withHook(db, or).Model(&Order{}).Where("n = ?", 1).Update("n", 2).Error, txlock.ErrInvalidKey)

		view := e.names.tables["Parcel"] + "_view"
		e.Exec(t, "CREATE VIEW "+view+" AS SELECT * FROM "+e.names.tables["Parcel"])
		e.Grant(t, view)
		affects(t, "a view", db.Table(view).Model(&Parcel{}).Where("n = ?", 3).Update("n", 4), 2)
		e.Exec(t, "DROP VIEW "+view)

		admin := used(t, e.openDSN(t, e.AdminDSN())) // the program's user may make no tables
		noError(t, admin.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Exec("CREATE TEMPORARY TABLE parcels_of_mine (id BIGINT PRIMARY KEY, n BIGINT)").Error)
			noError(t, tx.Exec("INSERT INTO parcels_of_mine VALUES (?, 1)", b).Error)
			affects(t, "a temporary table", tx.Table("parcels_of_mine").Model(&Parcel{}).Where("n = ?", 1).Update("n", 2), 1)
			return tx.Exec("DROP TEMPORARY TABLE parcels_of_mine").Error
		}))
		affects(t, "no model", db.Model((*Parcel)(nil)).Where("n = ?", 4).Update("n", 5), 2)
		affects(t, "nothing to set", db.Model(&Parcel{}).Where("n = ?", 4).Updates(map[string]any{}), 0)
	})
}

// TestRowsPlans: a write by conditions reads its rows by their primary keys, and so locks no others, in small tables and in large ones.
func TestRowsPlans(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		db, table := e.openPlugin(t), e.names.tables["Parcel"]
		var sent string
		see := func(db *gorm.DB) { sent = db.Explain(db.Statement.SQL.String(), db.Statement.Vars...) }
		noError(t, db.Callback().Update().After("gorm:update").Register("test:see", see))
		noError(t, db.Callback().Delete().After("gorm:delete").Register("test:see", see))
		explain := "EXPLAIN "
		if e.Engine() == testdb.MySQL {
			explain = "EXPLAIN FORMAT=TRADITIONAL "
		}
		filled := 1
		e.Exec(t, "INSERT INTO "+table+" (id, n) VALUES (1, 1)")
		for _, size := range []int{1, 2, 8, 100, 1_000, 10_000} {
			for ; filled < size; filled = min(2*filled, size) {
				e.Exec(t, fmt.Sprintf("INSERT INTO %s (id, n) SELECT id + %d, 1 FROM %s LIMIT %d", table, filled, table, size-filled))
			}
			e.Exec(t, "ANALYZE TABLE "+table)
			for _, rows := range []int{1, 2, 50, 900} {
				if rows > size {
					continue
				}
				for what, write := range map[string]func(tx *gorm.DB) *gorm.DB{
					"UPDATE": func(tx *gorm.DB) *gorm.DB { return tx.Model(&Parcel{}).Update("n", 2) },
					"DELETE": func(tx *gorm.DB) *gorm.DB { return tx.Delete(&Parcel{}) },
				} {
					wantError(t, what, db.Transaction(func(tx *gorm.DB) error {
						affects(t, what, write(tx.Where("n = 1 AND id + 0 <= ?", rows)), int64(rows))
						return errInner
					}), errInner)
					var plan []struct{ Type, Key string }
					noError(t, e.open(t).Raw(explain+sent).Scan(&plan).Error)
					testdb.ErrorIf(t, (what == "UPDATE" || 2*rows < size) && (len(plan) != 1 || plan[0].Type != "range" || plan[0].Key != "PRIMARY"),
						"%s of %d rows of %d: %+v", what, rows, size, plan)
				}
			}
		}
	})
}

// TestRowsOfSubqueries: a subquery selects rows by itself, and is refused in a transaction of the program, whose snapshot may be old.
func TestRowsOfSubqueries(t *testing.T) {
	eachSetting(t, []string{"Parcel", "Note"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		notes := e.names.tables["Note"]
		for what, write := range map[string]func(db *gorm.DB, b int64) *gorm.DB{
			"IN": func(db *gorm.DB, b int64) *gorm.DB {
				return db.Model(&Parcel{}).Where("id IN (?)", db.Model(&Note{}).Select("n").Where("n <= ?", b+2)).Update("n", 9)
			},
			"EXISTS": func(db *gorm.DB, _ int64) *gorm.DB {
				return db.Where("n < 5 AND EXISTS (SELECT 1 FROM " + notes + " AS o WHERE o.n = " + e.names.tables["Parcel"] + ".id)").Delete(&Parcel{})
			},
			"compared": func(db *gorm.DB, _ int64) *gorm.DB {
				return db.Model(&Parcel{}).Where("id <= (SELECT MAX(n) FROM "+notes+")").Update("n", 9)
			},
		} {
			b := newID() * 1000
			e.Exec(t, "DELETE FROM "+notes)
			e.Exec(t, "DELETE FROM "+e.names.tables["Parcel"])
			noError(t, db.Create([]*Note{{N: b + 1}, {N: b + 2}}).Error)
			for i := range int64(4) {
				noError(t, db.Create(&Parcel{ID: b + i + 1, N: 1}).Error)
			}
			wantError(t, what+" in a transaction", db.Transaction(func(tx *gorm.DB) error { return write(tx, b).Error }), txlock.ErrInvalidKey)
			e.wantRows(t, what+": refused, and rows are left", 4, "Parcel", "n = 1")
			affects(t, what, write(db, b), 2)
			e.wantRows(t, what, 2, "Parcel", "n = 1 AND id > ?", b+2)
		}
	}))
}

// Tenant is a model whose key is that of its hall, which it has from a hook of its reads.
type Tenant struct {
	ID        int64
	N         int64
	Hall      int64 `gorm:"-"`
	UpdatedAt int64 `gorm:"autoUpdateTime:milli"`
}

func (r *Tenant) AfterFind(*gorm.DB) error { r.Hall = r.ID / 10; return nil }

func (r *Tenant) LockKeys(*gorm.DB) ([]txlock.Key, error) { return halls.Keys(r.Hall), nil }

// Loose has no primary key.
type Loose struct{ N int64 }

func (*Loose) LockKeys(*gorm.DB) ([]txlock.Key, error) { return halls.Keys(1), nil }

// TestRowsAndHooks: hooks see the models and the rows as they do without the plugin, and what they add to a statement counts, or is refused, as
// is a write of more rows than may be locked.
func TestRowsAndHooks(t *testing.T) {
	eachSetting(t, []string{"Order", "Tenant", "Loose", "Carton"}, func(t *testing.T, e *env) {
		db, b := e.openPlugin(t, lockgorm.AtMostRows(2)), newID()*1000
		noError(t, db.Create([]*Order{{ID: b, N: 1}, {ID: b + 1, N: 1}, {ID: b + 2}}).Error)
		wantError(t, "three rows, where two may be locked", db.Model(&Order{}).Where("n >= 0").Update("n", 9).Error, txlock.ErrInvalidKey)
		e.wantRows(t, "rows were written", 0, "Order", "n = 9")
		affects(t, "two rows", db.Model(&Order{}).Where("n >= 0").Order("n DESC").Limit(2).Update("n", 3), 2)
		wantError(t, "AfterFind", db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Clauses(lockgorm.On(lockgorm.NoLock...)).Create(&Tenant{ID: b, N: 1}).Error)
			affects(t, "only the time", tx.Model(&Tenant{}).Where("n = 1").Updates(map[string]any{}), 1)
			e.wantHeld(t, "the hall of AfterFind", halls.Key(b/10))
			return errInner
		}), errInner)
		wantError(t, "no primary key", db.Model(&Loose{}).Where("n = 1").Update("n", 2).Error, txlock.ErrInvalidKey)

		changed := 0
		seen := always(func(tx *gorm.DB) {
			if tx.Statement.Changed("N") {
				changed++
			}
		})
		sets := always(func(tx *gorm.DB) { tx.Statement.SetColumn("n", 7) })
		narrows := always(func(tx *gorm.DB) {
			tx.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Eq{Column: "id", Value: b + 1}}})
		})
		where := func(tx *gorm.DB) *gorm.DB { return tx.Model(&Order{}).Where("n >= ?", 1) }
		affects(t, "a change is seen", where(withHook(db, seen)).Update("n", int64(5)), 2)
		e.wantRows(t, "a change is seen", 2, "Order", "n = 5")
		affects(t, "a hook sets", where(withHook(db, sets)).Updates(map[string]any{}), 2)
		e.wantRows(t, "a hook sets", 2, "Order", "n = 7")
		affects(t, "a hook narrows", where(withHook(db, narrows)).Update("n", 9), 1)
		e.wantRows(t, "a hook narrows", 1, "Order", "n = 9")
		testdb.Equal(t, "changes that a hook has seen", changed, 1)
		another := func(tx *gorm.DB) {
			tx.Statement.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Builder: tx.Statement.Clauses["WHERE"].Builder, Expression: clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "n >= ?", Vars: []any{0}}}}}
		}
		for what, hook := range map[string]func(tx *gorm.DB){
			"another order": func(tx *gorm.DB) {
				tx.Statement.AddClause(clause.OrderBy{Columns: []clause.OrderByColumn{{Column: clause.Column{Name: "id"}, Desc: true}}})
			},
			"another limit": func(tx *gorm.DB) { two := 2; tx.Statement.AddClause(clause.Limit{Limit: &two}) },
			"another value": another,
		} {
			wantError(t, what+" by a hook", where(withHook(db, always(hook))).Order("id").Limit(1).Update("n", 3).Error, txlock.ErrInvalidKey)
		}
		unscoped := always(func(tx *gorm.DB) { tx.Statement.Unscoped = true })
		noError(t, db.Create([]*Carton{{ID: b, Code: "one"}, {ID: b + 1, Code: "two"}}).Error)
		byID := func(tx *gorm.DB) *gorm.DB { return tx.Model(&Carton{}).Where("id IN ?", []int64{b, b + 1}) }
		affects(t, "a hook narrows identifiers", byID(withHook(db, narrows)).Limit(1).Update("n", 2), 1)
		wantError(t, "another condition than identifiers by a hook", byID(withHook(db, always(another))).Update("n", 3).Error, txlock.ErrInvalidKey)
		wantError(t, "Unscoped by a hook", withHook(db, unscoped).Model(&Carton{}).Where("n = 0").Update("n", 1).Error, txlock.ErrInvalidKey)
		wantError(t, "the only condition by a hook", withHook(db, narrows).Model(&Carton{}).Update("n", 9).Error, txlock.ErrInvalidKey)
		err := withHook(db, narrows).Session(&gorm.Session{SkipHooks: true}).Model(&Carton{}).Update("n", 9).Error
		testdb.ErrorIf(t, !errors.Is(err, gorm.ErrMissingWhereClause) || errors.Is(err, txlock.ErrInvalidKey), "no condition, and no hooks: %v", err)
		wantError(t, "a hook narrows below LIMIT", where(withHook(db, narrows)).Order("id").Limit(1).Update("n", 3).Error, txlock.ErrInvalidKey)
	})
}

// TestRowsBesideDDL: the first read, on another connection, doesn't wait for an ALTER TABLE that waits for the transaction itself.
func TestRowsBesideDDL(t *testing.T) {
	each(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		db, id, table := e.openPlugin(t), newID(), e.names.tables["Parcel"]
		noError(t, db.Create(&Parcel{ID: id, N: 1}).Error)
		altered := make(chan struct{})
		within(t, db, func(tx *gorm.DB) {
			noError(t, tx.Model(&Parcel{ID: id}).Update("n", 2).Error)
			go func() {
				defer close(altered)
				_, err := e.Admin().ExecContext(t.Context(), "ALTER TABLE "+table+" ADD COLUMN more INT")
				testdb.ErrorIf(t, err != nil, "ALTER TABLE: %v", err)
			}()
			for waits := 0; waits == 0; testdb.Refresh() {
				noError(t, e.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+e.Engine().Processes()+" WHERE info LIKE 'ALTER TABLE "+table+"%'").Scan(&waits))
			}
			affects(t, "beside an ALTER TABLE", tx.Model(&Parcel{}).Where("n = ?", 2).Update("n", 3), 1)
		})
		<-altered
	})
}
