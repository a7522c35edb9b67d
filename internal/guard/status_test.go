package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestStatusOfDriver checks, on real servers, that the driver of go.mod has the field
// that the guard reads. If it fails after an update of the driver, look in the driver's
// packets.go for the place where the status flags of an OK packet are kept now, and read
// them there in flagsOf. Until then nothing is wrong, but statements that may end a
// transaction cost one more question to the server.
func TestStatusOfDriver(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			cfg := db.AdminConfig()
			cfg.MultiStatements = engine == testdb.MySQL
			connector, err := mysql.NewConnector(cfg)
			check(t, err)
			base, err := connector.Connect(t.Context())
			check(t, err)
			defer func() { check(t, base.Close()) }()
			s := statusOf(base)
			if !s.flags.IsValid() {
				t.Fatalf("%T has no readable field status: see the comment of this test", base)
			}
			if again := statusOf(showing{base}); again.flags != s.flags {
				t.Error("the flags are not found under a wrapper that shows its base")
			}
			table := db.CreateTable(t, "status", "id INT PRIMARY KEY")
			expect := func(statement string, want bool) {
				t.Helper()
				if _, err := base.(driver.ExecerContext).ExecContext(context.Background(), statement, nil); err != nil {
					t.Fatal(statement, err)
				}
				s.told = true
				if open, told := s.inTransaction(); !told || open != want {
					t.Errorf("after %s the reply says that a transaction is open: %t, want %t", statement, open, want)
				}
			}
			expect("DO 1", false)
			s.trust()
			if _, told := s.inTransaction(); told {
				t.Error("the flags are trusted though no BEGIN has set them")
			}
			expect("BEGIN", true)
			s.trust()
			if _, told := s.inTransaction(); !told {
				t.Error("the flags are not trusted though a BEGIN has set them")
			}
			expect("INSERT INTO "+table+" VALUES (1)", true)
			expect("SAVEPOINT a", true)
			expect("SET autocommit = 1", true)
			expect("COMMIT AND CHAIN", true)
			expect("CREATE TABLE IF NOT EXISTS "+table+" (id INT)", false)
			expect("START TRANSACTION", true)
			expect("/*! COMMIT */", false)
			expect("BEGIN", true)
			rows, err := base.(driver.QueryerContext).QueryContext(context.Background(), "SELECT id FROM "+table, nil)
			check(t, err)
			check(t, rows.Close())
			if open, _ := s.inTransaction(); !open {
				t.Error("after a query the reply says that no transaction is open")
			}
			expect("ROLLBACK", false)
			for _, on := range []string{"0", "1"} {
				expect("SET autocommit = "+on, false)
				if s.autocommit() != (on == "1") {
					t.Errorf("after autocommit = %s the reply says otherwise", on)
				}
			}
		})
		t.Run(string(engine)+"/plain", func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			pool := db.Connect(t)
			tx, err := pool.BeginTx(t.Context(), nil)
			check(t, err)
			defer func() { _ = tx.Rollback() }()
			for _, want := range []bool{true, false} {
				if open, told := OpenAtLastReply(tx); !told || open != want {
					t.Errorf("in a *sql.Tx: open %t, told %t, want %t: database/sql has moved its connection", open, told, want)
				}
				exec(t, tx, "COMMIT")
			}
		})
	}
	for _, other := range []any{nil, (*sql.Tx)(nil), &sql.Tx{}, &sql.Conn{}} {
		if open, told := OpenAtLastReply(other); open || told {
			t.Errorf("%T: open %t, told %t", other, open, told)
		}
	}
	if s := statusOf(&leanConn{}); s.flags.IsValid() {
		t.Error("another driver's connection has the flags")
	}
}

// showing is a wrapper that shows what it wraps.
type showing struct{ driver.Conn }

func (s showing) Raw() driver.Conn { return s.Conn }

// asked counts how often the session was asked for its facts.
func (s *stub) asked() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.sent {
		if text == rawsql.Facts {
			n++
		}
	}
	return n
}

// move tells from now on that the first session is elsewhere.
func (s *stub) move(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere = name
}

// sender is a *sql.Tx or a *sql.Conn.
type sender interface {
	Execer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// ways are the ways that database/sql has to send a statement.
var ways = map[string]func(ctx context.Context, s sender, query string) error{
	"Exec":  func(ctx context.Context, s sender, query string) error { return second(s.ExecContext(ctx, query)) },
	"Query": func(ctx context.Context, s sender, query string) error { return closed(s.QueryContext(ctx, query)) },
	"Prepare and Exec": func(ctx context.Context, s sender, query string) error {
		stmt, err := s.PrepareContext(ctx, query)
		if err == nil {
			_, err = stmt.ExecContext(ctx, 1)
		}
		return errors.Join(err, stmt.Close())
	},
	"Prepare and Query": func(ctx context.Context, s sender, query string) error {
		stmt, err := s.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		return errors.Join(closed(stmt.QueryContext(ctx, 1)), stmt.Close())
	},
}

// closed reads a row of a query, and closes it.
func closed(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	rows.Next()
	return errors.Join(rows.Err(), rows.Close())
}

// TestFactsGrowOld sends statements of each kind in each way, in a transaction and before it.
// After one that may have changed the session, the next lock statement asks once, and refuses a
// session that has moved, and the pool closes its connection. No other asks.
func TestFactsGrowOld(t *testing.T) {
	t.Parallel()
	for query, old := range map[string]bool{
		"SELECT 1": false, "UPDATE t SET a = 1": false, "SAVEPOINT a": false, "WITH x AS (SELECT 1) SELECT * FROM x": false,
		"SET @a = 1": true, "USE other": true, "CALL p()": true, "DO 1": true, "EXPLAIN SELECT 1": true, "SELECT 1 INTO @a": true,
	} {
		for way, send := range ways {
			for _, inside := range []bool{false, true} {
				base, pool := newStub(t, false)
				conn, err := connect(t, pool), error(nil)
				if !inside {
					err = send(t.Context(), conn, query)
					base.move("host/3306/other")
				}
				tx, beginning := conn.BeginTx(t.Context(), nil)
				txState, _, answer := Ask(t.Context(), tx)
				if inside {
					err = errors.Join(answer, send(t.Context(), tx, query))
					base.move("host/3306/other")
				}
				check(t, errors.Join(beginning, err))
				for range 2 {
					_, err := tx.ExecContext(WithCall(t.Context(), Call{Tx: txState}), "LOCK")
					if errors.Is(err, session.ErrSession) != old || base.has("LOCK") == old {
						t.Errorf("%s by %s, in the transaction %t: a lock: %v", query, way, inside, err)
					}
				}
				want := map[bool]int{false: 1, true: 2}[old]
				if got := base.asked(); got != want {
					t.Errorf("%s by %s, in the transaction %t: asked %d times, want %d", query, way, inside, got, want)
				}
				check(t, errors.Join(tx.Commit(), conn.Close(), pool.PingContext(t.Context())))
				if got := base.connections(); got != want {
					t.Errorf("%s by %s, in the transaction %t: %d connections, want %d", query, way, inside, got, want)
				}
			}
		}
	}
}

// TestFactsCantBeAsked proves that nothing is locked, and the connection not used again, if the
// question fails.
func TestFactsCantBeAsked(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	tx := begin(t, pool)
	txState, _, _ := Ask(t.Context(), tx)
	base.will(rawsql.Facts, errDead)
	exec(t, tx, "SET @a = 1")
	if _, err := tx.ExecContext(WithCall(t.Context(), Call{Tx: txState}), "LOCK"); !errors.Is(err, errDead) || base.has("LOCK") {
		t.Errorf("a lock: %v", err)
	}
	check(t, tx.Rollback())
	base.will(rawsql.Facts, nil)
	if err := pool.PingContext(t.Context()); err != nil || base.connections() != 1 {
		t.Errorf("a connection that answers again: %v, %d connections", err, base.connections())
	}
}

// TestFactsCutShort proves that a session is asked again which seems to be of another engine: a
// KILL QUERY may have cut the answer short, and the pool would keep the connection.
func TestFactsCutShort(t *testing.T) {
	t.Parallel()
	for cut, asked := range map[int]int{0: 1, 1: 2, 2: 2} {
		base, pool := newStub(t, false)
		base.cutShort = cut
		tx, err := pool.BeginTx(t.Context(), nil)
		check(t, err)
		_, _, unfit := Ask(t.Context(), tx)
		if n := base.asked(); n != asked || errors.Is(unfit, session.ErrEngine) != (cut > 1) {
			t.Errorf("%d answers are cut short: asked %d times, %v", cut, n, unfit)
		}
		check(t, tx.Rollback())
	}
}

// TestUnfitOnTiDB: locks hold there only in transactions of BeginTx at two levels, of which plain
// reads may be older than a lock at one.
func TestUnfitOnTiDB(t *testing.T) {
	t.Parallel()
	for level, c := range map[sql.IsolationLevel]struct{ fit, old bool }{
		sql.LevelDefault: {true, true}, sql.LevelRepeatableRead: {true, true}, sql.LevelReadCommitted: {true, false},
		sql.LevelReadUncommitted: {}, sql.LevelSerializable: {}, sql.LevelSnapshot: {old: true},
	} {
		for engine, version := range map[string]string{"TiDB": "8.0.11-TiDB-v8.5.0", "": "8.0.11"} {
			for _, owned := range []bool{false, true} {
				tx := &TxState{server: session.NewServer(session.Facts{Version: version}), isolation: level, owned: owned}
				if err := tx.unfit(); errors.Is(err, session.ErrEngine) == (engine == "" || owned && c.fit) {
					t.Errorf("%s %v, by BeginTx %t: %v", engine, level, owned, err)
				}
				if old := tx.MayHaveSnapshot(); old != (engine != "" && c.old) {
					t.Errorf("%s %v: may have a snapshot: %t", engine, level, old)
				}
			}
		}
	}
}

// TestOnVitess: locks hold there in transactions of BeginTx at the session's level, and no session is
// ended by its number, which is another's.
func TestOnVitess(t *testing.T) {
	t.Parallel()
	server := session.NewServer(session.Facts{Version: "8.4.6-Vitess"})
	for level := sql.LevelDefault; level <= sql.LevelLinearizable; level++ {
		for _, owned := range []bool{false, true} {
			err := (&TxState{server: server, isolation: level, owned: owned}).unfit()
			if fit := owned && level == sql.LevelDefault; errors.Is(err, session.ErrEngine) == fit {
				t.Errorf("%v, by BeginTx %t: %v", level, owned, err)
			}
		}
	}
	base := &stub{}
	if err := (&connector{base: base}).kill(&conn{server: server}); err != nil || base.connections() != 0 {
		t.Errorf("%v, by %d connections", err, base.connections())
	}
}
