package doctest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// unreleased begins the versions of a checkout's modules. A hash of the content follows, so
// that the module cache of this machine can keep them beside each other.
const unreleased = "v0.1.0-doctest."

// Released returns the environment of a reader for whom the modules in these directories
// of a checkout are released. Modules of others come from this machine's cache, or else
// from where this machine has them from; their sums were compared on that way.
func Released(t testing.TB, checkout string, dirs ...string) []string {
	t.Helper()
	released := t.TempDir()
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache, upstream, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	cached := filepath.Join(cache, "cache", "download")
	for _, dir := range dirs {
		if err := release(released, cache, filepath.Join(checkout, dir)); err != nil {
			t.Fatal(err)
		}
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := os.Stat(filepath.Join(cached, filepath.FromSlash(r.URL.Path)))
		switch {
		case strings.HasPrefix(r.URL.Path, "/github.com/dca00107/"): // nobody else is asked for these
			http.ServeFileFS(w, r, os.DirFS(released), r.URL.Path[1:])
		case err == nil:
			http.ServeFileFS(w, r, os.DirFS(cached), r.URL.Path[1:])
		case firstHTTP(upstream) == "":
			http.NotFound(w, r)
		default:
			http.Redirect(w, r, firstHTTP(upstream)+r.URL.Path, http.StatusFound)
		}
	}))
	t.Cleanup(proxy.Close)
	bin := t.TempDir()
	return []string{
		"GOPROXY=" + proxy.URL, "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOWORK=off", "GOFLAGS=-modcacherw -buildvcs=false",
		"GOBIN=" + bin, "PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
	}
}

// firstHTTP is the first of a GOPROXY that can be asked.
func firstHTTP(list string) string {
	for one := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == '|' }) {
		if strings.HasPrefix(one, "http") {
			return strings.TrimSuffix(one, "/")
		}
	}
	return ""
}

// release writes what a module proxy has of the module in a directory, and removes from the
// module cache what tests of yesterday have left there.
func release(proxy, cache, dir string) error {
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	m := module.Version{Path: modfile.ModulePath(gomod)}
	var content bytes.Buffer
	if err := zip.CreateFromDir(&content, module.Version{Path: m.Path, Version: unreleased + "0"}, dir); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	m.Version = unreleased + fmt.Sprintf("h%x", sha256.Sum256(content.Bytes()))[:13]
	var zipped bytes.Buffer
	if err := zip.CreateFromDir(&zipped, m, dir); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	versions := filepath.Join(proxy, m.Path, "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"list": []byte(m.Version + "\n"), m.Version + ".info": fmt.Appendf(nil, `{"Version":%q}`, m.Version), m.Version + ".mod": gomod, m.Version + ".zip": zipped.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), content, 0o644); err != nil {
			return err
		}
	}
	return forget(m.Version, filepath.Join(cache, m.Path+"@"+unreleased+"*"), filepath.Join(cache, "cache", "download", m.Path, "@v", unreleased+"*"))
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
