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
	return func(_ context.Context, tree string) error {
		program := filepath.Join(tree, l.program)
		if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
			return err
		}
		return writeProgram(program, "#!/bin/sh\n"+version+"\n")
	}
}

const goodVersion = "echo mysqld  Ver 9.7.4 for Linux"

func TestFillCache(t *testing.T) {
	t.Parallel()
	good := fakeDownload(t, goodVersion)
	for name, before := range map[string]func(cache string) error{
		"empty":     func(string) error { return nil },
		"half-made": func(cache string) error { return os.Mkdir(mysqlTree(cache), 0o755) },
		"left over": func(cache string) error { return os.Mkdir(mysqlTree(cache)+"-123", 0o755) },
		"broken": func(cache string) error {
			return fakeDownload(t, "exit 127")(t.Context(), mysqlTree(cache))
		},
		"MariaDB": func(cache string) error {
			return fakeDownload(t, "echo mysqld Ver 10.11-MariaDB")(t.Context(), mysqlTree(cache))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			if err := before(cache); err != nil {
				t.Fatal(err)
			}
			b, err := fillCache(t.Context(), cache, good)
			if err != nil || !b.works(t.Context(), MySQL) {
				t.Fatalf("fillCache = %v, %v", b, err)
			}
			if entries, err := os.ReadDir(cache); err != nil || len(entries) != 1 {
				t.Errorf("the cache has more than one tree: %v, %v", entries, err)
			}
			none := func(context.Context, string) error { return errors.New("downloaded twice") }
			if _, err := fillCache(t.Context(), cache, none); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFillCacheFails(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	noNetwork := errors.New("no network")
	_, err := fillCache(t.Context(), cache, func(context.Context, string) error { return noNetwork })
	if !errors.Is(err, noNetwork) {
		t.Errorf("err = %v", err)
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 0 {
		t.Errorf("something is left of a failed download: %v, %v", entries, err)
	}
	if _, err := fillCache(t.Context(), cache, fakeDownload(t, "exit 1")); err == nil {
		t.Error("a server that does not run is taken")
	}
}

// TestFillCacheEndsWithContext proves that a copy which is stopped leaves the tree alone.
func TestFillCacheEndsWithContext(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	b, err := fillCache(t.Context(), cache, fakeDownload(t, goodVersion))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fillCache(ctx, cache, fakeDownload(t, goodVersion)); !errors.Is(err, context.Canceled) {
		t.Errorf("fillCache with a cancelled context: %v", err)
	}
	if !b.works(t.Context(), MySQL) {
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
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with a cancelled context: %v", err)
	}
}
