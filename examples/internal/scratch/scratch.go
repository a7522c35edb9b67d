// Package scratch makes the databases that the examples run in and throws them
// away afterwards. A program of your own has its database already: of this, it
// needs the call of schema.Install only, or the DDL in its migrations.
package scratch

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/schema"
)

// dropTimeout bounds Drop, which runs after Ctrl-C too.
const dropTimeout = 30 * time.Second

// Database is a database of its own on somebody's server.
type Database struct {
	config *mysql.Config
	pool   *sql.DB
}

// New makes a database with lockstep's tables and those of the DDL given. The
// data source name is that of a user who may create databases.
func New(ctx context.Context, dsn, ddl string) (*Database, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("scratch: parse the data source name: %w", err)
	}
	config.DBName = "lockstep_x_" + strings.ToLower(rand.Text())
	d := &Database{config: config}
	if err := d.onServer(ctx, "CREATE DATABASE "+d.Name()); err != nil {
		return nil, errors.Join(err, d.Drop())
	}
	if err := d.install(ctx, ddl); err != nil {
		return nil, errors.Join(err, d.Drop())
	}
	return d, nil
}

// install makes the tables.
func (d *Database) install(ctx context.Context, ddl string) error {
	connector, err := mysql.NewConnector(d.config)
	if err != nil {
		return fmt.Errorf("scratch: make a connector: %w", err)
	}
	d.pool = sql.OpenDB(connector)
	if err := schema.Install(ctx, d.pool); err != nil {
		return err
	}
	for statement := range strings.SplitSeq(ddl, ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := d.pool.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("scratch: install the tables of the example: %w", err)
		}
	}
	return nil
}

// Name returns the name of the database.
func (d *Database) Name() string { return d.config.DBName }

// DSN returns the data source name of the database.
func (d *Database) DSN() string { return d.config.FormatDSN() }

// Pool returns an ordinary pool, for setting up and counting. It belongs to the
// database: do not close it.
func (d *Database) Pool() *sql.DB { return d.pool }

// Drop removes the database. Pools that others have opened on it must be closed,
// since it waits for their transactions.
func (d *Database) Drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	err := d.onServer(ctx, "DROP DATABASE IF EXISTS "+d.Name())
	if d.pool != nil {
		err = errors.Join(err, d.pool.Close())
	}
	return err
}

// onServer sends one statement on a connection without the database.
func (d *Database) onServer(ctx context.Context, statement string) (err error) {
	config := d.config.Clone()
	config.DBName = ""
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return fmt.Errorf("scratch: make a connector: %w", err)
	}
	pool := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, pool.Close()) }()
	if _, err := pool.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("scratch: %s: %w", statement, err)
	}
	return nil
}
