package main

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tested is a package with the names of its tests.
type tested struct {
	path  string
	dir   string // within the module, "." at its root
	names []string
}

// is tells whether a pattern names the package: its path, its directory, or those below one.
func (p tested) is(pattern string) bool {
	below, all := strings.CutSuffix(pattern, "...")
	return pattern == p.path || path.Clean(pattern) == p.dir || all && strings.HasPrefix("./"+p.dir+"/", below)
}

var declaration = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)

// named returns packages of a module, and the tests that a build by these flags has.
func named(dir string, flags []string, patterns ...string) (some []tested, err error) {
	call := strings.Join(append([]string{dir}, flags...), " ")
	if listed[call] == nil {
		if listed[call], err = list(dir, flags); err != nil {
			return nil, err
		}
	}
	for _, p := range listed[call] {
		if slices.ContainsFunc(patterns, p.is) {
			p.names = slices.Clone(p.names)
			some = append(some, p)
		}
	}
	return some, nil
}

// listed is what list has returned for a module and flags: to ask go list takes a while.
var listed = make(map[string][]tested)

// list returns all packages of a module.
func list(dir string, flags []string) (all []tested, err error) {
	const format = "{{.ImportPath}}\t{{.Dir}}\t{{.Module.Dir}}\t{{range .TestGoFiles}}{{.}} {{end}}{{range .XTestGoFiles}}{{.}} {{end}}"
	cmd := exec.Command("go", slices.Concat([]string{"list", "-f", format}, flags, []string{"./..."})...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "CGO_ENABLED=1"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		within, err := filepath.Rel(fields[2], fields[1])
		if err != nil {
			return nil, err
		}
		p := tested{path: fields[0], dir: filepath.ToSlash(within)}
		for _, file := range strings.Fields(fields[3]) {
			source, err := os.ReadFile(filepath.Join(fields[1], file))
			if err != nil {
				return nil, err
			}
			for _, match := range declaration.FindAllStringSubmatch(string(source), -1) {
				if match[1] != "TestMain" {
					p.names = append(p.names, match[1])
				}
			}
		}
		all = append(all, p)
	}
	return all, nil
}
