package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
)

// findInstance finds a server of the engine or brings one.
func findInstance(ctx context.Context, engine Engine, o options) (*instance, error) {
	switch engine {
	case TiDB:
		return newTiDB(ctx, o)
	case Vitess:
		return newVitess(ctx, o)
	}
	if image := os.Getenv(engine.imageVariable()); image != "" {
		if err := dockerWorks(ctx); err != nil {
			return nil, fmt.Errorf("%s=%s needs Docker: %w", engine.imageVariable(), image, err)
		}
		return newDocker(ctx, engine, image, o)
	}
	if t, ok := chosenTree(engine); ok {
		b, err := t.installed(ctx)
		if err != nil {
			return nil, err
		}
		return newLocal(ctx, engine, b, o)
	}
	if b, ok := localBinary(ctx, engine); ok {
		return newLocal(ctx, engine, b, o)
	}
	dockerErr := dockerWorks(ctx)
	if dockerErr == nil {
		return newDocker(ctx, engine, defaultImage[engine], o)
	}
	b, err := installBinary(ctx, engine)
	if err != nil {
		return nil, fmt.Errorf("not installed here, and %w, and %w: set %s to the DSN of an administrator, or install the %s server",
			dockerErr, err, engine.DSNVariable(), engine)
	}
	return newLocal(ctx, engine, b, o)
}

// binary is how a server of this machine is called.
type binary struct {
	origin  string
	command []string // the server, after its loader where it has one
	args    []string // always given, after --no-defaults
}

// line is the command line of the server with more arguments.
func (b binary) line(args ...string) []string {
	return slices.Concat(b.command, []string{"--no-defaults"}, b.args, args)
}

// works reports whether the binary is a server of the engine: "mysqld" is
// MariaDB on many machines, and a cached one may be half there.
func (b binary) works(ctx context.Context, engine Engine) bool {
	line := b.line("--version")
	out, err := exec.CommandContext(ctx, line[0], line[1:]...).Output()
	if err != nil {
		return false
	}
	return engineOf(string(out)) == engine
}

// localBinary finds an installed server.
func localBinary(ctx context.Context, engine Engine) (binary, bool) {
	names := []string{"mysqld"}
	if engine == MariaDB {
		names = []string{"mariadbd", "mysqld"}
	}
	for _, name := range names {
		for _, path := range installed(name) {
			b := binary{origin: path, command: []string{path}}
			if b.works(ctx, engine) {
				return b, true
			}
		}
	}
	return binary{}, false
}

// installed returns the paths of a program: in the directories that are given, in PATH, and
// in those for administrators, which are rarely in PATH.
func installed(name string, first ...string) []string {
	dirs := slices.Concat(first, filepath.SplitList(os.Getenv("PATH")), []string{"/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin"})
	var paths []string
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			paths = append(paths, path)
		}
	}
	return paths
}

// installBinary installs a server from the packages of Debian or Ubuntu, or
// finds the one that it unpacked into the cache before.
func installBinary(ctx context.Context, engine Engine) (binary, error) {
	if engine == MySQL {
		return mysqlTree.installed(ctx)
	}
	cache, err := cacheDir()
	if err != nil {
		return binary{}, err
	}
	if err := mayInstall(); err != nil {
		return binary{}, err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "install.lock"))
	if err != nil {
		return binary{}, err
	}
	defer unlock()
	// The core package has the server without the service, so that nothing
	// is started that somebody else must stop.
	announce("MariaDB", "its core packages, 60 MB on the disk, and what these depend on")
	if err := aptInstall(ctx, "mariadb-server-core", "mariadb-client-core"); err != nil {
		return binary{}, err
	}
	if b, ok := localBinary(ctx, engine); ok {
		return b, nil
	}
	return binary{}, errors.New("the package mariadb-server-core has no server that runs")
}

// announce says what is going to be installed, before it is.
func announce(server, what string) {
	fmt.Fprintf(os.Stderr, "testdb: no %s server or Docker was found: installing %s\n", server, what)
}

// mayInstall says why this process can't install Debian's packages.
func mayInstall() error {
	if runtime.GOOS != "linux" || len(installed("apt-get")) == 0 {
		return errors.New("there is no apt-get to install it with")
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may install it")
	}
	return nil
}

// aptInstall installs packages. Lists that are missing or old are the common
// reason for a failure, so it tries again with fresh ones.
func aptInstall(ctx context.Context, packages ...string) error {
	args := append([]string{
		"install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300",
	}, packages...)
	if err := aptGet(ctx, args...); err == nil {
		return nil
	}
	if err := aptGet(ctx, "update", "-o", "DPkg::Lock::Timeout=300"); err != nil {
		return err
	}
	return aptGet(ctx, args...)
}

func aptGet(ctx context.Context, args ...string) error {
	return run(ctx, []string{"DEBIAN_FRONTEND=noninteractive", adminPath()}, "apt-get", args...)
}

// adminPath is PATH with the directories that dpkg wants.
func adminPath() string {
	return "PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
}
