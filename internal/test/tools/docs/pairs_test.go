package docs

import (
	"fmt"
	"html"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestChinese proves that each page in Chinese has the headings, the blocks of code and the
// tables of its page in English.
func TestChinese(t *testing.T) {
	t.Parallel()
	texts := pages(t)
	pairs := 0
	for name, text := range texts {
		english := strings.Replace(name, "docs/zh-CN/", "docs/", 1)
		if name == "README.zh-CN.md" {
			english = "README.md"
		}
		if english == name {
			continue
		}
		pairs++
		if texts[english] == "" {
			t.Errorf("%s has no page %s", name, english)
		}
		for _, wrong := range differences(texts[english], text) {
			t.Errorf("%s and %s: %s", english, name, wrong)
		}
	}
	if pairs < 5 {
		t.Errorf("%d pages are in Chinese", pairs)
	}
}

var (
	han   = regexp.MustCompile(`\p{Han}`)
	level = regexp.MustCompile(`(?m)^#+ `)
	row   = regexp.MustCompile(`(?m)^\|.*\|$`)
)

// differences returns what two translations of a page don't have in common.
func differences(english, chinese string) (wrong []string) {
	mine, theirs := fence.FindAllString(english, -1), fence.FindAllString(chinese, -1)
	if len(mine) != len(theirs) {
		wrong = append(wrong, fmt.Sprintf("%d blocks of code and %d", len(mine), len(theirs)))
	} else {
		for i := range mine {
			if mine[i] != theirs[i] {
				wrong = append(wrong, fmt.Sprintf("block %d differs:\n%s\n%s", i+1, mine[i], theirs[i]))
			}
		}
	}
	english, chinese = fence.ReplaceAllString(english, ""), fence.ReplaceAllString(chinese, "")
	if a, b := level.FindAllString(english, -1), level.FindAllString(chinese, -1); strings.Join(a, "") != strings.Join(b, "") {
		wrong = append(wrong, fmt.Sprintf("the headings are of levels %q and %q", a, b))
	}
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

// shape returns the number of cells of each row of all tables.
func shape(text string) string {
	var b strings.Builder
	for _, line := range row.FindAllString(text, -1) {
		fmt.Fprint(&b, strings.Count(code.ReplaceAllString(line, "code"), "|")-1, " ")
	}
	return b.String()
}

// TestDiagrams proves that the pictures have the words of the texts that they are made of,
// so that nobody forgets make diagrams.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	pictures, err := filepath.Glob(filepath.Join(root, "docs", "diagrams", "*.svg"))
	if err != nil || len(pictures) < 7 {
		t.Fatalf("%d pictures, %v", len(pictures), err)
	}
	sources, _ := filepath.Glob(filepath.Join(root, "docs", "diagrams", "*.[dt]*"))
	if len(sources) != len(pictures) {
		t.Errorf("%d pictures of %d texts", len(pictures), len(sources))
	}
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
			if !strings.Contains(picture, words) {
				t.Errorf("%s has %q, its picture has not: run make diagrams", name, words)
			}
		}
	}
}
