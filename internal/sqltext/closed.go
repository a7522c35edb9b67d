package sqltext

import (
	"regexp"
	"slices"
	"strings"
)

// number matches what servers read as a number, or as the part of one before a sign.
var number = regexp.MustCompile(`(?i)^([0-9]+(e[0-9]*)?|0x[0-9a-f]+|0b[01]+)$`)

// isWhole reports whether servers read what a text begins with as one word. Of 5OR they may read 5
// and OR, behind a dot for example.
func isWhole(text string) bool {
	word := text[:unquoted(text)]
	return word[0] < '0' || word[0] > '9' || number.MatchString(word)
}

// Closed reports whether a part of a statement means the same wherever it stands, for
// example in parentheses: it closes all that it opens, doesn't end the statement, and has
// no comment that could reach further. It returns the words outside of parentheses and
// quotes, in capitals, and among them commas and the operators || and :=. What servers
// read differently is not closed: executable comments, a backslash in quotes, which is an
// ordinary character under NO_BACKSLASH_ESCAPES, and a word that begins with a digit and is no
// number.
func Closed(text string) (words []string, ok bool) {
	depth := 0
	for i := 0; i < len(text); {
		n := 1
		switch c := text[i]; {
		case c == ';', c == 0, c == '\\', isIdentifier(c) && !isWhole(text[i:]):
			return nil, false
		case isIdentifier(c):
			if n = unquoted(text[i:]); depth == 0 {
				words = append(words, strings.ToUpper(text[i:i+n]))
			}
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				return nil, false
			}
		case skip(text[i:]) > 0:
			n = skip(text[i:])
			if !isClosed(text[i : i+n]) {
				return nil, false
			}
		case c == ',', strings.HasPrefix(text[i:], "||"), strings.HasPrefix(text[i:], ":="):
			if c != ',' {
				n = 2
			}
			if depth == 0 {
				words = append(words, text[i:i+n])
			}
		}
		i += n
	}
	return words, depth == 0
}

// isClosed reports whether a comment or quoted text is closed.
func isClosed(text string) bool {
	if strings.HasPrefix(text, "/*") {
		return opening(text) == 0 && len(text) >= len("/**/") && strings.HasSuffix(text, "*/")
	}
	quote := text[0]
	return (quote == '\'' || quote == '"' || quote == '`') && len(text) > 1 && text[len(text)-1] == quote &&
		(quote == '`' || !strings.Contains(text, `\`))
}

// Calls returns the words of a text, in capitals, that stand before a parenthesis: its functions,
// and keywords such as IN.
func Calls(text string) (names []string) {
	word := ""
	for i := 0; i < len(text); {
		n := 1
		switch c := text[i]; {
		case isIdentifier(c):
			n = unquoted(text[i:])
			word = strings.ToUpper(text[i : i+n])
		case skip(text[i:]) > 0:
			if n = skip(text[i:]); c == '`' || c == '"' {
				word = text[i : i+n] // perhaps a function of the program's
			}
		case c == '(' && word != "":
			names = append(names, word)
			word = ""
		case c > ' ':
			word = ""
		}
		i += n
	}
	return names
}

// Unquoted returns a text without what stands in quotes and in comments.
func Unquoted(text string) string {
	var rest strings.Builder
	for i := 0; i < len(text); {
		n := skip(text[i:])
		if n == 0 {
			n = 1
			rest.WriteByte(text[i])
		}
		i += n
	}
	return rest.String()
}

// Cut cuts a statement at the first of the words that stands outside of quotes, comments and
// parentheses, and returns what stands before and behind it.
func Cut(statement string, words ...string) (before, behind string) {
	depth := 0
	for i := 0; i < len(statement); {
		n := 1
		switch c := statement[i]; {
		case isIdentifier(c):
			if n = unquoted(statement[i:]); depth == 0 && slices.Contains(words, strings.ToUpper(statement[i:i+n])) &&
				(i == 0 || statement[i-1] != '.') && (i+n == len(statement) || statement[i+n] != '.') {
				return statement[:i], statement[i+n:]
			}
		case c == '(':
			depth++
		case c == ')':
			depth--
		case skip(statement[i:]) > 0:
			n = skip(statement[i:])
		}
		i += n
	}
	return statement, ""
}
