package testdb

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Vitess comes from the module tests/vitess, whose only tool it is: vtcombo is its parts in one
// process, before a MySQL server of testdb. CREATE DATABASE makes a keyspace, on one server; sharded
// is one of two shards.

// newVitess prepares vtcombo and its server. Its administrator is anybody.
func newVitess(ctx context.Context, o options) (_ *instance, err error) {
	if o.durable || len(o.env) > 0 || o.parted || os.Getenv(Vitess.imageVariable()) != "" {
		return nil, errors.New("it takes arguments and no other options, and no image")
	}
	path, err := builtServer(ctx, Vitess, "vtcombo", "vitess.io/vitess/go/cmd/vtcombo")
	if err != nil {
		return nil, err
	}
	behind, err := Start(ctx, MySQL)
	if err != nil {
		return nil, err
	}
	if behind.Socket() == "" {
		return nil, errors.Join(errors.New("it needs a MySQL server of this machine, not one in Docker"), behind.Stop())
	}
	dir, err := privateDir()
	if err != nil {
		return nil, errors.Join(err, behind.Stop())
	}
	inst := &instance{origin: path, dir: dir, user: "root", discard: behind.Stop}
	cfg := behind.Config()
	inst.spawn = func(ctx context.Context, port int) (*Child, error) {
		made, err := keyspaces(ctx, behind)
		if err != nil {
			return nil, err
		}
		ports := make([]string, 2)
		for i := range ports {
			free, err := freePort()
			if err != nil {
				return nil, err
			}
			ports[i] = strconv.Itoa(free)
		}
		line := []string{path}
		if os.Geteuid() == 0 { // as whom it doesn't start
			line = []string{"unshare", "--map-user=1000", path}
		}
		line = append(line,
			"--port="+ports[0], "--bind-address=127.0.0.1", "--grpc-port="+ports[1],
			"--db-socket="+behind.Socket(), "--db-charset=utf8mb4", "--mycnf-server-id=1", "--mycnf-socket-file="+behind.Socket(),
			`--proto-topo=keyspaces: {name: "main" shards: {name: "0"}} keyspaces: {name: "sharded" shards: {name: "-80"} shards: {name: "80-"}} cells: "test"`+made,
			"--dbddl-plugin=vttest", "--mysql-auth-server-impl=none", "--mysql-server-port="+strconv.Itoa(port), "--mysql-server-bind-address=127.0.0.1",
			"--queryserver-config-transaction-cap=100", "--tablet-refresh-interval=200ms",
		)
		for _, kind := range []string{"app", "appdebug", "allprivs", "dba", "filtered", "repl"} {
			line = append(line, "--db-"+kind+"-user="+cfg.User, "--db-"+kind+"-password="+cfg.Passwd)
		}
		line = append(line, o.args...)
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "VTDATAROOT="+filepath.Join(dir, "data"))
		return inst.startLogged(cmd)
	}
	return inst, nil
}

// keyspaces returns the part of the topology that CREATE DATABASE has made before a restart.
func keyspaces(ctx context.Context, behind *Server) (topology string, err error) {
	pool, err := behind.adminPool("")
	if err != nil {
		return "", err
	}
	defer func() { _ = pool.Close() }()
	err = pool.QueryRowContext(ctx, `SELECT COALESCE(GROUP_CONCAT(CONCAT(' keyspaces: {name: "', SUBSTRING(schema_name, 4, CHAR_LENGTH(schema_name) - 5), '" shards: {name: "0"}}') SEPARATOR ''), '')
		FROM information_schema.schemata WHERE schema_name LIKE 'vt\_%\_0' AND schema_name <> 'vt_main_0'`).Scan(&topology)
	return topology, err
}
