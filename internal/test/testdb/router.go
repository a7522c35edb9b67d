package testdb

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// routerTree has MySQL Router.
var routerTree = tree{
	name: "router", suite: "sid", packages: []string{"mysql-router"},
	program: "usr/bin/mysqlrouter", libraries: "usr/lib/mysql-router", works: isRouter,
}

func isRouter(ctx context.Context, command []string) bool {
	out, err := exec.CommandContext(ctx, command[0], append(command[1:], "--version")...).Output()
	return err == nil && strings.Contains(string(out), "MySQL Router")
}

// MySQLRouter returns how MySQL Router is called, and the lines that its [DEFAULT] needs. It is
// that of this machine, or comes, as root on Debian, from its packages.
func MySQLRouter(ctx context.Context) (command []string, defaults string, err error) {
	for _, path := range installed("mysqlrouter") {
		if command := []string{path}; isRouter(ctx, command) {
			return command, "", nil
		}
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, "", err
	}
	if err := routerTree.install(ctx, cache); err != nil {
		return nil, "", fmt.Errorf("testdb: no MySQL Router: %w", err)
	}
	plugins := filepath.Join(routerTree.path(cache), "usr/lib/mysqlrouter/plugin")
	return routerTree.command(cache), "plugin_folder = " + plugins + "\n", nil
}
