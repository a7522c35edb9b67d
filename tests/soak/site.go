package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// nodes is how many databases a majority is taken of.
const nodes = 3

// site is a server with two clients.
type site struct {
	engine  testdb.Engine
	prefix  string // of the names of the databases
	cfg     *mysql.Config
	root    *sql.DB // without a database
	admin   *sql.DB
	clients []*client

	mu     sync.Mutex
	waits  map[string][]float64 // of a kind since the last look, in milliseconds
	done   map[string]int       // of a kind, in all
	wrong  map[string]int
	wrote  map[string]int // how often a record was raised
	errors []string       // the first that were not expected
}

// newSite makes the databases on a server that runs, and opens the clients.
func newSite(ctx context.Context, engine testdb.Engine) (s *site, err error) {
	dsn := os.Getenv(engine.DSNVariable())
	if dsn == "" {
		return nil, fmt.Errorf("%s has no DSN: run it by withservers, as make soak does", engine.DSNVariable())
	}
	s = &site{engine: engine, prefix: fmt.Sprintf("lockstep_soak_%x_", rand.Uint32()), waits: make(map[string][]float64), done: make(map[string]int), wrong: make(map[string]int), wrote: make(map[string]int)}
	if s.cfg, err = mysql.ParseDSN(dsn); err != nil {
		return nil, err
	}
	if s.root, err = s.open(""); err != nil {
		return s, err
	}
	for i := range nodes + 1 {
		if err := s.create(ctx, i); err != nil {
			return s, err
		}
	}
	if s.admin, err = s.open(s.database(0)); err != nil {
		return s, err
	}
	for _, statement := range []string{
		"CREATE TABLE counters (name VARCHAR(100) PRIMARY KEY, value BIGINT NOT NULL)",
		"CREATE TABLE articles (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, version BIGINT NOT NULL)",
		"CREATE TABLE own (id BIGINT PRIMARY KEY, value BIGINT NOT NULL)",
		"INSERT INTO articles VALUES (1, 0, 1), (2, 0, 1)",
		"INSERT INTO own VALUES (0, 0), (1, 0)",
	} {
		if _, err := s.admin.ExecContext(ctx, statement); err != nil {
			return s, err
		}
	}
	for i := range 2 {
		c, err := s.newClient(ctx, i)
		if c != nil {
			s.clients = append(s.clients, c)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// database is the name of the database of the locks, which is number 0, or of a node.
func (s *site) database(i int) string { return fmt.Sprint(s.prefix, i) }

// create makes a database with lockstep's tables. A node is for leases alone, which don't
// use the 65,536 rows of hashed keys.
func (s *site) create(ctx context.Context, i int) error {
	if _, err := s.root.ExecContext(ctx, "CREATE DATABASE "+s.database(i)); err != nil {
		return err
	}
	db, err := s.open(s.database(i))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if i == 0 {
		return schema.Install(ctx, db)
	}
	statements, err := schema.Statements()
	for _, statement := range statements {
		if err == nil && strings.HasPrefix(statement, "CREATE TABLE") {
			_, err = db.ExecContext(ctx, statement)
		}
	}
	return err
}

// config is the configuration for a database.
func (s *site) config(name string) *mysql.Config {
	cfg := s.cfg.Clone()
	cfg.DBName = name
	return cfg
}

// open opens a plain pool, for the program itself.
func (s *site) open(name string) (*sql.DB, error) {
	connector, err := mysql.NewConnector(s.config(name))
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

// close closes the clients and drops the databases.
func (s *site) close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, c := range s.clients {
		err = errors.Join(err, c.close(ctx))
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
	for i := range nodes + 1 {
		_, failed := s.root.ExecContext(ctx, "DROP DATABASE IF EXISTS "+s.database(i))
		err = errors.Join(err, failed)
	}
	return errors.Join(err, s.root.Close())
}

// tell notes what came of an operation.
func (s *site) tell(kind string, o *op, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[kind]++
	s.waits[kind] = append(s.waits[kind], float64(o.waited)/float64(time.Millisecond))
	if err == nil {
		for _, name := range o.wrote {
			s.wrote[name]++
		}
		return
	}
	s.wrong[kind]++
	if len(s.errors) < 20 {
		s.errors = append(s.errors, fmt.Sprintf("%s: %s: %s: %v", time.Now().UTC().Format(time.TimeOnly), s.engine, kind, err))
		fmt.Fprintln(os.Stderr, s.errors[len(s.errors)-1])
	}
}

// take returns the waits since the last call, and what was done and went wrong in all.
func (s *site) take() (waits map[string][]float64, done, wrong map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waits, s.waits = s.waits, make(map[string][]float64)
	return waits, maps.Clone(s.done), maps.Clone(s.wrong)
}

// lost compares the records with what was done, when nothing runs any more.
func (s *site) lost(ctx context.Context) (found []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.wrote)) {
		var value int
		if err := s.admin.QueryRowContext(ctx, "SELECT value FROM counters WHERE name = ?", name).Scan(&value); err != nil {
			return nil, err
		}
		if value != s.wrote[name] {
			found = append(found, fmt.Sprintf("%s: updates are lost: %s was raised %d times, and is %d", s.engine, name, s.wrote[name], value))
		}
	}
	return found, nil
}
