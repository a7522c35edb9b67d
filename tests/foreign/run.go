package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// test runs the tests of a suite on a kind of pool. That some fail isn't an error.
func (s *suite) test(ctx context.Context, server *testdb.Server, pool string, race bool) (results, error) {
	cfg := server.Config()
	line := append([]string{"test", "-json", "-count=1", "-timeout=20m", "-vet=off"}, s.flags...)
	if race {
		line = append(line, "-race")
	}
	if len(s.skip) > 0 {
		line = append(line, "-skip=^("+strings.Join(s.skip, "|")+")$")
	}
	cmd := command(ctx, s.dir, append(line, "./...")...)
	cmd.Env = append(cmd.Env,
		"LOCKSTEP_FOREIGN_POOL="+pool, "LOCKSTEP_FOREIGN_DSN="+cfg.FormatDSN(),
		"MYSQL_TEST_USER="+cfg.User, "MYSQL_TEST_PASS="+cfg.Passwd, "MYSQL_TEST_ADDR="+cfg.Addr, "MYSQL_TEST_DBNAME="+databases[0],
		"GORM_DIALECT=mysql", "GORM_DSN=gorm:gorm@tcp(localhost:9910)/gorm?charset=utf8&parseTime=True&loc=Local")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return results{}, err
	}
	if err := ctx.Err(); err != nil {
		return results{}, err
	}
	found, err := readResults(bytes.NewReader(out))
	if exit != nil {
		found.rest += string(exit.Stderr)
	}
	return found, err
}

// databases are those that the suites use: go-sql-driver's the first, and the others by
// the port of the server that they would have.
var databases = []string{"foreign_9910", "foreign_9911", "foreign_9912", "foreign_9913", "foreign_9914"}

// makeDatabases makes them anew, so that each run begins with nothing.
func (s *suite) makeDatabases(ctx context.Context, server *testdb.Server) error {
	pool, err := open(server, "")
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	for _, name := range databases {
		for _, statement := range []string{"DROP DATABASE IF EXISTS ", "CREATE DATABASE "} {
			if _, err := pool.ExecContext(ctx, statement+name); err != nil {
				return fmt.Errorf("%s%s: %w", statement, name, err)
			}
		}
		if err := install(ctx, server, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// install makes the tables of the locks in a database.
func install(ctx context.Context, server *testdb.Server, database string) (err error) {
	pool, err := open(server, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	return schema.Install(ctx, pool)
}

// open opens a pool of the administrator.
func open(server *testdb.Server, database string) (*sql.DB, error) {
	cfg := server.Config()
	cfg.DBName = database
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// command is a call of go in a directory, outside of any workspace.
func command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	return cmd
}

// goes runs go and returns what it writes; the error has what it complains of.
func goes(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := command(ctx, dir, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
