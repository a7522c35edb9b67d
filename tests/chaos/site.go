package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	database   = "chaos"
	clientUser = "chaos_client"
)

// site is a server, its clients and what is done to them.
type site struct {
	options
	engine  testdb.Engine
	dir     string // of the histories
	server  *testdb.Server
	admin   *sql.DB
	clients []*process

	mu     sync.Mutex
	faults map[string]int
	broken error // what has failed that is not what is tested
	v      verdict

	history []*op
}

// process is a client, in its lives one after the other.
type process struct {
	name    string
	network *faults.Network
	life    int
	process *testdb.Child
	orders  io.WriteCloser
	errors  string // the path of what it says
}

// newSite starts a server with the tables, and the networks to it.
func newSite(ctx context.Context, o options, engine testdb.Engine, dir string) (s *site, err error) {
	s = &site{options: o, engine: engine, dir: dir, faults: make(map[string]int)}
	// Waits end before the operations do.
	s.server, err = testdb.Start(ctx, engine, testdb.Args("--innodb-lock-wait-timeout=2"))
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
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
	for _, statement := range []string{
		"CREATE DATABASE " + database,
		fmt.Sprintf("CREATE USER %s@'%%' IDENTIFIED BY '%s'", clientUser, clientUser),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.* TO %s@'%%'", database, clientUser),
	} {
		if _, err := creating.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if err := schema.Install(ctx, s.admin); err != nil {
		return err
	}
	if err := install(ctx, s.admin); err != nil {
		return err
	}
	for i := range s.options.clients {
		n, err := faults.NewNetwork(cfg.Addr)
		if err != nil {
			return err
		}
		s.clients = append(s.clients, &process{name: fmt.Sprintf("%s%d", s.engine, i), network: n})
	}
	return nil
}

// config is how clients reach the server.
func (s *site) config() *mysql.Config {
	cfg := s.server.Config()
	cfg.User, cfg.Passwd, cfg.DBName = clientUser, clientUser, database
	cfg.Logger = &mysql.NopLogger{}
	return cfg
}

// start begins a life of a client, whose clock is set apart by that much.
func (s *site) start(i int, apart time.Duration) error {
	p := s.clients[i]
	p.life++
	name := fmt.Sprintf("%s.%d", p.name, p.life)
	cfg := s.config()
	cfg.Addr = p.network.Addr()
	choice := rand.New(rand.NewPCG(s.seed, uint64(i)<<32|uint64(p.life)))
	text, err := json.Marshal(clientConfig{
		Name: name, DSN: cfg.FormatDSN(), History: filepath.Join(s.dir, name+".jsonl"),
		Seed: choice.Uint64(), Workers: s.workers, TTL: s.ttl, Without: s.without, Apart: int64(apart),
	})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	line := []string{self}
	if apart != 0 {
		line = append(timeNamespace(apart), self)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), clientVariable+"="+string(text))
	p.errors = filepath.Join(s.dir, name+".stderr")
	stderr, err := os.Create(p.errors)
	if err != nil {
		return err
	}
	defer func() { _ = stderr.Close() }() // the client has its own
	cmd.Stdout, cmd.Stderr = stderr, stderr
	orders, commands, err := os.Pipe() // a pipe of exec would close with the process, and fail the order
	if err != nil {
		return err
	}
	defer func() { _ = orders.Close() }()
	cmd.Stdin, p.orders = orders, commands
	p.process, err = testdb.StartChild(cmd)
	return err
}

// timeNamespace is a command line that runs another in a time namespace, where the
// monotonic clock is ahead by that much and the clock that counts suspended time by half
// of it more.
func timeNamespace(apart time.Duration) []string {
	seconds := int64(apart / time.Second)
	return []string{
		"unshare", "--time", "--monotonic", strconv.FormatInt(seconds, 10), "--boottime", strconv.FormatInt(seconds*3/2, 10),
		"--fork", "--kill-child",
	}
}

// mayMoveClocks tells why clocks can't be set apart here, nil where they can.
func mayMoveClocks() error {
	line := append(timeNamespace(time.Hour), "true")
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// kill ends a life of a client by SIGKILL.
func (s *site) kill(p *process) {
	s.alive(p)
	p.process.Kill()
	_ = p.orders.Close() // nobody listens
}

// alive tells whether a client runs. One that has ended by itself is a violation.
func (s *site) alive(p *process) bool {
	running := p.process.Running()
	if !running {
		s.add(broken, "the client %s has ended by itself: %s", p.name, p.says())
	}
	return running
}

// says is the end of what it has said.
func (p *process) says() string {
	text, err := os.ReadFile(p.errors)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return fmt.Sprintf("%v\n%s", p.process.Wait(), text[max(0, len(text)-most):])
}

// finish tells the clients to stop, and waits until they have.
func (s *site) finish() {
	var ending sync.WaitGroup
	for _, p := range s.clients {
		if p.process == nil {
			continue
		}
		_ = p.orders.Close()
		ending.Go(func() {
			if !within(endLimit, func() { p.process.Wait() }) {
				_ = p.process.Signal(syscall.SIGQUIT) // it tells where it hangs
				if !within(opLimit, func() { p.process.Wait() }) {
					p.process.Kill()
				}
				s.add(stuck, "the client %s does not end: %s", p.name, p.says())
			} else if !p.process.Wait().Success() {
				s.add(broken, "the client %s has failed: %s", p.name, p.says())
			}
		})
	}
	ending.Wait()
}

// endLimit is how long a client may take to end, which has operations under way.
const endLimit = 10 * opLimit

// within tells whether a function returns in time.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// settle ends all sessions of clients that are gone, so that what they have sent last is
// committed or rolled back.
func (s *site) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	for {
		sessions, err := s.sessions(ctx)
		if err != nil {
			return err
		}
		open := 0
		if err := s.admin.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.innodb_trx").Scan(&open); err != nil {
			return err
		}
		if len(sessions) == 0 && open == 0 {
			return nil
		}
		for _, id := range sessions {
			_, _ = s.admin.ExecContext(ctx, fmt.Sprintf("KILL %d", id)) // it may have ended by itself
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d sessions and %d transactions don't end: %w", len(sessions), open, err)
		}
	}
}

// sweep takes everything once more: nothing may be held by those who are gone.
func (s *site) sweep(ctx context.Context) error {
	base, err := mysql.NewConnector(s.config())
	if err != nil {
		return err
	}
	pool := sql.OpenDB(locksqlc.Connector(base))
	defer func() { _ = pool.Close() }()
	leases, err := lease.NewManager(pool, lease.TTL(s.ttl), lease.WaitAtMost(10*s.ttl+opLimit))
	if err != nil {
		return err
	}
	defer func() { _ = leases.Close(ctx) }()
	for _, key := range slices.Concat(leaseKeys, sharedKeys) {
		if err := leases.Do(ctx, keyOf(key), func(context.Context, *lease.Lease) error { return nil }); err != nil {
			s.add(stuck, "%s can't be had at the end: %v", key, err)
		}
	}
	for _, key := range permitKeys {
		semaphore, err := leases.Semaphore(keyOf(key), permits)
		if err != nil {
			return err
		}
		for range permits {
			if _, err := semaphore.Acquire(ctx); err != nil {
				s.add(stuck, "%s can't be had at the end: %v", key, err)
			}
		}
	}
	err = locksqlc.Run(ctx, pool, keysOf(lockKeys), func(*sql.Tx) error { return nil })
	if err != nil {
		s.add(stuck, "the locks can't be had at the end: %v", err)
	}
	return nil
}

// close stops what was started.
func (s *site) close() error {
	for _, p := range s.clients {
		if p.process != nil {
			p.process.Kill()
			_ = p.orders.Close()
		}
		p.network.Down()
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
	return s.server.Stop()
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

// counted are the faults so far.
func (s *site) counted() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.faults)
}
