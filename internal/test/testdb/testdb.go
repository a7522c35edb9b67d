// Package testdb brings MariaDB and MySQL servers for tests, benchmarks and
// the demo, on any machine, and throws them away afterwards. It brings TiDB
// and Vitess, too, but only where LOCKSTEP_ENGINES names them.
//
// Tests share one server per engine and process:
//
//	func TestMain(m *testing.M) { testdb.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		for _, engine := range testdb.Engines() {
//			t.Run(string(engine), func(t *testing.T) {
//				db := testdb.Open(t, engine)
//				table := db.CreateTable(t, "orders", "id BIGINT PRIMARY KEY")
//				...
//
// A test that kills its server, or needs one with other settings, gets one of
// its own from Dedicated.
package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Engine is a database server of the MySQL family.
type Engine string

// The engines that lockstep is tested on.
const (
	MariaDB Engine = "mariadb"
	MySQL   Engine = "mysql"
	TiDB    Engine = "tidb"   // by night
	Vitess  Engine = "vitess" // by night
)

// Guarded reports whether only guarded pools have locks on the engine.
func (e Engine) Guarded() bool { return e == TiDB || e == Vitess }

// LevelVariable is the variable with the isolation level of a session.
func (e Engine) LevelVariable() string {
	if e == MariaDB {
		return "tx_isolation"
	}
	return "transaction_isolation"
}

var allEngines = []Engine{MariaDB, MySQL, TiDB, Vitess}

// engineOf returns the engine of a server by its version, or by what its binary
// says of that.
func engineOf(version string) Engine { return Engine(strings.ToLower(rawsql.EngineOf(version).Name)) }

// DSNVariable is the name of the environment variable that gives the engine's
// server: LOCKSTEP_MARIADB_DSN, LOCKSTEP_MYSQL_DSN, LOCKSTEP_TIDB_DSN or LOCKSTEP_VITESS_DSN, the
// DSN of an administrator who may create databases and users.
func (e Engine) DSNVariable() string { return e.variable("DSN") }

func (e Engine) imageVariable() string { return e.variable("IMAGE") }

func (e Engine) variable(what string) string {
	return "LOCKSTEP_" + strings.ToUpper(string(e)) + "_" + what
}

// Engines returns the engines to test on: those of LOCKSTEP_ENGINES, a comma
// separated list. The default is MariaDB and MySQL. A name that is unknown panics; Main
// has looked before and ended the test binary with a clear line.
//
// LOCKSTEP_ENGINES=none stands for no server at all. Engines returns one engine then,
// which is none, so that each test that asks for a server of it says that it is skipped.
func Engines() []Engine {
	if withoutServers() {
		return []Engine{none}
	}
	engines, err := ParseEngines(os.Getenv("LOCKSTEP_ENGINES"))
	if err != nil {
		panic(err)
	}
	return engines
}

// Long returns how much a test does in its long form, where LOCKSTEP_LONG is set,
// and else how much in its short one, which make test runs.
func Long[T any](short, long T) T {
	if os.Getenv("LOCKSTEP_LONG") != "" {
		return long
	}
	return short
}

// Meet reports whether settings, each a bool or a number, are run together: in a long run all are,
// and else those whose sum is even. So all but any one of them meet in all their combinations.
func Meet(settings ...any) bool {
	sum := 0
	for _, s := range settings {
		switch s := s.(type) {
		case int:
			sum += s
		case bool:
			if s {
				sum++
			}
		default:
			panic(fmt.Sprintf("testdb: %T is no setting", s))
		}
	}
	return Long(sum%2 == 0, true)
}

// Seed returns the number that a test draws from what it does: always the same in make
// test, where a test fails only by a change of what it tests, and a new one with
// LOCKSTEP_LONG=1, as by night. LOCKSTEP_SEED is one that a failed test has printed.
var Seed = sync.OnceValue(func() uint64 {
	text := os.Getenv("LOCKSTEP_SEED")
	if text == "" {
		return Long(1, 1+rand.Uint64N(1<<62))
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic("testdb: LOCKSTEP_SEED: " + err.Error())
	}
	return seed
})

// ParseEngines reads a comma separated list of engines. An empty list stands
// for MariaDB and MySQL, and none is an unknown engine: whoever starts servers needs one.
func ParseEngines(list string) ([]Engine, error) {
	if strings.TrimSpace(list) == "" {
		return []Engine{MariaDB, MySQL}, nil
	}
	var engines []Engine
	for name := range strings.SplitSeq(list, ",") {
		engine := Engine(strings.ToLower(strings.TrimSpace(name)))
		if !slices.Contains(allEngines, engine) {
			return nil, fmt.Errorf("testdb: unknown engine %q in the list %q: use some of %v (LOCKSTEP_ENGINES)", name, list, allEngines)
		}
		engines = append(engines, engine)
	}
	return engines, nil
}

// Server is a running database server.
type Server struct {
	engine Engine
	config *mysql.Config
	socket string
	inst   *instance // nil where somebody else runs the server
}

// Start brings up a new server of the engine. It takes the first that works
// of: a server binary on this machine, Docker, and, as root, a package of the
// operating system. Where LOCKSTEP_MARIADB_IMAGE or LOCKSTEP_MYSQL_IMAGE names
// a Docker image, only that is used, so that nobody tests another version
// than they meant. Otherwise LOCKSTEP_MARIADB_DEBIAN may name a suite of Debian,
// such as trixie: then only the MariaDB of that is used, which root downloads once
// into the cache, without Docker and beside what is installed.
//
// The server answers when Start returns. It ends with Stop, and at the latest
// with this process, even if that is killed.
func Start(ctx context.Context, engine Engine, opts ...Option) (*Server, error) {
	o := options{}
	for _, opt := range opts {
		opt(&o)
	}
	if err := mayStart(); err != nil {
		return nil, err
	}
	inst, err := findInstance(ctx, engine, o)
	if err != nil {
		return nil, fmt.Errorf("testdb: no %s server: %w", engine, err)
	}
	s := &Server{engine: engine, inst: inst}
	if err := s.launch(ctx); err != nil {
		_ = inst.remove()
		return nil, fmt.Errorf("testdb: start %s (%s): %w", engine, inst.origin, err)
	}
	return s, nil
}

// Engine returns the engine of the server.
func (s *Server) Engine() Engine { return s.engine }

// Config returns a fresh copy of the driver configuration of an administrator,
// who may do everything, over TCP and without a database.
func (s *Server) Config() *mysql.Config { return s.config.Clone() }

// adminPool is a pool of the administrator, with a database or none.
func (s *Server) adminPool(database string) (*sql.DB, error) {
	cfg := s.Config()
	cfg.DBName = database
	if !s.External() {
		cfg.Params = maps.Clone(s.inst.adminParams)
	}
	return open(cfg)
}

func open(cfg *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// Socket returns the path of the server's Unix socket. It is empty where the
// server runs in Docker or was given by its DSN.
func (s *Server) Socket() string { return s.socket }

// External reports whether somebody else runs the server, so that Stop, Kill
// and Restart are refused.
func (s *Server) External() bool { return s.inst == nil }

// Running reports whether the server can be used: it runs, or somebody else
// runs it.
func (s *Server) Running() bool {
	return s.External() || s.inst.child != nil && s.inst.child.Running()
}

// Stop ends the server and removes its data. It does not wait for clients,
// and nothing is flushed, because nothing is kept.
func (s *Server) Stop() error {
	if s.External() {
		return s.refuse("stop")
	}
	if err := s.inst.kill(); err != nil {
		return err
	}
	return s.inst.remove()
}

// Kill ends the server the hard way, by SIGKILL, and returns when it is gone.
// Its data stay for Restart.
func (s *Server) Kill() error {
	if s.External() {
		return s.refuse("kill")
	}
	return s.inst.kill()
}

// Restart kills the server if it runs and starts it again on the same port
// with the same data. All that was committed is still there.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	if err := s.inst.start(ctx, s.inst.port); err != nil {
		return fmt.Errorf("testdb: restart %s: %w", s.engine, err)
	}
	return s.waitReady(ctx)
}

// Signal sends a signal to the server, such as SIGSTOP, which lets it stand still
// until SIGCONT. In Docker there are these two only. It must not be called together with
// Stop, Kill and Restart.
func (s *Server) Signal(signal syscall.Signal) error {
	switch {
	case s.External():
		return s.refuse("signal")
	case s.inst.child == nil:
		return os.ErrProcessDone
	case s.inst.signal != nil:
		return s.inst.signal(signal)
	}
	return s.inst.child.Signal(signal)
}

func (s *Server) refuse(what string) error {
	return fmt.Errorf("testdb: cannot %s the %s server: it was given by %s", what, s.engine, s.engine.DSNVariable())
}

// startTimeout is how long a server may take until it answers. The slow ones
// are Docker images, which fill their data directory first.
const startTimeout = 3 * time.Minute
