package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// vocabulary are words that this project once used in its own way, with what to write.
var vocabulary = []struct{ pattern, instead string }{
	{`\b(?:[Nn]obody|[Ss]omebody|[Ee]verybody|[Ww]hoever)\b`, "name the actor: another transaction, no process, each program"},
	{`\b[Ww]ho (?:has|holds|asks|comes|waits|is|wants|may|looks|ends|does|stops|reads)\b`, "a process that, the holder, a waiter"},
	{`\b(?:goes|go) on\b`, "stays open, continues"},
	{`\b(?:is|are|was) over\b`, "has ended, has expired"},
	{`\b(?:tells?|told)\b`, "report, return, show"},
	{`\b(?:in vain|anew|by hand|in place of)\b`, "say what happens: wasted, again, explicitly, instead of"},
	{`\b(?:begins?|begun|run) again\b|\bstart(?:ed|s)? (?:it )?again\b`, "retry, restart"},
	{`\b(?:rises?|raises?)\b`, "increase, increment"},
	{`\blooks? (?:at|again|for)\b|\ba look\b`, "poll, query, check"},
	{`\bmended\b|\bcure[sd]?\b|\bremed(?:y|ies)\b`, "fix"},
	{`\bseveral primaries\b`, "a multi-primary cluster"},
	{`\bsays? so\b`, "report, name"},
	{`\bcan.t be had\b|\bas text\b`, "is not available, as a statement"},
}

// exported are the packages whose doc comments users read.
var exported = []string{
	"txlock", "txlock/*", "locksqlc", "lockgorm", "lockhttp", "schema", "cmd/*", "contrib/*",
}

// TestVocabulary proves that the old words don't come back in pages, in the doc comments of
// what is exported, and in the texts of errors, of commands and of the live page.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	for name, text := range pages(t) {
		ours := strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/zh-CN/") || strings.HasPrefix(name, "cmd/") && filepath.Base(name) == "README.md"
		if ours || name == "README.md" || name == "CHANGELOG.md" {
			texts[name] = prose(text)
		}
	}
	comments, messages := map[string]string{}, map[string]string{}
	for name, file := range sources(t) {
		if !strings.Contains(name, "internal/") {
			comments[name] = strings.Join(strings.Fields(docsOf(file)), " ")
		}
		messages[name] = messagesOf(file, strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "lockhttp/"))
	}
	for _, word := range vocabulary {
		pattern := regexp.MustCompile(word.pattern)
		found := func(where string, texts map[string]string) {
			var places []string
			for name, text := range texts {
				for _, at := range pattern.FindAllStringIndex(text, -1) {
					places = append(places, name+": ..."+text[max(0, at[0]-40):min(len(text), at[1]+40)]+"...")
				}
			}
			if len(places) > 0 {
				t.Errorf("%s has /%s/. Write: %s\n%s", where, word.pattern, word.instead, strings.Join(places, "\n"))
			}
		}
		found("the prose of the pages", texts)
		found("the doc comments", comments)
		found("the messages", messages)
	}
}

// prose is a page in one line, without its code.
func prose(text string) string {
	text = code.ReplaceAllString(indented.ReplaceAllString(fence.ReplaceAllString(text, ""), ""), "code")
	return strings.Join(strings.Fields(text), " ")
}

// sources returns the files of the packages whose comments or errors users read.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	all := map[string]*ast.File{}
	for _, pattern := range append([]string{"internal/*", "internal/lease/*"}, exported...) {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			check(t, err)
			name, err := filepath.Rel(root, file)
			check(t, err)
			all[filepath.ToSlash(name)] = tree
		}
	}
	return all
}

// messagesOf returns the texts of a file's errors, or all its texts of several words.
func messagesOf(file ast.Node, all bool) string {
	var texts strings.Builder
	for n := range ast.Preorder(file) {
		switch n := n.(type) {
		case *ast.CallExpr:
			if name := text(n.Fun); !all && (name == "errors.New" || name == "fmt.Errorf") {
				texts.WriteString(messagesOf(n, true))
			}
		case *ast.BasicLit:
			if all && strings.Contains(n.Value, " ") {
				texts.WriteString(n.Value + "\n")
			}
		}
	}
	return texts.String()
}

// docsOf returns the doc comments of a file: that of the package, and those of what is
// exported, with its fields and methods.
func docsOf(file *ast.File) string {
	var all strings.Builder
	add := func(groups ...*ast.CommentGroup) {
		for _, g := range groups {
			all.WriteString(g.Text() + "\n")
		}
	}
	add(file.Doc)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				add(d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						add(d.Doc, s.Doc)
						for n := range ast.Preorder(s.Type) {
							if f, ok := n.(*ast.Field); ok && len(f.Names) > 0 && f.Names[0].IsExported() {
								add(f.Doc, f.Comment)
							}
						}
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() {
						add(d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
	return all.String()
}

// TestExamples proves that each exported verb has an example on its page: what takes a
// context, a pool, a transaction or a handle of GORM first.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"txlock", "txlock/lease", "locksqlc", "lockgorm", "schema", "txlock/job", "txlock/elect", "txlock/quorum"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*.go"))
		check(t, err)
		var verbs, examples []string
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			check(t, err)
			if strings.HasSuffix(name, "_test.go") {
				examples = append(examples, exampleOf(file)...)
			} else {
				verbs = append(verbs, verbsOf(file)...)
			}
		}
		if len(verbs) < 4 {
			t.Errorf("%s has %d verbs: %s", pkg, len(verbs), verbs)
		}
		for _, verb := range verbs {
			if !slices.Contains(examples, verb) {
				t.Errorf("%s has no Example%s", pkg, verb)
			}
		}
	}
}

// verbsOf returns the names of a file's verbs as examples have them, Lock and Scope_Lock.
func verbsOf(file *ast.File) (verbs []string) {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() || len(f.Type.Params.List) == 0 {
			continue
		}
		first := strings.TrimPrefix(text(f.Type.Params.List[0].Type), "*")
		if !slices.Contains([]string{"context.Context", "sql.DB", "sql.Tx", "gorm.DB"}, first) {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			receiver := strings.TrimPrefix(text(f.Recv.List[0].Type), "*")
			if !ast.IsExported(receiver) || receiver == "Plugin" { // GORM calls its methods
				continue
			}
			name = receiver + "_" + name
		}
		verbs = append(verbs, name)
	}
	return verbs
}

// text returns a type as the source has it, as far as parameters of verbs need that.
func text(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return text(e.X) + "." + e.Sel.Name
	case *ast.StarExpr:
		return "*" + text(e.X)
	}
	return ""
}

// exampleOf returns of what a file has examples.
func exampleOf(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
			if name, ok := strings.CutPrefix(f.Name.Name, "Example"); ok {
				names = append(names, name)
			}
		}
	}
	return names
}
