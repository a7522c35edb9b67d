// Package mistakes makes the mistakes of newcomers, and reads what the errors say: what was
// wrong, what has become of the transaction, and what to do.
package mistakes

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// page has the table for people.
const page = "README.md"

var (
	update = flag.Bool("update", false, "write README.md")
	show   = flag.Bool("show", false, "show the texts of all errors")
)

// state is what has become of the transaction in which a mistake is made.
type state string

const (
	none   state = "there is none"
	goesOn state = "stays open"
	// mustNot continue, since it reads old data; MySQL would commit it.
	mustNot state = "must not continue: roll back"
	isOver  state = "has ended: roll back"
	// What has come to its end before the mistake was noticed.
	rolledBack state = "has ended, rolled back"
	committed  state = "has ended, committed by that statement"
)

// mistake is one, and what its error must say.
type mistake struct {
	what string
	do   func(s *shop) error
	is   error // nil: there is no sentinel
	says []string
	tx   state
}

// TestMistakes makes each of them on each server.
func TestMistakes(t *testing.T) {
	t.Parallel()
	all := slices.Concat(ofKeys, ofTransactions, ofServers, ofLeases, ofJobs, ofGORM)
	if len(all) < 55 {
		t.Errorf("there are %d mistakes, newcomers make 55", len(all))
	}
	compare(t, all)
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			db.Exec(t, "CREATE TABLE notes (text VARCHAR(200) NOT NULL PRIMARY KEY)")
			db.Exec(t, "CREATE TABLE articles (id BIGINT NOT NULL PRIMARY KEY, text VARCHAR(100) NOT NULL, version BIGINT NOT NULL)")
			db.Exec(t, "CREATE TABLE parcels (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL)")
			db.Exec(t, "CREATE TABLE users (name VARCHAR(50) NOT NULL PRIMARY KEY, n BIGINT NOT NULL) DEFAULT CHARACTER SET utf8mb4")
			for i, m := range all {
				t.Run(m.what, func(t *testing.T) { newShop(t, db, i).makes(m) })
			}
		})
	}
}

// shop is a program that makes a mistake.
type shop struct {
	*testing.T
	ctx   context.Context
	db    *testdb.DB
	pool  *sql.DB
	order txlock.Key // of no other mistake
	id    int64

	tx    *sql.Tx // in which it is made
	reads bool    // which has no table to write to, or may not write
}

func newShop(t *testing.T, db *testdb.DB, i int) *shop {
	s := &shop{T: t, ctx: t.Context(), db: db, id: int64(i + 1)}
	s.pool = s.open(db.AdminDSN())
	s.order = txlock.NewFamily[int64]("order").Key(s.id)
	return s
}

// open opens a guarded pool.
func (s *shop) open(dsn string) *sql.DB {
	s.Helper()
	pool := leasetest.Got(locksqlc.Open(dsn))(s)
	s.Cleanup(func() { _ = pool.Close() })
	return pool
}

func (s *shop) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// makes makes a mistake, and looks at its error and at the transaction.
func (s *shop) makes(m mistake) {
	s.Helper()
	err := m.do(s)
	if *show {
		s.Logf("%v", err)
	}
	if err == nil || m.is != nil && !errors.Is(err, m.is) {
		s.Fatalf("%v, want %v", err, m.is)
	}
	for _, want := range m.says {
		if !strings.Contains(err.Error(), want) {
			s.Errorf("%q doesn't say %q", err, want)
		}
	}
	switch m.tx {
	case goesOn:
		if s.reads {
			s.must(second(s.tx.ExecContext(s.ctx, "DO 1")))
			s.must(s.tx.Commit())
			return
		}
		_, err := s.tx.ExecContext(s.ctx, "INSERT INTO notes VALUES (?)", m.what)
		s.must(err)
		s.must(s.tx.Commit())
		var found int
		s.must(s.pool.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM notes WHERE text = ?", m.what).Scan(&found))
		if found != 1 {
			s.Error("the transaction has not gone on")
		}
	case isOver:
		if err := s.tx.Commit(); err == nil {
			s.Error("the transaction was committed")
		}
	}
}

// begin begins the transaction of the mistake, and joins it.
func (s *shop) begin() *txlock.Scope {
	s.Helper()
	s.tx = s.beginOn(s.pool)
	scope := leasetest.Got(locksqlc.Join(s.ctx, s.tx))(s)
	return scope
}

func (s *shop) beginOn(pool *sql.DB) *sql.Tx {
	s.Helper()
	tx := leasetest.Got(pool.BeginTx(s.ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}))(s)
	s.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// other is a transaction of somebody else, who has a lock.
func (s *shop) other(key txlock.Key) (*sql.Tx, *txlock.Scope) {
	s.Helper()
	s.must(txlock.Ensure(s.ctx, s.pool, key))
	tx := s.beginOn(s.pool)
	scope, err := locksqlc.Join(s.ctx, tx)
	s.must(err)
	_, err = scope.Lock(s.ctx, key)
	s.must(err)
	return tx, scope
}

// manager makes a manager of leases.
func (s *shop) manager(options ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m := leasetest.Got(lease.NewManager(s.pool, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, options...)...))(s)
	s.Cleanup(func() { _ = m.Close(context.WithoutCancel(s.ctx)) })
	return m
}

// gorm opens GORM with the plugin on the pool.
func (s *shop) gorm() *gorm.DB {
	s.Helper()
	db := leasetest.Got(gorm.Open(gormmysql.New(gormmysql.Config{Conn: s.pool}), &gorm.Config{Logger: logger.Discard}))(s)
	s.must(db.Use(lockgorm.New()))
	return db.WithContext(s.ctx)
}

// elsewhere is another database, with the tables of lockstep; its hashed keys have no rows.
func (s *shop) elsewhere() *testdb.DB {
	s.Helper()
	db := testdb.Fresh(s, s.db.Engine())
	statements := leasetest.Got(schema.Statements())(s)
	for _, statement := range statements {
		if !strings.HasPrefix(statement, "INSERT") {
			db.Exec(s, statement)
		}
	}
	return db
}

// dsn is the pool's, changed.
func (s *shop) dsn(change func(*mysql.Config)) string { return s.db.AdminDSN(change) }

func second[A any](_ A, err error) error { return err }

// compare compares the page with the table.
func compare(t *testing.T, all []mistake) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil && !*update {
		t.Fatal(err)
	}
	const begin, end = "<!-- mistakes -->\n", "<!-- end -->\n"
	before, rest, _ := strings.Cut(string(text), begin)
	_, after, _ := strings.Cut(rest, end)
	var b strings.Builder
	b.WriteString("\n| mistake | the error says | the transaction |\n|---|---|---|\n")
	for _, m := range all {
		var says []string
		for _, s := range m.says {
			says = append(says, "`"+s+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", m.what, strings.Join(says, ", "), m.tx)
	}
	b.WriteString("\n")
	if *update {
		text := before + begin + b.String() + end + after
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !strings.Contains(string(text), begin+b.String()+end) {
		t.Errorf("%s has another table: run go test ./mistakes -update in the directory tests", page)
	}
}
