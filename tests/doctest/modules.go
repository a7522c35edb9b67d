package doctest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/dca00107/lockstep/tests/modproxy"
)

// unreleased begins the versions of a checkout's modules. A hash of the content follows, so
// that the module cache of this machine can keep them beside each other.
const unreleased = "v0.1.0-doctest."

// Released returns the environment of a reader for whom the modules in these directories
// of a checkout are released, each behind those that it requires. Modules of others come from
// this machine's cache, or else from where this machine has them from; their sums were compared
// on that way.
func Released(t testing.TB, checkout string, dirs ...string) []string {
	t.Helper()
	released := t.TempDir()
	cache, upstream, err := modproxy.Cache()
	check(t, err)
	var before []module.Version
	for _, dir := range dirs {
		m, err := release(released, cache, filepath.Join(checkout, dir), before)
		check(t, err)
		before = append(before, m)
	}
	proxy := httptest.NewServer(modproxy.Handler(released, cache, upstream))
	t.Cleanup(proxy.Close)
	bin := t.TempDir()
	return append(modproxy.Env(proxy.URL), "GOBIN="+bin, "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// release writes what a module proxy has of the module in a directory, and removes from the
// module cache what tests of yesterday have left there.
func release(proxy, cache, dir string, before []module.Version) (m module.Version, err error) {
	gomod, err := requiring(filepath.Join(dir, "go.mod"), before)
	if err != nil {
		return m, err
	}
	m = module.Version{Path: modfile.ModulePath(gomod)}
	content := bytes.NewBuffer(gomod)
	if err := zip.CreateFromDir(content, module.Version{Path: m.Path, Version: unreleased + "0"}, dir); err != nil {
		return m, fmt.Errorf("%s: %w", dir, err)
	}
	m.Version = unreleased + fmt.Sprintf("h%x", sha256.Sum256(content.Bytes()))[:13]
	var zipped bytes.Buffer
	if err := zip.CreateFromDir(&zipped, m, dir); err != nil {
		return m, fmt.Errorf("%s: %w", dir, err)
	}
	if err := modproxy.Write(proxy, m, gomod, zipped.Bytes()); err != nil {
		return m, err
	}
	return m, forget(m.Version, filepath.Join(cache, m.Path+"@"+unreleased+"*"), filepath.Join(cache, "cache", "download", m.Path, "@v", unreleased+"*"))
}

// requiring returns a go.mod that requires modules by their versions, in place of beside it.
func requiring(name string, versions []module.Version) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		return nil, err
	}
	for _, m := range versions {
		if _, err := modproxy.Require(file, m); err != nil {
			return nil, err
		}
	}
	return file.Format()
}

// forget removes what matches the patterns and is older than a day, but for one version.
func forget(but string, patterns ...string) error {
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err == nil && time.Since(info.ModTime()) > 24*time.Hour && !strings.Contains(path, but) {
				err = os.RemoveAll(path)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // another test may do the same
				return err
			}
		}
	}
	return nil
}
