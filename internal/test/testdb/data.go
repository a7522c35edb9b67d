package testdb

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// fillData fills a data directory. To initialise one takes MySQL longer than to start, so
// that is done once for each binary, in the cache, and the result is copied.
func fillData(ctx context.Context, engine Engine, b binary, data string) error {
	template, err := dataTemplate(ctx, engine, b)
	if err != nil {
		return err
	}
	copies := []string{"-R"}
	if runtime.GOOS == "linux" {
		copies = append(copies, "--sparse=always") // 7 MB of the 113 that MariaDB's takes are data
	}
	if err := run(ctx, nil, "cp", append(copies, template, data)...); err != nil {
		return err
	}
	// MySQL refuses keys that others may read.
	err = filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.Chmod(path, 0o700))
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return err
	}
	// The identity of a MySQL server, which makes itself another one.
	return os.RemoveAll(filepath.Join(data, "auto.cnf"))
}

// dataTemplate returns the data directory of the binary that no server has ever used.
// Another version of the binary has another one.
func dataTemplate(ctx context.Context, engine Engine, b binary) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := b.command[len(b.command)-1]
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, path, info.Size(), info.ModTime().Format(time.RFC3339Nano), b.args))
	template := filepath.Join(cache, fmt.Sprintf("data-%s-%x", engine, sum[:6]))
	unlock, err := lockFile(ctx, filepath.Join(cache, "data.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(template); err == nil {
		return template, nil
	}
	// It gets its name when it is whole: who makes it may be killed.
	dir, err := privateDir()
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := initialise(ctx, engine, b, filepath.Join(dir, "data")); err != nil {
		return "", err
	}
	part := template + ".part"
	if err := errors.Join(os.RemoveAll(part), os.CopyFS(part, os.DirFS(filepath.Join(dir, "data")))); err != nil {
		return "", err
	}
	return template, os.Rename(part, template)
}
