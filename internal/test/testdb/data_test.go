package testdb

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDataIsInitialisedOnce fills data directories by a program that writes down how often
// it runs: once, and once more when there is another version of it.
func TestDataIsInitialisedOnce(t *testing.T) {
	t.Setenv("LOCKSTEP_CACHE", t.TempDir())
	runs, path := filepath.Join(t.TempDir(), "runs"), filepath.Join(t.TempDir(), "mysqld")
	err := writeProgram(path, `#!/bin/sh
for arg; do case "$arg" in --datadir=*) data=${arg#--datadir=};; esac; done
echo run >>`+runs+`
mkdir "$data" "$data/mysql" && echo me >"$data/auto.cnf" && echo rows >"$data/mysql/table"
`)
	check(t, err)
	for i, want := range []int{1, 1, 2, 2} {
		if i == 2 {
			later := time.Now().Add(time.Hour)
			check(t, os.Chtimes(path, later, later))
		}
		data := filepath.Join(t.TempDir(), "data")
		check(t, fillData(t.Context(), MySQL, binary{command: []string{path}}, data))
		if text, err := os.ReadFile(filepath.Join(data, "mysql", "table")); string(text) != "rows\n" {
			t.Errorf("the copy has %q: %v", text, err)
		}
		if info, err := os.Stat(filepath.Join(data, "mysql", "table")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("others may read the copy: %v, %v", info, err)
		}
		if _, err := os.Stat(filepath.Join(data, "auto.cnf")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("two servers have one identity: %v", err)
		}
		if text, err := os.ReadFile(runs); strings.Count(string(text), "run") != want {
			t.Errorf("data directory %d: initialised %q, %v; want %d times", i, text, err, want)
		}
	}
}
