// Package checkqueries finds queries that sqlc has dropped. It drops some
// statements that it does not know, and every statement but the first under
// one name, without a word. So every statement must have a name of its own,
// every name a statement, and both a method in the generated code.
package checkqueries

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
)

// Check compares the query files with the generated code in the directory out
// and returns what is wrong, a sentence each. A path of queries is a file or a
// directory of *.sql files.
func Check(queries []string, out string) ([]string, error) {
	files, err := sqlFiles(queries)
	if err != nil {
		return nil, err
	}
	methods, err := readMethods(out)
	if err != nil {
		return nil, err
	}
	var problems []string
	seen := map[string]string{} // name to the place of its first line
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found := pair(file, scan(string(text)))
		problems = append(problems, found.problems...)
		for _, q := range found.queries {
			if first, ok := seen[q.name]; ok {
				problems = append(problems, fmt.Sprintf("%s: the name %s is taken by %s: give this query another one", q.place, q.name, first))
				continue
			}
			seen[q.name] = q.place
			if n := methods[q.name]; n != 1 {
				problems = append(problems, fmt.Sprintf("%s: the query %s has %d methods in %s: sqlc dropped it, so write it in a way that sqlc knows, or run make generate",
					q.place, q.name, n, out))
			}
		}
	}
	return problems, nil
}

func sqlFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		inside, err := filepath.Glob(filepath.Join(path, "*.sql"))
		if err != nil {
			return nil, err
		}
		files = append(files, inside...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no *.sql files in %v", paths)
	}
	return files, nil
}

// readMethods counts the methods of *Queries by their names.
func readMethods(dir string) (map[string]int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	methods := map[string]int{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && isQueries(f) {
				methods[f.Name.Name]++
			}
		}
	}
	return methods, nil
}

func isQueries(f *ast.FuncDecl) bool {
	if f.Recv == nil || len(f.Recv.List) != 1 {
		return false
	}
	star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	ident, ok := star.X.(*ast.Ident)
	return ok && ident.Name == "Queries"
}

type query struct{ name, place string }

type pairs struct {
	queries  []query
	problems []string
}

// pair gives every statement the name that stands before it.
func pair(file string, items []item) pairs {
	var p pairs
	var open *query // a name that has no statement yet
	problem := func(line int, format string, args ...any) {
		p.problems = append(p.problems, fmt.Sprintf("%s:%d: ", file, line)+fmt.Sprintf(format, args...))
	}
	for _, it := range items {
		switch it.kind {
		case nameLine:
			match := nameForm.FindStringSubmatch(it.text)
			if match == nil {
				problem(it.line, "sqlc does not know the line %q: write -- name: Name :command", it.text)
				continue
			}
			if open != nil {
				p.problems = append(p.problems, fmt.Sprintf("%s: the name %s has no statement: remove the line", open.place, open.name))
			}
			open = &query{name: match[1], place: fmt.Sprintf("%s:%d", file, it.line)}
		case statement, unfinished:
			if it.kind == unfinished {
				problem(it.line, "the statement has no end: add a semicolon")
			}
			if open == nil {
				problem(it.line, "the statement has no name of its own, so sqlc drops it: put a line -- name: Name :command before it")
				continue
			}
			p.queries = append(p.queries, *open)
			open = nil
		}
	}
	if open != nil {
		p.problems = append(p.problems, fmt.Sprintf("%s: the name %s has no statement: remove the line", open.place, open.name))
	}
	return p
}

var (
	nameForm = regexp.MustCompile(`^-- name: ([A-Za-z_][A-Za-z0-9_]*) :(one|many|exec|execresult|execrows|execlastid)$`)
	// nameLike also knows the lines that were meant to be one.
	nameLike = regexp.MustCompile(`(?i)^(--|#|/\*)\s*name\s*:`)
)
