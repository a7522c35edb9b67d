package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"html"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var update = flag.Bool("update", false, "copy the blocks of code from English pages to Chinese ones")

// TestChinese proves that each page in Chinese has the headings, blocks of code and tables of its page in English, and below each
// heading the same words in code and as many links; that the two lead to each other, and links to pages in Chinese.
func TestChinese(t *testing.T) {
	t.Parallel()
	texts := pages(t)
	pairs := 0
	for name, text := range texts {
		english := inEnglish(name)
		if english == name {
			continue
		}
		pairs++
		testdb.ErrorIf(t, texts[english] == "", "%s has no page %s", name, english)
		if *update {
			if text = withBlocks(texts[english], text); text != texts[name] {
				check(t, os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), []byte(text), 0o644))
			}
		}
		for _, wrong := range slices.Concat(differences(texts[english], text), detours(name, texts), tooLong(text)) {
			t.Errorf("%s and %s: %s", english, name, wrong)
		}
	}
	testdb.ErrorIf(t, pairs < 10, "%d pages are in Chinese", pairs)
}

// inEnglish returns the name of the page that a page in Chinese is a translation of, and any
// other name as it is.
func inEnglish(name string) string {
	if name == "README.zh-CN.md" {
		return "README.md"
	}
	return strings.Replace(name, "docs/zh-CN/", "docs/", 1)
}

// inChinese returns the name of the translation of a page, which may not exist.
func inChinese(name string) string {
	if name == "README.md" {
		return "README.zh-CN.md"
	}
	if !strings.HasPrefix(name, "docs/") || inEnglish(name) != name {
		return ""
	}
	return strings.Replace(name, "docs/", "docs/zh-CN/", 1)
}

// detours returns the links by which a page in Chinese leads to English without need, and
// whether it and its page in English don't lead to each other.
func detours(name string, texts map[string]string) (wrong []string) {
	english := inEnglish(name)
	if leads := targets(name, texts[name]); !slices.Contains(leads, english) {
		wrong = append(wrong, "the Chinese page has no link to the English one")
	} else {
		for _, target := range leads {
			if there := inChinese(target); target != english && texts[there] != "" {
				wrong = append(wrong, fmt.Sprintf("a link leads to %s, not to %s", target, there))
			}
		}
	}
	if !slices.Contains(targets(english, texts[english]), name) {
		wrong = append(wrong, "the English page has no link to the Chinese one")
	}
	return wrong
}

// targets returns the files that a page has links to.
func targets(name, text string) (files []string) {
	text = code.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
	for _, match := range regexp.MustCompile(`\]\(([^)\s#]+)`).FindAllStringSubmatch(text, -1) {
		files = append(files, path.Join(path.Dir(name), match[1]))
	}
	return files
}

// tooLong returns the sentences of a page in Chinese that are long.
func tooLong(text string) (wrong []string) {
	for _, s := range regexp.MustCompile(`[。！？]`).Split(strings.Join(sentences(text), "。"), -1) {
		if n := len(han.FindAllString(s, -1)); n > sentenceHan {
			wrong = append(wrong, fmt.Sprintf("a sentence has %d characters, at most %d can be followed: %s", n, sentenceHan, s))
		}
	}
	return wrong
}

// withBlocks returns a page in Chinese with the blocks of code of its page in English, where
// both have as many.
func withBlocks(english, chinese string) string {
	mine := fence.FindAllString(english, -1)
	if len(mine) != len(fence.FindAllString(chinese, -1)) {
		return chinese
	}
	next := 0
	return fence.ReplaceAllStringFunc(chinese, func(string) string {
		next++
		return mine[next-1]
	})
}

// sentenceHan is how many characters a sentence in Chinese may have, besides words in code.
const sentenceHan = 60

var (
	han   = regexp.MustCompile(`\p{Han}`)
	level = regexp.MustCompile(`(?m)^#+ `)
	row   = regexp.MustCompile(`(?m)^\|.*\|$`)
)

// differences returns what two translations of a page don't have in common.
func differences(english, chinese string) (wrong []string) {
	mine, theirs := fence.FindAllString(english, -1), fence.FindAllString(chinese, -1)
	if len(theirs) == 0 {
		mine = nil // a page of prose alone leaves all blocks to the English one
	}
	if len(mine) != len(theirs) {
		wrong = append(wrong, fmt.Sprintf("%d blocks of code and %d", len(mine), len(theirs)))
	} else {
		for i := range mine {
			if mine[i] != theirs[i] {
				wrong = append(wrong, fmt.Sprintf("block %d differs (go test -update copies it):\n%s\n%s", i+1, mine[i], theirs[i]))
			}
		}
	}
	english, chinese = fence.ReplaceAllString(english, ""), fence.ReplaceAllString(chinese, "")
	if a, b := level.FindAllString(english, -1), level.FindAllString(chinese, -1); strings.Join(a, "") != strings.Join(b, "") {
		wrong = append(wrong, fmt.Sprintf("the headings are of levels %q and %q", a, b))
	}
	wrong = append(wrong, lacking(level.Split(english, -1), level.Split(chinese, -1))...)
	if a, b := shape(english), shape(chinese); a != b {
		wrong = append(wrong, fmt.Sprintf("the tables have the columns %s and %s", a, b))
	}
	if a, b := len(regexp.MustCompile(`(?m)^(?:- |\d+\. )`).FindAllString(english, -1)), len(regexp.MustCompile(`(?m)^(?:- |\d+\. )`).FindAllString(chinese, -1)); a != b {
		wrong = append(wrong, fmt.Sprintf("%d items of lists and %d", a, b))
	}
	if n := len(han.FindAllString(chinese, -1)); n < words(english)/2 {
		wrong = append(wrong, fmt.Sprintf("only %d characters are Chinese", n))
	}
	return wrong
}

// lacking returns what the sections of two translations don't both have: words in code and
// links.
func lacking(english, chinese []string) (wrong []string) {
	for i := range min(len(english), len(chinese)) {
		title, _, _ := strings.Cut(english[i], "\n")
		mine, theirs := code.FindAllString(english[i], -1), code.FindAllString(chinese[i], -1)
		slices.Sort(mine)
		slices.Sort(theirs)
		if !slices.Equal(mine, theirs) {
			wrong = append(wrong, fmt.Sprintf("below %q one has in code %s, the other one %s", title, mine, theirs))
		}
		if a, b := targets("", english[i]), targets("", chinese[i]); len(a) != len(b) {
			wrong = append(wrong, fmt.Sprintf("below %q one has the links %s, the other one %s", title, a, b))
		}
	}
	return wrong
}

// shape returns the number of cells of each row of all tables.
func shape(text string) string {
	var b strings.Builder
	for _, line := range row.FindAllString(text, -1) {
		fmt.Fprint(&b, strings.Count(code.ReplaceAllString(line, "code"), "|")-1, " ")
	}
	return b.String()
}

// TestDiagrams proves that the pictures have the words of the texts that they are made of,
// so that nobody forgets docs/diagrams/draw.sh.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	pictures, err := filepath.Glob(filepath.Join(root, "docs", "diagrams", "*.svg"))
	testdb.FatalIf(t, err != nil || len(pictures) < 7, "%d pictures, %v", len(pictures), err)
	sources, _ := filepath.Glob(filepath.Join(root, "docs", "diagrams", "*.[dt]*"))
	testdb.ErrorIf(t, len(sources) != len(pictures), "%d pictures of %d texts", len(pictures), len(sources))
	label := regexp.MustCompile(`"([^"]+)"`)
	for _, source := range sources {
		name, _ := filepath.Rel(root, source)
		text := read(t, filepath.ToSlash(name))
		picture := read(t, strings.TrimSuffix(filepath.ToSlash(name), filepath.Ext(name))+".svg")
		picture = html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(picture, " "))
		var shown []string
		if filepath.Ext(name) == ".txt" {
			shown = strings.Fields(text)
		}
		for _, match := range label.FindAllStringSubmatch(text, -1) {
			shown = append(shown, strings.Split(match[1], `\n`)...)
		}
		for _, words := range shown {
			testdb.ErrorIf(t, !strings.Contains(picture, words), "%s has %q, its picture has not: run docs/diagrams/draw.sh", name, words)
		}
	}
}

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
			tree := leasetest.Got(parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution))(t)
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
	testdb.FatalIf(t, err != nil || len(files) == 0, "%s: %d files, %v", pattern, len(files), err)
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
		files := leasetest.Got(filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go")))(t)
		examples, verbs := map[string]bool{}, 0
		for _, file := range files {
			text := leasetest.Got(os.ReadFile(file))(t)
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
