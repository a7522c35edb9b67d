package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Debian stable has no MySQL, Debian unstable has: its packages are unpacked
// into a directory of the cache, with all their libraries and the loader of
// those, which then runs the server without touching this machine's own.

// loader is where Debian has the program loader and the libraries, per
// architecture.
var loader = map[string]struct{ program, libraries string }{
	"amd64": {"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"},
	"arm64": {"usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu"},
}

// mysqlTree is where the cache has its MySQL server.
func mysqlTree(cache string) string { return filepath.Join(cache, "mysql") }

// treeBinary is how the server of a tree is called.
func treeBinary(tree string) binary {
	l := loader[runtime.GOARCH]
	return binary{
		origin: "Debian unstable's MySQL",
		command: []string{
			filepath.Join(tree, l.program), "--library-path", filepath.Join(tree, l.libraries),
			filepath.Join(tree, "usr/sbin/mysqld"),
		},
		args: []string{"--basedir=" + filepath.Join(tree, "usr")},
	}
}

// fillCache makes the cache's MySQL server, unless another process did
// so meanwhile. The caller has the cache's lock. The tree grows beside its
// place and is renamed when it is complete, so that nobody sees half of it.
func fillCache(ctx context.Context, cache string, download func(ctx context.Context, tree string) error) (binary, error) {
	if _, ok := loader[runtime.GOARCH]; !ok {
		return binary{}, fmt.Errorf("there is no MySQL package for %s", runtime.GOARCH)
	}
	tree := mysqlTree(cache)
	b := treeBinary(tree)
	if b.works(ctx, MySQL) {
		return b, nil
	}
	if err := ctx.Err(); err != nil { // it was not asked: others may be using it
		return binary{}, err
	}
	stale, err := filepath.Glob(tree + "*") // broken, or half-made by a process that was killed
	if err != nil {
		return binary{}, err
	}
	for _, dir := range stale {
		if err := os.RemoveAll(dir); err != nil {
			return binary{}, err
		}
	}
	tmp, err := os.MkdirTemp(cache, filepath.Base(tree)+"-")
	if err != nil {
		return binary{}, err
	}
	if err := download(ctx, tmp); err != nil {
		return binary{}, errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, tree); err != nil {
		return binary{}, err
	}
	if !b.works(ctx, MySQL) {
		return binary{}, errors.New("the MySQL server of Debian unstable does not run here")
	}
	return b, nil
}

// downloadMySQL downloads the packages and unpacks them into tree. No script
// of a package runs, nothing is mounted, and nobody changes the root.
func downloadMySQL(ctx context.Context, tree string) error {
	if err := needDebootstrap(ctx); err != nil {
		return err
	}
	env := []string{adminPath()}
	err := run(ctx, env, "debootstrap", "--download-only", "--variant=minbase", "--include=mysql-server-core", "sid", tree)
	if err != nil {
		return err
	}
	archives := filepath.Join(tree, "var/cache/apt/archives")
	packages, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range packages {
		if err := run(ctx, env, "dpkg-deb", "--extract", deb, tree); err != nil {
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
