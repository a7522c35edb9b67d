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
	if sent.n != 0 {
		t.Errorf("%s: %d statements were sent", what, sent.n)
	}
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
			if again := log.with("ALTER") - before; again != 0 {
				t.Errorf("%s: AutoMigrate alters the table again: %q", name, log.texts)
			}
		}
		db := e.openPlugin(t)
		e.names.tables["TwoVersions"] = "nowhere"
		wantError(t, "two versions", db.Create(&TwoVersions{}).Error, lockgorm.ErrVersion)
		wantError(t, "two versions", db.Save(&TwoVersions{ID: 1, A: 1, B: 1}).Error, lockgorm.ErrVersion)
	})
}

// TestVersionLosesNothing raises a number by loading and saving, in several goroutines, in
// transactions of both levels and in none: in the end it is the number of successful saves.
func TestVersionLosesNothing(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		id := newDoc(t, db).ID
		save := func(tx *gorm.DB) error {
			var d Doc
			if err := tx.First(&d, id).Error; err != nil {
				return err
			}
			d.N++
			return tx.Save(&d).Error
		}
		levels := []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted}
		noError(t, together(workers, func(worker int) error {
			once := func() error { return db.Transaction(save, &sql.TxOptions{Isolation: levels[worker%2]}) }
			if worker == 0 {
				once = func() error { return save(db) }
			}
			for done := 0; done < rounds; {
				switch err := once(); {
				case err == nil:
					done++
				case !txlock.Retryable(err) && !errors.Is(err, txlock.ErrConflict):
					return err
				}
			}
			return nil
		}))
		if n := load(t, db, id).N; n != workers*rounds {
			t.Errorf("%d saves, the row has %d", workers*rounds, n)
		}
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
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
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
			if fmt.Sprint(left) != fmt.Sprint([]Seat{seats[0], seats[2]}) {
				t.Errorf("left %v", left)
			}
		}
	})
}

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
			if runs != 3 {
				t.Errorf("%d runs", runs)
			}
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
			if runs != 1 {
				t.Errorf("nested: %d runs", runs)
			}
			return nil
		}))
		e.wantRows(t, "the savepoint was not rolled back", 1, "Note", "n = 2")
		broken := errors.New("fn fails")
		wantError(t, "fn's error", lockgorm.Optimistic(db, key, func(*gorm.DB) error { return broken }), broken)
		wantError(t, "the zero key", lockgorm.Optimistic(db, txlock.Key{}, func(*gorm.DB) error { return nil }), txlock.ErrInvalidKey)
		noError(t, lockgorm.Optimistic(db.Session(&gorm.Session{DryRun: true}), key, func(*gorm.DB) error { return nil }))
		if lockgorm.Optimistic(nil, key, func(*gorm.DB) error { return nil }) == nil || lockgorm.Optimistic(db, key, nil) == nil {
			t.Error("nil: no error")
		}
	})
}

// TestOptimisticOfItsOwnKey proves that fn may lock the key of Optimistic, by models or
// by hand, and that others still cause a conflict.
func TestOptimisticOfItsOwnKey(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
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
	})
}
