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

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// recreates are the ways to create a row again from a model that was loaded before.
var recreates = map[string]func(tx *gorm.DB, d *Doc) error{
	"Create":  func(tx *gorm.DB, d *Doc) error { return tx.Create(d).Error },
	"a slice": func(tx *gorm.DB, d *Doc) error { return tx.Create([]*Doc{d}).Error },
	"a slice by value": func(tx *gorm.DB, d *Doc) error {
		docs := []Doc{*d}
		err := tx.Create(&docs).Error
		*d = docs[0]
		return err
	},
	"CreateInBatches": func(tx *gorm.DB, d *Doc) error { return tx.CreateInBatches([]*Doc{d, {}, {}}, 2).Error },
	"CreateBatchSize": func(tx *gorm.DB, d *Doc) error {
		return tx.Session(&gorm.Session{CreateBatchSize: 1}).Create([]*Doc{{}, d}).Error
	},
	"SkipHooks":     func(tx *gorm.DB, d *Doc) error { return tx.Session(&gorm.Session{SkipHooks: true}).Create(d).Error },
	"FirstOrCreate": func(tx *gorm.DB, d *Doc) error { return tx.FirstOrCreate(d).Error },
	"FirstOrCreate with Attrs": func(tx *gorm.DB, d *Doc) error {
		return tx.Where("id = ?", d.ID).Attrs(Doc{ID: d.ID, Version: d.Version}).FirstOrCreate(d).Error
	},
	"FirstOrInit": func(tx *gorm.DB, d *Doc) error {
		fresh := new(Doc)
		err := tx.Where(Doc{ID: d.ID, Version: d.Version}).FirstOrInit(fresh).Error
		err = errors.Join(err, tx.Session(&gorm.Session{NewDB: true}).Create(fresh).Error)
		*d = *fresh
		return err
	},
	"Select":             func(tx *gorm.DB, d *Doc) error { return tx.Select("ID", "Name").Create(d).Error },
	"Select all":         func(tx *gorm.DB, d *Doc) error { return tx.Select("*").Create(d).Error },
	"Select the version": func(tx *gorm.DB, d *Doc) error { return tx.Select("ID", "Version").Create(d).Error },
	"Omit":               func(tx *gorm.DB, d *Doc) error { return tx.Omit("Version").Create(d).Error },
	"Omit by column":     func(tx *gorm.DB, d *Doc) error { return tx.Omit("N", "version").Create(d).Error },
	"Unscoped":           func(tx *gorm.DB, d *Doc) error { return tx.Unscoped().Create(d).Error },
	"DoNothing": func(tx *gorm.DB, d *Doc) error {
		return errors.Join(tx.Clauses(clause.OnConflict{DoNothing: true}).Create(d).Error, tx.Session(&gorm.Session{NewDB: true}).First(d).Error)
	},
	"generics":       func(tx *gorm.DB, d *Doc) error { return gorm.G[Doc](tx).Create(tx.Statement.Context, d) },
	"an association": func(tx *gorm.DB, d *Doc) error { return tx.Create(&Shelf{Docs: []*Doc{{ID: d.ID}}}).Error },
	"a map": ofMap(func(tx *gorm.DB, d *Doc) error {
		return tx.Create(map[string]any{"id": d.ID, "version": d.Version}).Error
	}),
	"a map of fields": ofMap(func(tx *gorm.DB, d *Doc) error {
		return tx.Create(&map[string]any{"ID": d.ID, "Version": uint64(d.Version)}).Error
	}),
	"a map, Select": ofMap(func(tx *gorm.DB, d *Doc) error { return tx.Select("id").Create(map[string]any{"id": d.ID}).Error }),
	"a map, Omit": ofMap(func(tx *gorm.DB, d *Doc) error {
		return tx.Omit("version").Create(map[string]any{"id": d.ID, "version": d.Version}).Error
	}),
}

// ofMap creates a row from a map, and loads it into the model.
func ofMap(create func(tx *gorm.DB, d *Doc) error) func(tx *gorm.DB, d *Doc) error {
	return func(tx *gorm.DB, d *Doc) error { return errors.Join(create(tx.Model(&Doc{}), d), tx.First(d).Error) }
}

// TestKeepVersion writes versions as an import does, and refuses upserts, also one that a hook makes of a create.
func TestKeepVersion(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		keep := db.Clauses(lockgorm.KeepVersion).Session(&gorm.Session{})
		id := newID()
		one, rest := &Doc{ID: id, Version: 12}, []*Doc{{ID: newID(), Version: 13}, {ID: newID()}, {ID: newID(), Version: 14}}
		noError(t, keep.Create(one).Error)
		noError(t, keep.CreateInBatches(rest, 2).Error)
		e.is(t, "one", one, 12, 0)
		e.is(t, "a batch", rest[0], 13, 0)
		e.is(t, "without one", rest[1], rest[1].Version, 0)
		e.is(t, "the next batch", rest[2], 14, 0)
		testdb.ErrorIf(t, rest[1].Version < 15, "what carries none has version %d", rest[1].Version)
		values := map[string]any{"id": newID(), "version": 15}
		noError(t, keep.Model(&Doc{}).Create(values).Error)
		e.is(t, "a map", &Doc{ID: values["id"].(int64)}, 15, 0)
		last := &Doc{ID: newID(), Version: 17}
		noError(t, gorm.G[Doc](db, lockgorm.KeepVersion).Create(t.Context(), last))
		e.is(t, "generics", last, 17, 0)
		graph := &Doc{ID: newID(), Version: 18, Pages: []Page{{ID: newID(), Lock: 19}}}
		wantError(t, "children that carry one", db.Create(graph).Error, lockgorm.ErrVersion)
		noError(t, keep.Create(graph).Error)
		e.wantRows(t, "a child has another version than it carries", 1, "Page", "id = ? AND row_version = 19", graph.Pages[0].ID)
		wantFailure(t, "an import of what is there", keep.Create(graph).Error)
		testdb.Equal(t, "its version", graph.Version, 18)
		noError(t, db.Model(one).Update("n", 5).Error)
		wantError(t, "an upsert", keep.Clauses(clause.OnConflict{UpdateAll: true}).Create(&Doc{ID: id, Version: 12}).Error, lockgorm.ErrVersion)

		// What the callbacks have changed in the statement is restored.
		values = map[string]any{"id": newID()}
		noError(t, db.Model(&Doc{}).Create(values).Error)
		testdb.Equal(t, "values of the caller's map", len(values), 1)
		values = map[string]any{"id": newID(), "version": 15}
		chain := db.Model(&Doc{}).Select("id").Omit("version")
		noError(t, chain.Create(values).Error)
		testdb.Equal(t, "afterwards", fmt.Sprint(values["version"], chain.Statement.Selects, chain.Statement.Omits), "15 [id] [version]")
		s := &Sheet{ID: newID()}
		noError(t, db.Create(s).Error)
		upserts := always(func(tx *gorm.DB) { tx.Statement.AddClause(clause.OnConflict{UpdateAll: true}) })
		for what, err := range map[string]error{
			"by value":           db.Create(Doc{ID: newID(), Version: 3}).Error,
			"by value, new":      db.Create(Doc{ID: newID()}).Error,
			"never written":      db.Create(&readOnly{ID: newID()}).Error,
			"a hidden upsert":    db.Clauses(clause.OnConflict{DoNothing: true, UpdateAll: true}).Create(&Doc{ID: id, N: 9}).Error,
			"an upsert of hooks": withHook(db, upserts).Create(&Sheet{ID: s.ID, N: 5}).Error,
		} {
			wantError(t, what, err, lockgorm.ErrVersion)
		}
		chain = db.Clauses(clause.OnConflict{DoNothing: true})
		for range 2 { // GORM leaves an empty assignment in it
			noError(t, chain.Create(&Sheet{ID: s.ID, N: 5}).Error)
		}
		e.wantRows(t, "the row was changed", 1, "Sheet", "n = 0")
		wantFailure(t, "KeepVersion without the plugin", e.open(t).Clauses(lockgorm.KeepVersion).Create(&Doc{}).Error)
	}))
}

// readOnly has a version that GORM may not write.
type readOnly struct {
	ID      int64
	Version lockgorm.Version `gorm:"<-:update"`
}

func (readOnly) TableName() string { return "nowhere" }

// TestFormOfAnOlderVersion: the values of a form are refused, and not sent, if somebody else has changed the record since the form was filled in.
func TestFormOfAnOlderVersion(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		d := newDoc(t, db)
		old := d.Version
		noError(t, db.Model(d).Update("n", 2).Error)
		for name, write := range map[string]func(tx *gorm.DB) error{
			"a struct":            func(tx *gorm.DB) error { return tx.Model(d).Updates(Doc{N: 3, Version: old}).Error },
			"selected columns":    func(tx *gorm.DB) error { return tx.Model(d).Select("N").Updates(&Doc{N: 3, Version: old}).Error },
			"UpdateColumns":       func(tx *gorm.DB) error { return tx.Model(d).UpdateColumns(Doc{N: 3, Version: old}).Error },
			"a struct of another": func(tx *gorm.DB) error { return tx.Model(d).Updates(struct{ N, Version int64 }{3, int64(old)}).Error },
		} {
			refuses(t, name, db, txlock.ErrConflict, write)
			within(t, db, func(tx *gorm.DB) {
				load(t, tx, d.ID)
				err := write(tx)
				wantError(t, name+", inside", err, txlock.ErrConflict)
				testdb.ErrorIf(t, txlock.Retryable(err), "%s, inside: the conflict is retryable", name)
			})
			e.is(t, name, d, d.Version, 2)
		}
	}))
}

// TestLoadedChildrenAreRefusedFirst: a write that would also save loaded models with a version is refused before anything is written.
func TestLoadedChildrenAreRefusedFirst(t *testing.T) {
	full := func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{FullSaveAssociations: true}) }
	notes := func(tx *gorm.DB) *gorm.Association { return tx.Model(&Shelf{ID: 1}).Association("Notes") }
	eachSetting(t, append([]string{"Shelf", "ShelfNote"}, versionedModels...), withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		stored := &Doc{ID: 1, Pages: []Page{{ID: 1, N: 1}}, Author: &Author{ID: 1, Name: "old"}}
		noError(t, db.Create(stored).Error)
		noError(t, db.Create(&Shelf{ID: 1}).Error)
		loaded := func() *Doc {
			d := new(Doc)
			noError(t, db.Preload("Pages").Preload("Author").First(d, 1).Error)
			d.N, d.Author.Name = 9, "new"
			return d
		}
		for name, write := range map[string]func(tx *gorm.DB, d *Doc) error{
			"Save":                  func(tx *gorm.DB, d *Doc) error { return tx.Save(d).Error },
			"Update":                func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Update("n", 9).Error },
			"Save, in full":         func(tx *gorm.DB, d *Doc) error { return full(tx).Omit("Pages").Save(d).Error },
			"Create":                func(tx *gorm.DB, d *Doc) error { return tx.Create(&Doc{ID: 2, Pages: d.Pages}).Error },
			"Create, in full":       func(tx *gorm.DB, d *Doc) error { return full(tx).Create(&Doc{ID: 2, Author: d.Author}).Error },
			"Append, of no version": func(tx *gorm.DB, d *Doc) error { return tx.Model(&Shelf{ID: 1}).Association("Docs").Append(d) },
			"Create, of no version": func(tx *gorm.DB, d *Doc) error { return tx.Create(&Shelf{ID: 2, Docs: []*Doc{d}}).Error },
			"Create, of grandchildren": func(tx *gorm.DB, d *Doc) error {
				return tx.Create(&Shelf{ID: 2, Docs: []*Doc{{ID: 2, Pages: d.Pages}}}).Error
			},
			"Delete, of no version": func(tx *gorm.DB, _ *Doc) error { return tx.Select("Notes", "Docs").Delete(&Shelf{ID: 1}).Error },
			"Delete":                func(tx *gorm.DB, d *Doc) error { return tx.Select("Pages").Delete(d).Error },
		} {
			d := loaded()
			refuses(t, name, db, lockgorm.ErrVersion, func(tx *gorm.DB) error { return write(tx, d) })
			within(t, db, func(tx *gorm.DB) { wantError(t, name+", inside", write(tx, loaded()), lockgorm.ErrVersion) })
			if e.count(t, "Doc", "id > 1 OR n = 9") != 0 || e.count(t, "Shelf", "id = 1 AND n = 0") != 1 || e.count(t, "Shelf", "id > 1") != 0 || e.count(t, "Author", "name <> 'old'") != 0 {
				t.Fatalf("%s: something was written", name)
			}
		}
		for name, write := range map[string]func(tx *gorm.DB, d *Doc) error{
			"omitted": func(tx *gorm.DB, d *Doc) error { return tx.Omit("Pages").Save(d).Error },
			"omitted below": func(tx *gorm.DB, d *Doc) error {
				return tx.Omit("Docs.Pages").Create(&Shelf{ID: 20, Docs: []*Doc{{ID: 20, Pages: d.Pages}}}).Error
			},
			"columns only": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Select("n").Updates(d).Error },
			"not selected below": func(tx *gorm.DB, d *Doc) error {
				return tx.Select("ID", "Docs.ID", "Docs").Create(&Shelf{ID: 21, Docs: []*Doc{{ID: 21, Pages: d.Pages}}}).Error
			},
			"that it belongs to": func(tx *gorm.DB, d *Doc) error { return tx.Create(&Doc{ID: 22, Author: d.Author}).Error },
			"new ones":           func(tx *gorm.DB, d *Doc) error { d.Pages = []Page{{N: 5}}; return tx.Save(d).Error },
			"in a circle": func(tx *gorm.DB, _ *Doc) error {
				d := &Doc{ID: 23}
				s := &Shelf{ID: 23, Docs: []*Doc{d}}
				d.Shelf = s
				return tx.Create(s).Error
			},
			"versions that it keeps": func(tx *gorm.DB, _ *Doc) error {
				return tx.Clauses(lockgorm.KeepVersion).Create(&Doc{ID: 24, Version: 5, Pages: []Page{{ID: 24, Lock: 6}}}).Error
			},
			"Replace of others":             func(tx *gorm.DB, _ *Doc) error { return notes(tx).Replace(&ShelfNote{}) },
			"Clear of others":               func(tx *gorm.DB, _ *Doc) error { return notes(tx).Clear() },
			"Replace of what it belongs to": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Association("Author").Replace(&Author{}) },
			"Replace whose hook updates another": func(tx *gorm.DB, d *Doc) error {
				return notes(withHook(tx, func(tx *gorm.DB, id int64) error {
					if id != 0 {
						return nil // a hook of that
					}
					return tx.Session(&gorm.Session{NewDB: true}).Omit("Pages", "Author").Updates(d).Error
				})).Replace(&ShelfNote{})
			},
			"Delete of others": func(tx *gorm.DB, _ *Doc) error { return tx.Select("Notes").Delete(&Shelf{ID: 1}).Error },
		} {
			wantError(t, name, write(db, loaded()), nil)
		}
	}))
}

// Shelf has docs with a version, and notes, but no version itself.
type Shelf struct {
	ID    int64
	N     int64
	Docs  []*Doc
	Notes []ShelfNote
}

// ShelfNote has no version either.
type ShelfNote struct {
	ID      int64
	ShelfID *int64
}

func (n *ShelfNote) BeforeCreate(tx *gorm.DB) error { return hooked(tx, n.ID) }

// TestUpdateOfNothing proves that an update that sets nothing, which GORM doesn't send, is compared all the same.
func TestUpdateOfNothing(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		d := newDoc(t, db)
		first := d.Version
		nothing := map[string]func(tx *gorm.DB, d *Doc) error{
			"a struct":     func(tx *gorm.DB, d *Doc) error { return tx.Updates(&Doc{ID: d.ID, Version: d.Version}).Error },
			"zero values":  func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Updates(Doc{}).Error },
			"an empty map": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Updates(map[string]any{}).Error },
			"all omitted":  func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Omit("n").Update("n", 1).Error },
			"not selected": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Select("name").UpdateColumn("n", 1).Error },
			"a batch": func(tx *gorm.DB, d *Doc) error {
				return tx.Transaction(func(tx *gorm.DB) error { return tx.Model([]*Doc{d}).Updates(map[string]any{}).Error })
			},
			"what it links": func(tx *gorm.DB, d *Doc) error {
				return tx.Model(&Doc{ID: d.ID, Version: d.Version}).Association("Pages").Append(&Page{N: 1})
			},
		}
		for name, write := range nothing {
			err := write(db, d)
			testdb.ErrorIf(t, err != nil || d.Version != first, "%s: %v, version %d, want %d", name, err, d.Version, first)
		}
		pages := e.count(t, "Page", "TRUE")
		touch(t, db, d.ID)
		for name, write := range nothing {
			wantError(t, "stale, "+name, write(db, &Doc{ID: d.ID, Version: first}), txlock.ErrConflict)
			wantError(t, "gone, "+name, write(db, &Doc{ID: 77, Version: first}), gorm.ErrRecordNotFound)
		}
		e.wantRows(t, "a page was linked to a stale doc", pages, "Page", "TRUE")
		noError(t, db.Model(d).Clauses(lockgorm.AnyVersion).Updates(map[string]any{}).Error)
		testdb.Equal(t, "the version, where nothing was sent", d.Version, first)
	}))
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
	testdb.Equal(t, what+": statements", sent.n, 0)
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
			testdb.ErrorIf(t, !strings.HasPrefix(kind, "bigint") || !strings.HasSuffix(kind, "unsigned") || nullable != "NO",
				"%s: %s, nullable %s", name, kind, nullable)
			before := log.with("ALTER")
			noError(t, db.AutoMigrate(model))
			testdb.Equal(t, name+": AutoMigrate again alters the table", log.with("ALTER"), before)
		}
		db := e.openPlugin(t)
		e.names.tables["TwoVersions"] = "nowhere"
		wantError(t, "two versions", db.Create(&TwoVersions{}).Error, lockgorm.ErrVersion)
		wantError(t, "two versions", db.Save(&TwoVersions{ID: 1, A: 1, B: 1}).Error, lockgorm.ErrVersion)
	})
}

// Seat has a primary key of two columns.
type Seat struct {
	Hall    string `gorm:"primaryKey;size:20"`
	Row     int64  `gorm:"primaryKey;autoIncrement:false"`
	Guest   string
	Version lockgorm.Version
}

func TestVersionOfCompositeKeys(t *testing.T) {
	eachGuarded(t, nil, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		table := e.CreateTable(t, "seats", "hall VARCHAR(20), `row` BIGINT, guest VARCHAR(50) NOT NULL DEFAULT '', "+versionColumn+", PRIMARY KEY (hall, `row`)")
		on := func() *gorm.DB { return db.Table(table) }
		seats := []Seat{{Hall: "a", Row: 1}, {Hall: "a", Row: 2}, {Hall: "b", Row: 1}}
		noError(t, on().Create(&seats).Error)
		stale := seats[2]
		noError(t, errors.Join(on().Model(&seats).Update("guest", "x").Error, on().Save(&seats[0]).Error))
		wantError(t, "a lost race", on().Model(&stale).Update("guest", "y").Error, txlock.ErrConflict)
		wantError(t, "a lost race in a batch", on().Model([]*Seat{&seats[1], &stale}).Update("guest", "y").Error, txlock.ErrConflict)
		noError(t, on().Delete(&seats[1]).Error)
		wantError(t, "a deleted row", on().Model(&seats[1]).Update("guest", "y").Error, gorm.ErrRecordNotFound)
		var left []Seat
		noError(t, on().Order("hall").Find(&left).Error)
		testdb.Equal(t, "left", fmt.Sprint(left), fmt.Sprint([]Seat{seats[0], seats[2]}))
	}))
}

// TestOptimisticOfGORM has others lock the key while its function runs: it is not locked, and the transaction is run again, unless it is nested.
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
			testdb.Equal(t, "runs", runs, 3)
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
			testdb.Equal(t, "runs of the nested one", runs, 1)
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

// TestOptimisticOfItsOwnKey: fn may lock the key of Optimistic, by models or by hand, and others still cause a conflict.
func TestOptimisticOfItsOwnKey(t *testing.T) {
	each(t, []string{"Order"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		raise := func(tx *gorm.DB, id int64) error {
			return tx.Model(&Order{ID: id}).Update("n", gorm.Expr("n + 1")).Error
		}
		undone := func(tx *gorm.DB, id int64) error {
			return skipInner(tx.Transaction(func(tx *gorm.DB) error { return errors.Join(tx.Model(&Order{ID: id}).Update("n", 100).Error, errInner) }))
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
				return errors.Join(testdb.Err(lockgorm.Lock(tx, orders.Key(id))), raise(tx, id))
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
				testdb.ErrorIf(t, err != nil || runs != 2 || e.count(t, "Order", "id = ? AND n = 11", id) != 1, "%s: %d runs: %v", what, runs, err)
			}
		}
		if !e.guarded {
			return // a scope knows only its own locks
		}
		// If the scope itself locks the key, Optimistic returns the conflict at once.
		key, runs := e.ensured(t), 0
		err := lockgorm.Optimistic(db, key, func(tx *gorm.DB) error {
			runs++
			return testdb.Err(scopeOf(t, tx).Lock(t.Context(), key))
		})
		wantError(t, "locked by the scope", err, txlock.ErrConflict)
		testdb.ErrorIf(t, runs != 1 || txlock.Retryable(err), "locked by the scope: %d runs: %v", runs, err)
	}))
}

// TestVersionedChildrenAreRefusedFirst: a change of an association by a where clause is refused before anything is written; AnyVersion allows it.
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
			want := map[bool]int{true: 1}[strings.HasPrefix(name, "Delete")]
			testdb.ErrorIf(t, left != want, "%s with AnyVersion: %d of the pages are left, want %d", name, left, want)
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
