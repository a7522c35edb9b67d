// Package docs checks the pages for readers: links, lengths, names, and that the pages in
// Chinese have what those in English have.
package docs

import (
	"fmt"
	"io/fs"
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

const (
	root = "../../../.."
	// readmeWords is what a newcomer reads in ten minutes, code included.
	readmeWords = 1500
	// sentenceWords is what a reader whose first language is not English can follow.
	sentenceWords = 35
)

// pages returns all pages of the repository with their texts, but for those of others.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "node_modules") {
			return fs.SkipDir
		}
		if path.Ext(name) == ".md" {
			texts[name] = read(t, name)
		}
		return nil
	})
	testdb.FatalIf(t, err != nil || len(texts) < 20, "%d pages, %v", len(texts), err)
	return texts
}

func read(t *testing.T, name string) string {
	t.Helper()
	return string(leasetest.Got(os.ReadFile(filepath.Join(root, filepath.FromSlash(name))))(t))
}

// TestLinks proves that each page leads to files, and to headings, that exist.
func TestLinks(t *testing.T) {
	t.Parallel()
	texts := pages(t)
	for name := range texts {
		for _, wrong := range wrongLinks(name, texts, func(file string) bool {
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(file)))
			return err == nil
		}) {
			t.Errorf("%s: %s", name, wrong)
		}
	}
}

var (
	fence    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	indented = regexp.MustCompile(`(?m)^    .*$`)
	comment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	code     = regexp.MustCompile("`[^`\n]+`")
	link     = regexp.MustCompile(`!?\[((?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]*)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

// wrongLinks returns the links of a page that lead nowhere.
func wrongLinks(name string, texts map[string]string, exists func(file string) bool) (wrong []string) {
	text := code.ReplaceAllString(indented.ReplaceAllString(fence.ReplaceAllString(texts[name], ""), ""), "")
	for _, match := range regexp.MustCompile(`\]\(([^)\s]*)\)`).FindAllStringSubmatch(text, -1) {
		target, anchor, _ := strings.Cut(match[1], "#")
		if strings.Contains(target, "://") {
			continue
		}
		file := name
		if target != "" {
			file = path.Join(path.Dir(name), target)
		}
		if !exists(file) {
			wrong = append(wrong, match[1]+" leads to no file")
		} else if anchor != "" && !slices.Contains(anchors(texts[file]), anchor) {
			wrong = append(wrong, match[1]+" leads to no heading")
		}
	}
	return wrong
}

// anchors returns those of the headings of a page, as GitHub makes them.
func anchors(text string) (all []string) {
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		plain := strings.ToLower(link.ReplaceAllString(match[1], "$1"))
		plain = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`).ReplaceAllString(plain, "")
		all = append(all, strings.ReplaceAll(strings.TrimSpace(plain), " ", "-"))
	}
	return all
}

// TestReadmeIsShort counts the words of the README, those of its code included.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	n := words(read(t, "README.md"))
	testdb.ErrorIf(t, n > readmeWords, "README.md has %d words; at most %d are read", n, readmeWords)
}

// TestDocsAreShort counts as wc -w does, so that what a page says can be kept true.
func TestDocsAreShort(t *testing.T) {
	t.Parallel()
	all := 0
	for name, text := range pages(t) {
		if !strings.HasPrefix(name, "docs/") {
			continue
		}
		n := len(strings.Fields(text))
		all += n
		most := map[string]int{"docs/operations.md": 2400, "docs/reference/settings.md": 1100}[name]
		testdb.ErrorIf(t, most > 0 && n > most, "%s has %d words, at most %d are read", name, n, most)
	}
	testdb.ErrorIf(t, all > 45000, "docs has %d words; at most 45,000 can be kept true", all)
}

var word = regexp.MustCompile(`\S*[\p{L}\p{N}]\S*`)

func words(text string) int { return len(word.FindAllString(text, -1)) }

// TestSentences proves that the sentences of the README and of docs are short. A piece of
// code is a word.
func TestSentences(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		if name != "README.md" && !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, s := range sentences(text) {
			n := words(s)
			testdb.ErrorIf(t, n > sentenceWords, "%s has a sentence of %d words, at most %d can be followed:\n%s", name, n, sentenceWords, s)
		}
	}
}

var (
	paragraph = regexp.MustCompile(`\n\s*\n|\n[ \t]*(?:[-*>#|]|\d+\. )`)
	stop      = regexp.MustCompile(`[.!?]["')*]*\s+`)
)

// sentences returns those of the prose of a page. What stands in different cells of a table
// or items of a list is not one sentence.
func sentences(text string) (all []string) {
	text = comment.ReplaceAllString(fence.ReplaceAllString(text, "\n\n"), "")
	text = indented.ReplaceAllString(text, "")
	text = link.ReplaceAllString(code.ReplaceAllString(text, "code"), "$1")
	for _, p := range paragraph.Split(text, -1) {
		for cell := range strings.SplitSeq(p, "|") {
			from := 0
			for _, at := range append(stop.FindAllStringIndex(cell, -1), []int{len(cell), len(cell)}) {
				if s := strings.Join(strings.Fields(cell[from:at[1]]), " "); s != "" {
					all = append(all, s)
				}
				from = at[1]
			}
		}
	}
	return all
}

// TestNames proves that the tests and the commands that pages name exist.
func TestNames(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	test := regexp.MustCompile("`([a-z][a-z/]+)\\.(Test[A-Za-z0-9]+)`")
	command := regexp.MustCompile("(?:`|(?m)^    |\\$ )make ([^`\n]+)")
	for name, text := range pages(t) {
		if name == "CHANGELOG.md" {
			continue
		}
		for _, match := range test.FindAllStringSubmatch(text, -1) {
			testdb.ErrorIf(t, !declared(t, match[1], "func "+match[2]+"("), "%s: %s has no %s", name, match[1], match[2])
		}
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			targets, _, _ := strings.Cut(match[1], "#")
			if !isCommand.MatchString(strings.TrimSpace(targets)) {
				continue // a sentence
			}
			for each := range strings.FieldsSeq(targets) {
				testdb.ErrorIf(t, !strings.Contains(each, "=") && !strings.Contains(makefile, "\n"+each+":"), "%s: the Makefile has no %s", name, each)
			}
		}
	}
}

// isCommand finds what may follow make: targets and variables.
var isCommand = regexp.MustCompile(`^(?:[a-z][a-z-]*|[A-Z_]+=\S*)(?: +(?:[a-z][a-z-]*|[A-Z_]+=\S*))*$`)

// declared tells whether a file of a directory has a declaration.
func declared(t *testing.T, dir, declaration string) bool {
	t.Helper()
	files := leasetest.Got(filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go")))(t)
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(source), "\n"+declaration)
	})
}

// TestErrors proves that the page of errors has every exported one, and that those of locks and
// leases have a name in metrics and on the page of a process.
func TestErrors(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/reference/errors.md")
	lists := make(map[string]string)
	for _, name := range []string{"txlock/lockotel/outcome.go", "lockhttp/recorder.go"} {
		lists[name] = read(t, name)
	}
	sentinel := regexp.MustCompile(`(?m)^(?:var |\t)(Err[A-Z]\w*)\s*= `)
	for _, pkg := range []string{"txlock", "txlock/lease", "txlock/job", "txlock/elect", "txlock/quorum", "locksqlc", "lockgorm", "lockhttp", "schema"} {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		testdb.FatalIf(t, err != nil || len(files) == 0, "%s: %d files, %v", pkg, len(files), err)
		prefix := path.Base(pkg) + "."
		if pkg == "txlock" {
			prefix = ""
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source := leasetest.Got(os.ReadFile(file))(t)
			for _, match := range sentinel.FindAllStringSubmatch(string(source), -1) {
				if !strings.Contains(page, "`"+prefix+match[1]+"`") && !strings.Contains(page, "`txlock."+match[1]+"`") {
					t.Errorf("docs/reference/errors.md lacks `%s%s`", prefix, match[1])
				}
				for list, text := range lists {
					name := path.Base(pkg) + "." + match[1]
					testdb.ErrorIf(t, (pkg == "txlock" || pkg == "txlock/lease") && !strings.Contains(text, name), "%s lacks %s", list, name)
				}
			}
		}
	}
}

// TestBadges compares the badge of Go with go.mod.
func TestBadges(t *testing.T) {
	t.Parallel()
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	testdb.ErrorIf(t, !strings.Contains(read(t, "README.md"), "badge/Go-"+version+"%2B"), "README.md has no badge of Go %s", version)
}

var check = leasetest.Must

// TestWrongPages proves that each kind of mistake is found.
func TestWrongPages(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"a/page.md": "# One thing: `x`\n\n## 两个\n\n```text\n# none\n[no](nowhere.md)\n```\n"}
	links := func(text string) string {
		texts["here.md"] = text
		return strings.Join(wrongLinks("here.md", texts, func(file string) bool { return texts[file] != "" || file == "a" }), ", ")
	}
	const english = "# A\n\nSome words of English.\n\n```go\nx\n```\n\n- one\n\n| a | `b|c` |\n|---|---|\n"
	pair := func(chinese string) string { return strings.Join(differences(english, chinese), ", ") }
	const chinese = "# 甲\n\n一些中文的词语，足够多了。\n\n```go\nx\n```\n\n- 一\n\n| 甲 | `b|c` |\n|---|---|\n"
	long := strings.Repeat("word ", 31)
	detour := func(zh, en string) string {
		return strings.Join(detours("docs/zh-CN/a.md", map[string]string{"docs/zh-CN/a.md": zh, "docs/a.md": en, "docs/b.md": "x", "docs/zh-CN/b.md": "x", "docs/c.md": "x"}), ", ")
	}
	for i, test := range [][2]string{ // what is said, and what is wanted
		{links("[a](a) [b](a/page.md#one-thing-x) [c](a/page.md#两个) [d](https://e.f) `[e](no)`"), ""},
		{links("[a](b.md)"), "b.md leads to no file"},
		{links("![a](a/page.md#none)"), "a/page.md#none leads to no heading"},
		{links("[![a](c.svg)](a)"), "c.svg leads to no file"},
		{links("Text.\n\n    [a](b)\n"), ""},

		{fmt.Sprint(len(sentences("One. `a b c` two! | three | four (x.) Five"))), "5"},
		{fmt.Sprint(words(sentences(long)[0])), "31"},
		{fmt.Sprint(words(sentences("```text\n" + long + "\n```\nfive\n")[0])), "1"},
		{fmt.Sprint(words(sentences("[a link of words](" + long + ")")[0])), "4"},

		{pair(chinese), ""},
		{pair(strings.Replace(chinese, "x", "y", 1)), "block 1 differs"},
		{pair(strings.Replace(chinese, "# 甲", "## 甲", 1)), "the headings"},
		{pair(strings.Replace(chinese, "- 一\n", "", 1)), "1 items of lists and 0"},
		{pair(strings.Replace(chinese, "| 甲 |", "|", 1)), "the tables"},
		{pair(strings.Replace(english, "English", "it", 1)), "only 0 characters are Chinese"},
		{pair(chinese + "\n`more`\n"), `below "A" one has in code`},
		{pair(chinese + "\n[more](b.md)\n"), `below "A" one has the links [], the other one [b.md]`},
		{pair(withBlocks(english, strings.Replace(chinese, "x", "y", 1))), ""},
		{pair(withBlocks(english, chinese+"\n```go\nz\n```\n")), "1 blocks of code and 2"},
		{pair(strings.Replace(chinese, "```go\nx\n```\n", "", 1)), ""}, // prose alone

		{detour("[a](../a.md) [b](b.md#b) [c](../c.md)", "[a](zh-CN/a.md)"), ""},
		{detour("[a](../a.md) [b](../b.md#b)", "[a](zh-CN/a.md)"), "a link leads to docs/b.md, not to docs/zh-CN/b.md"},
		{detour("[b](b.md)", "[a](zh-CN/a.md)"), "the Chinese page has no link"},
		{detour("[a](../a.md)", "[b](b.md)"), "the English page has no link"},

		{strings.Join(tooLong(strings.Repeat("很长", 30)+"。"+strings.Repeat("很长", 30)+"。"), ""), ""},
		{strings.Join(tooLong(strings.Repeat("很长", 31)), ""), "a sentence has 62 characters"},
	} {
		said, want := test[0], test[1]
		testdb.ErrorIf(t, (want == "") != (said == "") || !strings.Contains(said, want), "%d: it says %q, want %q", i, said, want)
	}
}
