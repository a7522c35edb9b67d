package main

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/tests/modproxy"
)

// alone are packages of the library that users may have without the others.
var alone = []string{"locksqlc"}

// try does with each module what its users do, in an empty directory and with an empty module
// cache: go install of a program, go get and go build of packages. It prints what was
// downloaded for that, and checks that go.mod and go.sum of the module are tidy.
func (r *release) try(ctx context.Context, modules []mod, users string) error {
	cache, upstream, err := modproxy.Cache()
	if err != nil {
		return err
	}
	proxy := httptest.NewServer(modproxy.Handler(r.proxy, cache, upstream))
	defer proxy.Close()
	// Without paths the compiled packages are the same whatever the module cache is.
	env := append(modproxy.Env(proxy.URL), "GOFLAGS=-modcacherw -buildvcs=false -trimpath")
	for _, m := range modules {
		what := []string{"/..."}
		if strings.HasPrefix(m.dir, "cmd/") {
			what = []string{""}
		}
		for _, pkg := range alone {
			if info, err := os.Stat(filepath.Join(r.clone, m.dir, pkg)); err == nil && info.IsDir() {
				what = append(what, "/"+pkg)
			}
		}
		for _, packages := range what {
			u, err := newUser(users, env)
			if err == nil {
				err = u.try(ctx, m.file.Module.Mod.Path+packages, r.version, packages == "")
			}
			if err != nil {
				return fmt.Errorf("%s as a user has it: %w", r.tagOf(m), err)
			}
		}
		tidy := user{dir: filepath.Join(r.clone, m.dir), env: slices.Concat(env, []string{"GOMODCACHE=" + filepath.Join(users, "tidy")})}
		if err := tidy.run(ctx, "go", "mod", "tidy", "-diff"); err != nil {
			return fmt.Errorf("%s: %w", r.tagOf(m), err)
		}
	}
	return nil
}

// user has a directory, a module cache and an environment.
type user struct {
	dir, cache string
	env        []string
}

// newUser returns one who has nothing yet.
func newUser(users string, env []string) (user, error) {
	if err := os.MkdirAll(users, 0o755); err != nil {
		return user{}, err
	}
	home, err := os.MkdirTemp(users, "user")
	if err != nil {
		return user{}, err
	}
	u := user{dir: filepath.Join(home, "empty"), cache: filepath.Join(home, "cache")}
	u.env = slices.Concat(env, []string{"GOMODCACHE=" + u.cache, "GOBIN=" + filepath.Join(home, "bin")})
	return u, os.Mkdir(u.dir, 0o755)
}

func (u user) try(ctx context.Context, packages, version string, program bool) error {
	if program {
		if err := u.run(ctx, "go", "install", packages+"@"+version); err != nil {
			return err
		}
		return u.downloads("go install " + packages + "@" + version)
	}
	for _, args := range [][]string{{"mod", "init", "example.com/user"}, {"get", packages + "@" + version}, {"build", packages}} {
		if err := u.run(ctx, "go", args...); err != nil {
			return err
		}
	}
	return u.downloads("go get " + packages + "@" + version)
}

func (u user) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), u.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// downloads prints how many modules the module cache has.
func (u user) downloads(what string) error {
	var modules, bytes int64
	err := filepath.WalkDir(filepath.Join(u.cache, "cache", "download"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".zip" {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			modules, bytes = modules+1, bytes+info.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	log.Printf("%s: %d modules, %.1f MB", what, modules, float64(bytes)/1e6)
	return nil
}
