package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/go-sql-driver/mysql"

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
