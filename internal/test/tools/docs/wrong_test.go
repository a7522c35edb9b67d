package docs

import (
	"fmt"
	"strings"
	"testing"
)

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
	} {
		said, want := test[0], test[1]
		if (want == "") != (said == "") || !strings.Contains(said, want) {
			t.Errorf("%d: it says %q, want %q", i, said, want)
		}
	}
}
