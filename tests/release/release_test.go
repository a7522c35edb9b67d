package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var must = testdb.Must

// toRelease returns a clone of this repository with a section for a version in its changelog.
func toRelease(t *testing.T, version string) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "clone")
	do(t, ".", "clone", "--quiet", "--no-tags", "../..", clone)
	name := filepath.Join(clone, "CHANGELOG.md")
	text := testdb.Got(os.ReadFile(name))(t)
	changed := strings.Replace(string(text), "## [Unreleased]\n", "## [Unreleased]\n\n## ["+version[1:]+"] - 2026-01-02\n", 1)
	must(t, os.WriteFile(name, []byte(changed), 0o600))
	do(t, clone, "config", "user.name", "Releaser")
	do(t, clone, "config", "user.email", "releaser@example.com")
	do(t, clone, "commit", "--quiet", "--all", "--allow-empty", "--message", "Notes of "+version)
	return clone
}

// do runs git in a directory, and returns what it prints.
func do(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	testdb.FatalIf(t, err != nil, "%v: %v\n%s", cmd.Args, err, out)
	return strings.TrimSpace(string(out))
}

// TestRelease makes a release of a clone of this repository, and tries one module as its users have it, with LOCKSTEP_LONG all.
func TestRelease(t *testing.T) {
	const version = "v0.98.0"
	checkout, dir := toRelease(t, version), t.TempDir()
	before := do(t, checkout, "rev-parse", "HEAD")
	r := release{clone: filepath.Join(dir, "clone"), proxy: filepath.Join(dir, "proxy"), version: version}

	must(t, r.tag(t.Context(), checkout))

	tags := strings.Fields(do(t, r.clone, "tag"))
	want := released(t)
	testdb.ErrorIf(t, !slices.Equal(slices.Sorted(slices.Values(tags)), want), "the tags are %s, want one for each module that users get: %s", tags, want)
	testdb.Equal(t, "the first tag", r.tagOf(r.modules[0]), version)
	for _, tag := range tags {
		testdb.Equal(t, "where "+tag+" stands", do(t, r.clone, "rev-parse", tag+"^{commit}^"), before)
		gomod := do(t, r.clone, "show", tag+":"+strings.TrimPrefix(filepath.Dir(tag)+"/go.mod", "./"))
		testdb.ErrorIf(t, strings.Contains(gomod, "replace") || strings.Contains(gomod, "lockstep v0.0.0"), "%s has a go.mod that users can't use:\n%s", tag, gomod)
	}
	cron := slices.IndexFunc(r.modules, func(m mod) bool { return m.dir == "contrib/cron" })
	must(t, r.try(t.Context(), testdb.Long(r.modules[cron:cron+1], r.modules), filepath.Join(dir, "users")))
	testdb.Equal(t, "tags that nobody took over in the checkout", do(t, checkout, "tag"), "")
}

// released returns the tags of the modules that users get, by the Makefile.
func released(t *testing.T) []string {
	t.Helper()
	text := testdb.Got(os.ReadFile("../../Makefile"))(t)
	all := []string{"v0.98.0"}
	for _, variable := range []string{"PARTS", "CONTRIB", "COMMANDS"} {
		found := regexp.MustCompile(`(?m)^` + variable + ` *= *(.*)$`).FindSubmatch(text)
		testdb.FatalIf(t, found == nil, "the Makefile has no %s", variable)
		for _, dir := range strings.Fields(string(found[1])) {
			all = append(all, dir+"/v0.98.0")
		}
	}
	slices.Sort(all)
	return all
}

// TestTakeOver releases a repository of two small modules: the checkout gets the tags, the
// remote only when it is said.
func TestTakeOver(t *testing.T) {
	small := func(t *testing.T) (checkout, remote string) {
		checkout, remote = t.TempDir(), t.TempDir()
		for name, text := range map[string]string{
			"go.mod": "module github.com/dca00107/small\n\ngo 1.25.0\n", "go.sum": "", "LICENSE": "None.\n", "small.go": "package small\n",
			"cmd/tiny/go.mod": "module github.com/dca00107/small/cmd/tiny\n\ngo 1.25.0\n\nrequire github.com/dca00107/small v0.0.0\n\nreplace github.com/dca00107/small => ../..\n",
			"cmd/tiny/go.sum": "", "cmd/tiny/main.go": "package main\n\nimport _ \"github.com/dca00107/small\"\n\nfunc main() {}\n",
			"CHANGELOG.md": "## [0.1.0] - 2026-01-02\n\n- All.\n",
		} {
			write(t, filepath.Join(checkout, name), text)
		}
		do(t, remote, "init", "--quiet", "--bare")
		for _, args := range []string{"init --quiet", "config user.name Releaser", "config user.email releaser@example.com", "remote add origin " + remote, "add .", "commit --quiet --message All"} {
			do(t, checkout, strings.Fields(args)...)
		}
		return checkout, remote
	}
	for name, c := range map[string]struct {
		dry, push      bool
		checkout, gone string
	}{
		"dry":  {dry: true},
		"kept": {checkout: "cmd/tiny/v0.1.0\nv0.1.0"},
		"push": {push: true, checkout: "cmd/tiny/v0.1.0\nv0.1.0", gone: "cmd/tiny/v0.1.0\nv0.1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			checkout, remote := small(t)
			must(t, run(t.Context(), checkout, "v0.1.0", true, c.dry, c.push))
			testdb.Equal(t, "the tags of the checkout", do(t, checkout, "tag"), c.checkout)
			testdb.Equal(t, "the tags of the remote", do(t, remote, "tag"), c.gone)
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(text), 0o600))
}

// TestRefused shows what stands against a release, each in a checkout that is well but for
// that.
func TestRefused(t *testing.T) {
	checkout := toRelease(t, "v0.98.0")
	for _, c := range []struct {
		name, version, want string
		tested, dry, push   bool
		before, after       func()
	}{
		{name: "untested", version: "v0.98.0", want: "TESTED=1"},
		{name: "dry and push", version: "v0.98.0", dry: true, push: true, want: "DRY or PUSH"},
		{name: "no version", dry: true, want: "must be as v0.1.0"},
		{name: "short version", version: "v0.98", dry: true, want: "must be as v0.1.0"},
		{name: "new path", version: "v2.0.0", tested: true, want: "the modules' paths"},
		{name: "no section", version: "v0.99.0", tested: true, want: "no section ## [0.99.0]"},
		{
			name: "changed", version: "v0.98.0", tested: true, want: "untracked",
			before: func() { write(t, filepath.Join(checkout, "untracked"), "") },
			after:  func() { _ = os.Remove(filepath.Join(checkout, "untracked")) },
		},
		{
			name: "tagged", version: "v0.98.0", dry: true, want: "cmd/lockgen/v0.98.0",
			before: func() { do(t, checkout, "tag", "cmd/lockgen/v0.98.0") },
		},
	} {
		if c.before != nil {
			c.before()
		}
		testdb.Fails(t, c.name, run(t.Context(), checkout, c.version, c.tested, c.dry, c.push), c.want)
		if c.after != nil {
			c.after()
		}
	}
}
