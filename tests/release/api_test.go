package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAPI compares small modules with their last release.
func TestAPI(t *testing.T) {
	t.Parallel()
	const exported = "// Package small is small.\npackage small\n\n// Lock locks.\nfunc Lock(key string) error { return nil }\n"
	script, err := filepath.Abs("../../internal/test/tools/api.sh")
	must(t, err)
	for name, c := range map[string]struct {
		now, want         string
		unreleased, fails bool
	}{
		"no release":   {now: exported, unreleased: true, want: "There is no release"},
		"the same":     {now: exported, want: "Programs for v0.10.0 compile."},
		"more":         {now: exported + "\n// Try tries.\nfunc Try() {}\n", want: "Try: added"},
		"incompatible": {now: strings.Replace(exported, "key string", "key int", 1), want: "Lock: changed from func(string) error to func(int) error", fails: true},
		"gone":         {now: "// Package small is small.\npackage small\n", want: "Lock: removed", fails: true},
		"unexported":   {now: exported + "\nfunc unlock() {}\n", want: "Programs for v0.10.0 compile."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module example.com/small\n\ngo 1.25.0\n")
			write(t, filepath.Join(dir, "small.go"), exported)
			for _, args := range []string{"init --quiet", "config user.name Releaser", "config user.email releaser@example.com", "add .", "commit --quiet --message All"} {
				do(t, dir, strings.Fields(args)...)
			}
			if !c.unreleased { // the last of them is the base, and no candidate for the next
				do(t, dir, "tag", "v0.10.0")
				do(t, dir, "tag", "v0.11.0-rc.1")
				do(t, dir, "tag", "v0.9.0", do(t, dir, "commit-tree", "-m", "Empty", do(t, dir, "mktree", "--missing")))
			}
			write(t, filepath.Join(dir, "small.go"), c.now)

			cmd := exec.Command("sh", script)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()

			if (err != nil) != c.fails || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, and printed:\n%s\nwant %q", err, out, c.want)
			}
		})
	}
}
