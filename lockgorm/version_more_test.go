package lockgorm_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

func foundRows(found bool) func(*driver.Config) {
	return func(cfg *driver.Config) { cfg.ClientFoundRows = found }
}

// watched counts the statements that are sent, including BEGIN and COMMIT.
type watched struct {
	gorm.ConnPool
	db *gorm.DB
	n  int
}

// watch returns a session whose statements are counted.
func watch(db *gorm.DB) *watched {
	tx := db.Session(&gorm.Session{Context: db.Statement.Context})
	w := &watched{ConnPool: tx.Statement.ConnPool, db: tx}
	tx.Statement.ConnPool = w
	return w
}

func (w *watched) BeginTx(context.Context, *sql.TxOptions) (gorm.ConnPool, error) {
	w.n++
	return nil, errors.New("a transaction was begun")
}

func (w *watched) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	w.n++
	return w.ConnPool.ExecContext(ctx, query, args...)
}

func (w *watched) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	w.n++
	return w.ConnPool.QueryContext(ctx, query, args...)
}

// refuses fails the test unless a write is refused by that error, and nothing is sent.
func refuses(t *testing.T, what string, db *gorm.DB, want error, write func(tx *gorm.DB) error) {
	t.Helper()
	sent := watch(db)
	wantError(t, what, write(sent.db), want)
	equal(t, what+": statements", sent.n, 0)
}

// Plan is a table that AutoMigrate makes.
type Plan struct {
	ID      int64
	Version lockgorm.Version
}

// Tagged says the same by its tags.
type Tagged struct {
	ID      int64
	Version lockgorm.Version `gorm:"not null;default:1"`
}

// traced notes the statements of a session.
type traced struct {
	logger.Interface
	mu    sync.Mutex
	texts []string
}

func (l *traced) LogMode(logger.LogLevel) logger.Interface { return l }

func (l *traced) Trace(_ context.Context, _ time.Time, text func() (string, int64), _ error) {
	statement, _ := text()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.texts = append(l.texts, statement)
}

func (l *traced) with(word string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.texts {
		if strings.HasPrefix(text, word) {
			n++
		}
	}
	return n
}

func TestVersionMigrates(t *testing.T) {
	eachSetting(t, nil, func(t *testing.T, e *env) {
		for name, model := range map[string]any{"Plan": &Plan{}, "Tagged": &Tagged{}} {
			log := &traced{Interface: logger.Discard}
			table := e.CreateTable(t, "plans", "id BIGINT PRIMARY KEY") // as it was before
			e.Exec(t, "INSERT INTO "+table+" VALUES (1)")
			e.names.tables[name] = table
			db := e.openDSN(t, e.AdminDSN(), func(cfg *gorm.Config) { cfg.Logger = log })
			noError(t, db.AutoMigrate(model))
			e.wantRows(t, name+": the row of before has no version 1", 1, name, "id = 1 AND version = 1")
			var kind, nullable string
			noError(t, e.Admin().QueryRowContext(t.Context(), "SELECT column_type, is_nullable FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? AND column_name = 'version'", table).Scan(&kind, &nullable))
			if !strings.HasPrefix(kind, "bigint") || !strings.HasSuffix(kind, "unsigned") || nullable != "NO" {
				t.Errorf("%s: %s, nullable %s", name, kind, nullable)
			}
			before := log.with("ALTER")
			noError(t, db.AutoMigrate(model))
			equal(t, name+": AutoMigrate again alters the table", log.with("ALTER"), before)
		}
		db := e.openPlugin(t)
		e.names.tables["TwoVersions"] = "nowhere"
		wantError(t, "two versions", db.Create(&TwoVersions{}).Error, lockgorm.ErrVersion)
		wantError(t, "two versions", db.Save(&TwoVersions{ID: 1, A: 1, B: 1}).Error, lockgorm.ErrVersion)
	})
}

// Seat has a primary key of two columns, and each tenant has a table of its own for it.
type Seat struct {
	Hall    string `gorm:"primaryKey;size:20"`
	Row     int64  `gorm:"primaryKey;autoIncrement:false"`
	Guest   string
	Version lockgorm.Version
}

func TestVersionOfCompositeKeys(t *testing.T) {
	eachGuarded(t, nil, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		const layout = "hall VARCHAR(20), `row` BIGINT, guest VARCHAR(50) NOT NULL DEFAULT '', " + versionColumn + ", PRIMARY KEY (hall, `row`)"
		e.names.tables["Seat"] = e.CreateTable(t, "seats", layout)
		other := e.CreateTable(t, "seats_of_another", layout)
		for _, table := range []string{e.names.tables["Seat"], other} {
			on := func() *gorm.DB { return db.Table(table) }
			seats := []Seat{{Hall: "a", Row: 1}, {Hall: "a", Row: 2}, {Hall: "b", Row: 1}}
			noError(t, on().Create(&seats).Error)
			stale := seats[2]
			noError(t, on().Model(&seats).Update("guest", "x").Error)
			noError(t, on().Save(&seats[0]).Error)
			wantError(t, "a lost race", on().Model(&stale).Update("guest", "y").Error, txlock.ErrConflict)
			wantError(t, "a lost race in a batch", on().Model([]*Seat{&seats[1], &stale}).Update("guest", "y").Error, txlock.ErrConflict)
			noError(t, on().Delete(&seats[1]).Error)
			wantError(t, "a deleted row", on().Model(&seats[1]).Update("guest", "y").Error, gorm.ErrRecordNotFound)
			var left []Seat
			noError(t, on().Order("hall").Find(&left).Error)
			equal(t, "left", fmt.Sprint(left), fmt.Sprint([]Seat{seats[0], seats[2]}))
		}
	}))
}

// TestOptimisticOfGORM has others lock the key while its function runs: it is not locked, and the
// transaction is run again, unless it is nested.
func TestOptimisticOfGORM(t *testing.T) {
	eachSetting(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		noError(t, db.Create(&Note{ID: 1}).Error)
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
			key, runs := e.ensured(t), 0
			noError(t, lockgorm.Optimistic(db, key, func(tx *gorm.DB) error {
				runs++
				e.wantFree(t, "the key is locked while fn runs", key)
				var n Note
				noError(t, tx.First(&n, 1).Error)
				if err := tx.Model(&n).Update("n", n.N+1).Error; err != nil {
					return err
				}
				if runs > 2 {
					return nil
				}
				return lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error { return nil })
			}, &sql.TxOptions{Isolation: level}))
			equal(t, "runs", runs, 3)
		}
		e.wantRows(t, "two updates were committed, the row shows others", 1, "Note", "n = 2")
		key := e.ensured(t)
		noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { // nested: once, under a savepoint
			runs := 0
			err := lockgorm.Optimistic(tx, key, func(tx *gorm.DB) error {
				runs++
				noError(t, tx.Model(&Note{ID: 1}).Update("n", 9).Error)
				return lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error { return nil })
			})
			wantError(t, "nested", err, txlock.ErrConflict)
			equal(t, "runs of the nested one", runs, 1)
			return nil
		}))
		e.wantRows(t, "the savepoint was not rolled back", 1, "Note", "n = 2")
		nothing := func(*gorm.DB) error { return nil }
		wantError(t, "the outer one", lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			noError(t, tx.Model(&Note{ID: 1}).Update("n", 8).Error)
			noError(t, lockgorm.Optimistic(tx, key, nothing))
			return errInner
		}), errInner)
		e.wantRows(t, "a nested one has committed", 1, "Note", "n = 2")
		wantError(t, "fn's error", lockgorm.Optimistic(db, key, func(*gorm.DB) error { return errInner }), errInner)
		wantError(t, "the zero key", lockgorm.Optimistic(db, txlock.Key{}, nothing), txlock.ErrInvalidKey)
		noError(t, lockgorm.Optimistic(db.Session(&gorm.Session{DryRun: true}), key, nothing))
		wantFailure(t, "a nil DB", lockgorm.Optimistic(nil, key, nothing))
		wantFailure(t, "a nil function", lockgorm.Optimistic(db, key, nil))
	})
}

// TestOptimisticOfItsOwnKey proves that fn may lock the key of Optimistic, by models or
// by hand, and that others still cause a conflict.
func TestOptimisticOfItsOwnKey(t *testing.T) {
	each(t, []string{"Order"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		raise := func(tx *gorm.DB, id int64) error {
			return tx.Model(&Order{ID: id}).Update("n", gorm.Expr("n + 1")).Error
		}
		undone := func(tx *gorm.DB, id int64) error {
			return skipInner(tx.Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Model(&Order{ID: id}).Update("n", 100).Error, errInner)
			}))
		}
		locks := map[string]func(tx *gorm.DB, id int64) error{
			"a model": raise,
			"two models": func(tx *gorm.DB, id int64) error {
				return errors.Join(raise(tx, id), tx.Model(&Order{ID: id}).Update("name", "x").Error)
			},
			"a batch": func(tx *gorm.DB, id int64) error {
				return tx.Model([]Order{{ID: newID()}, {ID: id}}).Update("n", gorm.Expr("n + 1")).Error
			},
			"Lock": func(tx *gorm.DB, id int64) error {
				_, err := lockgorm.Lock(tx, orders.Key(id))
				return errors.Join(err, raise(tx, id))
			},
			"Transaction": func(tx *gorm.DB, id int64) error {
				return lockgorm.Transaction(tx, orders.Keys(id), func(tx *gorm.DB) error { return raise(tx, id) })
			},
			"Optimistic": func(tx *gorm.DB, id int64) error {
				return lockgorm.Optimistic(tx, orders.Key(id), func(tx *gorm.DB) error { return raise(tx, id) })
			},
			"undone before": func(tx *gorm.DB, id int64) error { return errors.Join(undone(tx, id), raise(tx, id)) },
			"undone": func(tx *gorm.DB, id int64) error {
				return errors.Join(undone(tx, id), tx.Exec("UPDATE ? SET n = n + 1 WHERE id = ?", clause.Table{Name: e.names.tables["Order"]}, id).Error)
			},
		}
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
			for name, lock := range locks {
				what := fmt.Sprint(level, ", ", name)
				id, runs := newID(), 0
				noError(t, db.Create(&Order{ID: id}).Error)
				err := lockgorm.Optimistic(db, orders.Key(id), func(tx *gorm.DB) error {
					runs++
					var o Order
					noError(t, tx.First(&o, id).Error)
					if runs == 1 { // somebody else is first
						noError(t, db.Model(&Order{ID: id}).Update("n", gorm.Expr("n + 10")).Error)
					}
					return lock(tx, id)
				}, &sql.TxOptions{Isolation: level})
				if err != nil || runs != 2 || e.count(t, "Order", "id = ? AND n = 11", id) != 1 {
					t.Errorf("%s: %d runs: %v", what, runs, err)
				}
			}
		}
		if !e.guarded {
			return // a scope knows only its own locks
		}
		// If the scope itself locks the key, Optimistic returns the conflict at once.
		key, runs := e.ensured(t), 0
		err := lockgorm.Optimistic(db, key, func(tx *gorm.DB) error {
			runs++
			scope, err := lockgorm.Join(tx)
			noError(t, err)
			_, err = scope.Lock(t.Context(), key)
			return err
		})
		wantError(t, "locked by the scope", err, txlock.ErrConflict)
		if runs != 1 || txlock.Retryable(err) {
			t.Errorf("locked by the scope: %d runs: %v", runs, err)
		}
	}))
}

// TestVersionOfAReusedChain proves that each statement of a reused *gorm.DB is compared
// by itself.
func TestVersionOfAReusedChain(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, chainOf := range map[string]func(d *Doc) *gorm.DB{
			"Model":            func(d *Doc) *gorm.DB { return db.Model(d) },
			"Model and Where":  func(d *Doc) *gorm.DB { return db.Model(d).Where("n >= ?", 0) },
			"Where first":      func(d *Doc) *gorm.DB { return db.Where("n >= 0 OR n < 0").Model(d) },
			"a slice":          func(d *Doc) *gorm.DB { return db.Model([]*Doc{d}) },
			"Select":           func(d *Doc) *gorm.DB { return db.Model(d).Select("n", "name") },
			"Omit":             func(d *Doc) *gorm.DB { return db.Model(d).Omit("author_id") },
			"a session":        func(d *Doc) *gorm.DB { return db.Model(d).Session(&gorm.Session{}) },
			"after a conflict": func(d *Doc) *gorm.DB { return db.Model(d).Where("1 = 1") },
			"AnyVersion":       func(d *Doc) *gorm.DB { return db.Model(&Doc{}).Where("id = ?", d.ID).Clauses(lockgorm.AnyVersion) },
		} {
			d := newDoc(t, db)
			chain := chainOf(d)
			if name == "after a conflict" {
				touch(t, db, d.ID)
				wantError(t, name, chain.Update("n", 9).Error, txlock.ErrConflict)
				chain.Error = nil
				*d = *load(t, db, d.ID)
			}
			for n := 1; n <= 4; n++ {
				before := e.version(t, d.ID)
				result := chain.Update("n", n)
				if result.Error != nil || result.RowsAffected != 1 || e.version(t, d.ID) == before {
					t.Errorf("%s, update %d: %d rows: %v", name, n, result.RowsAffected, result.Error)
				}
				e.is(t, name, d, e.version(t, d.ID), n)
			}
			if name == "AnyVersion" {
				continue
			}
			touch(t, db, d.ID)
			wantError(t, name+", a lost race", chain.Update("n", 9).Error, txlock.ErrConflict)
		}
		order := db.Model(newDoc(t, db))
		noError(t, order.Update("n", 1).Error)
		noError(t, order.Delete(order.Statement.Model).Error)
	}))
}

// TestVersionedChildrenAreRefusedFirst proves that a change of an association by a where
// clause is refused before anything is written, in the database or to the versions in
// memory, and that AnyVersion allows it.
func TestVersionedChildrenAreRefusedFirst(t *testing.T) {
	changes := map[string]func(a *gorm.Association, loaded *Doc) error{
		"Replace by a new one": func(a *gorm.Association, _ *Doc) error { return a.Replace(&Page{N: 9}) },
		"Replace, unscoped":    func(a *gorm.Association, _ *Doc) error { return a.Unscoped().Replace(&Page{N: 9}) },
		"Clear":                func(a *gorm.Association, _ *Doc) error { return a.Clear() },
		"Clear, unscoped":      func(a *gorm.Association, _ *Doc) error { return a.Unscoped().Clear() },
		"Delete":               func(a *gorm.Association, loaded *Doc) error { return a.Delete(&loaded.Pages[0]) },
		"Delete, unscoped":     func(a *gorm.Association, loaded *Doc) error { return a.Unscoped().Delete(&loaded.Pages[0]) },
	}
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, change := range changes {
			d := &Doc{Pages: []Page{{N: 1}, {N: 2}}}
			noError(t, db.Create(d).Error)
			fresh := func() *Doc {
				loaded := new(Doc)
				noError(t, db.Preload("Pages").First(loaded, d.ID).Error)
				return loaded
			}
			loaded, seen := fresh(), fresh()
			refuses(t, name, db, lockgorm.ErrVersion, func(tx *gorm.DB) error { return change(tx.Model(loaded).Association("Pages"), seen) })
			e.wantRows(t, name+": pages were changed", 2, "Page", "doc_id = ? AND n < 3", d.ID)
			e.wantRows(t, name+": pages were changed", 0, "Page", "n = 9 AND doc_id = ?", d.ID)
			old := fresh()
			noError(t, change(db.Clauses(lockgorm.AnyVersion).Session(&gorm.Session{}).Model(loaded).Association("Pages"), old))
			left := e.count(t, "Page", "doc_id = ? AND n < 3", d.ID)
			if want := map[bool]int{true: 1}[strings.HasPrefix(name, "Delete")]; left != want {
				t.Errorf("%s with AnyVersion: %d of the pages are left, want %d", name, left, want)
			}
			wantError(t, name+": a page that was unlinked", db.Model(&old.Pages[0]).Update("n", 4).Error, map[bool]error{
				true: gorm.ErrRecordNotFound, false: txlock.ErrConflict,
			}[strings.HasSuffix(name, "unscoped")])
		}
		for says, tx := range map[string]*gorm.DB{`Association("Pages")`: db, "an association of Doc": db.Session(&gorm.Session{FullSaveAssociations: true})} {
			wantCure(t, tx.Model(newDoc(t, db)).Association("Pages").Replace(&Page{}), lockgorm.ErrVersion, says)
		}
	}))
}

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
