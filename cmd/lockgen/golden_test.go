//go:build golden && !race

package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden compares what lockgen writes with the files in testdata: those of five packages, since reading the
// types takes seconds, and of all in make verify, which runs what is behind this tag.
func TestGolden(t *testing.T) {
	t.Parallel()
	names := golden[:5]
	if *update || os.Getenv("LOCKSTEP_LONG") == "1" {
		names = golden
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join("testdata", name)
			front := "" // sqlc's package is internal, another in front of it
			if name == "hidden/internal/hidden" {
				front = filepath.Join("testdata", "hidden")
			}
			sources, _, err := generated(dir, front, "", nil)
			must(t, err)
			for i, source := range sources {
				path := filepath.Join([]string{dir, front}[i], output)
				if *update {
					must(t, os.WriteFile(path, source, 0o644))
				}
				must(t, same(path, source))
			}
		})
	}
}

// TestFrontCheck proves that -check names each file that is stale or missing, and writes
// nothing; and that what can't be generated leaves neither file.
func TestFrontCheck(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "hidden/internal/hidden")
	behind, front := filepath.Join(w.dir, output), filepath.Join(w.front, output)
	was := strings.Replace(w.read(front), "testdata/hidden/internal", filepath.ToSlash(w.front)+"/internal", 1)
	stale := was + "// and more\n"
	must(t, os.Remove(behind))
	w.write(front, stale)
	w.lockgen(1, []string{behind + ": no such file or directory: run lockgen", front + " is stale: run lockgen"}, "-check", "-front", w.front)
	testdb.ErrorIf(t, w.exists(behind) || w.read(front) != stale, "-check has written")
	w.lockgen(0, nil, "-front", w.front)
	testdb.Equal(t, "what -front has written", w.read(front), was)
	queries := filepath.Join(w.root, "queries.sql")
	w.write(queries, strings.Replace(w.read(queries), "# lock: Accounts(id)", "# lock: Accounts(balance)", 1))
	w.lockgen(1, []string{"queries.sql:19: Accounts(balance): balance must be the key of the row"}, "-front", w.front)
	testdb.ErrorIf(t, w.exists(front) || w.exists(behind), "a file of before is still there")
}

// TestFrontRefuses proves that a directory which can't have the package in front is refused
// with the reason, and that no file of somebody else is replaced.
func TestFrontRefuses(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "hidden/internal/hidden")
	in := func(path, text string) string {
		name, _, _ := strings.Cut(path, "/")
		must(t, os.MkdirAll(filepath.Join(w.root, filepath.Dir(path)), 0o755))
		w.write(filepath.Join(w.root, path), text)
		return filepath.Join(w.root, name)
	}
	const own = "package mine\n\nvar Accounts = 1\n"
	in("two/a.go", "package a\n")
	for front, says := range map[string][]string{
		in("mine/"+output, own):              {filepath.Join("mine", output) + " is not written by lockgen"},
		in("instead/"+output+"/x", "x"):      {output, "is a directory"},
		filepath.Join(w.root, "nowhere"):     {"-front", "nowhere: no such file"},
		filepath.Join(w.root, "queries.sql"): {"queries.sql", "not a directory"},
		in("my-shop/x", ""):                  {"my-shop has no Go files", "write a file with a package clause"},
		in("two/b.go", "package b\n"):        {"-front", "found packages a (a.go) and b (b.go)"},
		in("none/a.go", "packag a\n"):        {"-front", "a.go:1:1"},
		w.dir:                                {"is the directory of sqlc's own package"},
	} {
		w.lockgen(1, says, "-check", "-front", front)
		w.lockgen(1, says, "-front", front)
	}
	w.lockgen(2, []string{"-front is for one directory"}, "-front", w.front, w.dir)
	w.lockgen(1, []string{"lockgen: open", output}, "-front", readOnly(t))
	w.write(filepath.Join(w.dir, output), own)
	w.lockgen(1, []string{filepath.Join(w.dir, output) + " is not written by lockgen"})
	testdb.ErrorIf(t, w.read(filepath.Join(w.root, "mine", output)) != own || w.read(filepath.Join(w.dir, output)) != own,
		"the file of somebody else is another one now")
	must(t, os.Remove(filepath.Join(w.dir, output)))
	w.write(filepath.Join(w.dir, "mine.go"), "package hidden\n\ntype Locked struct{}\n")
	w.lockgen(1, []string{"mine.go:3: lockgen needs the name Locked itself"})
}

// TestFrontNames proves that the package in front compiles beside any name of the one behind, that it has the
// functions which sqlc writes for enumerations, and that what would have its own names twice is refused.
func TestFrontNames(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "hidden/internal/hidden")
	models := filepath.Join(w.dir, "models.go")
	was := w.read(models)
	w.write(models, was+"\ntype Status string\n\nfunc AllStatusValues() []Status { return nil }\n")
	files := testdb.Got(filepath.Glob(filepath.Join(w.dir, "*.go")))(t)
	for _, file := range files { // a name that parameters and imports in front have, too
		w.write(file, strings.Replace(w.read(file), "package hidden\n", "package db\n", 1))
	}
	w.lockgen(0, nil, "-front", w.front)
	out, err := exec.Command("go", "build", "./"+w.front).CombinedOutput()
	testdb.ErrorIf(t, err != nil, "go build: %v\n%s", err, out)
	testdb.Says(t, output, w.read(filepath.Join(w.front, output)), "= behind.AllStatusValues\n")
	w.write(models, strings.Replace(was, "package hidden", "package db", 1)+"\ntype Run struct{ ID int64 }\n")
	w.lockgen(1, []string{"has a Run, and so has the package in front: give sqlc's another name"}, "-front", w.front)
}

// readOnly returns a directory in which nobody can make a file, not even root.
func readOnly(t *testing.T) string {
	t.Helper()
	if os.Geteuid() == 0 {
		return "/proc/self"
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o555))
	return dir
}

// TestFrontPackage takes the name of the package from the files that belong to it.
func TestFrontPackage(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"shopdb": {},
		"a":      {"a.go": "package a\n", output: "package old\n"},
		"b":      {"a.go": "//go:build ignore\n\npackage main\n", "b.go": "package b\n", "b_test.go": "package b_test\n"},
		"c":      {"c_test.go": "package c_test\n"},
		"d":      {"a.go": "//go:build !tagged\n\npackage a\n", "d.go": "//go:build tagged\n\npackage d\n"},
	} {
		dir := filepath.Join(t.TempDir(), "shopdb")
		must(t, os.Mkdir(dir, 0o755))
		for file, text := range files {
			must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		}
		got, err := packageName(dir, []string{"tagged"})
		testdb.ErrorIf(t, got != name || err != nil, "%v is package %q, %v, want %q", files, got, err, name)
	}
}

// TestWithoutSQLC proves that lockgen asks for what sqlc has not written yet.
func TestWithoutSQLC(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "hidden/internal/hidden")
	generated := testdb.Got(filepath.Glob(filepath.Join(w.dir, "*.go")))(t)
	locks := filepath.Join(w.dir, "locks.go")
	for _, file := range generated {
		if file != locks {
			must(t, os.Remove(file))
		}
	}
	w.lockgen(1, []string{"run sqlc generate first"}, "-front", w.front)
	must(t, os.Remove(locks))
	w.lockgen(1, []string{"run sqlc generate first"}, "-front", w.front)
	must(t, os.Remove(w.dir))
	w.lockgen(1, []string{"run sqlc generate first"}, "-front", w.front)
}
