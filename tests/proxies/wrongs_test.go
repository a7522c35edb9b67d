package proxies

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// stage is a stub before a server, and a table with a number.
type stage struct {
	db          *testdb.DB
	table       string
	key         txlock.Key
	stub        *Stub
	pool, plain *sql.DB // through the stub
	direct      *sql.DB // a guarded one that goes around it
}

// staged starts a stub that does something wrong. It serves one guarded pool and a plain one.
// A replica is another database here: it has the table, and no row of it ever changes.
func staged(t *testing.T, engine testdb.Engine, wrong func(replica func() *mysql.Config) func() Wrong) *stage {
	t.Helper()
	db := testdb.Open(t, engine)
	s := &stage{db: db, table: db.CreateTable(t, "number", columns)}
	db.Exec(t, "INSERT INTO "+s.table+" VALUES (1, 0)")
	quiet := func(c *mysql.Config) { c.InterpolateParams, c.Logger = true, &mysql.NopLogger{} }
	replica := func() *mysql.Config {
		other := testdb.Fresh(t, engine)
		other.Exec(t, "CREATE TABLE "+s.table+" ("+columns+")")
		other.Exec(t, "INSERT INTO "+s.table+" VALUES (1, 0)")
		return other.AdminConfig(quiet)
	}
	var err error
	s.stub, err = NewStub(t.Context(), db.Config(quiet), wrong(replica))
	check(t, err)
	t.Cleanup(s.stub.Close)
	connector := testdb.Got(mysql.NewConnector(db.Config(quiet, func(c *mysql.Config) { c.Addr = s.stub.Addr })))(t)
	s.pool, s.plain = sql.OpenDB(locksqlc.Connector(connector)), sql.OpenDB(connector)
	s.direct, err = locksqlc.Open(db.DSN())
	check(t, err)
	for _, pool := range []*sql.DB{s.pool, s.plain} {
		pool.SetMaxIdleConns(0) // none that Lose has broken
	}
	t.Cleanup(func() {
		_ = s.pool.Close() // its connections may be broken
		_ = s.plain.Close()
		_ = s.direct.Close()
	})
	s.key = txlock.Named(t.Name())
	check(t, txlock.Ensure(t.Context(), s.direct, s.key))
	return s
}

const columns = "id INT PRIMARY KEY, n INT NOT NULL"

// add raises the number under a lock, by a transaction that reads it before.
func (s *stage) add(ctx context.Context, pool *sql.DB, meanwhile func()) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	scope, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := scope.Lock(ctx, s.key); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM "+s.table+" WHERE id = 1").Scan(&n); err != nil {
		return err
	}
	meanwhile()
	if _, err := tx.ExecContext(ctx, "UPDATE "+s.table+" SET n = ? WHERE id = 1", n+1); err != nil {
		return err
	}
	return tx.Commit()
}

// number is what the server has.
func (s *stage) number(t *testing.T) (n int) {
	t.Helper()
	check(t, s.db.Admin().QueryRow("SELECT n FROM "+s.table).Scan(&n))
	return n
}

var wants = testdb.Wants

func nothing() {}

// TestWrongs has a proxy do one thing wrong, and says who notices: schema.Check, or the first transaction with a lock, on a guarded pool
// and on a plain one.
func TestWrongs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wrong   func(replica func() *mysql.Config) func() Wrong
		check   error                   // of schema.Check
		guarded map[testdb.Engine]error // of a transaction on a guarded pool, where it has one
		plain   map[testdb.Engine]error // of one on a plain pool
		loses   string                  // the pools on which nobody notices that an update is lost
	}{
		"nothing":     {wrong: alone(Honest)},
		"multiplexes": {wrong: alone(Multiplexes), check: schema.ErrProxy, guarded: both(txlock.ErrTxDoomed), plain: both(txlock.ErrNoTransaction)},
		"splits reads": {
			wrong: func(replica func() *mysql.Config) func() Wrong { return Splits(replica(), true) },
			check: schema.ErrProxy, guarded: both(txlock.ErrTxDoomed), loses: "plain",
		},
		"splits reads outside of transactions": {
			wrong: func(replica func() *mysql.Config) func() Wrong { return Splits(replica(), false) }, check: schema.ErrProxy,
		},
		"caches": {
			wrong: func(func() *mysql.Config) func() Wrong { return Caches() }, check: schema.ErrProxy, loses: "guarded, plain",
		},
		"resets": {
			wrong: func(func() *mysql.Config) func() Wrong { return Resets(true) },
			check: schema.ErrProxy, guarded: both(txlock.ErrTxDoomed), plain: both(txlock.ErrNoTransaction),
		},
		"resets between transactions": {wrong: func(func() *mysql.Config) func() Wrong { return Resets(false) }},
		"replays":                     {wrong: func(func() *mysql.Config) func() Wrong { return Replays(true) }},
		"strips comments":             {wrong: alone(Strips), check: schema.ErrProxy, guarded: both(schema.ErrProxy), plain: both(schema.ErrProxy)},
		"cuts texts":                  {wrong: alone(Cuts), guarded: map[testdb.Engine]error{testdb.MariaDB: errSyntax}},
	} {
		for _, engine := range testdb.Engines() {
			for pool, wants := range map[string]map[testdb.Engine]error{"guarded": c.guarded, "plain": c.plain} {
				t.Run(string(engine)+"/"+name+"/"+pool, func(t *testing.T) {
					t.Parallel()
					s, want, added := staged(t, engine, c.wrong), wants[engine], 2
					db := map[string]*sql.DB{"guarded": s.pool, "plain": s.plain}[pool]
					err := schema.Check(t.Context(), db)
					testdb.ErrorIf(t, !errors.Is(err, c.check) || c.check == nil && err != nil, "Check: %v, want %v", err, c.check)
					for range 2 {
						err := s.add(t.Context(), db, nothing)
						testdb.ErrorIf(t, !errors.Is(err, want) && !isSyntax(err, want) || want == nil && err != nil, "a locked transaction: %v, want %v", err, want)
						if err != nil {
							added--
							s.stub.Lose() // a session that nobody uses any more has the lock
						}
					}
					if strings.Contains(c.loses, pool) {
						added--
					}
					testdb.Equal(t, "the number", s.number(t), added)
				})
			}
		}
	}
}

// TestShared has a proxy take a statement of one client into the transaction of another: nobody notices, and the update shares the fate
// of the other's. Check notices while others are in transactions.
func TestShared(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		s := staged(t, engine, alone(Shares()))
		other := testdb.Got(s.plain.BeginTx(t.Context(), nil))(t)
		check(t, testdb.Err(other.ExecContext(t.Context(), "SAVEPOINT anything")))
		wants(t, "Check", schema.Check(t.Context(), s.pool), schema.ErrProxy)
		wants(t, "a locked transaction", s.add(t.Context(), s.pool, nothing), nil)
		check(t, other.Rollback())
		testdb.Equal(t, "the number, that of the other's rollback", s.number(t), 0)
	})
}

// TestReplay has a proxy lose a transaction's session and replay it on another one, after another client has locked and written.
// One that compares the replies finds the lock's token changed, and cuts the client; a blind one loses the other's update.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, compares := range map[string]bool{"compares": true, "blind": false} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := staged(t, engine, alone(Replays(compares)))
				err := s.add(t.Context(), s.pool, func() {
					s.stub.Lose()
					wants(t, "add", s.add(t.Context(), s.direct, nothing), nil)
				})
				testdb.ErrorIf(t, compares && err == nil || !compares && err != nil, "a replayed transaction: %v", err)
				testdb.Equal(t, "the number", s.number(t), 1)
				if compares {
					err := s.add(t.Context(), s.pool, nothing)
					testdb.ErrorIf(t, err != nil || s.number(t) != 2, "once more: %v, and the number is %d", err, s.number(t))
				}
			})
		}
	}
}

func both(err error) map[testdb.Engine]error {
	return map[testdb.Engine]error{testdb.MariaDB: err, testdb.MySQL: err}
}

func alone(wrong func() Wrong) func(func() *mysql.Config) func() Wrong {
	return func(func() *mysql.Config) func() Wrong { return wrong }
}

// errSyntax stands for the server's error.
var errSyntax = errors.New("a syntax error")

func isSyntax(err, want error) bool {
	var server *mysql.MySQLError
	return errors.Is(want, errSyntax) && errors.As(err, &server) && server.Number == 1064
}
