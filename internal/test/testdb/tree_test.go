//go:build amd64 || arm64

// There is a MySQL package for these.

package testdb

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// fakeDownload makes a tree whose loader is a script that says what mysqld
// would say.
func fakeDownload(t *testing.T, version string) func(context.Context, string) error {
	t.Helper()
	l := loader[runtime.GOARCH]
	return func(_ context.Context, root string) error {
		program := filepath.Join(root, l.program)
		if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
			return err
		}
		return writeProgram(program, "#!/bin/sh\n"+version+"\n")
	}
}

const goodVersion = "echo mysqld  Ver 9.7.4 for Linux"

func TestFill(t *testing.T) {
	t.Parallel()
	good := fakeDownload(t, goodVersion)
	for name, before := range map[string]func(cache string) error{
		"empty":     func(string) error { return nil },
		"half-made": func(cache string) error { return os.Mkdir(mysqlTree.path(cache), 0o755) },
		"left over": func(cache string) error { return os.Mkdir(mysqlTree.path(cache)+".part", 0o755) },
		"broken": func(cache string) error {
			return fakeDownload(t, "exit 127")(t.Context(), mysqlTree.path(cache))
		},
		"MariaDB": func(cache string) error {
			return fakeDownload(t, "echo mysqld Ver 10.11-MariaDB")(t.Context(), mysqlTree.path(cache))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			check(t, before(cache))
			if err := mysqlTree.fill(t.Context(), cache, good); err != nil || !mysqlTree.server(cache).works(t.Context(), MySQL) {
				t.Fatalf("fill: %v", err)
			}
			if entries, err := os.ReadDir(cache); err != nil || len(entries) != 1 {
				t.Errorf("the cache has more than one tree: %v, %v", entries, err)
			}
			none := func(context.Context, string) error { return errors.New("downloaded twice") }
			if err := mysqlTree.fill(t.Context(), cache, none); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFillFails(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	noNetwork := errors.New("no network")
	err := mysqlTree.fill(t.Context(), cache, func(context.Context, string) error { return noNetwork })
	if !errors.Is(err, noNetwork) {
		t.Errorf("err = %v", err)
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 0 {
		t.Errorf("something is left of a failed download: %v, %v", entries, err)
	}
	if err := mysqlTree.fill(t.Context(), cache, fakeDownload(t, "exit 1")); err == nil {
		t.Error("a server that does not run is taken")
	}
}

// TestFillEndsWithContext proves that a copy which is stopped leaves the tree alone.
func TestFillEndsWithContext(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	check(t, mysqlTree.fill(t.Context(), cache, fakeDownload(t, goodVersion)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := mysqlTree.fill(ctx, cache, fakeDownload(t, goodVersion)); !errors.Is(err, context.Canceled) {
		t.Errorf("fill with a cancelled context: %v", err)
	}
	if !mysqlTree.works(t.Context(), mysqlTree.command(cache)) {
		t.Error("it has removed a server that works")
	}
}

func TestLockFileExcludes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			unlock, err := lockFile(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d have the lock", n)
			}
			runtime.Gosched()
			inside.Add(-1)
			unlock()
		})
	}
	wg.Wait()

	unlock, err := lockFile(t.Context(), path)
	check(t, err)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with a cancelled context: %v", err)
	}
}

// TestChosenTree proves that the MariaDB of a suite is what a server is made of, with the
// script that came with it, which calls the server by its loader.
func TestChosenTree(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("LOCKSTEP_CACHE", cache)
	t.Setenv(debianVariable, "trixie")
	if _, ok := chosenTree(MySQL); ok {
		t.Error("a MySQL is taken from Debian's MariaDB")
	}
	chosen, ok := chosenTree(MariaDB)
	if !ok {
		t.Fatal("the variable chooses nothing")
	}
	root := chosen.path(cache)
	check(t, fakeDownload(t, `echo "$3 Ver 11.8-MariaDB, called with $4"`)(t.Context(), root))
	for program, text := range map[string]string{
		chosen.program:               "is not called without its loader",
		"usr/bin/mariadb-install-db": "#!/bin/sh\nfor arg; do case $arg in --datadir=*) data=${arg#*=};; esac; done\nmkdir \"$data\" && \"$MYSQLD_BOOTSTRAP\" --bootstrap >\"$data/said\"\n",
	} {
		path := filepath.Join(root, program)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, writeProgram(path, text))
	}
	b, err := chosen.installed(t.Context())
	check(t, err)
	data := filepath.Join(t.TempDir(), "data")
	check(t, fillData(t.Context(), MariaDB, b, data))
	said, err := os.ReadFile(filepath.Join(data, "said"))
	want := filepath.Join(root, "usr/sbin/mariadbd") + " Ver 11.8-MariaDB, called with --bootstrap\n"
	if err != nil || string(said) != want {
		t.Errorf("the server was called as %q, %v, want %q", said, err, want)
	}
}
