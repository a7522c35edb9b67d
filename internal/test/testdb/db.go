package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/schema"
)

// setupTimeout bounds every statement that makes or drops something.
const setupTimeout = time.Minute

// DB is a database for tests, with an administrator and an application user,
// who may read and write rows of the tables granted to it, and nothing else.
type DB struct {
	server   *Server
	name     string
	user     string
	password string
	admin    *sql.DB
}

// Open returns the database that all tests of this process share on the
// engine, with lockstep's tables, which the application user may use. A test
// keeps apart from the others by its own keys and by CreateTable.
func Open(tb testing.TB, engine Engine) *DB {
	tb.Helper()
	return OpenBeside(tb, engine, "")
}

// OpenBeside is like Open, but returns another database for each name: for tests whose keys are
// those of tests in the other one.
func OpenBeside(tb testing.TB, engine Engine, name string) *DB {
	tb.Helper()
	NeedsServer(tb)
	db, err := process.open(engine, name)
	check(tb, err)
	return db
}

// Open returns a new database with lockstep's tables on this server, which is
// dropped at the end of the test: for a server of Dedicated.
func (s *Server) Open(tb testing.TB) *DB {
	tb.Helper()
	db := s.Fresh(tb)
	check(tb, db.install(tb.Context()))
	return db
}

// OpenLeases is like Open, but without the rows of lockstep_centers, which leases and
// locks of keys that aren't hashed don't use: 65,536 of them take most of the time that a
// database takes.
func (s *Server) OpenLeases(tb testing.TB) *DB {
	tb.Helper()
	db := s.Fresh(tb)
	statements, err := schema.Statements()
	check(tb, err)
	for _, statement := range statements {
		if strings.HasPrefix(statement, "CREATE TABLE") {
			db.Exec(tb, statement)
		}
	}
	db.Grant(tb, tables...)
	return db
}

// OpenNamed is like Open, but of the rows of lockstep_centers it has only those of these slots: for
// locks of keys that aren't hashed, or of few that are.
func (s *Server) OpenNamed(tb testing.TB, slots ...uint16) *DB {
	tb.Helper()
	db := s.OpenLeases(tb)
	if s.engine == MySQL {
		procedures, err := schema.Procedures()
		check(tb, err)
		check(tb, db.exec(tb.Context(), procedures...))
	}
	check(tb, db.installProcedures(tb.Context()))
	for _, slot := range slots {
		db.Exec(tb, fmt.Sprintf("INSERT INTO lockstep_centers VALUES (%d, 0, '-', 0, 0)", slot))
	}
	return db
}

// Fresh returns a new database on the shared server, without any table, which
// is dropped at the end of the test: for tests of the schema itself. The
// application user has no rights until Grant or CreateTable.
func Fresh(tb testing.TB, engine Engine) *DB {
	tb.Helper()
	return Shared(tb, engine).Fresh(tb)
}

// Fresh is like the function Fresh, on this server.
func (s *Server) Fresh(tb testing.TB) *DB {
	tb.Helper()
	db, err := newDB(tb.Context(), s)
	check(tb, err)
	tb.Cleanup(func() {
		if err := db.drop(); err != nil {
			tb.Errorf("drop the database %s: %v", db.name, err)
		}
	})
	return db
}

// At returns the same database on another server, which has a copy of it.
func (db *DB) At(tb testing.TB, server *Server) *DB {
	tb.Helper()
	at := *db
	at.server = server
	var err error
	if at.admin, err = server.adminPool(db.name); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = at.admin.Close() })
	return &at
}

// Server returns the server that the database is on.
func (db *DB) Server() *Server { return db.server }

// Engine returns the engine of the server that the database is on.
func (db *DB) Engine() Engine { return db.server.engine }

// Name returns the name of the database.
func (db *DB) Name() string { return db.name }

// Admin returns the pool of the administrator, with this database. It belongs
// to the database: do not close it.
func (db *DB) Admin() *sql.DB { return db.admin }

// Config returns a fresh driver configuration of the application user.
func (db *DB) Config(mutators ...func(*mysql.Config)) *mysql.Config {
	cfg := db.AdminConfig()
	cfg.User, cfg.Passwd = db.user, db.password
	return mutate(cfg, mutators)
}

// AdminConfig returns a fresh driver configuration of the administrator.
func (db *DB) AdminConfig(mutators ...func(*mysql.Config)) *mysql.Config {
	cfg := db.server.Config()
	cfg.DBName = db.name
	return mutate(cfg, mutators)
}

// DSN returns the data source name of the application user.
func (db *DB) DSN(mutators ...func(*mysql.Config)) string {
	return db.Config(mutators...).FormatDSN()
}

// AdminDSN returns the data source name of the administrator.
func (db *DB) AdminDSN(mutators ...func(*mysql.Config)) string {
	return db.AdminConfig(mutators...).FormatDSN()
}

func mutate(cfg *mysql.Config, mutators []func(*mysql.Config)) *mysql.Config {
	for _, mutator := range mutators {
		mutator(cfg)
	}
	return cfg
}

// Connect opens a plain pool of the application user, which is closed at the
// end of the test.
func (db *DB) Connect(tb testing.TB, mutators ...func(*mysql.Config)) *sql.DB {
	tb.Helper()
	return Pool(tb, db.Config(mutators...))
}

// ConnectAdmin is like Connect, but of the administrator.
func (db *DB) ConnectAdmin(tb testing.TB, mutators ...func(*mysql.Config)) *sql.DB {
	tb.Helper()
	return Pool(tb, db.AdminConfig(mutators...))
}

// Pool opens a pool, which is closed at the end of the test.
func Pool(tb testing.TB, cfg *mysql.Config) *sql.DB {
	tb.Helper()
	pool, err := open(cfg)
	check(tb, err)
	tb.Cleanup(func() { _ = pool.Close() })
	return pool
}

// Overwriting returns a mutator for sessions that may overwrite what was committed
// after their snapshot. A MariaDB refuses that from 11.6.2 on (innodb_snapshot_isolation,
// MDEV-35124), which hides what a test without a lock is to show.
func (db *DB) Overwriting(tb testing.TB) func(*mysql.Config) {
	tb.Helper()
	has := db.HasSnapshotIsolation(tb)
	return func(cfg *mysql.Config) {
		if !has {
			return
		}
		if cfg.Params == nil {
			cfg.Params = make(map[string]string)
		}
		cfg.Params["innodb_snapshot_isolation"] = "OFF"
	}
}

// HasSnapshotIsolation tells whether the server has innodb_snapshot_isolation: MariaDB
// from 10.6.18, 10.11.8 and 11.4.2 on.
func (db *DB) HasSnapshotIsolation(tb testing.TB) bool {
	tb.Helper()
	var name, value string
	err := db.admin.QueryRowContext(tb.Context(), "SHOW GLOBAL VARIABLES LIKE 'innodb_snapshot_isolation'").Scan(&name, &value)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		tb.Fatal(err)
	}
	return err == nil
}

// CreateTable makes a table, which the application user may use, and drops it
// at the end of the test. The columns are all that stands in the parentheses.
// It returns the table's name: the prefix and something unique.
func (db *DB) CreateTable(tb testing.TB, prefix, columns string) string {
	tb.Helper()
	table := prefix + "_" + randomHex(6)
	db.Exec(tb, fmt.Sprintf("CREATE TABLE `%s` (%s) ENGINE=InnoDB", table, columns))
	tb.Cleanup(func() {
		if err := db.exec(context.Background(), "DROP TABLE IF EXISTS `"+table+"`"); err != nil {
			tb.Errorf("drop the table %s: %v", table, err)
		}
	})
	db.Grant(tb, table)
	return table
}

// CreateProcedure makes a stored procedure without parameters, which is dropped after the
// test. The body is one statement.
func (db *DB) CreateProcedure(tb testing.TB, name, body string) {
	tb.Helper()
	db.Exec(tb, "CREATE PROCEDURE "+name+"() "+body)
	tb.Cleanup(func() {
		if _, err := db.admin.ExecContext(context.Background(), "DROP PROCEDURE "+name); err != nil {
			tb.Errorf("drop the procedure %s: %v", name, err)
		}
	})
}

// Grant lets the application user read and write the rows of the tables.
func (db *DB) Grant(tb testing.TB, tables ...string) {
	tb.Helper()
	check(tb, db.grant(tb.Context(), tables...))
}

// Exec runs a statement as the administrator, for a minute at most.
func (db *DB) Exec(tb testing.TB, query string, args ...any) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), setupTimeout)
	defer cancel()
	err := Err(db.admin.ExecContext(ctx, query, args...))
	FatalIf(tb, err != nil, "%s: %v", query, err)
}

// Number returns the number that a query as the administrator selects.
func (db *DB) Number(tb testing.TB, query string, args ...any) int64 {
	tb.Helper()
	return Number(tb, db.admin, query, args...)
}

// newDB makes a database and its application user.
func newDB(ctx context.Context, server *Server) (*DB, error) {
	id := randomHex(6)
	db := &DB{server: server, name: "lockstep_t_" + id, user: "app_" + id, password: randomHex(8)}
	var err error
	if db.admin, err = server.adminPool(db.name); err != nil {
		return nil, err
	}
	if err = sweeping.tell(db, false); err == nil {
		err = db.create(ctx)
	}
	if err != nil {
		// It may be there in part.
		return nil, errors.Join(fmt.Errorf("testdb: make a database on %s: %w", server.engine, err), dropPart(db))
	}
	return db, nil
}

// dropPart drops what there is of a database that could not be made. The administrator's
// pool can't do that, whose connections need the database.
func dropPart(db *DB) error {
	err := db.withoutDatabase(context.Background(), dropStatements(db.name, db.accounts()))
	if err == nil {
		err = sweeping.tell(db, true)
	}
	return errors.Join(err, db.admin.Close())
}

// create uses a pool of its own, because a connection of the administrator's
// pool needs the database to exist.
func (db *DB) create(ctx context.Context) error {
	statements := []string{"CREATE DATABASE `" + db.name + "`"}
	for _, account := range db.accounts() {
		statements = append(statements, fmt.Sprintf("CREATE USER %s IDENTIFIED BY '%s'", account, db.password))
		if db.Engine() == TiDB { // which takes a while to notice a GRANT
			statements = append(statements, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON `%s`.* TO %s", db.name, account))
		}
	}
	return db.withoutDatabase(ctx, statements)
}

func (db *DB) withoutDatabase(ctx context.Context, statements []string) error {
	pool, err := db.server.adminPool("")
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	return execAll(ctx, pool, statements)
}

// tables are those of lockstep.
var tables = []string{"lockstep_locks", "lockstep_centers", "lockstep_leases", "lockstep_once", "lockstep_jobs"}

// install makes lockstep's tables and procedures, and lets the application user use them.
func (db *DB) install(ctx context.Context) error {
	if err := schema.Install(ctx, db.admin); err != nil {
		return fmt.Errorf("testdb: install the schema on %s: %w", db.server.engine, err)
	}
	if err := db.grant(ctx, tables...); err != nil {
		return err
	}
	return db.installProcedures(ctx)
}

// drop removes the database and its user, if their server still runs, and
// closes the administrator's pool.
func (db *DB) drop() error {
	if !db.server.Running() {
		_ = db.admin.Close() // its connections are broken
		return nil
	}
	err := db.exec(context.Background(), dropStatements(db.name, db.accounts())...)
	if err == nil {
		err = sweeping.tell(db, true)
	}
	return errors.Join(err, db.admin.Close())
}

func (db *DB) grant(ctx context.Context, tables ...string) error {
	if db.Engine() == TiDB {
		return nil // create has granted all
	}
	var statements []string
	for _, table := range tables {
		for _, account := range db.accounts() {
			statements = append(statements,
				fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON `%s`.`%s` TO %s", db.name, table, account))
		}
	}
	return db.exec(ctx, statements...)
}

// accounts are those of the application user. On a server with anonymous
// users one from any host would not do for connections from localhost.
func (db *DB) accounts() []string {
	if db.Engine() == Vitess { // vtgate lets in everybody
		return nil
	}
	return []string{"'" + db.user + "'@'%'", "'" + db.user + "'@'localhost'"}
}

func (db *DB) exec(ctx context.Context, statements ...string) error {
	return execAll(ctx, db.admin, statements)
}

func execAll(ctx context.Context, pool *sql.DB, statements []string) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	for _, statement := range statements {
		if _, err := pool.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", strings.SplitN(statement, " IDENTIFIED", 2)[0], err)
		}
	}
	return nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
