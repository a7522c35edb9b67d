// Command lockgen writes a locked twin of the code that sqlc generates for MySQL and
// MariaDB. It runs after sqlc generate, in the package that sqlc writes:
//
//	//go:generate go tool lockgen
//
// README.md says what it reads, what it writes and what it refuses.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// output is the name of the file that lockgen writes.
const output = "lockstep.gen.go"

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run is the command without the process around it.
func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("lockgen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "Usage: lockgen [-check] [-front directory] [directory ...]\n\nWrites %s into each directory that sqlc generates, the current one by default.\n\n", output)
		flags.PrintDefaults()
	}
	check := flags.Bool("check", false, "write nothing, and fail where "+output+" is not what lockgen would write")
	front := flags.String("front", "", "the `directory` of a package to write, too, in front of the one that sqlc generates: with all but Queries")
	config := flags.String("config", "", "the sqlc.yaml; without it, lockgen looks in the directory and those above")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	dirs := flags.Args()
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	code := 0
	if *front != "" && len(dirs) > 1 {
		_, _ = fmt.Fprintln(stderr, "lockgen: -front is for one directory")
		return 2
	}
	for _, dir := range dirs {
		if err := generate(dir, *front, *config, *check); err != nil {
			_, _ = fmt.Fprintln(stderr, err)
			code = 1
		}
	}
	return code
}

// generate writes or checks the output in one directory, and in front of it. Where it
// fails, no output stays: a wrapper from before would go on without the locks that are
// missing now.
func generate(dir, front, config string, check bool) error {
	sources, err := generated(dir, front, config)
	paths := []string{filepath.Join(dir, output)}
	if front != "" {
		paths = append(paths, filepath.Join(front, output))
	}
	for i, path := range paths {
		switch {
		case err != nil && !check:
			if removed := os.Remove(path); !errors.Is(removed, os.ErrNotExist) {
				err = errors.Join(err, removed)
			}
		case err != nil:
		case check:
			err = same(path, sources[i])
		default:
			err = os.WriteFile(path, sources[i], 0o644)
		}
	}
	return err
}

// same returns an error where a file is not what lockgen would write.
func same(path string, source []byte) error {
	have, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("lockgen: %w: run lockgen", err)
	}
	if !bytes.Equal(have, source) {
		return fmt.Errorf("lockgen: %s is stale: run lockgen", path)
	}
	return nil
}

// generated returns the text of the output for the package in dir, and of the one in front.
func generated(dir, front, config string) ([][]byte, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	settings, err := findConfig(dir, config)
	if err != nil {
		return nil, err
	}
	sources, problems, err := readQueries(settings.queries)
	if err != nil {
		return nil, err
	}
	known, err := readRequest(settings.request)
	if err != nil {
		return nil, err
	}
	pkg, err := load(dir, settings.tags)
	if err != nil {
		return nil, err
	}
	p := &plan{pkg: pkg, known: known, problems: problems}
	p.compare(readSchema(settings.schema))
	p.make(sources)
	if len(p.problems) > 0 {
		return nil, p.sorted()
	}
	source, err := write(p, settings.constraint)
	if err != nil || front == "" {
		return [][]byte{source}, err
	}
	inFront, err := writeFront(p, settings.constraint, front)
	return [][]byte{source, inFront}, err
}

// problems are what the user has to mend.
type problems []problem

type problem struct {
	place place
	text  string
}

// place is a line of a file.
type place struct {
	file string
	line int
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

// Error has a line for each problem.
func (p problems) Error() string {
	var lines []string
	for _, one := range p {
		lines = append(lines, one.place.String()+": "+one.text)
	}
	return strings.Join(lines, "\n")
}

// add notes a problem at a place.
func (p *problems) add(at place, format string, args ...any) {
	*p = append(*p, problem{at, fmt.Sprintf(format, args...)})
}

// sorted returns the problems by their places.
func (p problems) sorted() problems {
	return slices.SortedStableFunc(slices.Values(p), func(a, b problem) int {
		return cmp.Or(strings.Compare(a.place.file, b.place.file), cmp.Compare(a.place.line, b.place.line))
	})
}
