package lockgorm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Ledger has keys and an embedded version, and is deleted softly.
type Ledger struct {
	ID int64
	N  int64
	Kept
}

// Kept is what ledgers have in common.
type Kept struct {
	DeletedAt gorm.DeletedAt
	Version   lockgorm.Version
}

var ledgers = txlock.NewFamily[int64]("gorm-ledger")

func (l *Ledger) LockKeys(*gorm.DB) ([]txlock.Key, error) { return ledgers.Keys(l.ID), nil }

func (l *Ledger) AfterUpdate(tx *gorm.DB) error { return hooked(tx, l.ID) }

func init() {
	columns["Ledger"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, deleted_at DATETIME(3), " + versionColumn
}

// commented adds a comment after a clause, as hints do.
type commented struct{ name, text string }

func (c commented) Build(b clause.Builder) { _, _ = b.WriteString(c.text) }

func (c commented) ModifyStatement(stmt *gorm.Statement) {
	added := stmt.Clauses[c.name]
	added.Name, added.AfterExpression = c.name, clause.Expr{SQL: c.text}
	stmt.Clauses[c.name] = added
}

// TestLockedAndVersioned proves that a model may have both: each of its writes is locked
// and compared and raises the version, in every form that GORM has.
func TestLockedAndVersioned(t *testing.T) {
	writes := map[string]func(db *gorm.DB, l *Ledger) error{
		"Update":   func(db *gorm.DB, l *Ledger) error { return db.Model(l).Update("n", 5).Error },
		"Save":     func(db *gorm.DB, l *Ledger) error { l.N = 5; return db.Save(l).Error },
		"a slice":  func(db *gorm.DB, l *Ledger) error { return db.Model([]*Ledger{l}).Update("n", 5).Error },
		"Unscoped": func(db *gorm.DB, l *Ledger) error { return db.Unscoped().Model(l).UpdateColumn("n", 5).Error },
		"an OR in parentheses": func(db *gorm.DB, l *Ledger) error {
			return db.Model(l).Where("(n = 0 OR n = 7)").Update("n", 5).Error
		},
		"conditions": func(db *gorm.DB, l *Ledger) error {
			return db.Model(l).Where("n < ? OR n > ?", 5, 6).Not("n = 3").Where(map[string]any{"n": []int{0, 1}}).Update("n", 5).Error
		},
		"a scope": func(db *gorm.DB, l *Ledger) error {
			return db.Model(l).Scopes(func(tx *gorm.DB) *gorm.DB { return tx.Where("n = 0") }).Update("n", 5).Error
		},
		"Table": func(db *gorm.DB, l *Ledger) error {
			return db.Table("? AS x", clause.Table{Name: db.NamingStrategy.TableName("Ledger")}).Model(l).Where("x.n = 0").Update("n", 5).Error
		},
		"a comment": func(db *gorm.DB, l *Ledger) error {
			return db.Model(l).Clauses(commented{"UPDATE", "/* why */"}, commented{"WHERE", "/* why */"}).Where("n = 0").Update("n", 5).Error
		},
		"a subquery": func(db *gorm.DB, l *Ledger) error {
			return db.Model(l).Where("n <> ALL (?)", db.Session(&gorm.Session{NewDB: true}).Table("lockstep_locks").Select("1").Where("1 = 0").Or("1 = 0")).Update("n", 5).Error
		},
		"a transaction": func(db *gorm.DB, l *Ledger) error {
			return lockgorm.Transaction(db, ledgers.Keys(l.ID), func(tx *gorm.DB) error { return tx.Model(l).Update("n", 5).Error })
		},
		"Optimistic": func(db *gorm.DB, l *Ledger) error {
			return lockgorm.Optimistic(db, ledgers.Key(l.ID), func(tx *gorm.DB) error { return tx.Model(l).Update("n", 5).Error })
		},
		"On": func(db *gorm.DB, l *Ledger) error {
			return db.Clauses(lockgorm.On(ledgers.Key(l.ID))).Model(l).Update("n", 5).Error
		},
		"reused": func(db *gorm.DB, l *Ledger) error {
			chain := db.Model(l)
			if err := chain.Update("n", 4).Error; err != nil {
				return err
			}
			return chain.Update("n", 5).Error
		},
	}
	each(t, []string{"Ledger"}, func(t *testing.T, e *env) {
		for name, configure := range map[string]func(*gorm.Config){
			"default":                      func(*gorm.Config) {},
			"PrepareStmt, CreateBatchSize": func(cfg *gorm.Config) { cfg.PrepareStmt, cfg.CreateBatchSize = true, 2 },
			"FullSaveAssociations":         func(cfg *gorm.Config) { cfg.FullSaveAssociations = true },
			"QueryFields, TranslateError":  func(cfg *gorm.Config) { cfg.QueryFields, cfg.TranslateError = true, true },
		} {
			e.eachDSN(func(interpolate, dsn string) {
				db := e.openDSN(t, dsn, configure)
				noError(t, db.Use(lockgorm.New()))
				many := []*Ledger{{}, {}, {}}
				noError(t, db.Create(&many).Error)
				for way, write := range writes {
					what := fmt.Sprintf("%s, %s, %s", name, interpolate, way)
					l, hooks := &Ledger{}, 0
					noError(t, db.Create(l).Error)
					first, stale := l.Version, *l
					err := write(withHook(db, func(_ *gorm.DB, id int64) error {
						if hooks++; !e.held(t, ledgers.Key(id)) {
							t.Errorf("%s: the hook runs without the lock", what)
						}
						return nil
					}), l)
					if err != nil || l.Version == first || hooks == 0 && way != "Unscoped" {
						t.Errorf("%s: %d hooks, version %d after %d: %v", what, hooks, l.Version, first, err)
					}
					if e.count(t, "Ledger", "id = ? AND n = 5 AND version = ?", l.ID, l.Version) != 1 {
						t.Errorf("%s: the row is not as in memory: %+v", what, *l)
					}
					wantError(t, what+" of an old version", write(db, &stale), txlock.ErrConflict)
					wantError(t, what+", delete of an old version", db.Delete(&stale).Error, txlock.ErrConflict)
					noError(t, db.Delete(l).Error)
					if e.count(t, "Ledger", "id = ? AND deleted_at IS NOT NULL AND version = ?", l.ID, l.Version) != 1 {
						t.Errorf("%s: not deleted softly: %+v", what, *l)
					}
					noError(t, db.Unscoped().Delete(l).Error)
				}
				for _, l := range many {
					if e.count(t, "Ledger", "id = ? AND n = 0 AND version = ?", l.ID, l.Version) != 1 {
						t.Errorf("%s: another's row has changed: %+v", name, *l)
					}
				}
				// Anything else after WHERE is refused, and leaves no trace in the
				// statement.
				for _, text := range []string{"OR 1 = 1", "/*! OR 1 = 1 */", "-- x", "'' OR 1"} {
					if err := db.Model(many[0]).Clauses(commented{"WHERE", text}).Where("n = 0").Update("n", 6).Error; !errors.Is(err, txlock.ErrInvalidKey) {
						t.Errorf("%s: %q behind the conditions: %v", name, text, err)
					}
				}
				_, err := gorm.G[Ledger](db).Where("id = ?", many[0].ID).Update(t.Context(), "n", 6)
				wantError(t, "generics", err, lockgorm.ErrVersion)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				before := many[0].Version
				wantError(t, "a cancelled context", db.WithContext(ctx).Model(many[0]).Update("n", 6).Error, context.Canceled)
				if many[0].Version != before {
					t.Errorf("%s: version %d after %d in vain", name, many[0].Version, before)
				}
				if e.count(t, "Ledger", "n = 6") != 0 {
					t.Errorf("%s: what was refused is written", name)
				}
			})
		}
	})
}
