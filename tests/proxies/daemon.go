package proxies

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// daemon is the process of a proxy.
type daemon struct {
	addr    string   // on which it listens
	dir     string   // of its own
	command []string // before the path of its configuration
	child   *testdb.Child
}

// newDaemon makes the directory of one, which ends with the test.
func newDaemon(t *testing.T, command ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "lockstep-proxy-") // t.TempDir has too long a name for a socket
	check(t, err)
	d := &daemon{addr: freeAddr(t), dir: dir, command: command}
	t.Cleanup(func() {
		if d.child != nil {
			d.child.Kill()
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", d.command, d.wrote())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// start starts it with a configuration, when it has ended if it runs, and returns when it
// listens.
func (d *daemon) start(t *testing.T, configuration string) {
	t.Helper()
	if d.child != nil {
		d.child.Kill()
	}
	config := filepath.Join(d.dir, "proxy.cfg")
	check(t, os.WriteFile(config, []byte(configuration), 0o600))
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(t, err)
	defer func() { _ = log.Close() }() // the child has its own
	cmd := exec.Command(d.command[0], append(d.command[1:len(d.command):len(d.command)], config)...)
	cmd.Stdout, cmd.Stderr = log, log
	if d.child, err = testdb.StartChild(cmd); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", d.addr); err == nil {
			_ = conn.Close()
			return
		}
		if !d.child.Running() || time.Now().After(deadline) {
			t.Fatalf("the proxy doesn't listen:\n%s", d.wrote())
		}
	}
}

func (d *daemon) log() string { return filepath.Join(d.dir, "log") }

// wrote is the end of its log, for a person to read.
func (d *daemon) wrote() []byte {
	text, _ := os.ReadFile(d.log())
	return text[max(0, len(text)-5000):]
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
