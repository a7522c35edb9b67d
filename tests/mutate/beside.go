package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// beside returns the files that have the mutants of functions beside them. Each of these
// functions begins by asking whether a mutant is called in its place. So a package and its
// tests are compiled once for all of them.
func beside(root string, list []*mutation) (map[string]string, error) {
	files := make(map[string]string)
	byFile := make(map[string][]*mutation)
	for _, m := range list {
		if !m.isText() && m.equivalent == "" && m.decl != "" && path.Ext(m.file) == ".go" {
			byFile[m.file] = append(byFile[m.file], m)
		}
	}
	for file, mutations := range byFile {
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		text := string(source)
		for _, decl := range slices.Backward(parsed.Decls) { // so that what is before it stays where it is
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil || f.Name.Name == "init" {
				continue
			}
			own := slices.DeleteFunc(slices.Clone(mutations), func(m *mutation) bool { return m.decl != nameOf(f) })
			if text, err = mutants(root, text, f, own, func(at token.Pos) int { return set.Position(at).Offset }); err != nil {
				return nil, err
			}
		}
		if text != string(source) {
			files[file] = text
			files[path.Join(path.Dir(file), "lockstep_mutation.go")] = "package " + parsed.Name.Name + `

import "os"

var lockstepMutation = os.Getenv("` + variable + `")
`
		}
	}
	return files, nil
}

// nameOf is the name of a function, or of a method as Type.Method.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	return receiver(f.Recv.List[0].Type) + "." + f.Name.Name
}

// mutants adds the mutants of a function to the text of its file.
func mutants(root, text string, f *ast.FuncDecl, own []*mutation, offset func(token.Pos) int) (string, error) {
	if len(own) == 0 {
		return text, nil
	}
	from, to, body := offset(f.Pos()), offset(f.End()), offset(f.Body.Lbrace)+1
	head, on, call := named(f, text[from:body], func(at token.Pos) int { return offset(at) - from })
	var asks, copies string
	for _, m := range own {
		changed, err := m.apply(root)
		if err != nil {
			return "", fmt.Errorf("%v: %w", m, err)
		}
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
		if err != nil {
			return "", err
		}
		mutant := changed[from : to+len(changed)-len(source)]
		name := fmt.Sprintf("%s_%s_%d", f.Name.Name, m.area, m.line)
		at := offset(f.Name.Pos()) - from
		copies += "\n\n" + mutant[:at] + name + mutant[at+len(f.Name.Name):]
		asks += fmt.Sprintf("\n\tif lockstepMutation == %q {\n\t\t", m)
		if f.Type.Results == nil {
			asks += on + name + call + "\n\t\treturn\n\t}\n"
		} else {
			asks += "return " + on + name + call + "\n\t}\n"
		}
		m.beside = true
	}
	return text[:from] + head + asks + text[body:to] + copies + text[to:], nil
}

// named gives names to all parameters in the head of a function. It returns the head, and
// what stands before and behind a name to call another function with the same parameters.
func named(f *ast.FuncDecl, head string, offset func(token.Pos) int) (changed, on, call string) {
	var args []string
	type edit struct {
		from, to int
		text     string
	}
	var edits []edit
	name := func(of *ast.Field) (names []string) {
		next := func() string { return fmt.Sprintf("lockstepArg%d", len(edits)) }
		if len(of.Names) == 0 {
			names = []string{next()}
			edits = append(edits, edit{offset(of.Type.Pos()), offset(of.Type.Pos()), names[0] + " "})
		}
		for _, n := range of.Names {
			if n.Name != "_" {
				names = append(names, n.Name)
				continue
			}
			names = append(names, next())
			edits = append(edits, edit{offset(n.Pos()), offset(n.End()), names[len(names)-1]})
		}
		if _, many := of.Type.(*ast.Ellipsis); many {
			names[len(names)-1] += "..."
		}
		return names
	}
	if f.Recv != nil {
		on = name(f.Recv.List[0])[0] + "."
	}
	for _, of := range f.Type.Params.List {
		args = append(args, name(of)...)
	}
	if f.Type.TypeParams != nil {
		var types []string
		for _, of := range f.Type.TypeParams.List {
			for _, n := range of.Names {
				types = append(types, n.Name)
			}
		}
		call = "[" + strings.Join(types, ", ") + "]"
	}
	for _, e := range slices.Backward(edits) {
		head = head[:e.from] + e.text + head[e.to:]
	}
	return head, on, call + "(" + strings.Join(args, ", ") + ")"
}
