package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/faults"
)

const (
	database   = "chaos"
	clientUser = "chaos_client"
	lockWait   = 2 // of a row, in seconds
)

// tidbServers is how many servers there are over the store of TiDB.
const tidbServers = 2

// site is a server, or several over one store, the clients and what is done to them.
type site struct {
	options
	engine  testdb.Engine
	dir     string           // of the histories
	server  *testdb.Server   // the first
	servers []*testdb.Server // all
	admin   *sql.DB
	clients []*process
	nodes   []*faults.Network // to the databases of majorities
	clock   *faketime         // nil where it can't be set
	disk    *disk             // nil where there is none of its own

	serving sync.Mutex // is had by what the server must survive, or must not answer at

	mu     sync.Mutex
	faults map[string]int
	feels  map[string]int   // how often a fault was felt, of those that are looked at
	absent map[string]error // why a fault is not made here
	broken error            // what has failed that is not what is tested
	v      verdict

	history []*op
	seen    []sight
}

// newSite starts a server with the tables, and the networks to it.
func newSite(ctx context.Context, o options, engine testdb.Engine, dir string) (s *site, err error) {
	s = &site{options: o, engine: engine, dir: dir, faults: make(map[string]int), feels: make(map[string]int), absent: make(map[string]error)}
	if err := s.serve(ctx); err != nil {
		if s.disk != nil {
			err = errors.Join(err, s.disk.close())
		}
		return nil, err
	}
	s.server = s.servers[0]
	if engine != testdb.TiDB && s.server.Socket() == "" { // in Docker
		err := errors.New("the server does not run on this machine")
		s.leave(err, clockFaults...)
		s.leave(err, "fill disk")
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// serve starts the servers.
func (s *site) serve(ctx context.Context) (err error) {
	if s.engine == testdb.TiDB {
		s.readers = 0 // and no crowd
		s.leave(errors.New("not on TiDB"), slices.Concat(clockFaults, serverFaults)...)
		s.servers, err = testdb.StartTiDB(ctx, tidbServers)
		return err
	}
	// Waits end before the operations do.
	own := append(s.own(ctx), testdb.Args(fmt.Sprintf("--innodb-lock-wait-timeout=%d", lockWait), "--innodb-autoextend-increment=1"))
	server, err := testdb.Start(ctx, s.engine, own...)
	s.servers = []*testdb.Server{server}
	return err
}

// of is the server that something is done to.
func (s *site) of(choice uint64) *testdb.Server { return s.servers[choice%uint64(len(s.servers))] }

// own makes the server's clock and its disk, where that is possible.
func (s *site) own(ctx context.Context) (options []testdb.Option) {
	if s.clocks != nil {
		s.leave(s.clocks, "set clock apart")
	}
	made, option, err := newFaketime(ctx, s.dir, string(s.engine))
	if err != nil {
		s.leave(err, clockFaults...)
	} else {
		s.clock, options = made, append(options, option)
	}
	if s.disk, err = newDisk(s.dir, string(s.engine)); err != nil {
		s.disk = nil
		s.leave(err, "fill disk")
	} else {
		options = append(options, testdb.In(s.disk.dir))
	}
	return options
}

// leave notes why some faults are not made.
func (s *site) leave(why error, kinds ...string) {
	for _, kind := range kinds {
		s.absent[kind] = why
	}
}

func (s *site) prepare(ctx context.Context) error {
	cfg := s.server.Config()
	cfg.Logger = &mysql.NopLogger{}
	root, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	cfg = cfg.Clone()
	cfg.DBName = database
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	s.admin = sql.OpenDB(connector)
	creating := sql.OpenDB(root)
	defer func() { _ = creating.Close() }()
	statements := []string{
		"CREATE DATABASE " + database,
		fmt.Sprintf("CREATE USER %s@'%%' IDENTIFIED BY '%s'", clientUser, clientUser),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, EXECUTE ON %s.* TO %s@'%%'", database, clientUser),
	}
	if s.engine == testdb.TiDB {
		statements = append(statements, fmt.Sprintf("SET GLOBAL innodb_lock_wait_timeout = %d", lockWait)) // its store keeps that
	}
	for _, statement := range statements {
		if _, err := creating.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if err := schema.Install(ctx, s.admin); err != nil {
		return err
	}
	if err := s.dropProcedures(ctx); err != nil {
		return err
	}
	if err := install(ctx, s.admin, s.engine); err != nil {
		return err
	}
	if err := s.makeNodes(ctx); err != nil {
		return err
	}
	for i := range s.perSite {
		n, err := faults.NewNetwork(s.of(uint64(i)).Config().Addr)
		if err != nil {
			return err
		}
		s.clients = append(s.clients, &process{name: fmt.Sprintf("%s%d", s.engine, i), network: n})
	}
	return nil
}

// dropProcedures leaves the locks of MySQL without their procedures where a bug is planted in
// the statements that are sent.
func (s *site) dropProcedures(ctx context.Context) error {
	if guards[s.without].bug == "" {
		return nil
	}
	var names []string
	err := eachRow(ctx, s.admin, "SELECT routine_name FROM information_schema.routines WHERE routine_schema = '"+database+"'", func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	})
	for _, name := range names {
		_, dropErr := s.admin.ExecContext(ctx, "DROP PROCEDURE "+name)
		err = errors.Join(err, dropErr)
	}
	return err
}

// stream is a sequence of random numbers of its own for everything that is chosen, the
// same whichever other engine is run.
func (s *site) stream(of int) uint64 {
	if s.engine == testdb.MySQL {
		return 1<<63 | uint64(of)
	}
	return uint64(of)
}

// config is how clients reach the server.
func (s *site) config() *mysql.Config {
	cfg := s.server.Config()
	cfg.User, cfg.Passwd, cfg.DBName = clientUser, clientUser, database
	cfg.Logger = &mysql.NopLogger{}
	return cfg
}

// close stops what was started.
func (s *site) close() (err error) {
	for _, p := range s.clients {
		if p.process != nil {
			p.process.Kill()
			_ = p.orders.Close()
		}
		err = errors.Join(err, p.network.Down())
	}
	for _, n := range s.nodes {
		err = errors.Join(err, n.Down())
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
	err = errors.Join(err, testdb.StopAll(s.servers))
	if s.disk != nil {
		err = errors.Join(err, s.disk.close())
	}
	return err
}

// fail notes that the run can't go on, for a reason that is not what is tested.
func (s *site) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = errors.Join(s.broken, err)
}

func (s *site) add(sort, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.v.add(sort, format, args...)
}

func (s *site) count(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[kind]++
}

// feel notes that a fault was felt.
func (s *site) feel(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feels[kind]++
}

// counted are the faults so far.
func (s *site) counted() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.faults)
}
