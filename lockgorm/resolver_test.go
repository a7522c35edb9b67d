package lockgorm_test

import (
	"cmp"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/plugin/dbresolver"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// onSource and onReplica are the texts of note 1 in the two databases.
const onSource, onReplica = 1, 2

// resolved is a pool of a source and a replica. The replica has the tables of the models
// but none of lockstep's.
type resolved struct {
	*gorm.DB
	replica *testdb.DB
}

// openResolved opens the pool of base, and uses dbresolver before the plugin or
// after it.
func (e *env) openResolved(t *testing.T, replica *testdb.DB, pluginFirst, sources bool, configure func(*gorm.Config)) resolved {
	t.Helper()
	dialector := mysql.Open
	if e.guarded {
		dialector = func(dsn string) gorm.Dialector { return lockgorm.Dialector(dsn) }
	}
	base, config := e.DSN(), dbresolver.Config{Replicas: []gorm.Dialector{dialector(replica.AdminDSN())}}
	if sources { // the pool that is opened first is neither of them
		base, config.Sources = replica.AdminDSN(), []gorm.Dialector{dialector(e.DSN())}
	}
	db := e.openDSN(t, base, configure)
	resolver := dbresolver.Register(config)
	plugins := []gorm.Plugin{resolver, lockgorm.New()}
	if pluginFirst {
		slices.Reverse(plugins)
	}
	noError(t, errors.Join(db.Use(plugins[0]), db.Use(plugins[1])))
	t.Cleanup(func() {
		noError(t, resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() }))
	})
	return resolved{db, replica}
}

// eachResolved runs a test with the plugin before dbresolver and after it.
func eachResolved(t *testing.T, sources bool, test func(t *testing.T, e *env, db resolved)) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		replica := testdb.Fresh(t, e.Engine())
		for _, model := range []string{"Order", "Note"} {
			replica.Exec(t, "CREATE TABLE "+e.names.tables[model]+" ("+cmp.Or(columns[model], serial+counted)+") ENGINE=InnoDB")
		}
		replica.Exec(t, "INSERT INTO "+e.names.tables["Note"]+" (id, n) VALUES (1, 2)")
		e.Exec(t, "INSERT INTO "+e.names.tables["Note"]+" (id, n) VALUES (1, 1)")
		test(t, e, e.openResolved(t, replica, true, sources, configs["default"]))
		test(t, e, e.openResolved(t, replica, false, sources, configs["PrepareStmt"]))
	})
}

// sees reads note 1 in every way, and fails the test unless it has the text of that
// database.
func sees(t *testing.T, where string, db *gorm.DB, want int64) {
	t.Helper()
	var first, row int64
	var scanned, locked Note
	noError(t, db.Model(&Note{}).Where("id = 1").Pluck("n", &first).Error)
	noError(t, db.Model(&Note{}).Select("n").Where("id = 1").Row().Scan(&row))
	noError(t, db.Model(&Note{}).Where("id = 1").Scan(&scanned).Error)
	noError(t, db.Where("id = 1").Find(&locked).Error)
	equal(t, where+": the reads", [...]int64{first, row, scanned.N, locked.N}, [...]int64{want, want, want, want})
}

func TestResolverReadsUnderLocks(t *testing.T) {
	eachResolved(t, false, func(t *testing.T, e *env, db resolved) {
		sees(t, "outside", db.DB, onReplica)
		key, another := e.ensured(t), e.ensured(t)
		wantError(t, "Lock outside", second(lockgorm.Lock(db.DB, key)), txlock.ErrNoTransaction)
		on := db.Clauses(lockgorm.On(key))
		wantError(t, "On outside", on.Session(&gorm.Session{}).First(&Note{}).Error, txlock.ErrNoTransaction)
		wantError(t, "On and FOR UPDATE outside", on.Clauses(clause.Locking{Strength: "UPDATE"}).First(&Note{}).Error, txlock.ErrNoTransaction)

		inside := func(tx *gorm.DB) error {
			e.wantHeld(t, "the key is free inside", key)
			sees(t, "inside", tx, onSource)
			sees(t, "inside, with On", tx.Clauses(lockgorm.On(another)).Session(&gorm.Session{}), onSource)
			e.wantHeld(t, "the key of On is free", another)
			for _, locking := range []clause.Locking{
				{Strength: "UPDATE"}, {Strength: "UPDATE", Options: "NOWAIT"}, {Strength: "UPDATE", Options: "SKIP LOCKED"}, {Strength: "SHARE"},
			} {
				sees(t, "inside, with "+locking.Strength+" "+locking.Options, tx.Clauses(locking).Session(&gorm.Session{}), onSource)
			}
			var n int64
			noError(t, tx.Raw("SELECT n FROM "+e.names.tables["Note"]+" WHERE id = 1 FOR UPDATE NOWAIT").Scan(&n).Error)
			equal(t, "a locking read as text", n, onSource)
			return tx.Error
		}
		noError(t, lockgorm.Transaction(db.DB, []txlock.Key{key}, inside))
		noError(t, lockgorm.Transaction(db.Clauses(dbresolver.Write), []txlock.Key{key}, inside))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, second(lockgorm.Lock(tx, key)))
			return inside(tx)
		}))
		wantError(t, "a transaction of the replica", lockgorm.Transaction(db.Clauses(dbresolver.Read), []txlock.Key{key}, func(*gorm.DB) error {
			t.Error("the function runs under a lock of the replica")
			return nil
		}), txlock.ErrSchema)
	})
}

// writes of a model must be locked and written at the source.
func TestResolverWrites(t *testing.T) {
	write := func(t *testing.T, e *env, db resolved) {
		id, saw := newID(), 0
		hooks := withHook(db.DB, func(tx *gorm.DB, _ int64) error {
			saw++
			e.wantHeld(t, "the hook runs without the lock at the source", orders.Key(id))
			sees(t, "in the hook", tx, onSource)
			return nil
		})
		noError(t, hooks.Create(&Order{ID: id}).Error)
		noError(t, hooks.Model(&Order{ID: id}).Update("n", 1).Error)
		noError(t, hooks.Model(&Order{}).Where("n = ? AND id = ?", 1, id).Update("n", 7).Error)
		saw-- // its hook has no model
		noError(t, hooks.Save(&Order{ID: id, N: 2}).Error)
		equal(t, "hooks", saw, 3)
		e.wantRows(t, "at the source", 1, "Order", "id = ? AND n = 2", id)
		noError(t, hooks.Delete(&Order{ID: id}).Error)
		var n int
		noError(t, db.replica.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+e.names.tables["Order"]).Scan(&n))
		equal(t, "hooks, and rows on the replica", [2]int{saw, n}, [2]int{4, 0})
		e.wantRows(t, "at the source", 0, "Order", "id = ?", id)
	}
	t.Run("base is the source", func(t *testing.T) { eachResolved(t, false, write) })
	t.Run("base is neither", func(t *testing.T) {
		eachResolved(t, true, func(t *testing.T, e *env, db resolved) {
			write(t, e, db)
			key := e.ensured(t)
			noError(t, lockgorm.Transaction(db.Clauses(dbresolver.Write), []txlock.Key{key}, func(tx *gorm.DB) error {
				e.wantHeld(t, "the key is free inside", key)
				sees(t, "inside", tx, onSource)
				return nil
			}))
		})
	})
}
