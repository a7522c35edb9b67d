//go:build golden && !race

package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden compares what lockgen writes with the files in testdata: those of four
// packages, since reading the types takes seconds, and of all in make verify, which runs
// what is behind this tag.
func TestGolden(t *testing.T) {
	t.Parallel()
	names := golden[:4]
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
