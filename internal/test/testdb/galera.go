package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// A Galera cluster on this machine: MariaDB servers with the wsrep provider of the
// package galera-4, each with private directories and ports on loopback. A node that
// joins copies the data of another by rsync, which gives up the rights of root: as
// root the servers run as the user nobody.

const nobody = 65534

// galera is what the nodes have in common.
type galera struct {
	binary   binary
	root     string // below which the rest of it is
	provider string
	scripts  string // directory of wsrep_sst_rsync
	address  string // gcomm://...
	opts     options
}

// galeraNode is what a node has for itself.
type galeraNode struct {
	*galera
	*instance
	host *attached

	group, transfer, increments int // ports, besides that for clients
	joined                      bool
}

// StartGalera brings up a cluster of n nodes. The binary is that of a MariaDB server
// on this machine; what else is missing comes, as root on Debian, from its packages.
// All nodes are synchronised when it returns. A node ends by Stop, as any server, and
// after Kill, Restart has it join the others again: at least one of them must run.
func StartGalera(ctx context.Context, n int, opts ...Option) (nodes []*Server, err error) {
	g := &galera{root: "/"}
	if err := mayStart(); err != nil {
		return nil, err
	}
	for _, opt := range opts {
		opt(&g.opts)
	}
	if err := g.find(ctx); err != nil {
		return nil, fmt.Errorf("testdb: no Galera cluster: %w", err)
	}
	networks, err := hosts(ctx, n, g.opts)
	if err != nil {
		return nil, fmt.Errorf("testdb: start a Galera cluster: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("testdb: start a Galera cluster: %w", err), StopAll(nodes), closeNetwork(networks))
			nodes = nil
		}
	}()
	var all []*galeraNode
	var addresses []string
	for i := range n {
		node := &galeraNode{galera: g, host: networks[i]}
		for _, port := range []*int{&node.group, &node.transfer, &node.increments} {
			if *port, err = quietPort(); err != nil {
				return nil, err
			}
		}
		all = append(all, node)
		addresses = append(addresses, node.host.address(node.group))
	}
	g.address = "gcomm://" + strings.Join(addresses, ",")
	password := randomHex(8)
	for _, node := range all {
		if err := node.prepare(ctx, password); err != nil {
			return nodes, err
		}
		s := &Server{engine: MariaDB, inst: node.instance, socket: node.socket}
		nodes = append(nodes, s)
		if err := s.launchNode(ctx); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// StopAll stops servers, all of them also where one fails to.
func StopAll(servers []*Server) error {
	var err error
	for _, s := range slices.Backward(servers) {
		err = errors.Join(err, s.Stop())
	}
	return err
}

// Log returns the last lines that the server has written, of one that is not external.
func (s *Server) Log() string {
	if s.External() {
		return ""
	}
	return s.inst.logTail()
}

// find finds the programs.
func (g *galera) find(ctx context.Context) error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	t, chosen := chosenTree(MariaDB)
	if chosen {
		if g.binary, err = t.installed(ctx); err != nil {
			return err
		}
		g.root = t.path(cache)
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "install.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if missing := g.missing(ctx); len(missing) > 0 {
		if os.Geteuid() != 0 || len(installed("apt-get")) == 0 {
			return fmt.Errorf("install %s", strings.Join(missing, ", "))
		}
		if err := aptInstall(ctx, missing...); err != nil {
			return err
		}
		if missing = g.missing(ctx); len(missing) > 0 {
			return fmt.Errorf("the packages %s don't have what they should", strings.Join(missing, ", "))
		}
	}
	g.scripts, err = transferScripts(ctx, cache, g.root)
	return err
}

// missing finds the programs that are there, and returns the packages of the others.
func (g *galera) missing(ctx context.Context) (packages []string) {
	found := g.binary.command != nil
	if !found {
		g.binary, found = localBinary(ctx, MariaDB)
	}
	if !found {
		packages = append(packages, "mariadb-server-core", "mariadb-client-core")
	}
	if g.provider = provider(g.root); g.provider == "" {
		packages = append(packages, "galera-4")
	}
	for name, from := range map[string]string{"rsync": "rsync", "lsof": "lsof", "ip": "iproute2"} { // of the script
		if len(installed(name)) == 0 {
			packages = append(packages, from)
		}
	}
	return packages
}

// provider returns the path of the wsrep provider, or "".
func provider(root string) string {
	for _, pattern := range []string{"usr/lib/galera/libgalera_smm.so", "usr/lib/libgalera_smm.so", "usr/lib*/galera*/libgalera_smm.so"} {
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 { // the pattern is right
			return found[0]
		}
	}
	return ""
}

// transferScripts returns the directory of wsrep_sst_rsync. It comes with the package
// mariadb-server, which would make a user and a service: only its files are taken.
func transferScripts(ctx context.Context, cache, root string) (string, error) {
	const script = "wsrep_sst_rsync"
	if paths := installed(script, filepath.Join(root, "usr/bin")); len(paths) > 0 {
		return filepath.Dir(paths[0]), nil
	}
	dir := filepath.Join(cache, "galera")
	scripts := filepath.Join(dir, "usr/bin")
	if _, err := os.Stat(filepath.Join(scripts, script)); err == nil {
		return scripts, nil
	}
	if len(installed("apt-get")) == 0 {
		return "", fmt.Errorf("%s is missing: install the package mariadb-server", script)
	}
	tmp, err := os.MkdirTemp(cache, "galera-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	fetch := []string{"-c", `cd "$0" && { apt-get download mariadb-server || { apt-get update && apt-get download mariadb-server; }; } && dpkg-deb --extract mariadb-server_*.deb tree`, tmp}
	if err := run(ctx, []string{adminPath()}, "sh", fetch...); err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return scripts, os.Rename(filepath.Join(tmp, "tree"), dir)
}

// prepare makes the directories of a node. The first has the data and the
// administrator, the others copy them when they join.
func (n *galeraNode) prepare(ctx context.Context, password string) (err error) {
	dir, err := privateDir()
	if err != nil {
		return err
	}
	n.instance = &instance{
		origin: n.provider, dir: dir, user: "lockstep_admin", password: password,
		socket: filepath.Join(dir, "s.sock"), spawn: n.spawn, ready: synchronised, net: n.host,
	}
	n.leaving()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if n.first() {
		if err := fillData(ctx, MariaDB, n.binary, n.data()); err != nil {
			return err
		}
		if err := os.WriteFile(n.setup(), []byte(n.adminSQL(MariaDB)), 0o600); err != nil {
			return err
		}
	} else if err := os.Mkdir(n.data(), 0o700); err != nil {
		return err
	}
	// The cache may be where the user of the servers can't go.
	for _, name := range []string{"wsrep_sst_rsync", "wsrep_sst_common"} {
		text, err := os.ReadFile(filepath.Join(n.scripts, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			return err
		}
	}
	// The server puts the programs of its base before those of this machine, for the scripts. Those
	// of a tree don't run here without its loader, so the base of a node has none.
	if err := os.Mkdir(n.base(), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(n.root, "usr/share"), filepath.Join(n.base(), "share")); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
}

// first tells whether the node begins the cluster.
func (n *galeraNode) first() bool {
	return strings.HasPrefix(n.address, "gcomm://"+n.host.address(n.group))
}

func (n *galeraNode) base() string  { return filepath.Join(n.dir, "base") }
func (n *galeraNode) data() string  { return filepath.Join(n.dir, "data") }
func (n *galeraNode) setup() string { return filepath.Join(n.dir, "init.sql") }

// spawn starts the node: the first one as a new cluster, or any after a crash. What a node has
// is found out first, so that it asks the others for no more than what it lacks.
func (n *galeraNode) spawn(ctx context.Context, port int) (*Child, error) {
	args := []string{
		"--basedir=" + n.base(), "--datadir=" + n.data(), "--tmpdir=" + n.dir, "--socket=" + n.socket,
		"--pid-file=" + filepath.Join(n.dir, "pid"),
		"--bind-address=" + n.host.bind(), "--skip-name-resolve", fmt.Sprintf("--port=%d", port), fmt.Sprintf("--server-id=%d", n.group),
		"--log-bin=" + filepath.Join(n.data(), "bin"), "--log-slave-updates", "--sync-binlog=0", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--innodb-flush-log-at-trx-commit=2",
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--performance-schema=OFF", "--max-connections=500",
		"--wsrep-on=ON", "--wsrep-provider=" + n.provider, "--wsrep-cluster-name=lockstep",
		"--wsrep-cluster-address=" + n.address, "--wsrep-node-address=" + n.host.address(n.group),
		"--wsrep-sst-method=rsync", "--wsrep-sst-receive-address=" + n.host.address(n.transfer),
		"--wsrep-provider-options=" + strings.Join([]string{
			"gmcast.listen_addr=tcp://" + n.host.address(n.group), "ist.recv_addr=" + n.host.address(n.increments), "gcache.size=64M",
		}, ";"),
	}
	args = append(args, n.opts.args...)
	switch {
	case n.joined:
		position, err := n.position(ctx, args)
		if err != nil {
			return nil, err
		}
		args = append(args, "--wsrep-start-position="+position)
	case n.first():
		args = append(args, "--wsrep-new-cluster", "--init-file="+n.setup())
	}
	n.joined = true
	c, err := n.startLogged(n.command(args))
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: put the server where the user nobody may read it, by LOCKSTEP_CACHE", err)
	}
	return c, err
}

// command is the server's, with the scripts in its path, as a user who isn't root.
func (n *galeraNode) command(args []string) *exec.Cmd {
	line := n.binary.line(args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+n.dir+":"+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin", "TMPDIR="+n.dir)
	cmd.Dir = n.dir
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

var recovered = regexp.MustCompile(`Recovered position: (\S+)`)

// position returns what the node has seen of the cluster before it was killed.
func (n *galeraNode) position(ctx context.Context, args []string) (string, error) {
	c, err := n.startLogged(n.command(append(slices.Clone(args), "--wsrep-recover")))
	if err != nil {
		return "", err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.Kill()
		return "", ctx.Err()
	}
	log, err := os.ReadFile(n.logPath())
	if err != nil {
		return "", err
	}
	found := recovered.FindSubmatch(log)
	if found == nil {
		return "", fmt.Errorf("the server has no position of the cluster (%v); its log:\n%s", c.state, n.logTail())
	}
	return string(found[1]), nil
}

// synchronised is the readiness of a node.
func synchronised(ctx context.Context, pool *sql.DB) error {
	var name, state string
	err := pool.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'").Scan(&name, &state)
	if err == nil && state != "Synced" {
		err = fmt.Errorf("the node is %q", state)
	}
	return err
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// quietPort returns a free port below those that the system gives to connections, so
// that nobody has it by chance while a killed node is away.
func quietPort() (int, error) {
	var err error
	for range 100 {
		port := 10000 + rand.IntN(20000)
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}
