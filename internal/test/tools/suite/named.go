package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tested is a package with the names of its tests.
type tested struct {
	path  string
	names []string
}

var declaration = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)

// named returns packages of a module, and the tests that a build by these flags has.
func named(dir string, flags []string, packages ...string) (all []tested, err error) {
	const format = "{{.ImportPath}}\t{{.Dir}}\t{{range .TestGoFiles}}{{.}} {{end}}{{range .XTestGoFiles}}{{.}} {{end}}"
	cmd := exec.Command("go", slices.Concat([]string{"list", "-f", format}, flags, packages)...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "CGO_ENABLED=1"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s in %s: %w", strings.Join(packages, " "), dir, err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		p := tested{path: fields[0]}
		for _, file := range strings.Fields(fields[2]) {
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
