package doctest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// freePorts returns pairs for Reader.Instead: addresses of a document, and free ones.
func freePorts(t *testing.T, ports ...int) []string {
	t.Helper()
	var pairs []string
	for _, port := range ports {
		l, err := net.Listen("tcp", "localhost:0")
		check(t, err)
		defer l.Close() // after all have been chosen
		pairs = append(pairs, fmt.Sprintf("localhost:%d", port), l.Addr().String())
	}
	return pairs
}

func TestFollow(t *testing.T) {
	t.Parallel()
	document := strings.ReplaceAll(`
''' text
not for the shell
'''
'''console
$ mkdir made && cd made
$ export WHO=you
'''
'''txt file=deep/greeting
hello
'''
'''console
$ cat deep/greeting; echo "$WHO
> at host:1" >&2
hello
you
at host:1
$ echo took 1.25s for 3 of 7 things
took 0.01s for ... things
$ sleep 600 &
$ kill $(jobs -p)
'''
'''console fails
$ false || exit_status() { return 3; }; exit_status
'''
`, "'''", "```")
	path := filepath.Join(t.TempDir(), "document.md")
	check(t, os.WriteFile(path, []byte(document), 0o600))
	dir := Reader{Instead: []string{"host:1", "elsewhere:2"}}.Follow(t, path)
	if filepath.Base(dir) != "made" {
		t.Errorf("the reader is in %s", dir)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "deep/greeting")); err != nil || string(text) != "hello\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// What doesn't come true is noticed.
func TestDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"'''console\n$ false\n'''\n":                   "$ false\nends with exit status 1",
		"'''console fails\n$ true\n'''\n":              "should fail",
		"'''console fails\n$ false\n$ false\n'''\n":    "ends with exit status 1",
		"'''console\n$ echo one\ntwo\n'''\n":           "prints\none\nin place of\ntwo",
		"'''console\n$ echo one; echo two\none\n'''\n": "prints\none\ntwo\nin place of\none",
		"'''console\n$ exit 1\n'''\n":                  "the shell has ended",
		"'''console\n$ if\n'''\n":                      "ends with",
		"'''console installs\n$ false\n'''\n":          "ends with exit status 1",
	} {
		blocks, err := parse(strings.ReplaceAll(text, "'''", "```"))
		check(t, err)
		var r Reader
		if err := r.do(t, r.open(t, t.TempDir()), blocks[0]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
}

// A reader has a checkout or takes a release, and doesn't write a part of a file again.
func TestWays(t *testing.T) {
	t.Parallel()
	document := filepath.Join(t.TempDir(), "ways.md")
	text := strings.ReplaceAll("'''text part\nb\n'''\n'''text file=x\na\nb\n'''\n'''console checkout\n$ touch checkout\n'''\n'''console release\n$ touch release\n'''\n", "'''", "```")
	check(t, os.WriteFile(document, []byte(text), 0o600))
	for _, test := range []struct {
		checkout   bool
		made, none string
	}{{true, "checkout", "release"}, {false, "release", "checkout"}} {
		dir := Reader{Checkout: test.checkout}.Follow(t, document)
		_, err := os.Stat(filepath.Join(dir, test.made))
		if _, other := os.Stat(filepath.Join(dir, test.none)); err != nil || !errors.Is(other, fs.ErrNotExist) {
			t.Errorf("with a checkout %v: %v, %v", test.checkout, err, other)
		}
		if x, err := os.ReadFile(filepath.Join(dir, "x")); string(x) != "a\nb\n" || err != nil {
			t.Errorf("x is %q, %v", x, err)
		}
	}
}

// What is left in the module cache goes after a day.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{"m@v1-old": 25 * time.Hour, "m@v1-new": 23 * time.Hour, "m@v1-mine": 25 * time.Hour, "m@v2-old": 25 * time.Hour} {
		path, then := filepath.Join(dir, name), time.Now().Add(-age)
		check(t, errors.Join(os.MkdirAll(filepath.Join(path, "sub"), 0o755), os.Chtimes(path, then, then)))
	}
	check(t, forget("v1-mine", filepath.Join(dir, "m@v1-*")))
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 3 || slices.Contains(left, filepath.Join(dir, "m@v1-old")) {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"'''go\nx\n'''\n":                   "neither a file nor commands",
		"'''\nx\n'''\n":                     "neither a file nor commands",
		"'''go file=x.go fails\nx\n'''\n":   "neither a file nor commands",
		"'''console often\n$ x\n'''\n":      "neither a file nor commands",
		"'''console\nx\n'''\n":              "begins with $",
		"'''console\n$ x\n":                 "1 fences",
		"\n\n'''text\n'''\n'''go\nx\n'''\n": "line 5",
	} {
		_, err := parse(strings.ReplaceAll(text, "'''", "```"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
}
