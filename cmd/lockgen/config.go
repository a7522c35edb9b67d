package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// settings are what a sqlc.yaml says of one package.
type settings struct {
	queries    []string // files
	schema     []string // files, in their order
	constraint string   // build_tags, an expression as in //go:build
	tags       []string // the tags of that expression
}

// texts is a string or a list of strings.
type texts []string

func (t *texts) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*t = texts{node.Value}
		return nil
	}
	return node.Decode((*[]string)(t))
}

// sqlcFile is a sqlc.yaml of version 2, or of version 1, whose packages stand at its top.
type sqlcFile struct {
	SQL []struct {
		Engine  string `yaml:"engine"`
		Queries texts  `yaml:"queries"`
		Schema  texts  `yaml:"schema"`
		Gen     struct {
			Go struct {
				Out       string `yaml:"out"`
				BuildTags string `yaml:"build_tags"`
			} `yaml:"go"`
		} `yaml:"gen"`
	} `yaml:"sql"`
	Packages []struct {
		Engine    string `yaml:"engine"`
		Path      string `yaml:"path"`
		Queries   texts  `yaml:"queries"`
		Schema    texts  `yaml:"schema"`
		BuildTags string `yaml:"build_tags"`
	} `yaml:"packages"`
}

// findConfig returns the settings of the sqlc.yaml that writes to dir: the given one, or
// the nearest above.
func findConfig(dir, given string) (settings, error) {
	if given != "" {
		s, found, err := readConfig(given, dir)
		if err == nil && !found {
			err = fmt.Errorf("lockgen: no Go package of %s is written to %s", given, dir)
		}
		return s, err
	}
	for above := dir; ; above = filepath.Dir(above) {
		for _, name := range []string{"sqlc.yaml", "sqlc.yml", "sqlc.json"} {
			s, found, err := readConfig(filepath.Join(above, name), dir)
			if found || err != nil && !errors.Is(err, os.ErrNotExist) {
				return s, err
			}
		}
		if above == filepath.Dir(above) {
			return settings{}, fmt.Errorf("lockgen: no sqlc.yaml in or above %s writes a Go package there: name it by -config", dir)
		}
	}
}

// readConfig reads what a sqlc.yaml says of the package in dir.
func readConfig(path, dir string) (s settings, found bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return s, false, err
	}
	var file sqlcFile
	if err := yaml.Unmarshal(text, &file); err != nil {
		return s, false, fmt.Errorf("%s: %w", path, err)
	}
	root, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return s, false, err
	}
	add := func(engine, out string, queries, schema texts, constraint string) error {
		if filepath.Join(root, out) != dir {
			return nil
		}
		if engine != "mysql" {
			return fmt.Errorf("%s: the engine of %s is %q: lockgen knows mysql", path, out, engine)
		}
		found, s.constraint = true, constraint
		return s.add(root, queries, schema)
	}
	for _, p := range file.SQL {
		if p.Gen.Go.Out != "" {
			err = errors.Join(err, add(p.Engine, p.Gen.Go.Out, p.Queries, p.Schema, p.Gen.Go.BuildTags))
		}
	}
	for _, p := range file.Packages {
		err = errors.Join(err, add(p.Engine, p.Path, p.Queries, p.Schema, p.BuildTags))
	}
	s.tags = strings.FieldsFunc(s.constraint, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '.'
	})
	return s, found, err
}

// add adds the files of queries and of their schema.
func (s *settings) add(root string, queries, schema texts) error {
	more, err := sqlFiles(root, queries)
	if err != nil {
		return err
	}
	s.queries = append(s.queries, more...)
	more, err = sqlFiles(root, schema)
	s.schema = append(s.schema, more...)
	return err
}

// sqlFiles returns the files that sqlc reads for a list of files, directories and patterns,
// in their order.
func sqlFiles(root string, paths []string) ([]string, error) {
	var files []string
	add := func(path string) {
		name := filepath.Base(path)
		down := strings.HasSuffix(name, ".down.sql") // of golang-migrate
		if strings.HasSuffix(name, ".sql") && !strings.HasPrefix(name, ".") && !down && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	for _, path := range paths {
		matches, err := filepath.Glob(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		if len(matches) == 0 {
			return nil, fmt.Errorf("lockgen: there is nothing at %s", filepath.Join(root, path))
		}
		for _, match := range matches {
			inside, err := os.ReadDir(match)
			if err != nil { // a file
				add(match)
			}
			for _, entry := range inside {
				add(filepath.Join(match, entry.Name()))
			}
		}
	}
	return files, nil
}
