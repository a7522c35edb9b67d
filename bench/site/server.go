// Package site has what the contenders work on: databases, a Redis, and the links to them.
package site

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/schema"
)

// Engines are the database servers, by the variable that has an administrator's DSN.
var Engines = []struct{ Name, Variable string }{
	{"MariaDB", "LOCKSTEP_MARIADB_DSN"},
	{"MySQL", "LOCKSTEP_MYSQL_DSN"},
}

// Server is a database server that somebody else runs.
type Server struct {
	Engine   string
	Version  string
	Settings []Setting
	config   *mysql.Config
}

// Setting is one of a server, as it says itself.
type Setting struct{ Name, Value string }

// shown are the settings that figures depend on.
var shown = []string{
	"innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "innodb_doublewrite", "innodb_flush_method",
	"innodb_buffer_pool_size", "innodb_snapshot_isolation", "transaction_isolation", "max_connections",
}

// Connect asks a server who it is.
func Connect(ctx context.Context, engine, dsn string) (*Server, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.DBName = ""
	config.InterpolateParams = true
	s := &Server{Engine: engine, config: config}
	db, err := s.open("")
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&s.Version); err != nil {
		return nil, fmt.Errorf("%s: %w", engine, err)
	}
	for _, name := range shown {
		var setting Setting
		err := db.QueryRowContext(ctx, "SHOW GLOBAL VARIABLES LIKE '"+name+"'").Scan(&setting.Name, &setting.Value)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", engine, err)
		}
		s.Settings = append(s.Settings, setting)
	}
	return s, nil
}

// Durable tells whether each commit is flushed to the disk.
func (s *Server) Durable() bool {
	for _, setting := range s.Settings {
		if setting.Name == "innodb_flush_log_at_trx_commit" && setting.Value != "1" ||
			setting.Name == "sync_binlog" && setting.Value != "1" && s.has("log_bin", "ON") {
			return false
		}
	}
	return true
}

// Connections is how many the server takes at a time.
func (s *Server) Connections() int {
	for _, setting := range s.Settings {
		if n, err := strconv.Atoi(setting.Value); setting.Name == "max_connections" && err == nil {
			return n
		}
	}
	return 0
}

func (s *Server) has(name, value string) bool {
	for _, setting := range s.Settings {
		if setting.Name == name && setting.Value == value {
			return true
		}
	}
	return false
}

// open opens a pool straight to the server.
func (s *Server) open(database string) (*sql.DB, error) {
	config := s.config.Clone()
	config.DBName = database
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// Database is one of a server, with the tables of all contenders.
type Database struct {
	Server *Server
	Name   string
	Pool   *sql.DB // straight to the server
}

// setupTimeout bounds what makes and drops databases.
const setupTimeout = 5 * time.Minute

// NewDatabase makes a database with lockstep's tables, those of the contenders and a
// stock for the keys. With centers it has the rows of hashed keys.
func (s *Server) NewDatabase(ctx context.Context, keys int64, centers bool) (*Database, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	d := &Database{Server: s, Name: "lockstep_bench_" + strings.ToLower(rand.Text())}
	admin, err := s.open("")
	if err != nil {
		return nil, err
	}
	_, err = admin.ExecContext(ctx, "CREATE DATABASE "+d.Name)
	if err = errors.Join(err, admin.Close()); err != nil {
		return nil, err
	}
	if d.Pool, err = s.open(d.Name); err != nil {
		return nil, err
	}
	if err := d.install(ctx, keys, centers); err != nil {
		return nil, errors.Join(err, d.Drop())
	}
	return d, nil
}

func (d *Database) install(ctx context.Context, keys int64, centers bool) error {
	if centers {
		if err := schema.Install(ctx, d.Pool); err != nil {
			return err
		}
	} else if err := d.withoutCenters(ctx); err != nil {
		return err
	}
	for _, m := range contender.All() {
		for _, ddl := range m.DDL {
			if _, err := d.Pool.ExecContext(ctx, ddl); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
		}
	}
	_, err := d.Pool.ExecContext(ctx, "CREATE TABLE "+contender.Stock+" (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB")
	if err != nil {
		return err
	}
	return d.Fill(ctx, keys, func(from, to int64) string {
		return fmt.Sprintf("INSERT INTO %s (id, n) SELECT %d + %s, 0 FROM %s WHERE %[3]s < %[5]d", contender.Stock, from, digit, digits, to-from)
	})
}

// withoutCenters installs all but the rows of the centers, which take most of the time.
func (d *Database) withoutCenters(ctx context.Context) error {
	statements, err := schema.Statements()
	if err != nil {
		return err
	}
	if d.Server.Engine == "MySQL" {
		procedures, err := schema.Procedures()
		if err != nil {
			return err
		}
		statements = append(statements, procedures...)
	}
	for _, statement := range statements {
		if strings.HasPrefix(statement, "INSERT") {
			continue
		}
		if _, err := d.Pool.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// digits counts from 0 to 9,999 in every dialect, and digit is the number.
const (
	ten    = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	digits = ten + " t0 CROSS JOIN " + ten + " t1 CROSS JOIN " + ten + " t2 CROSS JOIN " + ten + " t3"
	digit  = "(t0.d + 10 * t1.d + 100 * t2.d + 1000 * t3.d)"
)

// Fill sends statements for the rows 1 to n, for at most 10,000 at a time.
func (d *Database) Fill(ctx context.Context, n int64, statement func(from, to int64) string) error {
	for from := int64(1); from <= n; from += 10_000 {
		if _, err := d.Pool.ExecContext(ctx, statement(from, min(from+10_000, n+1))); err != nil {
			return err
		}
	}
	return nil
}

// CopyRows gives a table a row for each key from 1 to n, by copies of that of key 1, which
// must be there.
func (d *Database) CopyRows(ctx context.Context, table, column string, n int64) error {
	rows, err := d.Pool.QueryContext(ctx, "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ? AND extra NOT LIKE '%GENERATED%'", d.Name, table)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var columns, values []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		columns = append(columns, name)
		if name == column {
			name = "CONCAT('bench:', %d + " + digit + ")"
		} else {
			name = "template." + name
		}
		values = append(values, name)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	form := "INSERT IGNORE INTO " + table + " (" + strings.Join(columns, ", ") + ") SELECT " + strings.Join(values, ", ") +
		" FROM " + table + " template CROSS JOIN " + digits + " WHERE template." + column + " = 'bench:1' AND " + digit + " < %d"
	return d.Fill(ctx, n, func(from, to int64) string { return fmt.Sprintf(form, from, to-from) })
}

// TableBytes returns how large a table is, with its indexes.
func (d *Database) TableBytes(ctx context.Context, table string) (bytes int64, err error) {
	conn, err := d.Pool.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	statements := []string{"ANALYZE TABLE " + table}
	if d.Server.Engine == "MySQL" {
		statements = append(statements, "SET SESSION information_schema_stats_expiry = 0")
	}
	for _, statement := range statements {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	err = conn.QueryRowContext(ctx, "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
		d.Name, table).Scan(&bytes)
	return bytes, err
}

// Drop drops the database, also where the context has ended.
func (d *Database) Drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	_, err := d.Pool.ExecContext(ctx, "DROP DATABASE IF EXISTS "+d.Name)
	return errors.Join(err, d.Pool.Close())
}
