package sqltext

import (
	"regexp"
	"slices"
	"strings"
)

// number matches what servers read as a number, or as the part of one before a sign. Of another
// word that begins with a digit, such as 5OR, they may read 5 and OR, behind a dot for example.
var number = regexp.MustCompile(`(?i)^([0-9]+(e[0-9]*)?|0x[0-9a-f]+|0b[01]+)$`)

// Closed reports whether a part of a statement means the same wherever it stands, for
// example in parentheses: it closes all that it opens, doesn't end the statement, and has
// no comment that could reach further. It returns the words outside of parentheses and
// quotes, in capitals, and among them commas and the operators || and :=. What servers
// read differently is not closed: executable comments, a backslash in quotes, which is an
// ordinary character under NO_BACKSLASH_ESCAPES, and a word that begins with a digit and is no
// number.
func Closed(text string) (words []string, ok bool) {
	depth := 0
	for t := range tokens(text, false) {
		switch {
		case t.kind == quoted, t.kind == comment:
			if !isClosed(t.text) {
				return nil, false
			}
		case t.kind == word && t.text[0] >= '0' && t.text[0] <= '9' && !number.MatchString(t.text), t.isAny(";\\\x00"):
			return nil, false
		case t.text == "(":
			depth++
		case t.text == ")":
			if depth--; depth < 0 {
				return nil, false
			}
		case depth == 0 && (t.kind == word || t.text == "," || len(t.text) > 1):
			words = append(words, strings.ToUpper(t.text))
		}
	}
	return words, depth == 0
}

// Calls returns the words of a text, in capitals, that stand before a parenthesis: its functions,
// and keywords such as IN.
func Calls(text string) (names []string) {
	last := ""
	for t := range tokens(text, false) {
		switch {
		case t.kind == word:
			last = strings.ToUpper(t.text)
		case t.kind == quoted && t.text[0] != '\'': // perhaps a function of the program's
			last = t.text
		case t.text == "(" && last != "":
			names = append(names, last)
			last = ""
		case t.kind == mark && t.text > " ":
			last = ""
		}
	}
	return names
}

// Unquoted returns a text without what stands in quotes and in comments.
func Unquoted(text string) string {
	var rest strings.Builder
	for t := range tokens(text, false) {
		if t.kind == word || t.kind == mark {
			rest.WriteString(t.text)
		}
	}
	return rest.String()
}

// Cut cuts a statement at the first of the words that stands outside of quotes, comments and
// parentheses, and returns what stands before and behind it.
func Cut(statement string, words ...string) (before, behind string) {
	depth := 0
	for t := range tokens(statement, false) {
		before, behind = statement[:t.at], statement[t.at+len(t.text):]
		switch {
		case t.text == "(":
			depth++
		case t.text == ")":
			depth--
		case t.kind == word && depth == 0 && slices.Contains(words, strings.ToUpper(t.text)) && !strings.HasSuffix(before, ".") && !strings.HasPrefix(behind, "."):
			return before, behind
		}
	}
	return statement, ""
}
