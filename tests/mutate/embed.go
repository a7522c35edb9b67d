package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var embedFS = regexp.MustCompile(`(?m)^var (\w+) embed\.FS$`)

// embedded changes the packages that embed files with mutations, by an embed.FS: its method
// ReadFile returns the mutant that is asked for.
func embedded(root string, list []*mutation, files map[string]string) error {
	mutants := make(map[string]string) // the cases of a package's method, by its directory
	for _, m := range list {
		if path.Ext(m.file) == ".go" || m.equivalent != "" {
			continue
		}
		changed, err := m.apply(root)
		if err != nil {
			return fmt.Errorf("%v: %w", m, err)
		}
		dir, err := embedding(root, path.Dir(m.file), files)
		if err != nil {
			return fmt.Errorf("%v: %w", m, err)
		}
		mutants[dir] += fmt.Sprintf("\tcase %q:\n\t\treturn []byte(%q), nil\n", m.String()+" "+strings.TrimPrefix(m.file, dir+"/"), changed)
		m.beside = true
	}
	for dir, cases := range mutants {
		files[path.Join(dir, "lockstep_mutation_fs.go")] = "package " + path.Base(dir) + `

import (
	"embed"
	"os"
)

type lockstepFS struct{ embed.FS }

func (f lockstepFS) ReadFile(name string) ([]byte, error) {
	switch os.Getenv("` + variable + `") + " " + name {
` + cases + `	}
	return f.FS.ReadFile(name)
}
`
	}
	return nil
}

// embedding finds the package that embeds the files of a directory, in that or above, and
// puts a lockstepFS in place of its embed.FS.
func embedding(root, dir string, files map[string]string) (string, error) {
	sources, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		file := path.Join(dir, filepath.Base(source))
		text := files[file]
		if text == "" {
			read, err := os.ReadFile(source)
			if err != nil {
				return "", err
			}
			text = string(read)
		}
		if strings.Contains(text, "= lockstepFS{") {
			return dir, nil
		}
		if embedFS.MatchString(text) {
			files[file] = embedFS.ReplaceAllString(text, "var lockstepEmbedded embed.FS\n\nvar $1 = lockstepFS{lockstepEmbedded}")
			return dir, nil
		}
	}
	if dir == "." {
		return "", fmt.Errorf("no package embeds it")
	}
	return embedding(root, path.Dir(dir), files)
}
