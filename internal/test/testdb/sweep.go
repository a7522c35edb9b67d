package testdb

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// sweepVariable is the environment variable that makes a test binary a sweeper.
const sweepVariable = "LOCKSTEP_TESTDB_SWEEP"

// sweeper drops the databases and users that this process has made on servers that
// somebody else runs, where the process ends before it has dropped them itself: by the
// panic of a test, its timeout, or SIGKILL. It is a copy of the test binary that waits
// for the end of its input, which the death of this process is.
type sweeper struct {
	mu     sync.Mutex
	mayRun bool // Main is in charge, and makes the copy a sweeper
	cmd    *exec.Cmd
	input  io.WriteCloser
}

// sweeping is the sweeper of this process.
var sweeping sweeper

// order tells the sweeper of a database.
type order struct {
	Engine   Engine
	DSN      string // of the administrator
	Name     string
	User     string
	Accounts []string
	Dropped  bool // it needs to do no more
}

// tell tells the sweeper of a database that will be made, or that was dropped.
func (s *sweeper) tell(db *DB, dropped bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mayRun || !db.server.External() {
		return nil // the server itself ends with this process
	}
	if s.cmd == nil {
		if err := s.start(); err != nil {
			return fmt.Errorf("testdb: start what cleans up after this process: %w", err)
		}
	}
	return json.NewEncoder(s.input).Encode(order{
		Engine: db.server.engine, DSN: db.server.Config().FormatDSN(), Name: db.name, User: db.user, Accounts: db.accounts(), Dropped: dropped,
	})
}

func (s *sweeper) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), sweepVariable+"=1")
	cmd.Stderr = os.Stderr                                // go test waits until it is closed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	s.cmd, s.input = cmd, input
	return cmd.Start()
}

// end lets the sweeper do what was left to it.
func (s *sweeper) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	err := s.input.Close()
	err = errors.Join(err, s.cmd.Wait())
	s.cmd = nil
	return err
}

// sweep is the sweeper's own life. It returns what it could not drop.
func sweep(orders io.Reader) error {
	left := make(map[string]order)
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		var o order
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			break // its writer has died within the line
		}
		left[o.Name] = o
		if o.Dropped {
			delete(left, o.Name)
		}
	}
	var errs []error
	for _, o := range left {
		if err := o.drop(); err != nil {
			errs = append(errs, fmt.Errorf("testdb: clean up the database %s on %s: %w", o.Name, o.Engine, err))
		}
	}
	return errors.Join(errs...)
}

// drop ends the sessions of the application user, which may wait for a lock for long,
// and drops the database and the user.
func (o order) drop() error {
	cfg, err := mysql.ParseDSN(o.DSN)
	if err != nil {
		return err
	}
	pool, err := open(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	sessions, err := o.sessions(ctx, pool)
	if err != nil {
		return err
	}
	for _, id := range sessions {
		_, _ = pool.ExecContext(ctx, fmt.Sprintf("KILL %d", id)) // it may have ended by itself
	}
	return execAll(ctx, pool, dropStatements(o.Name, o.Accounts))
}

func (o order) sessions(ctx context.Context, pool *sql.DB) (ids []int64, err error) {
	rows, err := pool.QueryContext(ctx, "SELECT id FROM "+o.Engine.Processes()+" WHERE user = ?", o.User)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func dropStatements(name string, accounts []string) []string {
	statements := []string{"DROP DATABASE IF EXISTS `" + name + "`"}
	for _, account := range accounts {
		statements = append(statements, "DROP USER IF EXISTS "+account)
	}
	return statements
}
