package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// variable names the mutation that a binary uses, of those that it has.
const variable = "LOCKSTEP_MUTATION"

// chosen tells whether a binary may have the mutation beside others: it changes the text of a
// statement, a function, or a file that is embedded.
func (m *mutation) chosen() bool { return m.isText() || m.beside }

func (m *mutation) isText() bool { return path.Dir(m.file) == "gen" }

// choices returns the files that have all mutations of the list that can be chosen: their
// constants are variables there, their functions have mutants beside them, and so have the
// files that they embed.
func choices(root string, list []*mutation) (map[string]string, error) {
	files, err := beside(root, list)
	if err != nil {
		return nil, err
	}
	texts, err := ofTexts(root, list)
	if err != nil {
		return nil, err
	}
	maps.Copy(files, texts)
	return files, embedded(root, list, files)
}

// ofTexts returns the files whose constants are variables.
func ofTexts(root string, list []*mutation) (map[string]string, error) {
	files := make(map[string]string)
	texts := make(map[string]string) // the new declaration of each constant, by its old one
	for _, m := range list {
		if !m.isText() {
			continue
		}
		changed, err := m.apply(root)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", m, err)
		}
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
		if err != nil {
			return nil, err
		}
		from, to, err := find(m.decl, m.file, source)
		if err != nil {
			return nil, err
		}
		if files[m.file] == "" {
			files[m.file] = string(source)
		}
		old := string(source[from:to])
		name, value, _ := strings.Cut(old, " = ")
		if texts[old] == "" {
			texts[old] = "var " + name + " = mutant(" + value
			files[m.file] = strings.Replace(files[m.file], "const "+old, texts[old]+")", 1)
		}
		_, value, _ = strings.Cut(changed[from:to+len(changed)-len(source)], " = ")
		longer := texts[old] + fmt.Sprintf(", %q, ", m.String()) + value
		files[m.file] = strings.Replace(files[m.file], texts[old]+")", longer+")", 1)
		texts[old] = longer
	}
	if len(files) > 0 {
		files["gen/mutant.go"] = mutant
	}
	return files, nil
}

// mutant is what chooses a text.
const mutant = `package gen

import "os"

func mutant(text string, mutants ...string) string {
	for i := 0; i < len(mutants); i += 2 {
		if mutants[i] == os.Getenv("` + variable + `") {
			return mutants[i+1]
		}
	}
	return text
}
`

// common compiles the tests of a package once, with the choices.
func (r *runner) common(ctx context.Context, dir string) (binary, out string, err error) {
	type compiled struct {
		binary, out string
		err         error
	}
	once, _ := r.commons.LoadOrStore(dir, sync.OnceValue(func() (c compiled) {
		c.binary, c.out, c.err = r.compile(ctx, "common/"+dir, dir, r.choices)
		return c
	}))
	c := once.(func() compiled)()
	return c.binary, c.out, c.err
}

// compile compiles the tests of a package, with other texts of some files.
func (r *runner) compile(ctx context.Context, name, dir string, files map[string]string) (binary, out string, err error) {
	at := filepath.Join(r.dir, strings.ReplaceAll(name, "/", "-"))
	if err := os.Mkdir(at, 0o700); err != nil {
		return "", "", err
	}
	replace := make(map[string]string, len(files))
	var errs []error
	for file, text := range files {
		changed := filepath.Join(at, strings.ReplaceAll(file, "/", "-"))
		replace[filepath.Join(r.root, filepath.FromSlash(file))] = changed
		errs = append(errs, os.WriteFile(changed, []byte(text), 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	errs = append(errs, err, os.WriteFile(filepath.Join(at, "overlay.json"), overlay, 0o600))
	if err := errors.Join(errs...); err != nil {
		return "", "", err
	}
	binary = filepath.Join(at, "test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-tags=tidb,vitess", "-ldflags=-s -w", "-overlay", filepath.Join(at, "overlay.json"), "-o", binary, ".")
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(dir))
	written, err := cmd.CombinedOutput()
	return binary, string(written), err
}
