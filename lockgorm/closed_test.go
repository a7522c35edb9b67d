package lockgorm_test

import (
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"

	driver "github.com/go-sql-driver/mysql"
)

// TestUnknownRecords are writes of a Locker that don't say by a primary key which
// records they change. None may be sent, unless On names the keys.
func TestUnknownRecords(t *testing.T) {
	writes := map[string]func(db *gorm.DB) error{
		"Delete by id":      func(db *gorm.DB) error { return db.Delete(&Order{}, 42).Error },
		"Delete by where":   func(db *gorm.DB) error { return db.Where("id = 42").Delete(&Order{}).Error },
		"Delete, no record": func(db *gorm.DB) error { return db.Where("id = 42").Delete(&[]Order{}).Error },
		"Update by where":   func(db *gorm.DB) error { return db.Model(&Order{}).Where("id = 42").Update("n", 1).Error },
		"Update, no record": func(db *gorm.DB) error { return db.Model(&[]Order{}).Where("id = 42").Update("n", 1).Error },
		"Updates by where":  func(db *gorm.DB) error { return db.Where("id = 42").Updates(&Order{N: 1}).Error },
		"UpdateColumn":      func(db *gorm.DB) error { return db.Model(&Order{}).Where("id = 42").UpdateColumn("n", 1).Error },
		"all of them": func(db *gorm.DB) error {
			return db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&Order{}).Update("n", 1).Error
		},
		"one without id": func(db *gorm.DB) error {
			return db.Model([]Order{{ID: 41}, {}}).Where("id > 40").Update("n", 1).Error
		},
		"id or else": func(db *gorm.DB) error {
			return db.Model(&Order{ID: 41}).Where("n = 7").Or("id = 42").Update("n", 1).Error
		},
		"Or alone":        func(db *gorm.DB) error { return db.Model(&Order{ID: 41}).Or("id = 42").Update("n", 1).Error },
		"Delete, or else": func(db *gorm.DB) error { return db.Where("n = 7").Or("id = 42").Delete(&Order{ID: 41}).Error },
		"OR on a line of its own": func(db *gorm.DB) error {
			return db.Where("n = 7\n\tOR\tid = 42").Delete(&Order{ID: 41}).Error
		},
		"||": func(db *gorm.DB) error { return db.Where("n = 7 || id = 42").Delete(&Order{ID: 41}).Error },
		"XOR, named": func(db *gorm.DB) error {
			return db.Where("n = @n XOR id = 42", map[string]any{"n": 7}).Delete(&Order{ID: 41}).Error
		},
		"NOT, and OR on a line of its own": func(db *gorm.DB) error {
			return db.Model(&Order{ID: 41}).Not("id = 9\nOR\nid = 42").Update("n", 1).Error
		},
		"an expression as an argument": func(db *gorm.DB) error {
			return db.Model(&Order{ID: 41}).Where("?", gorm.Expr("id = 1 OR id = 42")).Update("n", 1).Error
		},
		"an expression as a value": func(db *gorm.DB) error {
			return db.Model(&Order{ID: 41}).Where(map[string]any{"n": gorm.Expr("1 OR id = 42")}).Update("n", 1).Error
		},
		"OR in a comment that some execute": func(db *gorm.DB) error {
			return db.Model(&Order{ID: 41}).Where("n = 1 /*!OR*/ id = 42").Update("n", 1).Error
		},
		"a comment to the end": func(db *gorm.DB) error { return db.Model(&Order{ID: 41}).Where("id = 42 -- ").Update("n", 1).Error },
		"out of the parentheses": func(db *gorm.DB) error {
			return db.Model(&Order{ID: 41}).Where("n = 1) OR (id = 42").Update("n", 1).Error
		},
		"another table": func(db *gorm.DB) error {
			return db.Table("? AS a, ? AS b", clause.Table{Name: db.NamingStrategy.TableName("Order")}, clause.Table{Name: db.NamingStrategy.TableName("Order")}).
				Model(&Order{ID: 41}).Where("b.id = 42").Update("b.n", 1).Error
		},
		"another key":      func(db *gorm.DB) error { return db.Model(&Order{ID: 42}).Update("id", 43).Error },
		"a map with Model": func(db *gorm.DB) error { return db.Model(&Order{}).Create(map[string]any{"id": 43}).Error },
		"maps with Model":  func(db *gorm.DB) error { return db.Model(&Order{}).Create([]map[string]any{{"id": 44}}).Error },
	}
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		noError(t, db.Create(&Order{ID: 42}).Error)
		for what, write := range writes {
			wantError(t, what, write(db), txlock.ErrInvalidKey)
			wantError(t, what+" in a Transaction", db.Transaction(write), txlock.ErrInvalidKey)
			if e.count(t, "Order", "id = 42 AND n = 0") != 1 || e.count(t, "Order", "id <> 42") != 0 {
				t.Fatalf("%s: it was written", what)
			}
		}
		for what, write := range writes {
			switch what {
			case "maps with Model", "a comment to the end", "another table":
				continue // GORM itself can't read what MariaDB returns for maps, and writes no SQL of the others
			}
			key := e.ensured(t)
			err := db.Transaction(func(tx *gorm.DB) error {
				if err := write(tx.Clauses(lockgorm.On(key)).Session(&gorm.Session{})); err != nil {
					return err
				}
				if e.free(t, key) {
					t.Errorf("%s: the key of On is free", what)
				}
				return errInner
			})
			wantError(t, what+" with On", err, errInner)
		}
	})
}

// TestUnknownRecordsGenerics is the same by gorm.G, which takes On as an option.
func TestUnknownRecordsGenerics(t *testing.T) {
	each(t, []string{"Draft"}, func(t *testing.T, e *env) {
		db, key := e.openPlugin(t), e.ensured(t)
		noError(t, db.Create(&Draft{ID: 42}).Error)
		_, err := gorm.G[Draft](db).Where("id = 42").Update(t.Context(), "n", 1)
		wantError(t, "Update", err, txlock.ErrInvalidKey)
		_, err = gorm.G[Draft](db).Where("id = 42").Delete(t.Context())
		wantError(t, "Delete", err, txlock.ErrInvalidKey)
		if e.count(t, "Draft", "id = 42 AND n = 0 AND deleted_at IS NULL") != 1 {
			t.Error("it was written")
		}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			_, err := gorm.G[Draft](tx, lockgorm.On(key)).Where("id = 42").Update(t.Context(), "n", 1)
			if e.free(t, key) {
				t.Error("the key of On is free")
			}
			return err
		}))
		if e.count(t, "Draft", "id = 42 AND n = 1") != 1 {
			t.Error("it was not written")
		}
	})
}

// TestTables are writes to a registered table that name no keys.
func TestTables(t *testing.T) {
	writes := map[string]func(db *gorm.DB, table string) error{
		"Table.Updates": func(db *gorm.DB, table string) error {
			return db.Table(table).Where("id = 1").Updates(map[string]any{"n": 1}).Error
		},
		"Table.Update": func(db *gorm.DB, table string) error { return db.Table(table).Where("id = 1").Update("n", 1).Error },
		"Table.Create": func(db *gorm.DB, table string) error { return db.Table(table).Create(map[string]any{"id": 2}).Error },
		"Table.Delete": func(db *gorm.DB, table string) error { return db.Table(table).Where("id = 1").Delete(&Draft{}).Error },
		"alias": func(db *gorm.DB, table string) error {
			return db.Table(table + " AS x").Where("x.id = 1").Updates(map[string]any{"n": 1}).Error
		},
		"short alias": func(db *gorm.DB, table string) error {
			return db.Table(table + " x").Where("x.id = 1").Updates(map[string]any{"n": 1}).Error
		},
		"quoted table": func(db *gorm.DB, table string) error {
			return db.Table("`" + table + "`").Where("id = 1").Updates(map[string]any{"n": 1}).Error
		},
		"argument": func(db *gorm.DB, table string) error {
			return db.Table("?", clause.Table{Name: table}).Where("id = 1").Updates(map[string]any{"n": 1}).Error
		},
		"a model": func(db *gorm.DB, _ string) error { return db.Model(&Note{ID: 1}).Update("n", 1).Error },
		"Exec":    func(db *gorm.DB, table string) error { return db.Exec("UPDATE " + table + " SET n = 1").Error },
		"Exec, args": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE "+table+" SET n = @n", map[string]any{"n": 1}).Error
		},
		"Exec, quoted": func(db *gorm.DB, table string) error { return db.Exec("DELETE FROM `" + table + "`").Error },
		"Exec, comment": func(db *gorm.DB, table string) error {
			return db.Exec("/* SELECT */ UPDATE/**/" + table + " SET n = 1").Error
		},
		"Exec, WITH": func(db *gorm.DB, table string) error {
			return db.Exec("WITH a AS (SELECT 1) UPDATE " + table + " SET n = 1").Error
		},
		"capitals": func(db *gorm.DB, table string) error {
			return db.Exec("update " + strings.ToUpper(table) + " set n = 1").Error
		},
		"Table, capitals": func(db *gorm.DB, table string) error {
			return db.Table(strings.ToUpper(table)).Where("id = 1").Update("n", 1).Error
		},
		"Exec, two": func(db *gorm.DB, table string) error {
			return db.Exec("SELECT 1; UPDATE " + table + " SET n = 1").Error
		},
		"Exec, another": func(db *gorm.DB, table string) error { return db.Exec("UPDATE other, " + table + " SET n = 1").Error },
		"Exec, INSERT SELECT": func(db *gorm.DB, table string) error {
			return db.Exec("INSERT INTO " + table + " (n) SELECT 1").Error
		},
		"Exec, TRUNCATE": func(db *gorm.DB, table string) error { return db.Exec("TRUNCATE TABLE " + table).Error },
		"Exec, DROP PARTITION": func(db *gorm.DB, table string) error {
			return db.Exec("ALTER TABLE " + table + " DROP PARTITION p").Error
		},
		"Exec, made anew": func(db *gorm.DB, table string) error {
			return db.Exec("CREATE OR REPLACE TABLE " + table + " (id INT)").Error
		},
		"Exec, DELETE of several": func(db *gorm.DB, table string) error {
			return db.Exec("DELETE other, a FROM other JOIN " + table + " AS a").Error
		},
		"Exec, DELETE USING": func(db *gorm.DB, table string) error {
			return db.Exec("DELETE FROM a USING other JOIN " + table + " AS a").Error
		},
		"Exec, a comment that some execute": func(db *gorm.DB, table string) error {
			return db.Exec("/*!99999 SELECT */ UPDATE " + table + " SET n = 1").Error
		},
		"Exec, SET in such a comment": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other /*!99999 SET */, " + table + " SET n = 1").Error
		},
		"Raw.Scan": func(db *gorm.DB, table string) error {
			return db.Raw("UPDATE " + table + " SET n = 1").Scan(new(int)).Error
		},
		"Raw.Find": func(db *gorm.DB, table string) error { return db.Raw("DELETE FROM " + table).Find(&[]Note{}).Error },
		"Raw.Row": func(db *gorm.DB, table string) error {
			return db.Raw("UPDATE " + table + " SET n = 1").Row().Scan(new(int))
		},
		"Raw.Rows": func(db *gorm.DB, table string) error { return drained(db.Raw("UPDATE " + table + " SET n = 1").Rows()) },
	}
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		e.names.tables["Draft"] = e.names.tables["Note"]
		table, other := e.names.tables["Note"], e.CreateTable(t, "other", columns["Note"])
		dsn := e.DSN(func(cfg *driver.Config) { cfg.MultiStatements = true })
		for name, configure := range map[string]func(*gorm.Config){
			"default":     func(*gorm.Config) {},
			"PrepareStmt": func(cfg *gorm.Config) { cfg.PrepareStmt = true },
		} {
			db := e.openDSN(t, dsn, configure)
			noError(t, db.Exec("INSERT INTO "+table+" (id) VALUES (1)").Error)
			noError(t, db.Use(lockgorm.New(lockgorm.Tables("another", strings.ToUpper(table)))))
			for what, write := range writes {
				refused := func(where string, db *gorm.DB) {
					wantError(t, name+", "+what+", "+where, write(db, table), txlock.ErrInvalidKey)
					if what == "quoted table" || what == "Exec, quoted" {
						return
					}
					wantError(t, name+", "+what+", qualified, "+where, write(db, e.Name()+"."+table), txlock.ErrInvalidKey)
				}
				refused("outside", db)
				noError(t, db.Transaction(func(tx *gorm.DB) error { refused("inside", tx); return nil }))
				noError(t, db.Connection(func(tx *gorm.DB) error { refused("on a connection", tx.Session(&gorm.Session{})); return nil }))
				if e.count(t, "Note", "id = 1 AND n = 0") != 1 || e.count(t, "Note", "id <> 1") != 0 {
					t.Fatalf("%s, %s: it was written", name, what)
				}
			}
			for what, read := range map[string]string{
				"SELECT": "SELECT id FROM " + table, "parentheses": "(SELECT id FROM " + table + ")",
				"SHOW": "SHOW COLUMNS FROM " + table, "EXPLAIN": "EXPLAIN SELECT id FROM " + table,
				"comment": "-- UPDATE\nSELECT id FROM " + table, "text": "SELECT 'UPDATE " + table + "'",
				"WITH": "WITH a AS (SELECT id FROM " + table + " FOR UPDATE) SELECT id FROM a",
				"two":  "SELECT id FROM " + table + "; SELECT id FROM " + table,
			} {
				if what == "two" && name == "PrepareStmt" {
					continue // the server prepares one statement only
				}
				if err := db.Raw(read).Scan(&[]map[string]any{}).Error; err != nil {
					t.Errorf("%s, %s: a read was refused: %v", name, what, err)
				}
			}
			noError(t, db.Table(table).Find(&[]map[string]any{}).Error)
			for what, text := range map[string]string{
				"INSERT SELECT": "INSERT INTO " + other + " (n) SELECT n FROM " + table, "parentheses": "INSERT INTO " + other + " (n) (SELECT n FROM x)",
				"REPLACE SELECT": "REPLACE INTO " + other + " (id, n) SELECT id, n FROM " + table,
				"ON DUPLICATE":   "INSERT INTO " + other + " (id, n) SELECT id, n FROM " + table + " WHERE id = 1 ON DUPLICATE KEY UPDATE n = 5",
				"UPDATE":         "UPDATE " + other + " SET n = (SELECT MAX(id) FROM " + table + ")",
				"DELETE":         "DELETE FROM " + other + " WHERE id IN (SELECT id FROM " + table + ")",
			} {
				text = strings.ReplaceAll(text, " x)", " "+other+")")
				if err := db.Exec(text).Error; err != nil {
					t.Errorf("%s, %s: what only reads the table was refused: %v", name, what, err)
				}
			}
			noError(t, db.Exec("DO 'UPDATE "+table+"'").Error)
			key := e.ensured(t)
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				noError(t, tx.Clauses(lockgorm.On(key)).Exec("UPDATE "+table+" SET n = 1").Error)
				if e.free(t, key) {
					t.Error("the key of On is free")
				}
				return tx.Table(table).Clauses(lockgorm.On(lockgorm.NoLock...)).Where("id = 1").Updates(map[string]any{"n": 0}).Error
			}))
			noError(t, db.Clauses(lockgorm.On(key)).Delete(&Note{ID: 1}).Error)
		}
	})
}

// TestTablesMigrate: the definition of a registered table may change.
func TestTablesMigrate(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		table := e.CreateTable(t, "plans", "id BIGINT PRIMARY KEY")
		e.names.tables["Plan"], e.names.tables["Wide"] = table, table
		db := e.openDSN(t, e.AdminDSN())
		noError(t, db.Use(lockgorm.New(lockgorm.Tables(table))))
		noError(t, db.AutoMigrate(&Plan{}))
		noError(t, db.AutoMigrate(&Wide{}))
		noError(t, db.Migrator().DropColumn(&Wide{}, "Text"))
		noError(t, db.Migrator().DropTable(&Plan{}))
		noError(t, db.AutoMigrate(&Plan{}))
		wantError(t, "a row", db.Exec("INSERT INTO "+table+" (id) VALUES (1)").Error, txlock.ErrInvalidKey)
	})
}

// Wide has more columns than Plan.
type Wide struct {
	Plan
	Text string `gorm:"index;size:20"`
}

// TestExplainAnalyze: MySQL executes what it analyzes.
func TestExplainAnalyze(t *testing.T) {
	t.Parallel()
	onEngines(t, []string{"Note"}, true, func(t *testing.T, e *env) {
		table := e.names.tables["Note"]
		db := e.openPlugin(t, lockgorm.Tables(table))
		analyze := map[testdb.Engine]string{testdb.MariaDB: "ANALYZE ", testdb.MySQL: "EXPLAIN ANALYZE "}[e.Engine()]
		noError(t, db.Clauses(lockgorm.On(newKey())).Create(&Note{ID: 1}).Error)
		err := db.Raw(analyze + "UPDATE " + table + " a JOIN " + table + " b ON a.id = b.id SET a.n = 1").Scan(&[]map[string]any{}).Error
		if e.count(t, "Note", "n = 0") != 1 {
			t.Errorf("a table that is registered was written: %v", err)
		}
	})
}

func TestSkipDefaultTransaction(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.open(t, func(cfg *gorm.Config) { cfg.SkipDefaultTransaction = true })
		noError(t, db.Use(lockgorm.New()))
		id := newID()
		wantError(t, "Create", db.Create(&Order{ID: id}).Error, txlock.ErrNoTransaction)
		wantError(t, "Update", db.Model(&Order{ID: id}).Update("n", 1).Error, txlock.ErrNoTransaction)
		wantError(t, "Delete", db.Delete(&Order{ID: id}).Error, txlock.ErrNoTransaction)
		wantError(t, "Save", db.Save(&Order{ID: id}).Error, txlock.ErrNoTransaction)
		wantError(t, "CreateInBatches", db.CreateInBatches([]Order{{ID: id}}, 1).Error, txlock.ErrNoTransaction)
		if e.count(t, "Order", "1 = 1") != 0 {
			t.Error("a row was written without a lock")
		}
		noError(t, db.Create(&Order{}).Error) // NoLock needs no transaction
		noError(t, db.Transaction(func(tx *gorm.DB) error { return tx.Create(&Order{ID: id}).Error }))
		if e.count(t, "Order", "id = ?", id) != 1 {
			t.Error("the row of the transaction is missing")
		}
	})
}
