package testdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// A TiDB server comes from the module tests/tidb, whose only tool it is. It keeps its rows in an
// embedded store, so no cluster is needed.

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
	if o.durable || len(o.env) > 0 || o.ahead != 0 || o.parted || os.Getenv(TiDB.imageVariable()) != "" {
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
		cmd := exec.Command(path, append([]string{
			"-store=unistore", "-path=" + filepath.Join(dir, "data"), "-temp-dir=" + filepath.Join(dir, "temp"),
			"-host=127.0.0.1", "-P=" + strconv.Itoa(port), "-report-status=false", "-socket=", "-L=warn",
		}, o.args...)...)
		cmd.Dir = dir // for its log of slow statements
		return inst.startLogged(cmd)
	}
	return inst, nil
}
