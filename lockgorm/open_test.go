package lockgorm_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net"
	"reflect"
	"syscall"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// brokenPlugin fails when gorm.Open initializes it, after the pool was opened.
type brokenPlugin struct{ err error }

func (brokenPlugin) Name() string                     { return "broken" }
func (b brokenPlugin) Initialize(*gorm.DB) error      { return b.err }
func (b brokenPlugin) Apply(*gorm.Config) error       { return nil }
func (b brokenPlugin) AfterInitialize(*gorm.DB) error { return b.err }

// TestOpenFails: an Open which fails leaves no pool open: with a data source name that is wrong, where it can't connect, and by an option or a
// plugin, after the pool was opened. It is not parallel, because it looks for goroutines.
func TestOpenFails(t *testing.T) {
	quiet := func() *gorm.Config { return &gorm.Config{Logger: logger.Discard} }
	broken := brokenPlugin{errors.New("broken on purpose")}
	for _, engine := range testdb.Engines() {
		server := testdb.Open(t, engine)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		noError(t, errors.Join(err, listener.Close()))
		before := goleak.IgnoreCurrent()
		for dsn, says := range map[string]string{
			"app@tcp(127.0.0.1:3306": "slash", "app@tcp(127.0.0.1:3306)/?tls=nobody": "nobody", "app@nowhere/": "network",
		} {
			wantFailure(t, dsn, testdb.Err(lockgorm.Open(dsn, quiet())), says)
		}
		for dsn, want := range map[string]error{
			server.DSN(func(cfg *driver.Config) { cfg.Passwd = "wrong" }): &driver.MySQLError{Number: 1045},
			"app@tcp(" + listener.Addr().String() + ")/":                  syscall.ECONNREFUSED,
		} {
			wantError(t, dsn, testdb.Err(lockgorm.Open(dsn, quiet())), want)
		}
		wantError(t, "an option that fails", testdb.Err(lockgorm.Open(server.DSN(), quiet(), broken)), broken.err)
		config := quiet()
		config.Plugins = map[string]gorm.Plugin{"broken": broken}
		wantError(t, "a plugin that fails", testdb.Err(lockgorm.Open(server.DSN(), config)), broken.err)
		wantError(t, string(engine)+": a pool was left open", goleak.Find(before), nil)
	}
}

// TestErrorsAreTranslated proves that the guard doesn't hide the driver's errors from GORM.
func TestErrorsAreTranslated(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t, func(cfg *gorm.Config) { cfg.TranslateError = true })
		noError(t, db.Create(&Note{ID: 1}).Error)
		wantError(t, "a second row 1", db.Create(&Note{ID: 1}).Error, gorm.ErrDuplicatedKey)
		key := newKey()
		err := lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error { return tx.Create(&Note{ID: 1}).Error })
		wantError(t, "a second row 1 under a lock", err, gorm.ErrDuplicatedKey)
		wantError(t, "a key that is invalid", used(t, db).Clauses(lockgorm.On(txlock.Named(""))).Create(&Note{ID: 2}).Error, txlock.ErrInvalidKey)
	})
}

// TestOpenIsGORMs proves that the result of Open differs from GORM's own over mysql.Open only by its pool.
func TestOpenIsGORMs(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		server := testdb.Open(t, engine)
		config := func() *gorm.Config { return &gorm.Config{Logger: logger.Discard, TranslateError: true} }
		theirs := testdb.Got(gorm.Open(mysql.Open(server.DSN()), config()))(t)
		closeAfter(t, theirs)
		ours := testdb.Got(lockgorm.Open(server.DSN(), config()))(t)
		closeAfter(t, ours)
		want, got := theirs.Dialector.(*mysql.Dialector), ours.Dialector.(*mysql.Dialector)
		testdb.ErrorIf(t, !reflect.DeepEqual(*got.Config, *want.Config), "the dialector has\n%+v, of mysql.Open\n%+v", *got.Config, *want.Config)
		testdb.Equal(t, "the migrator", reflect.TypeOf(ours.Migrator()), reflect.TypeOf(theirs.Migrator()))
		testdb.Equal(t, "the pool", reflect.TypeOf(ours.ConnPool), reflect.TypeOf(theirs.ConnPool))
		testdb.Equal(t, "clauses", len(ours.ClauseBuilders), len(theirs.ClauseBuilders))
		testdb.Equal(t, "Explain", ours.Explain("SELECT ?", "it's"), theirs.Explain("SELECT ?", "it's"))
		dialector := lockgorm.Dialector(server.DSN()) // which may be opened twice
		for range 2 {
			db := testdb.Got(gorm.Open(dialector, config()))(t)
			noError(t, lockgorm.Transaction(db, []txlock.Key{newKey()}, func(tx *gorm.DB) error { return tx.Exec("DO 1").Error }))
			noError(t, poolOf(t, db).Close())
		}
	})
}

// renamed is a dialect on which there are no locks. It is MySQL's, so that any lock would show; tests/gormgen/sqlite has a real one.
type renamed struct{ gorm.Dialector }

func (renamed) Name() string { return "sqlite" }

// TestUnlocked: nothing is locked on a dialect of Unlocked, and all other dialects are refused, with the cure.
func TestUnlocked(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		open := func(dialect gorm.Dialector, options ...lockgorm.Option) (*gorm.DB, error) {
			db := testdb.Got(gorm.Open(dialect, e.config()))(t)
			closeAfter(t, db)
			return db, db.Use(lockgorm.New(options...))
		}
		other, id := renamed{mysql.Open(e.DSN())}, newID()
		parcel := parcels.Key(id)
		db := testdb.Got(open(other, lockgorm.Unlocked("postgres", "sqlite"), lockgorm.Check(&Note{})))(t)
		noError(t, db.Create(&Parcel{ID: id, N: 1}).Error)
		noError(t, lockgorm.Transaction(db, []txlock.Key{parcel}, func(tx *gorm.DB) error {
			noError(t, errors.Join(testdb.Err(lockgorm.Lock(lockgorm.WaitAtMost(tx, 1), parcel)), lockgorm.AssertLocked(tx, parcel)))
			noError(t, tx.Clauses(lockgorm.On(parcel)).Take(new(Parcel)).Error)
			noError(t, tx.Model(new(Parcel)).Where("n = 1").Update("n", 2).Error)
			noError(t, tx.Clauses(lockgorm.Loaded(&Parcel{ID: id})).Model(new(Parcel)).UpdateColumn("n", 3).Error)
			testdb.ErrorIf(t, e.held(t, parcel), "a lock was taken")
			return tx.Model(&Parcel{ID: id}).Clauses(lockgorm.CommitWith(1)).Update("n", 4).Error
		}))
		wantError(t, "Optimistic", lockgorm.Optimistic(db, parcel, func(tx *gorm.DB) error {
			noError(t, tx.Delete(new(Parcel), id).Error)
			return errInner
		}), errInner)
		e.wantRows(t, "the row was not written, or is gone", 1, "Parcel", "n = 4")
		for cure, err := range map[string]error{
			`lockgorm.Unlocked("sqlite")`:                       testdb.Err(open(other)),
			`lockgorm.New(lockgorm.Unlocked("sqlite"))`:         testdb.Err(open(other, lockgorm.Unlocked("postgres"))),
			`Unlocked("mysql") would lock nothing on MySQL and`: testdb.Err(open(mysql.Open(e.DSN()), lockgorm.Unlocked("sqlite", "mysql"))),
		} {
			wantCure(t, err, txlock.ErrInvalidOption, cure)
		}
	})
}

var errRan = errors.New("the function was called")

// onOtherEngine are calls that a server on which there are no locks refuses, and writes of a model, of which there is the one with the number 1.
func onOtherEngine[M any](model func(id int64) *M) map[string]func(db *gorm.DB) error {
	byCondition := func(db *gorm.DB) error { return db.Model(new(M)).Where("n = 1").Update("n", 9).Error }
	calls := map[string]func(db *gorm.DB) error{
		"Lock": func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error { return testdb.Err(lockgorm.Lock(tx, newKey())) })
		},
		"a create":         func(db *gorm.DB) error { return db.Create(model(newID())).Error },
		"an update":        func(db *gorm.DB) error { return db.Model(model(1)).Update("n", 9).Error },
		"a delete":         func(db *gorm.DB) error { return db.Delete(model(1)).Error },
		"by condition":     byCondition,
		"in a transaction": func(db *gorm.DB) error { return db.Transaction(byCondition) },
	}
	for name, run := range outermost {
		if name != "Transaction, no key" {
			calls[name] = func(db *gorm.DB) error { return run(db, newKey(), func(*gorm.DB) error { return errRan }) }
		}
	}
	return calls
}

// TestOtherEngine: on a server that answers as TiDB and Vitess do, the first call of each kind is refused, and nothing is written.
func TestOtherEngine(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		noError(t, e.open(t).Create(&Order{ID: 1, N: 1}).Error)
		_, mutate := testdb.Rewritten(t, locksuite.AsAnotherEngine)
		pool := openPool(e.guarded, false)(t, e.Config(mutate)).DB()
		db := testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: pool, SkipInitializeWithVersion: true}), e.config()))(t)
		noError(t, db.Use(lockgorm.New()))
		for name, call := range onOtherEngine(func(id int64) *Order { return &Order{ID: id} }) {
			err := call(db.WithContext(t.Context()))
			testdb.ErrorIf(t, !errors.Is(err, schema.ErrEngine) || errors.Is(err, errRan), "%s: %v, want ErrEngine", name, err)
		}
		e.wantRows(t, "as it was", 1, "Order", "n = 1")
		e.wantRows(t, "all", 1, "Order", "1 = 1")
	})
}

func TestSuite(t *testing.T) { locksuite.Run(t, adapters...) }

var adapters = []locksuite.Adapter{
	{Name: "gorm-guarded", Guarded: true, Open: openPool(true, false)},
	{Name: "gorm-plain", Open: openPool(false, false)},
	{Name: "gorm-prepared-guarded", Guarded: true, Open: openPool(true, true)},
	{Name: "gorm-prepared-plain", Open: openPool(false, true)},
}

// pool is GORM over a pool of database/sql.
type pool struct {
	sql  *sql.DB
	gorm *gorm.DB
}

func openPool(guarded, prepared bool) func(testing.TB, *driver.Config) locksuite.Pool {
	return func(tb testing.TB, cfg *driver.Config) locksuite.Pool {
		tb.Helper()
		connector := testdb.Got(driver.NewConnector(cfg))(tb)
		if guarded {
			connector = txlock.Internal(bridge.Pass{}).Guarded(connector)
		}
		db := sql.OpenDB(connector)
		tb.Cleanup(func() { noError(tb, db.Close()) })
		config := &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared, PrepareStmtTTL: tenYears}
		return pool{db, testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: db}), config))(tb)}
	}
}

func (p pool) DB() *sql.DB { return p.sql }

func (p pool) Begin(ctx context.Context, level sql.IsolationLevel) (locksuite.Session, error) {
	tx := p.gorm.WithContext(ctx).Begin(&sql.TxOptions{Isolation: level})
	return session{tx}, tx.Error
}

// session joins a transaction of GORM.
type session struct{ tx *gorm.DB }

func (s session) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return lockgorm.Join(s.tx.WithContext(ctx), options...)
}

func (s session) Exec(ctx context.Context, query string, args ...any) error {
	return s.tx.WithContext(ctx).Exec(query, args...).Error
}

func (s session) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.tx.WithContext(ctx).Raw(query, args...).Scan(&n).Error
	return n, err
}

func (s session) Rows(ctx context.Context, query string) (*sql.Rows, error) {
	return s.tx.WithContext(ctx).Raw(query).Rows()
}

func (s session) Savepoint(ctx context.Context, name string) error {
	return s.tx.WithContext(ctx).SavePoint(name).Error
}

func (s session) RollbackTo(ctx context.Context, name string) error {
	return s.tx.WithContext(ctx).RollbackTo(name).Error
}

func (s session) Commit() error   { return s.tx.Commit().Error }
func (s session) Rollback() error { return s.tx.Rollback().Error }

// onSource and onReplica are the texts of note 1 in the two databases.
const onSource, onReplica = 1, 2

// TestResolver reads under locks, and writes models, at the source, which is the pool that is opened first or not, with the plugin before
// dbresolver and after it.
func TestResolver(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		replica := testdb.Fresh(t, e.Engine())
		for _, model := range []string{"Order", "Note"} {
			replica.Exec(t, "CREATE TABLE "+e.names.tables[model]+" ("+cmp.Or(columns[model], serial+counted)+") ENGINE=InnoDB")
		}
		replica.Exec(t, "INSERT INTO "+e.names.tables["Note"]+" (id, n) VALUES (1, 2)")
		e.Exec(t, "INSERT INTO "+e.names.tables["Note"]+" (id, n) VALUES (1, 1)")
		dialector := mysql.Open
		if e.guarded {
			dialector = func(dsn string) gorm.Dialector { return lockgorm.Dialector(dsn) }
		}
		for i := range 4 {
			base, config := e.DSN(), dbresolver.Config{Replicas: []gorm.Dialector{dialector(replica.AdminDSN())}}
			if i >= 2 { // the pool that is opened first is neither of them
				base, config.Sources = replica.AdminDSN(), []gorm.Dialector{dialector(e.DSN())}
			}
			db, resolver := e.openDSN(t, base, configs[[]string{"default", "PrepareStmt"}[i%2]]), dbresolver.Register(config)
			plugins := []gorm.Plugin{lockgorm.New(), resolver}
			noError(t, errors.Join(db.Use(plugins[i%2]), db.Use(plugins[1-i%2])))
			t.Cleanup(func() { noError(t, resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() })) })
			readsAndWrites(t, e, db, replica, i < 2)
		}
	})
}

// sees reads note 1 in every way, and fails the test unless it has the text of that database.
func sees(t *testing.T, where string, db *gorm.DB, want int64) {
	t.Helper()
	var first, row int64
	var scanned, locked Note
	noError(t, db.Model(&Note{}).Where("id = 1").Pluck("n", &first).Error)
	noError(t, db.Model(&Note{}).Select("n").Where("id = 1").Row().Scan(&row))
	noError(t, db.Model(&Note{}).Where("id = 1").Scan(&scanned).Error)
	noError(t, db.Where("id = 1").Find(&locked).Error)
	testdb.Equal(t, where+": the reads", [...]int64{first, row, scanned.N, locked.N}, [...]int64{want, want, want, want})
}

// readsAndWrites uses a pool of a source and a replica, which has the tables of the models but none of lockstep's.
func readsAndWrites(t *testing.T, e *env, db *gorm.DB, replica *testdb.DB, baseIsSource bool) {
	t.Helper()
	key, another := e.ensured(t), e.ensured(t)
	inside := func(tx *gorm.DB) error {
		e.wantHeld(t, "the key is free inside", key)
		sees(t, "inside", tx, onSource)
		sees(t, "inside, with On", tx.Clauses(lockgorm.On(another)).Session(&gorm.Session{}), onSource)
		e.wantHeld(t, "the key of On is free", another)
		return tx.Error
	}
	noError(t, lockgorm.Transaction(db.Clauses(dbresolver.Write), []txlock.Key{key}, inside))
	if baseIsSource { // otherwise the pool of transactions is the first one, which is no source
		sees(t, "outside", db, onReplica)
		on := db.Clauses(lockgorm.On(key))
		wantError(t, "On outside", on.Session(&gorm.Session{}).First(&Note{}).Error, txlock.ErrNoTransaction)
		wantError(t, "On and FOR UPDATE outside", on.Clauses(clause.Locking{Strength: "UPDATE"}).First(&Note{}).Error, txlock.ErrNoTransaction)
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, inside))
		wantError(t, "a transaction of the replica", lockgorm.Transaction(db.Clauses(dbresolver.Read), []txlock.Key{key}, func(*gorm.DB) error {
			t.Error("the function runs under a lock of the replica")
			return nil
		}), txlock.ErrSchema)
	}
	id, saw := newID(), 0
	hooks := withHook(db, func(tx *gorm.DB, _ int64) error {
		saw++
		e.wantHeld(t, "the hook runs without the lock at the source", orders.Key(id))
		sees(t, "in the hook", tx, onSource)
		return nil
	})
	noError(t, hooks.Create(&Order{ID: id}).Error)
	noError(t, hooks.Model(&Order{ID: id}).Update("n", 1).Error)
	noError(t, hooks.Model(&Order{}).Where("n = ? AND id = ?", 1, id).Update("n", 7).Error) // its hook has no model
	noError(t, hooks.Save(&Order{ID: id, N: 2}).Error)
	e.wantRows(t, "at the source", 1, "Order", "id = ? AND n = 2", id)
	noError(t, hooks.Delete(&Order{ID: id}).Error)
	var n int
	noError(t, replica.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+e.names.tables["Order"]).Scan(&n))
	testdb.Equal(t, "hooks, and rows on the replica", [2]int{saw, n}, [2]int{5, 0})
	e.wantRows(t, "at the source", 0, "Order", "id = ?", id)
}
