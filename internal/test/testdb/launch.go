package testdb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// instance is a server that was found, with its data, running or not.
type instance struct {
	origin   string // where it comes from, for messages
	dir      string // data, log and socket; removed at the end
	user     string // the administrator
	password string
	socket   string
	port     int // of the last start
	child    *Child
	net      *attached // nil for loopback
	behind   *instance // what it needs, for messages; it may be nil

	// spawn starts the server on a loopback port.
	spawn func(ctx context.Context, port int) (*Child, error)
	// halt ends a server that is not the child itself. It is nil where
	// killing the child is enough.
	halt func() error
	// signal sends a signal to a server that is not the child itself. It may be nil.
	signal func(syscall.Signal) error
	// discard removes what is outside of dir. It may be nil.
	discard func() error
	// ready tells whether a server that answers can be used. It may be nil.
	ready func(ctx context.Context, pool *sql.DB) error
	// adminParams are the session variables of the administrator's pools of tests.
	adminParams map[string]string
}

// launch starts the server on a port that is free. Another process may take
// the port before the server does, then launch tries another one.
func (s *Server) launch(ctx context.Context) error {
	var err error
	for range 5 {
		var port int
		if port, err = freePort(); err != nil {
			return err
		}
		if err = s.inst.start(ctx, port); err != nil {
			return err
		}
		s.config = s.inst.config()
		s.socket = s.inst.socket
		if err = s.waitReady(ctx); err == nil {
			return nil
		}
		if killErr := s.inst.kill(); killErr != nil {
			return errors.Join(err, killErr)
		}
		if !portTaken(err) {
			return err
		}
	}
	return err
}

// launchNode starts the server on a port that it keeps: its cluster goes on while it is
// away.
func (s *Server) launchNode(ctx context.Context) error {
	port, err := quietPort()
	if err != nil {
		return err
	}
	if err := s.inst.start(ctx, port); err != nil {
		return err
	}
	s.config = s.inst.config()
	return s.waitReady(ctx)
}

// waitReady returns when the server answers, or with the end of its log.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cfg := s.Config()
	cfg.Timeout = time.Second
	cfg.Logger = &mysql.NopLogger{}
	pool, err := open(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()

	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		pingErr := pool.PingContext(ctx)
		if pingErr == nil && s.inst.ready != nil {
			pingErr = s.inst.ready(ctx, pool)
		}
		if pingErr == nil {
			return nil
		}
		select {
		case <-s.inst.child.done:
			return fmt.Errorf("the server ended before it answered (%v); its log:\n%s", s.inst.child.state, s.inst.logTail())
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w (last: %w); its log:\n%s", ctx.Err(), pingErr, s.inst.logTail())
		case <-tick.C:
		}
	}
}

// Ready tells whether the server can be used: whether it is one of its cluster. A member of
// a Group Replication that isn't joins it again.
func (s *Server) Ready(ctx context.Context) error {
	if s.External() || s.inst.ready == nil {
		return nil
	}
	pool, err := open(s.Config())
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	return s.inst.ready(ctx, pool)
}

func (i *instance) start(ctx context.Context, port int) error {
	child, err := i.spawn(ctx, port)
	if err != nil {
		return err
	}
	i.child, i.port = child, port
	return nil
}

// kill ends the server and returns when it is gone. It isn't an error if it was
// gone before.
func (i *instance) kill() error {
	if i.child == nil {
		return nil
	}
	if i.halt != nil {
		if err := i.halt(); err != nil && i.child.Running() {
			return err
		}
	}
	i.child.Kill()
	i.child = nil
	return nil
}

func (i *instance) remove() error {
	var err error
	if i.discard != nil {
		err = i.discard()
	}
	return errors.Join(err, os.RemoveAll(i.dir))
}

func (i *instance) config() *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd = i.user, i.password
	cfg.Net, cfg.Addr = "tcp", loopback(i.port)
	if i.net != nil {
		cfg.Addr = fmt.Sprintf("%s:%d", i.net.clients, i.port)
	}
	return cfg
}

func (i *instance) logPath() string { return filepath.Join(i.dir, "log") }

// logTail returns the last lines that the server wrote, and what it needs.
func (i *instance) logTail() string {
	if i.behind == nil {
		return i.ownTail()
	}
	return i.ownTail() + "\nwhat it needs wrote:\n" + i.behind.ownTail()
}

func (i *instance) ownTail() string {
	data, err := os.ReadFile(i.logPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// privateDir makes a directory for a server. A Unix socket's path may have
// about 107 bytes, so a long temporary directory is passed over for /tmp.
func privateDir() (string, error) { return privateDirIn(os.TempDir()) }

// privateDirIn makes it in another directory than that of temporary files.
func privateDirIn(parent string) (string, error) {
	const longest = 80
	if len(parent) > longest {
		parent = "/tmp"
	}
	return os.MkdirTemp(parent, "lockstep-")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// portTaken reports whether a server failed because somebody else has its
// port, by what the servers and Docker write then.
func portTaken(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "address already in use") || strings.Contains(text, "port is already allocated")
}

// randomHex returns n random bytes in hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails, says crypto/rand
	return hex.EncodeToString(b)
}
