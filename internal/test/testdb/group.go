package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
)

// A Group Replication on this machine, in which every server is a primary: MySQL servers
// with the plugin that comes with them, each with private directories and ports on
// loopback.

// group is what the members have in common.
type group struct {
	binary binary
	name   string // a UUID
	seeds  string // host:port,...
	opts   options

	members []*groupMember // those that were started
}

// groupMember is what a member has for itself.
type groupMember struct {
	*group
	*instance
	host    *attached
	address string // for the others
	id      int
	joined  bool
}

// StartGroup brings up a Group Replication of n primaries. The binary is that of a MySQL
// server on this machine, or comes, as root on Debian, from its packages. All members are
// online when it returns. One ends by Stop, as any server, and after Kill, Restart has it
// join the others again: at least one of them must run.
func StartGroup(ctx context.Context, n int, opts ...Option) (members []*Server, err error) {
	g := &group{name: uuid.NewString()}
	if err := mayStart(); err != nil {
		return nil, err
	}
	for _, opt := range opts {
		opt(&g.opts)
	}
	var ok bool
	if g.binary, ok = localBinary(ctx, MySQL); !ok {
		if g.binary, err = installBinary(ctx, MySQL); err != nil {
			return nil, fmt.Errorf("testdb: no Group Replication: %w", err)
		}
	}
	networks, err := hosts(ctx, n, g.opts)
	if err != nil {
		return nil, fmt.Errorf("testdb: start a Group Replication: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("testdb: start a Group Replication: %w", err), StopAll(members), closeNetwork(networks))
			members = nil
		}
	}()
	var all []*groupMember
	var addresses []string
	for i := range n {
		port, err := quietPort()
		if err != nil {
			return nil, err
		}
		all = append(all, &groupMember{group: g, host: networks[i], address: networks[i].address(port), id: i + 1})
		addresses = append(addresses, networks[i].address(port))
	}
	g.seeds = strings.Join(addresses, ",")
	password := randomHex(8)
	for _, member := range all {
		if err := member.prepare(ctx, password); err != nil {
			return members, err
		}
		g.members = append(g.members, member)
		s := &Server{engine: MySQL, inst: member.instance, socket: member.socket}
		members = append(members, s)
		if err := s.launchNode(ctx); err != nil {
			return members, err
		}
	}
	return members, nil
}

// prepare makes the directories of a member, with the same administrator in each.
func (m *groupMember) prepare(ctx context.Context, password string) error {
	dir, err := privateDir()
	if err != nil {
		return err
	}
	m.instance = &instance{
		origin: m.binary.origin, dir: dir, user: "lockstep_admin", password: password,
		socket: filepath.Join(dir, "s.sock"), spawn: m.spawn, ready: m.online, net: m.host,
		// A table that a member drops before it has executed what others have written to it
		// ends its membership.
		adminParams: map[string]string{"group_replication_consistency": "'BEFORE'"},
	}
	m.leaving()
	if err := fillData(ctx, MySQL, m.binary, m.data()); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

func (m *groupMember) data() string { return filepath.Join(m.dir, "data") }

// spawn starts the member. Once it has been one of the group, it is read-only until it is that
// again: START GROUP_REPLICATION gives a member that it could not have joined the state that it
// had before, and a member that takes writes alone is never let in again.
func (m *groupMember) spawn(_ context.Context, port int) (*Child, error) {
	setup := filepath.Join(m.dir, "init.sql")
	text := ""
	if !m.joined {
		text = "SET SQL_LOG_BIN = 0;\n" + m.adminSQL(MySQL)
	}
	if err := os.WriteFile(setup, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args := asRoot()
	args = append(args,
		"--datadir="+m.data(), "--tmpdir="+m.dir, "--socket="+m.socket, "--pid-file="+filepath.Join(m.dir, "pid"),
		"--init-file="+setup, "--bind-address="+m.host.bind(), "--skip-name-resolve", fmt.Sprintf("--port=%d", port),
		fmt.Sprintf("--server-id=%d", m.id), "--report-host="+m.host.host(), fmt.Sprintf("--report-port=%d", port),
		"--log-bin="+filepath.Join(m.data(), "bin"), "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
		"--innodb-buffer-pool-size=64M", "--max-connections=500", "--mysqlx=0", "--secure-file-priv=NULL",
		"--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0",
		"--plugin-load-add=group_replication.so",
		"--loose-group-replication-group-name="+m.name,
		"--loose-group-replication-ip-allowlist=127.0.0.0/8,198.19.0.0/24",
		"--loose-group-replication-local-address="+m.address, "--loose-group-replication-group-seeds="+m.seeds,
		"--loose-group-replication-single-primary-mode=OFF", "--loose-group-replication-enforce-update-everywhere-checks=ON",
		"--loose-group-replication-recovery-get-public-key=ON",
		// A member that hangs is put out five seconds later, and stays so when it goes on:
		// START GROUP_REPLICATION has it join again.
		"--loose-group-replication-member-expel-timeout=0", "--loose-group-replication-autorejoin-tries=0",
		"--loose-group-replication-start-on-boot=OFF", fmt.Sprintf("--super-read-only=%t", m.joined),
	)
	line := m.binary.line(append(args, m.opts.args...)...)
	return m.startLogged(exec.Command(line[0], line[1:]...))
}

// online is the readiness of a member. It has a member that isn't one of the group join it; the
// first time, the first one makes that.
func (m *groupMember) online(ctx context.Context, pool *sql.DB) error {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var state string
	if err := conn.QueryRowContext(ctx, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID IN (@@server_uuid, '')").Scan(&state); err != nil {
		return err
	}
	var statements []string
	switch state {
	case "ONLINE":
		// It was closed to clients when it was put out, and stays so until somebody opens it.
		m.joined = true
		_, err := conn.ExecContext(ctx, "SET GLOBAL offline_mode = OFF")
		return err
	case "ERROR": // it was put out
		statements = []string{"STOP GROUP_REPLICATION"}
	case "OFFLINE":
		if err := m.forgotten(ctx); err != nil {
			return err
		}
		statements = []string{"START GROUP_REPLICATION"}
		if !m.joined {
			statements = []string{
				fmt.Sprintf("SET GLOBAL group_replication_bootstrap_group = %t", m.id == 1),
				fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_USER = '%s', SOURCE_PASSWORD = '%s' FOR CHANNEL 'group_replication_recovery'", m.user, m.password),
				"START GROUP_REPLICATION",
				"SET GLOBAL group_replication_bootstrap_group = OFF",
			}
		}
	}
	for _, statement := range statements {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("the member is %s; %s: %w", state, statement, err)
		}
	}
	return fmt.Errorf("the member is %s", state)
}

// forgotten tells whether the others have put out what the member was before it was killed.
// Until then they refuse it, and START GROUP_REPLICATION asks for so long that it fails after
// minutes rather than joins.
func (m *groupMember) forgotten(ctx context.Context) error {
	for _, other := range m.members {
		if other == m {
			continue
		}
		cfg := other.config()
		cfg.Timeout, cfg.ReadTimeout, cfg.Logger = time.Second, time.Second, &mysql.NopLogger{}
		pool, err := open(cfg)
		if err != nil {
			return err
		}
		var known bool
		err = pool.QueryRowContext(ctx, fmt.Sprintf("SELECT COUNT(*) > 0 FROM performance_schema.replication_group_members WHERE MEMBER_PORT = %d", m.port)).Scan(&known)
		_ = pool.Close()
		if err == nil && known { // one that can't be asked doesn't refuse, either
			return fmt.Errorf("the member on port %d has not put it out yet", other.port)
		}
	}
	return nil
}
