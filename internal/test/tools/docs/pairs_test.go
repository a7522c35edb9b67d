package docs

import (
	"flag"
	"fmt"
	"html"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

var update = flag.Bool("update", false, "copy the blocks of code from English pages to Chinese ones")

// TestChinese proves that each page in Chinese has the headings, the blocks of code and the
// tables of its page in English, and below each heading the same words in code and as many
// links: what is added to the one is missed in the other. The two lead to each other, and
// links lead to pages in Chinese where there are some.
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
	if err != nil || len(pictures) < 7 {
		t.Fatalf("%d pictures, %v", len(pictures), err)
	}
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
