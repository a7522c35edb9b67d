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
		if (want == "") != (said == "") || !strings.Contains(said, want) {
			t.Errorf("%d: it says %q, want %q", i, said, want)
		}
	}
}
