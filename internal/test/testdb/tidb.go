package testdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A TiDB server comes from the module tests/tidb, whose only tool it is. One alone keeps its rows in an
// embedded store. Several have the store of that module in common.

// builtServer builds a server of the module tests/ENGINE into the cache, which takes some minutes
// of a processor the first time, and returns its path.
func builtServer(ctx context.Context, engine Engine, name, pkg string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, string(engine)+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/dca00107/lockstep").Output()
	if err != nil {
		return "", fmt.Errorf("find tests/%s, of which %s is built: %w", engine, name, err)
	}
	path := filepath.Join(cache, name)
	module := filepath.Join(strings.TrimSpace(string(root)), "tests", string(engine))
	return path, run(ctx, []string{"GOFLAGS=-mod=readonly", "GOWORK=off"}, "go", "-C", module, "build", "-o", path, pkg)
}

// newTiDB prepares a server. Its administrator is root, without a password, who comes with it.
func newTiDB(ctx context.Context, o options) (*instance, error) {
	if o.parted {
		return nil, errors.New("one server has nothing to be cut off from")
	}
	return prepareTiDB(ctx, o, func(i *instance) []string {
		return []string{"-store=unistore", "-path=" + filepath.Join(i.dir, "data"), "-host=127.0.0.1", "-report-status=false"}
	})
}

// prepareTiDB prepares a server with the arguments of its store.
func prepareTiDB(ctx context.Context, o options, arguments func(i *instance) []string) (*instance, error) {
	if o.durable || len(o.env) > 0 || os.Getenv(TiDB.imageVariable()) != "" {
		return nil, errors.New("it takes arguments and no other options, and no image")
	}
	path, err := builtServer(ctx, TiDB, "tidb-server", "github.com/pingcap/tidb/cmd/tidb-server")
	if err != nil {
		return nil, err
	}
	dir, err := privateDirIn(cmp.Or(o.parent, os.TempDir()))
	if err != nil {
		return nil, err
	}
	inst := &instance{origin: path, dir: dir, user: "root"}
	inst.spawn = func(_ context.Context, port int) (*Child, error) {
		cmd := exec.Command(path, slices.Concat(arguments(inst), []string{
			"-temp-dir=" + filepath.Join(dir, "temp"), "-P=" + strconv.Itoa(port), "-socket=", "-L=warn",
		}, o.args)...)
		cmd.Dir = dir // for its log of slow statements
		// Schemas can be changed again 5 s after the end of the server that did so, not 60.
		cmd.Env = append(os.Environ(), "tidb_manager_ttl=5")
		return inst.startLogged(cmd)
	}
	return inst, nil
}

// tidbStore is what several servers share: a process of tests/tidb/store.
type tidbStore struct {
	*instance
	host    *attached
	address string
	servers int // that use it
}

// StartTiDB brings up n servers over one store, which is a process of its own, as TiKV and PD are. A
// server that is killed takes nothing of the store with it, and Restart connects it to that again. The
// store ends with the last of them. Parted cuts a server off from the store, and from the others.
func StartTiDB(ctx context.Context, n int, opts ...Option) (servers []*Server, err error) {
	if err := mayStart(); err != nil {
		return nil, err
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	networks, err := hosts(ctx, n+1, o)
	if err != nil {
		return nil, fmt.Errorf("testdb: start %d TiDB servers: %w", n, err)
	}
	store := &tidbStore{host: networks[n]}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("testdb: start %d TiDB servers: %w", n, err), StopAll(servers), store.end(), closeNetwork(networks))
			servers = nil
		}
	}()
	if err := store.start(ctx); err != nil {
		return nil, err
	}
	for _, host := range networks[:n] {
		inst, err := store.newServer(ctx, o, host)
		if err != nil {
			return servers, err
		}
		s := &Server{engine: TiDB, inst: inst}
		servers = append(servers, s)
		if err := s.launchNode(ctx); err != nil {
			return servers, err
		}
	}
	return servers, nil
}

// start starts the store. Who connects before it answers tries again.
func (s *tidbStore) start(ctx context.Context) error {
	path, err := builtServer(ctx, TiDB, "tidb-store", "./store")
	if err != nil {
		return err
	}
	port, err := quietPort()
	if err != nil {
		return err
	}
	dir, err := privateDir()
	if err != nil {
		return err
	}
	s.instance, s.address = &instance{origin: path, dir: dir, net: s.host}, s.host.address(port)
	s.child, err = s.startLogged(exec.Command(path, "-addr="+s.address, "-dir="+dir))
	return err
}

// end ends the store, unless it has ended or was never started.
func (s *tidbStore) end() error {
	if s.instance == nil {
		return nil
	}
	s.leaving()
	err := errors.Join(s.kill(), s.remove())
	s.instance = nil
	return err
}

// newServer prepares a server over the store. It sends each call by itself, since unistore doesn't know all
// of them in a batch, and removes no old versions of rows.
func (s *tidbStore) newServer(ctx context.Context, o options, host *attached) (*instance, error) {
	status, err := quietPort()
	if err != nil {
		return nil, err
	}
	inst, err := prepareTiDB(ctx, o, func(i *instance) []string {
		return []string{
			"-store=tikv", "-path=" + s.address + "?disableGC=true", "-config=" + filepath.Join(i.dir, "config"),
			"-host=" + host.bind(), "-advertise-address=" + host.host(), "-status-host=" + host.bind(), "-status=" + strconv.Itoa(status),
		}
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(inst.dir, "config"), []byte("[tikv-client]\nmax-batch-size = 0\n"), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(inst.dir))
	}
	inst.net, inst.behind = host, s.instance
	inst.leaving()
	leave := inst.discard
	s.servers++
	inst.discard = func() error {
		var err error
		if leave != nil {
			err = leave()
		}
		if s.servers--; s.servers == 0 {
			err = errors.Join(err, s.end())
		}
		return err
	}
	return inst, nil
}
