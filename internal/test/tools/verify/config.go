package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// config is what verify needs of a sqlc.yaml. Its paths are relative to the
// repository's root.
type config struct {
	path    string
	text    string
	schema  []string
	queries []string
	out     string
}

// findConfigs returns every sqlc.yaml below root.
func findConfigs(root string) ([]string, error) {
	var paths []string
	err := walk(root, func(path string) error {
		if filepath.Base(path) == "sqlc.yaml" {
			paths = append(paths, path)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("no sqlc.yaml below %s: run verify in the repository's root", root)
	}
	return paths, err
}

// walk visits the files of the repository. Directories with a dot in front
// are not the repository's.
func walk(root string, visit func(path string) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != root && strings.HasPrefix(entry.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		return visit(path)
	})
}

// copySources copies what sqlc reads, with the server's clock expanded.
func copySources(root, target string) error {
	return walk(root, func(path string) error {
		if ext := filepath.Ext(path); ext != ".sql" && filepath.Base(path) != "sqlc.yaml" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		copied := filepath.Join(target, path)
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return err
		}
		return os.WriteFile(copied, []byte(expand.Replace(string(text))), 0o644)
	})
}

// readConfig reads a sqlc.yaml in the form that this repository writes it:
// one entry under sql, and a path or a list of paths per key.
func readConfig(path string) (config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return config{}, err
	}
	cfg := config{path: path, text: string(text)}
	dir := filepath.Dir(path)
	out, err := cfg.values(dir, "out")
	if err != nil {
		return config{}, err
	}
	cfg.out = out[0]
	if cfg.schema, err = cfg.values(dir, "schema"); err != nil {
		return config{}, err
	}
	cfg.queries, err = cfg.values(dir, "queries")
	return cfg, err
}

// values returns the paths of a key: one, a list in brackets, or one on a line.
func (cfg config) values(dir, key string) ([]string, error) {
	form := regexp.MustCompile(`(?m)^[ -]*` + key + `:[ \t]*(\[[^\]]*\]|[^\s#\[][^\n#]*|(?:\n[ \t]+- [^\n:]+)+)`)
	matches := form.FindAllStringSubmatch(cfg.text, -1)
	if len(matches) != 1 {
		return nil, fmt.Errorf("%s: found %d times the key %s with a path or a list, want it once", cfg.path, len(matches), key)
	}
	var paths []string
	for _, word := range strings.FieldsFunc(matches[0][1], func(r rune) bool { return strings.ContainsRune("[],\n", r) }) {
		word = strings.Trim(strings.TrimPrefix(strings.TrimSpace(word), "- "), ` "'`)
		if word != "" {
			paths = append(paths, filepath.Join(dir, word))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: the key %s has no path", cfg.path, key)
	}
	return paths, nil
}

// withDatabase returns the config with a database to prepare the queries on.
func (cfg config) withDatabase(dsn string) (string, error) {
	at := regexp.MustCompile(`(?m)^( *)(- )?engine:.*\n`).FindStringSubmatchIndex(cfg.text)
	if at == nil {
		return "", fmt.Errorf("%s: has no line with the engine", cfg.path)
	}
	indent := strings.Repeat(" ", at[3]-at[2])
	if at[4] >= 0 {
		indent += "  "
	}
	added := fmt.Sprintf("%[1]sdatabase:\n%[1]s  uri: %[2]q\n%[1]srules:\n%[1]s  - sqlc/db-prepare\n", indent, dsn)
	return cfg.text[:at[1]] + added + cfg.text[at[1]:], nil
}
