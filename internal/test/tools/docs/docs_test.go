// Package docs checks the pages for readers: links, lengths, names, and that the pages in
// Chinese have what those in English have.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"html"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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
	return string(testdb.Got(os.ReadFile(filepath.Join(root, filepath.FromSlash(name))))(t))
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
	files := testdb.Got(filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go")))(t)
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
			source := testdb.Got(os.ReadFile(file))(t)
			for _, match := range sentinel.FindAllStringSubmatch(string(source), -1) {
				testdb.ErrorIf(t, !strings.Contains(page, "`"+prefix+match[1]+"`") && !strings.Contains(page, "`txlock."+match[1]+"`"),
					"docs/reference/errors.md lacks `%s%s`", prefix, match[1])
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

var check = testdb.Must

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
			tree := testdb.Got(parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution))(t)
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
			testdb.ErrorIf(t, len(places) > 0, "%s has /%s/. Write: %s\n%s", where, word.pattern, word.instead, strings.Join(places, "\n"))
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
		files := testdb.Got(filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go")))(t)
		examples, verbs := map[string]bool{}, 0
		for _, file := range files {
			text := testdb.Got(os.ReadFile(file))(t)
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
