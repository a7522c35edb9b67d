package lockgorm_test

import (
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestTables sends writes to a registered table that name no keys.
func TestTables(t *testing.T) {
	writes := map[string]func(db *gorm.DB, table string) error{
		"Table.Updates": func(db *gorm.DB, table string) error {
			return db.Table(table).Where("id = 1").Updates(map[string]any{"n": 1}).Error
		},
		"Table.Update": func(db *gorm.DB, table string) error { return db.Table(table).Where("id = 1").Update("n", 1).Error },
		"Table.Create": func(db *gorm.DB, table string) error { return db.Table(table).Create(map[string]any{"id": 2}).Error },
		"Table.Delete": func(db *gorm.DB, table string) error { return db.Table(table).Where("id = 1").Delete(&Note{}).Error },
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
		"another's model": func(db *gorm.DB, table string) error { return db.Table(table).Model(&Item{ID: 1}).Update("n", 1).Error },
		"another's model, as": func(db *gorm.DB, table string) error {
			return db.Table(table+" AS items").Model(&Item{ID: 1}).Update("n", 1).Error
		},
		"another's model by a scope": func(db *gorm.DB, table string) error {
			return db.Model(&Item{ID: 1}).Scopes(func(tx *gorm.DB) *gorm.DB { return tx.Table(table) }).Update("n", 1).Error
		},
		"another's model, Create": func(db *gorm.DB, table string) error {
			return db.Table(table).Select("ID").Create(&Item{ID: 2}).Error
		},
		"another's model, INSERT": func(db *gorm.DB, table string) error {
			return db.Clauses(clause.Insert{Table: clause.Table{Name: table}}).Select("ID").Create(&Item{ID: 2}).Error
		},
		"another's model, Delete": func(db *gorm.DB, table string) error { return db.Table(table).Delete(&Item{ID: 1}).Error },
		"another model, FROM": func(db *gorm.DB, table string) error {
			return db.Clauses(clause.From{Tables: []clause.Table{{Name: table}}}).Delete(&Fruit{ID: 1}).Error
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
		"Exec, made again": func(db *gorm.DB, table string) error {
			return db.Exec("CREATE OR REPLACE TABLE " + table + " (id INT)").Error
		},
		"Exec, DELETE of several": func(db *gorm.DB, table string) error {
			return db.Exec("DELETE other, a FROM other JOIN " + table + " AS a").Error
		},
		"Exec, DELETE USING": func(db *gorm.DB, table string) error {
			return db.Exec("DELETE FROM a USING other JOIN " + table + " AS a").Error
		},
		"Exec, a JOIN that reads it": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other JOIN " + table + " USING (id) SET other.n = 1").Error
		},
		"Exec, a DELETE that reads it": func(db *gorm.DB, table string) error {
			return db.Exec("DELETE o FROM other o JOIN " + table + " t ON o.id = t.id").Error
		},
		"Exec, WITH before another's UPDATE": func(db *gorm.DB, table string) error {
			return db.Exec("WITH w AS (SELECT id FROM " + table + ") UPDATE other JOIN w USING (id) SET n = 1").Error
		},
		"Exec, a JOIN that sets it": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other JOIN " + table + " USING (id) SET other.n = 1, " + table + ".n = 1").Error
		},
		"Exec, a JOIN by an alias": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other o JOIN " + table + " AS `O2` ON o.id = O2.id SET o.n = 1, o2.n = 1").Error
		},
		"Exec, a JOIN under another's name": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other x JOIN " + table + " other ON x.id = other.id SET other.n = 1").Error
		},
		"Exec, a JOIN by an unqualified column": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other o JOIN " + table + " USING (id) SET o.n = 1, n = 1").Error
		},
		"Exec, a JOIN that servers read differently": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other o JOIN " + table + " t USING (id) SET o.n = 1 /*!99999 , t.n = 1 */").Error
		},
		"Exec, DELETE QUICK": func(db *gorm.DB, table string) error {
			return db.Exec("DELETE QUICK FROM " + table + " USING " + table + " JOIN other USING (id)").Error
		},
		"Exec, DELETE HISTORY": func(db *gorm.DB, table string) error { return db.Exec("DELETE HISTORY FROM " + table).Error },
		"Exec, SET STATEMENT": func(db *gorm.DB, table string) error {
			return db.Exec("SET STATEMENT max_statement_time = 1 FOR UPDATE " + table + " SET n = 1").Error
		},
		"Exec, WITH and a JOIN": func(db *gorm.DB, table string) error {
			return db.Exec("WITH a AS (SELECT 1 AS id) UPDATE " + table + " JOIN a USING (id) SET n = 1").Error
		},
		"Exec, WITH and a DELETE": func(db *gorm.DB, table string) error {
			return db.Exec("WITH a AS (SELECT id FROM other) DELETE t FROM " + table + " t JOIN a USING (id)").Error
		},
		"Exec, WITH what isn't closed": func(db *gorm.DB, table string) error {
			return db.Exec(`WITH a AS (SELECT '\' AS id) UPDATE other SET n = 1; -- ') UPDATE ` + table + " SET n = 1").Error
		},
		"Exec, a comment that some execute": func(db *gorm.DB, table string) error {
			return db.Exec("/*!99999 SELECT */ UPDATE " + table + " SET n = 1").Error
		},
		"Exec, SET in such a comment": func(db *gorm.DB, table string) error {
			return db.Exec("UPDATE other /*!99999 SET */, " + table + " SET n = 1").Error
		},
		"Exec, PREPARE": func(db *gorm.DB, table string) error {
			return db.Exec("PREPARE s FROM 'UPDATE " + table + " SET n = 1'").Error
		},
		"Exec, PREPARE of a comment": func(db *gorm.DB, table string) error {
			return db.Exec(`PREPARE s FROM "UPDATE --
` + table + ` SET n = 1"`).Error
		},
		"Exec, EXECUTE IMMEDIATE": func(db *gorm.DB, table string) error {
			return db.Exec("EXECUTE IMMEDIATE 'UPDATE " + table + " SET n = 1'").Error
		},
		"Exec, EXECUTE IMMEDIATE of an argument": func(db *gorm.DB, table string) error {
			return db.Exec("/* */ execute /* */ immediate ?", "UPDATE "+table+" SET n = 1").Error
		},
		"Exec, EXECUTE IMMEDIATE behind SET": func(db *gorm.DB, table string) error {
			return db.Exec("SET STATEMENT max_statement_time = 1 FOR EXECUTE IMMEDIATE CONCAT('UPDATE `" + table + "', '` SET n = 1')").Error
		},
		"Exec, EXECUTE IMMEDIATE in a block": func(db *gorm.DB, table string) error {
			return db.Exec("BEGIN NOT ATOMIC EXECUTE IMMEDIATE 'UPDATE " + table + " SET n = 1'; END").Error
		},
		"Exec, ANALYZE": func(db *gorm.DB, table string) error { return db.Exec("ANALYZE UPDATE " + table + " SET n = 1").Error },
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
		e.names.tables["Draft"], e.names.tables["Item"], e.names.tables["Fruit"] = e.names.tables["Note"], "items", "fruits"
		table, other, another := e.names.tables["Note"], e.CreateTable(t, "other", columns["Note"]), e.CreateTable(t, "another", columns["Note"])
		dsn := e.DSN(func(cfg *driver.Config) { cfg.MultiStatements = true })
		for name, configure := range map[string]func(*gorm.Config){
			"default":     func(*gorm.Config) {},
			"PrepareStmt": func(cfg *gorm.Config) { cfg.PrepareStmt = true },
		} {
			db := e.openDSN(t, dsn, configure)
			noError(t, db.Exec("INSERT INTO "+table+" (id) VALUES (1)").Error)
			noError(t, db.Use(lockgorm.New(lockgorm.Tables(strings.ToUpper(table), another))))
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
				"ANALYZE TABLE": "ANALYZE TABLE " + table, "ANALYZE LOCAL TABLE": "ANALYZE LOCAL TABLE " + table,
				"CHECK": "CHECK TABLE " + table, "CHECKSUM": "CHECKSUM TABLE " + table, "OPTIMIZE": "OPTIMIZE TABLE " + table,
				"WITH FOR UPDATE": "WITH a AS (SELECT 1 AS one) SELECT id FROM " + table + ", a FOR UPDATE",
				"SHOW":            "SHOW COLUMNS FROM " + table, "EXPLAIN": "EXPLAIN SELECT id FROM " + table,
				"comment": "-- UPDATE\nSELECT id FROM " + table, "text": "SELECT 'UPDATE " + table + "'",
				"WITH": "WITH a AS (SELECT id FROM " + table + " FOR UPDATE) SELECT id FROM a",
				"two":  "SELECT id FROM " + table + "; SELECT id FROM " + table,
			} {
				if name == "PrepareStmt" && (what == "two" || what == "CHECK") {
					continue // the servers prepare only single statements, and not of all kinds
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
				"SET":            "SET @a = (SELECT MAX(id) FROM " + table + "), @b = 1",
				"DO":             "DO (SELECT MAX(id) FROM " + table + ")",
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
			if name != "PrepareStmt" {
				noError(t, db.Exec("PREPARE s FROM 'UPDATE "+other+" SET n = 1'").Error)
			}
			noError(t, db.Clauses(lockgorm.On(key)).Delete(&Note{ID: 1}).Error)
		}
	})
}

// TestOwnTable proves that a model that names its keys may write its own table, by
// whatever name.
func TestOwnTable(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		table := e.names.tables["Order"]
		db := e.openPlugin(t, lockgorm.Tables(table, e.names.tables["Note"]))
		for _, name := range []string{table, strings.ToUpper(table), "`" + table + "`", e.Name() + "." + table, table + " AS o", e.Name() + "." + table + " o"} {
			id := newID()
			noError(t, db.Create(&Order{ID: id}).Error)
			if name == strings.ToUpper(table) {
				name = table // another table if names are case-sensitive
			}
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				noError(t, tx.Table(name).Model(&Order{ID: id}).Update("n", 1).Error)
				if !e.held(t, orders.Key(id)) {
					t.Errorf("%s: the key of the model is free", name)
				}
				return nil
			}))
			wantError(t, name, db.Table(name).Model(&Note{ID: id}).Update("n", 2).Error, txlock.ErrInvalidKey)
			if e.count(t, "Order", "id = ? AND n = 1", id) != 1 {
				t.Errorf("%s: it was not written", name)
			}
		}
	})
}

// TestTablesMigrate proves that the definition of a registered table may change.
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

// TestExplainAnalyze proves that a registered table isn't written by ANALYZE (MariaDB) and
// EXPLAIN ANALYZE (MySQL), which execute the statement.
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

// TestTablesExist refuses a name that no table has, when the plugin is used.
func TestTablesExist(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		table := e.names.tables["Note"]
		for _, name := range []string{"typo", table + "s", "", e.Name() + ".typo", "`typo`", "a.b.", " " + table} {
			wantError(t, name, e.open(t).Use(lockgorm.New(lockgorm.Tables(table, name))), txlock.ErrInvalidKey)
			noError(t, e.open(t, func(cfg *gorm.Config) { cfg.DryRun = true }).Use(lockgorm.New(lockgorm.Tables(name))))
		}
		for _, name := range []string{table, e.Name() + "." + table, "`" + e.Name() + "`.`" + table + "`"} {
			db := e.openPlugin(t, lockgorm.Tables(name))
			wantError(t, name, db.Exec("DELETE FROM "+table).Error, txlock.ErrInvalidKey)
		}
	})
}
