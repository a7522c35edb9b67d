package proxies

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// Router is MySQL Router.
type Router struct {
	*daemon
	Addr     string
	defaults string // lines of [DEFAULT]
}

// NewRouter makes one that doesn't run yet.
func NewRouter(t *testing.T) *Router {
	t.Helper()
	command, defaults, err := testdb.MySQLRouter(t.Context())
	check(t, err)
	r := &Router{daemon: newDaemon(t, append(command, "--config")...), defaults: defaults}
	r.Addr = r.addr
	return r
}

// Cluster tells it the members of a Group Replication, by its name, and the password of a user of
// its own.
func (r *Router) Cluster(t *testing.T, group string, members []*testdb.Server, user, password string) {
	t.Helper()
	state, key, ring := filepath.Join(r.dir, "state.json"), filepath.Join(r.dir, "key"), filepath.Join(r.dir, "keyring")
	var at []string
	for _, member := range members {
		at = append(at, `"mysql://`+member.Config().Addr+`"`)
	}
	text := fmt.Sprintf(`{"metadata-cache": {"group-replication-id": %q, "cluster-metadata-servers": [%s]}, "version": "1.0.0"}`, group, strings.Join(at, ", "))
	check(t, os.WriteFile(state, []byte(text), 0o600))
	program := r.command[:len(r.command)-1]
	program = append(slices.Clone(program[:len(program)-1]), program[len(program)-1]+"_keyring")
	for _, args := range [][]string{{"init", "--master-key-file=" + key, ring}, {"set", "--master-key-file=" + key, ring, user, "password", password}} {
		if out, err := exec.CommandContext(t.Context(), program[0], append(program[1:], args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
	}
	r.defaults += fmt.Sprintf("dynamic_state = %s\nkeyring_path = %s\nmaster_key_path = %s\n", state, ring, key)
}

// Sharing is the end of a route that gives each session to another client as soon as it is idle.
// For that the router must know the passwords of clients, which are in tls=skip-verify.
func (r *Router) Sharing(t *testing.T) string {
	t.Helper()
	check(t, testdb.WriteCertificates(r.dir))
	return fmt.Sprintf(`
connection_sharing = 1
connection_sharing_delay = 0
client_ssl_mode = PREFERRED
client_ssl_cert = %s/cert.pem
client_ssl_key = %[1]s/key.pem
server_ssl_mode = PREFERRED
[connection_pool]
max_idle_server_connections = 64`, r.dir)
}

// Start starts it, when it has ended if it runs, with these lines for its route and these
// sections.
func (r *Router) Start(t *testing.T, route string, sections ...string) {
	t.Helper()
	host, port, err := net.SplitHostPort(r.Addr)
	check(t, err)
	r.start(t, fmt.Sprintf(`[DEFAULT]
%slogging_folder =
runtime_folder = %s
data_folder = %[2]s
[routing:lockstep]
bind_address = %s
bind_port = %s
protocol = classic
%s
%s`, r.defaults, r.dir, host, port, route, strings.Join(sections, "\n")))
}
