package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
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

// TestVocabulary proves that the old words don't come back in pages, in the doc comments of
// what is exported, and in the texts of errors, of commands and of the live page.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	texts, comments, messages := map[string]string{}, map[string]string{}, map[string]string{}
	for name, text := range pages(t) {
		ours := strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/zh-CN/") || strings.HasPrefix(name, "cmd/") && filepath.Base(name) == "README.md"
		if ours || name == "README.md" || name == "CHANGELOG.md" {
			texts[name] = strings.Join(strings.Fields(code.ReplaceAllString(indented.ReplaceAllString(fence.ReplaceAllString(text, ""), ""), "code")), " ")
		}
	}
	for _, pattern := range []string{"internal/*", "internal/lease/*", "txlock", "txlock/*", "locksqlc", "lockgorm", "lockhttp", "schema", "cmd/*", "contrib/*"} {
		for name, text := range sources(t, pattern) {
			if !strings.HasPrefix(name, "internal/") {
				comments[name] = docsOf(text)
			}
			tree, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
			check(t, err)
			messages[name] = messagesOf(tree, strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "lockhttp/"))
		}
	}
	for _, word := range vocabulary {
		pattern := regexp.MustCompile(word.pattern)
		for where, texts := range map[string]map[string]string{"the prose of the pages": texts, "the doc comments": comments, "the messages": messages} {
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
	}
}

// sources returns the files of packages, without their tests, by their names in the repository.
func sources(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	all := map[string]string{}
	for _, file := range files {
		if name, err := filepath.Rel(root, file); !strings.HasSuffix(file, "_test.go") {
			check(t, err)
			all[filepath.ToSlash(name)] = read(t, filepath.ToSlash(name))
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
			if made, ok := n.Fun.(*ast.SelectorExpr); ok && !all && (made.Sel.Name == "New" || made.Sel.Name == "Errorf") {
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

var (
	doc = regexp.MustCompile(`(?m)((?:^\t?//.*\n)+)(?:package |func (?:\(\w* ?\*?[A-Z]\w*(?:\[\w+\])?\) )?[A-Z]|(?:type|var|const) [A-Z(]|\t[A-Z]\w*[ ,\n(])`)
	// beside finds what stands behind a field or a value.
	beside = regexp.MustCompile(`(?m)^\t[A-Z].*?\t*(// .*)$`)
)

// docsOf returns the doc comments of a file: that of the package, and those of what is
// exported, with its fields and methods.
func docsOf(text string) string {
	var all []string
	for _, found := range append(doc.FindAllStringSubmatch(text, -1), beside.FindAllStringSubmatch(text, -1)...) {
		all = append(all, strings.Fields(strings.ReplaceAll(found[1], "//", ""))...)
	}
	return strings.Join(all, " ")
}

var (
	verb    = regexp.MustCompile(`(?m)^func (?:\(\w* ?\*?([A-Z]\w*)\) )?([A-Z]\w*)(?:\[[^\]]*\])?\(\w+ \*?(?:context\.Context|sql\.DB|sql\.Tx|gorm\.DB)[,)]`)
	example = regexp.MustCompile(`(?m)^func Example(\w+)\(`)
)

// TestExamples proves that each exported verb has an example on its page: what takes a
// context, a pool, a transaction or a handle of GORM first.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"txlock", "txlock/lease", "locksqlc", "lockgorm", "schema", "txlock/job", "txlock/elect", "txlock/quorum"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
		check(t, err)
		examples, verbs := map[string]bool{}, 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			check(t, err)
			for _, match := range example.FindAllStringSubmatch(string(text), -1) {
				examples[match[1]] = true
			}
		}
		for _, text := range sources(t, pkg) {
			for _, match := range verb.FindAllStringSubmatch(text, -1) {
				verbs++
				name := strings.TrimPrefix(match[1]+"_"+match[2], "_") // Lock, or Scope_Lock
				if !examples[name] && match[1] != "Plugin" {           // whose methods GORM calls
					t.Errorf("%s has no Example%s", pkg, name)
				}
			}
		}
		testdb.ErrorIf(t, verbs < 4, "%s has %d verbs", pkg, verbs)
	}
}
