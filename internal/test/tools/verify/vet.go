package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// vet lets a server prepare every query, in a database with the schema.
func vet(ctx context.Context, sqlc []string, cfg config, copied string, engine testdb.Engine) (problems []string, err error) {
	dsn, drop, err := makeDatabase(ctx, cfg, engine)
	if err != nil {
		return nil, fmt.Errorf("%s: make a database on %s: %w", cfg.path, engine, err)
	}
	defer func() { err = errors.Join(err, drop()) }()

	text, err := cfg.withDatabase(dsn)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(cfg.path), "sqlc-"+string(engine)+".yaml")
	if err := os.WriteFile(filepath.Join(copied, path), []byte(text), 0o600); err != nil {
		return nil, err
	}
	said, err := runSQLC(ctx, sqlc, copied, "vet", "--file", path)
	if err != nil || said == "" {
		return nil, err
	}
	return []string{fmt.Sprintf("%s: %s refuses to prepare a query: write it in a way that every server knows, or send it from Go:\n%s",
		cfg.path, engine, said)}, nil
}

// makeDatabase makes a database with the schema of the config on the server
// that withservers started.
func makeDatabase(ctx context.Context, cfg config, engine testdb.Engine) (dsn string, drop func() error, err error) {
	variable := engine.DSNVariable()
	if os.Getenv(variable) == "" {
		return "", nil, fmt.Errorf("%s is not set: run verify under withservers, as make verify does", variable)
	}
	admin, err := mysql.ParseDSN(os.Getenv(variable))
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", variable, err)
	}
	admin.MultiStatements = true
	connector, err := mysql.NewConnector(admin)
	if err != nil {
		return "", nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(1) // USE counts for a connection

	name := "lockstep_v_" + rand.Text()
	drop = func() error {
		_, err := pool.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+name)
		return errors.Join(err, pool.Close())
	}
	statements, err := readSchema(cfg.schema)
	if err != nil {
		return "", nil, errors.Join(err, pool.Close())
	}
	for _, statement := range append([]string{"CREATE DATABASE " + name, "USE " + name}, statements...) {
		if _, err := pool.ExecContext(ctx, statement); err != nil {
			return "", nil, errors.Join(err, drop())
		}
	}
	user := admin.Clone()
	user.DBName = name
	user.MultiStatements = false
	return user.FormatDSN(), drop, nil
}

// readSchema returns the text of the schema's files, in their order.
func readSchema(paths []string) ([]string, error) {
	var texts []string
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err != nil {
			return nil, err
		} else if info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.sql")); err != nil {
				return nil, err
			}
		}
		slices.Sort(files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			texts = append(texts, string(text))
		}
	}
	return texts, nil
}
