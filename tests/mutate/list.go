package main

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutation is one wrong decision, and what must notice it.
type mutation struct {
	area     string // the name of its list
	line     int    // where it begins there
	decision string // what it breaks

	file  string // from the root of the repository
	decl  string // the declaration that has the text, "" for the whole file
	text  string // occurs there once
	wrong string // what stands in its place

	dir        string   // the package of the test
	test       string   // its name, with its subtests behind slashes
	engines    []string // the servers that it needs, none where it needs none
	equivalent string   // why no test can notice it; it is not run then
	beside     bool     // it changes a function, which binaries have beside the right one
}

// String is where the mutation stands.
func (m *mutation) String() string { return fmt.Sprintf("%s.txt:%d", m.area, m.line) }

// is tells whether the name stands for the mutation; see the flag -only.
func (m *mutation) is(name string) bool {
	return m.String() == name || strings.Contains(m.area, name) || strings.Contains(m.file, name)
}

// place is what the mutation changes.
func (m *mutation) place() string {
	if m.decl == "" {
		return m.file
	}
	return m.file + ": " + m.decl
}

// readLists reads the lists of a directory.
func readLists(dir string) ([]*mutation, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var all []*mutation
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		list, err := readList(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// readList reads a list; the package comment has its form.
func readList(area, text string) ([]*mutation, error) {
	var list []*mutation
	var m *mutation
	for lines, n := bufio.NewScanner(strings.NewReader(text)), 1; lines.Scan(); n++ {
		line := lines.Text()
		if decision, begins := strings.CutPrefix(line, "# "); begins {
			m = &mutation{area: area, line: n, decision: decision}
			list = append(list, m)
			continue
		}
		if line == "" {
			continue
		}
		if m == nil || !m.add(line) {
			return nil, fmt.Errorf("%s.txt:%d: unknown line %q", area, n, line)
		}
	}
	for _, m := range list {
		m.text, m.wrong = strings.TrimSuffix(m.text, "\n"), strings.TrimSuffix(m.wrong, "\n")
		if err := m.complete(); err != nil {
			return nil, fmt.Errorf("%v: %w", m, err)
		}
	}
	return list, nil
}

// add takes a line of a mutation.
func (m *mutation) add(line string) bool {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case line[0] == '-':
		m.text += line[1:] + "\n"
	case line[0] == '+':
		m.wrong += line[1:] + "\n"
	case word == "in":
		m.file, m.decl, _ = strings.Cut(rest, ": ")
	case word == "by":
		by, on, _ := strings.Cut(rest, " on ")
		m.dir, m.test, _ = strings.Cut(by, " ")
		m.engines = strings.FieldsFunc(on, func(r rune) bool { return r == ',' })
	case word == "equivalent":
		m.equivalent = strings.TrimSpace(m.equivalent + " " + rest)
	default:
		return false
	}
	return true
}

// complete tells what a mutation lacks.
func (m *mutation) complete() error {
	switch {
	case m.file == "" || m.text == "" || m.text == m.wrong:
		return errors.New(`it needs a line "in", and different lines "-" and "+"`)
	case (m.test == "") == (m.equivalent == ""):
		return errors.New(`it needs either a line "by", with a package and a test, or a line "equivalent"`)
	case m.equivalent == "" && !strings.HasPrefix(m.test, "Test"):
		return fmt.Errorf("%q is no test", m.test)
	}
	for _, engine := range m.engines {
		if !slices.Contains([]string{"mariadb", "mysql", "tidb", "vitess"}, engine) {
			return fmt.Errorf("unknown engine %q", engine)
		}
	}
	return nil
}

// apply returns the file with the mutation. The text must occur once, so that it is sure
// which decision is broken.
func (m *mutation) apply(root string) (string, error) {
	file := filepath.Join(root, filepath.FromSlash(m.file))
	source, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	from, to := 0, len(source)
	if m.decl != "" {
		if from, to, err = find(m.decl, file, source); err != nil {
			return "", err
		}
	}
	part := string(source[from:to])
	if n := strings.Count(part, m.text); n != 1 {
		return "", fmt.Errorf("%s has the text %d times, not once:\n%s", m.place(), n, m.text)
	}
	return string(source[:from]) + strings.Replace(part, m.text, m.wrong, 1) + string(source[to:]), nil
}

// find returns where a declaration begins and ends: of a Go file a function, a method as
// Type.Method, a type, a variable or a constant; of an SQL file what CREATE makes, which ends
// before an empty line.
func find(decl, file string, source []byte) (from, to int, err error) {
	if filepath.Ext(file) == ".sql" {
		at := regexp.MustCompile(`(?m)^CREATE .*\b` + regexp.QuoteMeta(decl) + `\b(?s:.*?)(\n\n|\z)`).FindIndex(source)
		if at == nil {
			return 0, 0, fmt.Errorf("%s has no CREATE of %s", file, decl)
		}
		return at[0], at[1], nil
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, err
	}
	var found ast.Node
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			name := n.Name.Name
			if n.Recv != nil {
				name = receiver(n.Recv.List[0].Type) + "." + name
			}
			if name == decl {
				found = n
			}
			return false
		case *ast.ValueSpec:
			if slices.ContainsFunc(n.Names, func(name *ast.Ident) bool { return name.Name == decl }) {
				found = n
			}
		case *ast.TypeSpec:
			if n.Name.Name == decl {
				found = n
			}
		}
		return true
	})
	if found == nil {
		return 0, 0, fmt.Errorf("%s has no declaration of %s", file, decl)
	}
	return files.Position(found.Pos()).Offset, files.Position(found.End()).Offset, nil
}

// receiver is the name of a receiver's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// parses tells whether a text is that of a Go file.
func parses(source string) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", source, parser.SkipObjectResolution)
	return err == nil
}
