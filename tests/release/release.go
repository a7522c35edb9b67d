package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"

	"github.com/dca00107/lockstep/tests/modproxy"
)

// run makes a release of a checkout.
func run(ctx context.Context, checkout, version string, tested, dry, push bool) error {
	if !tested && !dry {
		return errors.New("run make verify test on this commit, and say that it has passed: TESTED=1")
	}
	if dry && push {
		return errors.New("a dry run pushes nothing: DRY or PUSH")
	}
	if err := check(ctx, checkout, version); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := release{clone: filepath.Join(dir, "clone"), proxy: filepath.Join(dir, "proxy"), version: version}
	if err := r.tag(ctx, checkout); err != nil {
		return err
	}
	if err := r.try(ctx, r.modules, filepath.Join(dir, "users")); err != nil {
		return err
	}
	if dry {
		log.Print("All of them work. This was a dry run: the checkout has no tag.")
		return nil
	}
	if _, err := git(ctx, checkout, append([]string{"fetch", "--quiet", "--no-tags", r.clone}, refs(r.tags(), true)...)...); err != nil {
		return err
	}
	if !push {
		log.Printf("The checkout has the tags. Push them: git push --atomic origin %s", strings.Join(refs(r.tags(), false), " "))
		return nil
	}
	_, err = git(ctx, checkout, append([]string{"push", "--atomic", "origin"}, refs(r.tags(), false)...)...)
	return err
}

// check returns what stands against a release of the commit that is checked out.
func check(ctx context.Context, checkout, version string) error {
	if semver.Canonical(version) != version || semver.Major(version) != "v0" && semver.Major(version) != "v1" {
		return fmt.Errorf("VERSION is %q, and must be as v0.1.0; from v2 on the modules' paths change, too", version)
	}
	if changed, err := git(ctx, checkout, "status", "--porcelain"); err != nil || changed != "" {
		return errors.Join(err, fmt.Errorf("commit or remove what has changed:\n%s", changed))
	}
	if tags, err := git(ctx, checkout, "tag", "--list", version, "*/"+version); err != nil || tags != "" {
		return errors.Join(err, fmt.Errorf("%s has tags: %s", version, strings.Fields(tags)))
	}
	changes, err := os.ReadFile(filepath.Join(checkout, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(version[1:]) + `\] - \d{4}-\d\d-\d\d\n\s*[^#\s]*(###|-)`)
	if !section.Match(changes) {
		return fmt.Errorf("CHANGELOG.md has no section ## [%s] - YYYY-MM-DD with changes: rename [Unreleased], and begin an empty one", version[1:])
	}
	return nil
}

// release is one in the making.
type release struct {
	clone, proxy string // directories
	version      string
	modules      []mod // whoever requires another comes after it
}

// mod is a module that users get, in a directory of the clone.
type mod struct {
	dir  string // . or contrib/cron
	file *modfile.File
}

// tagOf returns the name of a module's tag.
func (r *release) tagOf(m mod) string { return path.Join(m.dir, r.version) }

func (r *release) tags() (all []string) {
	for _, m := range r.modules {
		all = append(all, r.tagOf(m))
	}
	return all
}

// tag makes the commit of the release in a clone, and the tags, in order. The module proxy
// gets what is tagged.
func (r *release) tag(ctx context.Context, checkout string) error {
	if err := r.open(ctx, checkout); err != nil {
		return err
	}
	sums, err := r.commit(ctx)
	if err != nil {
		return err
	}
	for _, m := range r.modules {
		if _, err := git(ctx, r.clone, "tag", "--annotate", "--message", "Release "+r.tagOf(m), r.tagOf(m)); err != nil {
			return err
		}
		sum, err := r.publish(m, r.tagOf(m))
		if err == nil && sum != sums[m.file.Module.Mod.Path] {
			err = errors.New("the tag has another content than the modules which require it were told")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.dir, err)
		}
		log.Printf("tagged %s", r.tagOf(m))
	}
	return nil
}

// open makes the clone, for who works in the checkout.
func (r *release) open(ctx context.Context, checkout string) (err error) {
	if _, err := git(ctx, checkout, "clone", "--quiet", "--no-tags", ".", r.clone); err != nil {
		return err
	}
	if _, err := git(ctx, r.clone, "checkout", "--quiet", "--detach"); err != nil {
		return err
	}
	for _, setting := range []string{"user.name", "user.email"} {
		value, err := git(ctx, checkout, "config", setting)
		if err == nil {
			_, err = git(ctx, r.clone, "config", setting, value)
		}
		if err != nil {
			return fmt.Errorf("who makes the release needs a %s: %w", setting, err)
		}
	}
	r.modules, err = modules(r.clone)
	return err
}

// commit makes the commit of the release, and returns each module's lines of go.sum. A
// module's sum is that of a commit and stands in the next modules: so each has a commit
// first, and then they become one.
func (r *release) commit(ctx context.Context) (map[string]string, error) {
	commit := func(message string) error {
		_, err := git(ctx, r.clone, "add", ".")
		if err == nil {
			_, err = git(ctx, r.clone, "commit", "--quiet", "--allow-empty", "--message", message)
		}
		return err
	}
	sums := map[string]string{}
	for _, m := range r.modules {
		err := r.require(m, sums)
		if err == nil {
			err = commit("Release " + r.tagOf(m))
		}
		if err == nil {
			sums[m.file.Module.Mod.Path], err = r.publish(m, "HEAD")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.dir, err)
		}
	}
	if _, err := git(ctx, r.clone, "reset", "--quiet", "--soft", "HEAD~"+strconv.Itoa(len(r.modules))); err != nil {
		return nil, err
	}
	return sums, commit("Release " + r.version)
}

// modules returns the modules that users get, those first which others require.
func modules(root string) (sorted []mod, err error) {
	var all []mod
	for _, pattern := range []string{"go.mod", "lockgorm/go.mod", "txlock/*/go.mod", "contrib/*/go.mod", "cmd/*/go.mod"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			file, err := modfile.Parse(name, text, nil)
			if err != nil {
				return nil, err
			}
			dir, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				return nil, err
			}
			all = append(all, mod{dir: filepath.ToSlash(dir), file: file})
		}
	}
	for len(all) > 0 {
		next := slices.IndexFunc(all, func(m mod) bool {
			return !slices.ContainsFunc(all, m.requires)
		})
		if next < 0 {
			return nil, errors.New("modules require each other in a circle")
		}
		sorted, all = append(sorted, all[next]), slices.Delete(all, next, next+1)
	}
	return sorted, nil
}

func (m mod) requires(other mod) bool {
	return slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool { return r.Mod.Path == other.file.Module.Mod.Path })
}

// require writes go.mod and go.sum of a module, with the others by version and sum in place
// of by directory. The licence comes beside them: the go command would put the repository's
// into the module, which then had another sum than here.
func (r *release) require(m mod, sums map[string]string) error {
	licence, err := os.ReadFile(filepath.Join(r.clone, "LICENSE"))
	if err != nil {
		return err
	}
	sumName := filepath.Join(r.clone, m.dir, "go.sum")
	sum, err := os.ReadFile(sumName)
	if err != nil {
		return err
	}
	lines := slices.Collect(strings.Lines(string(sum)))
	for _, other := range r.modules {
		p := other.file.Module.Mod.Path
		required, err := modproxy.Require(m.file, module.Version{Path: p, Version: r.version})
		if err != nil {
			return err
		}
		if !required {
			continue
		}
		behind := slices.IndexFunc(lines, func(line string) bool { return line > p+" v" })
		if behind < 0 {
			behind = len(lines)
		}
		lines = slices.Insert(lines, behind, sums[p])
	}
	m.file.Cleanup()
	for _, left := range m.file.Replace {
		return fmt.Errorf("go.mod replaces %s, which users can't", left.Old.Path)
	}
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.clone, m.dir, "LICENSE"), licence, 0o644),
		os.WriteFile(filepath.Join(r.clone, m.dir, "go.mod"), text, 0o644),
		os.WriteFile(sumName, []byte(strings.Join(lines, "")), 0o644))
}

// publish gives a module as it is in a commit to the module proxy, and returns its lines
// of go.sum.
func (r *release) publish(m mod, commit string) (string, error) {
	v := module.Version{Path: m.file.Module.Mod.Path, Version: r.version}
	var zipped bytes.Buffer
	dir := m.dir
	if dir == "." {
		dir = ""
	}
	if err := zip.CreateFromVCS(&zipped, v, r.clone, commit, dir); err != nil {
		return "", err
	}
	gomod, err := os.ReadFile(filepath.Join(r.clone, m.dir, "go.mod"))
	if err != nil {
		return "", err
	}
	if err := modproxy.Write(r.proxy, v, gomod, zipped.Bytes()); err != nil {
		return "", err
	}
	all, err := dirhash.HashZip(filepath.Join(r.proxy, v.Path, "@v", v.Version+".zip"), dirhash.Hash1)
	if err != nil {
		return "", err
	}
	only, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(gomod)), nil })
	return fmt.Sprintf("%[1]s %[2]s %[3]s\n%[1]s %[2]s/go.mod %[4]s\n", v.Path, v.Version, all, only), err
}

func refs(tags []string, both bool) (all []string) {
	for _, tag := range tags {
		ref := "refs/tags/" + tag
		if both {
			ref += ":" + ref
		}
		all = append(all, ref)
	}
	return all
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
