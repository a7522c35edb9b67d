package lockgorm_test

import (
	"errors"
	"maps"
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

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// brokenPlugin fails when gorm.Open initializes it, after the pool was opened.
type brokenPlugin struct{ err error }

func (brokenPlugin) Name() string                     { return "broken" }
func (b brokenPlugin) Initialize(*gorm.DB) error      { return b.err }
func (b brokenPlugin) Apply(*gorm.Config) error       { return nil }
func (b brokenPlugin) AfterInitialize(*gorm.DB) error { return b.err }

// TestOpenFails proves that an Open which fails leaves no pool open: with a data source name that is
// wrong, where it can't connect, and by an option or a plugin, after the pool was opened. It is not
// parallel, because it looks for goroutines.
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
			wantFailure(t, dsn, second(lockgorm.Open(dsn, quiet())), says)
		}
		for dsn, want := range map[string]error{
			server.DSN(func(cfg *driver.Config) { cfg.Passwd = "wrong" }): &driver.MySQLError{Number: 1045},
			"app@tcp(" + listener.Addr().String() + ")/":                  syscall.ECONNREFUSED,
		} {
			wantError(t, dsn, second(lockgorm.Open(dsn, quiet())), want)
		}
		wantError(t, "an option that fails", second(lockgorm.Open(server.DSN(), quiet(), broken)), broken.err)
		config := quiet()
		config.Plugins = map[string]gorm.Plugin{"broken": broken}
		wantError(t, "a plugin that fails", second(lockgorm.Open(server.DSN(), config)), broken.err)
		wantError(t, string(engine)+": a pool was left open", goleak.Find(before), nil)
	}
}

// TestErrorsAreTranslated proves that the guard doesn't hide the driver's errors from
// GORM.
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

// TestOpenIsGORMs proves that the result of Open differs from GORM's own over mysql.Open only by its
// pool, also of a dialector that is opened twice.
func TestOpenIsGORMs(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		server := testdb.Open(t, engine)
		config := func() *gorm.Config { return &gorm.Config{Logger: logger.Discard, TranslateError: true} }
		theirs, err := gorm.Open(mysql.Open(server.DSN()), config())
		noError(t, err)
		closeAfter(t, theirs)
		ours, err := lockgorm.Open(server.DSN(), config())
		noError(t, err)
		closeAfter(t, ours)
		dialector := lockgorm.Dialector(server.DSN())
		first, err := gorm.Open(dialector, config())
		noError(t, err)
		again, err := gorm.Open(dialector, config())
		noError(t, err)
		closeAfter(t, again)
		noError(t, poolOf(t, first).Close())
		for _, db := range []*gorm.DB{ours, again} {
			noError(t, lockgorm.Transaction(db, []txlock.Key{newKey()}, func(tx *gorm.DB) error { return tx.Exec("DO 1").Error }))
		}
		want := theirs.Dialector.(*mysql.Dialector)
		for _, db := range []*gorm.DB{ours, again, ours.Session(&gorm.Session{NewDB: true})} {
			got, ok := db.Dialector.(*mysql.Dialector)
			if !ok {
				t.Fatalf("%s: the dialector is a %T", engine, db.Dialector)
			}
			if !reflect.DeepEqual(*got.Config, *want.Config) {
				t.Errorf("%s: the dialector has\n%+v, of mysql.Open\n%+v", engine, *got.Config, *want.Config)
			}
			equal(t, string(engine)+": the migrator", reflect.TypeOf(db.Migrator()), reflect.TypeOf(theirs.Migrator()))
			equal(t, string(engine)+": the pool", reflect.TypeOf(db.ConnPool), reflect.TypeOf(theirs.ConnPool))
			if !maps.EqualFunc(db.ClauseBuilders, theirs.ClauseBuilders, func(a, b clause.ClauseBuilder) bool { return (a == nil) == (b == nil) }) ||
				db.NowFunc().Nanosecond()%1e6 != theirs.NowFunc().Nanosecond()%1e6 { // both are rounded
				t.Errorf("%s: clauses %v, want %v", engine, db.ClauseBuilders, theirs.ClauseBuilders)
			}
			text := db.Explain("SELECT ?, ?", 1, "it's")
			equal(t, string(engine)+": Explain", text, theirs.Explain("SELECT ?, ?", 1, "it's"))
		}
		if ours.Dialector.(*mysql.Dialector) == again.Dialector.(*mysql.Dialector) {
			t.Errorf("%s: two share a dialector", engine)
		}
	}
}
