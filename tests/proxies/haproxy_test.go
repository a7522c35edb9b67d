//go:build proxies

package proxies

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// haproxy forwards connections to one server.
type haproxy struct {
	*daemon
	socket string // by which it takes orders
}

// newHAProxy starts one before the server.
func newHAProxy(t *testing.T, server *testdb.Server) proxy {
	t.Helper()
	return startHAProxy(t, server, time.Minute)
}

// startHAProxy starts one that cuts connections on which nothing is sent for that long.
func startHAProxy(t *testing.T, server *testdb.Server, idle time.Duration) *haproxy {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path = "/usr/sbin/haproxy"
	}
	h := &haproxy{daemon: newDaemon(t, path, "-db", "-f")}
	h.socket = filepath.Join(h.dir, "admin.sock")
	h.start(t, fmt.Sprintf(`global
	stats socket %s level admin
defaults
	mode tcp
	timeout connect 2s
	timeout client %dms
	timeout server %dms
listen db
	bind %s
	server primary %s
`, h.socket, idle.Milliseconds(), idle.Milliseconds(), h.addr, server.Config().Addr))
	return h
}

func (h *haproxy) lead(client *mysql.Config) { client.Addr = h.addr }

// to tells it by its socket.
func (h *haproxy) to(t *testing.T, primary, _ *testdb.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(primary.Config().Addr)
	check(t, err)
	for _, order := range []string{"set server db/primary addr " + host + " port " + port, "shutdown sessions server db/primary"} {
		conn, err := net.Dial("unix", h.socket)
		check(t, err)
		check(t, second(fmt.Fprintln(conn, order)))
		answer, err := io.ReadAll(conn)
		check(t, err)
		_ = conn.Close()
		if text := strings.TrimSpace(string(answer)); text != "" && !strings.Contains(text, "changed from") && !strings.Contains(text, "no need to change") {
			t.Fatalf("%s: %s", order, text)
		}
	}
}
