package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// What Debian stable doesn't have may be in another suite of Debian: its packages are unpacked
// into a directory of the cache, with all their libraries and the loader of those, which then
// runs the program without touching this machine's own.

// tree is a program of such packages.
type tree struct {
	name      string   // of its directory in the cache
	suite     string   // of Debian
	packages  []string // what they depend on comes with them
	program   string   // its path in the tree
	libraries string   // the path of more libraries than those that the loader knows, or ""
	works     func(ctx context.Context, command []string) bool
}

// mysqlTree has the MySQL server.
var mysqlTree = tree{
	name: "mysql", suite: "sid", packages: []string{"mysql-server-core"}, program: "usr/sbin/mysqld",
	works: func(ctx context.Context, command []string) bool { return binary{command: command}.works(ctx, MySQL) },
}

// debianVariable names the suite of Debian whose MariaDB is run, whatever this machine has.
const debianVariable = "LOCKSTEP_MARIADB_DEBIAN"

// chosenTree is the tree of the server that debianVariable asks for.
func chosenTree(engine Engine) (tree, bool) {
	suite := os.Getenv(debianVariable)
	return mariaDBTree(suite), engine == MariaDB && suite != ""
}

// mariaDBTree has the MariaDB server of a suite, and what nodes of Galera need besides.
func mariaDBTree(suite string) tree {
	return tree{
		name: "mariadb-" + suite, suite: suite, packages: []string{"mariadb-server-core", "mariadb-server", "galera-4"},
		program: "usr/sbin/mariadbd",
		works:   func(ctx context.Context, command []string) bool { return binary{command: command}.works(ctx, MariaDB) },
	}
}

// loader is where Debian has the program loader and the libraries, per
// architecture.
var loader = map[string]struct{ program, libraries string }{
	"amd64": {"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"},
	"arm64": {"usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu"},
}

// path is where the cache has it.
func (t tree) path(cache string) string { return filepath.Join(cache, t.name) }

// command is how its program is called. Up to Debian 12 packages have a part of the
// libraries, and the loader, below lib and not usr/lib.
func (t tree) command(cache string) []string {
	root, l := t.path(cache), loader[runtime.GOARCH]
	old := func(path string) string { return filepath.Join(root, strings.TrimPrefix(path, "usr/")) }
	program, libraries := filepath.Join(root, l.program), filepath.Join(root, l.libraries)
	if _, err := os.Stat(program); err != nil {
		program, libraries = old(l.program), libraries+":"+old(l.libraries)
	}
	if t.libraries != "" {
		libraries += ":" + filepath.Join(root, t.libraries)
	}
	return []string{program, "--library-path", libraries, filepath.Join(root, t.program)}
}

// server is how its program is called that is a server.
func (t tree) server(cache string) binary {
	return binary{
		origin:  fmt.Sprintf("%s of Debian %s", filepath.Base(t.program), t.suite),
		command: t.command(cache),
		args:    []string{"--basedir=" + filepath.Join(t.path(cache), "usr")},
	}
}

// installed is the same of one that the cache has, or gets now.
func (t tree) installed(ctx context.Context) (binary, error) {
	cache, err := cacheDir()
	if err != nil {
		return binary{}, err
	}
	return t.server(cache), t.install(ctx, cache)
}

// install makes sure that the cache has it.
func (t tree) install(ctx context.Context, cache string) error {
	if t.works(ctx, t.command(cache)) {
		return nil
	}
	if err := mayInstall(); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "install.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	return t.fill(ctx, cache, t.download)
}

// fill makes it, unless another process did so meanwhile. The caller has the cache's lock. It
// grows beside its place and is renamed when it is complete, so that nobody sees half of it.
func (t tree) fill(ctx context.Context, cache string, download func(ctx context.Context, root string) error) error {
	if _, ok := loader[runtime.GOARCH]; !ok {
		return fmt.Errorf("there is no tree of %s for %s", strings.Join(t.packages, ", "), runtime.GOARCH)
	}
	if t.works(ctx, t.command(cache)) {
		return nil
	}
	if err := ctx.Err(); err != nil { // it was not asked: others may be using it
		return err
	}
	announce(t.name, fmt.Sprintf("Debian %s's packages below %s, 500 MB on the disk, which takes minutes", t.suite, cache))
	root := t.path(cache)
	part := root + ".part"
	for _, stale := range []string{root, part} { // broken, or half-made by a process that was killed
		if err := os.RemoveAll(stale); err != nil {
			return err
		}
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	if err := download(ctx, part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := os.Rename(part, root); err != nil {
		return err
	}
	if !t.works(ctx, t.command(cache)) {
		return fmt.Errorf("%s of Debian %s does not run here", filepath.Base(t.program), t.suite)
	}
	return nil
}

// download downloads the packages and unpacks them below root. No script of a package runs,
// nothing is mounted, and nobody changes the root of a process.
func (t tree) download(ctx context.Context, root string) error {
	if err := needDebootstrap(ctx); err != nil {
		return err
	}
	env := []string{adminPath()}
	err := run(ctx, env, "debootstrap", "--download-only", "--variant=minbase", "--include="+strings.Join(t.packages, ","), t.suite, root)
	if err != nil {
		return err
	}
	archives := filepath.Join(root, "var/cache/apt/archives")
	packages, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range packages {
		if err := run(ctx, env, "dpkg-deb", "--extract", deb, root); err != nil {
			return err
		}
	}
	return os.RemoveAll(archives)
}

func needDebootstrap(ctx context.Context) error {
	_, err := os.Stat("/usr/share/keyrings/debian-archive-keyring.gpg")
	if err == nil && len(installed("debootstrap")) > 0 {
		return nil
	}
	return aptInstall(ctx, "debootstrap", "debian-archive-keyring")
}

// cacheDir is where what was downloaded or initialised stays: LOCKSTEP_CACHE, or a directory
// in the user's cache.
func cacheDir() (string, error) {
	dir := os.Getenv("LOCKSTEP_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w: set LOCKSTEP_CACHE", err)
		}
		dir = filepath.Join(user, "lockstep")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// lockFile takes the lock of a file, which the kernel releases even if we
// are killed. It waits for other processes; flock cannot be told to give up
// with a context, so it asks again.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-tick.C:
		}
	}
}
