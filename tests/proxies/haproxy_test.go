//go:build proxies

package proxies

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// haproxy forwards connections to one server.
type haproxy struct {
	addr   string
	socket string // by which it takes orders
}

// startHAProxy starts one that cuts connections on which nothing is sent for that long.
func startHAProxy(t *testing.T, server *testdb.Server, idle time.Duration) *haproxy {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path = "/usr/sbin/haproxy"
	}
	dir, err := os.MkdirTemp("", "lockstep-haproxy-") // t.TempDir has too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &haproxy{addr: freeAddr(t), socket: filepath.Join(dir, "admin.sock")}
	config, log := filepath.Join(dir, "haproxy.cfg"), filepath.Join(dir, "log")
	text := fmt.Sprintf(`global
	stats socket %s level admin
defaults
	mode tcp
	timeout connect 2s
	timeout client %dms
	timeout server %dms
listen db
	bind %s
	server primary %s
`, h.socket, idle.Milliseconds(), idle.Milliseconds(), h.addr, server.Config().Addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-db", "-f", config)
	cmd.Stdout, cmd.Stderr = output, output
	child, err := testdb.StartChild(cmd)
	if err != nil {
		t.Fatalf("%v: install haproxy", err)
	}
	t.Cleanup(func() {
		child.Kill()
		_ = output.Close()
		if t.Failed() {
			wrote, _ := os.ReadFile(log)
			t.Logf("haproxy wrote:\n%s", wrote)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", h.addr); err == nil {
			_ = conn.Close()
			return h
		}
		if !child.Running() || time.Now().After(deadline) {
			wrote, _ := os.ReadFile(log)
			t.Fatalf("haproxy doesn't listen:\n%s", wrote)
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// to has new connections go to another server, and cuts those that are there.
func (h *haproxy) to(t *testing.T, server *testdb.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(server.Config().Addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range []string{"set server db/primary addr " + host + " port " + port, "shutdown sessions server db/primary"} {
		conn, err := net.Dial("unix", h.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(conn, order); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if text := strings.TrimSpace(string(answer)); text != "" && !strings.Contains(text, "changed from") && !strings.Contains(text, "no need to change") {
			t.Fatalf("%s: %s", order, text)
		}
	}
}
