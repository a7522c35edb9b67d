// Package modproxy is a module proxy for modules that nobody has released yet.
package modproxy

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// Own begins the paths of the modules that only the proxy itself has.
const Own = "github.com/dca00107/"

// Write puts a version of a module into the directory of a proxy, as its only one.
func Write(dir string, m module.Version, gomod, zipped []byte) error {
	versions := filepath.Join(dir, m.Path, "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"list": []byte(m.Version + "\n"), m.Version + ".info": fmt.Appendf(nil, `{"Version":%q}`, m.Version), m.Version + ".mod": gomod, m.Version + ".zip": zipped,
	} {
		if err := os.WriteFile(filepath.Join(versions, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Require lets a go.mod that requires a module beside it require it by its version, and tells
// whether it does.
func Require(file *modfile.File, m module.Version) (bool, error) {
	if !slices.ContainsFunc(file.Require, func(r *modfile.Require) bool { return r.Mod.Path == m.Path }) {
		return false, nil
	}
	return true, errors.Join(file.AddRequire(m.Path, m.Version), file.DropReplace(m.Path, ""))
}

// Cache returns the module cache of this machine, and where it has modules from.
func Cache() (cache, upstream string, err error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	cache, upstream, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return cache, upstream, err
}

// Handler serves what Write has put into a directory. Modules of others come from the cache
// of this machine, or else from where this machine has them from; their sums were compared
// on that way.
func Handler(dir, cache, upstream string) http.Handler {
	cached := filepath.Join(cache, "cache", "download")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := os.Stat(filepath.Join(cached, filepath.FromSlash(r.URL.Path)))
		switch {
		case strings.HasPrefix(r.URL.Path, "/"+Own): // nobody else is asked for these
			http.ServeFileFS(w, r, os.DirFS(dir), r.URL.Path[1:])
		case err == nil:
			http.ServeFileFS(w, r, os.DirFS(cached), r.URL.Path[1:])
		case firstHTTP(upstream) == "":
			http.NotFound(w, r)
		default:
			http.Redirect(w, r, firstHTTP(upstream)+r.URL.Path, http.StatusFound)
		}
	})
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

// Env returns the environment of a go command that has all modules from the proxy at an
// address, and writes a module cache that can be deleted.
func Env(address string) []string {
	return []string{"GOPROXY=" + address, "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOWORK=off", "GOFLAGS=-modcacherw -buildvcs=false"}
}
