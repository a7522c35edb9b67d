// Package sqltext reads the text of SQL statements as far as the library must know what
// they are. It is no parser: where the two servers, or their SQL modes, read a text
// differently, it says that it doesn't know, and its callers take the safe side.
//
// [Next] separates statements, [Words] returns the first words of one, [Mentions] and
// [SavepointName] find identifiers. In closed.go, [Closed] reports whether a part of a
// statement means the same wherever it stands; [Cut], [Calls] and [Unquoted] look into it.
package sqltext

import (
	"iter"
	"strings"
)

// kind says what a token is.
type kind int

const (
	mark    kind = iota // a character, or one of the operators || and :=
	word                // an identifier without quotes, a keyword or a number
	quoted              // text in quotes, with them
	comment             // or, if executable comments are read, the opening of one
)

// token is a part of a text.
type token struct {
	kind kind
	text string
	at   int
}

// tokens yields the tokens of a text. The content of an executable comment is part of the
// statement if executed is set, and else that of a comment.
func tokens(text string, executed bool) iter.Seq[token] {
	return func(yield func(token) bool) {
		for i := 0; i < len(text); {
			of, n := begins(text[i:], executed)
			if !yield(token{of, text[i : i+n], i}) {
				return
			}
			i += n
		}
	}
}

// begins returns what a text begins with, and its length.
func begins(text string, executed bool) (of kind, n int) {
	switch c := text[0]; {
	case isIdentifier(c):
		for n < len(text) && isIdentifier(text[n]) {
			n++
		}
		return word, n
	case c == '\'', c == '"', c == '`':
		return quoted, quotedLen(text)
	case c == '/', c == '#', c == '-':
		if n = opening(text); !executed || n == 0 {
			n = commentLen(text)
		}
		if n > 0 {
			return comment, n
		}
	case strings.HasPrefix(text, "||"), strings.HasPrefix(text, ":="):
		return mark, 2
	}
	return mark, 1
}

// isAny reports whether a token is one of these characters.
func (t token) isAny(characters string) bool {
	return t.kind == mark && strings.IndexByte(characters, t.text[0]) >= 0
}

func isLetter(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= '0' && c <= '9'
}

// isIdentifier reports whether a byte may be part of an unquoted identifier.
func isIdentifier(c byte) bool { return isLetter(rune(c)) || c == '$' || c >= 0x80 }

// opening returns the length of the opening of an executable comment, /*!50000 or
// MariaDB's /*M!, that s begins with, or 0.
func opening(s string) int {
	for _, o := range []string{"/*!", "/*M!"} {
		if strings.HasPrefix(s, o) {
			return len(s) - len(strings.TrimLeft(s[len(o):], "0123456789"))
		}
	}
	return 0
}

// commentLen returns the length of the comment that s begins with, or 0.
func commentLen(s string) int {
	switch {
	case strings.HasPrefix(s, "/*"):
		return through(s, 2, "*/")
	case s[0] == '#', strings.HasPrefix(s, "--") && (len(s) == 2 || s[2] <= ' '):
		return through(s, 1, "\n")
	}
	return 0
}

// through returns the length of s up to the end mark, including it.
func through(s string, from int, end string) int {
	if i := strings.Index(s[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(s)
}

// quotedLen returns the length of the text in quotes that s begins with.
func quotedLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] != '`', s[i] == s[0] && i+1 < len(s) && s[i+1] == s[0]:
			i++
		case s[i] == s[0]:
			return i + 1
		}
	}
	return len(s)
}

// unquote returns the name in quotes, closed or not.
func unquote(s string) string {
	q := s[:1]
	return strings.ReplaceAll(strings.TrimSuffix(s[1:], q), q+q, q)
}

// isClosed reports whether a comment or quoted text is closed, and no server reads further. So
// quotes have no backslash, and a comment to the end of a line isn't closed.
func isClosed(text string) bool {
	if strings.HasPrefix(text, "/*") {
		return opening(text) == 0 && len(text) >= len("/**/") && strings.HasSuffix(text, "*/")
	}
	quote := text[:1]
	return (quote == "'" || quote == `"` || quote == "`") && strings.Count(text, quote)%2 == 0 && (quote == "`" || !strings.Contains(text, `\`))
}

// Next splits a text after its first statement.
func Next(query string) (first, rest string) {
	for t := range tokens(query, false) {
		if t.text != ";" {
			continue
		}
		if first, rest = query[:t.at], query[t.at+1:]; isEnd(rest) {
			rest = ""
		}
		return first, rest
	}
	return query, ""
}

// isEnd reports whether what follows a statement is no other, not even an empty one, which
// the server refuses after it has executed the first. It removes semicolons from the end of
// a text, but a wrapper may have put a comment there.
func isEnd(rest string) bool {
	for t := range tokens(rest, false) {
		if t.kind == comment && (t.text[0] != '/' || isClosed(t.text)) || t.isAny(" \t\n\v\f\r") {
			continue
		}
		return false
	}
	return true
}

// Words returns the first n words of a statement, in capitals, without comments and
// quoted text. A word has only ASCII letters, digits and underscores.
func Words(query string, n int) (w []string) {
	for t := range tokens(query, true) {
		if t.kind == word {
			w = append(w, strings.FieldsFunc(strings.ToUpper(t.text), func(c rune) bool { return !isLetter(c) })...)
		}
		if len(w) >= n || t.text == ";" {
			break
		}
	}
	return w[:min(n, len(w))]
}

// Mentions returns the first of the names, in lower case, that the text has as an
// identifier, quoted or not, or "". Text in double quotes counts as an identifier, which
// it is under ANSI_QUOTES.
func Mentions(query string, names map[string]bool) string {
	for t := range tokens(query, true) {
		name := ""
		switch {
		case t.kind == word:
			name = strings.ToLower(t.text)
		case t.kind == quoted && t.text[0] != '\'':
			name = strings.ToLower(unquote(t.text))
		}
		if name != "" && names[name] {
			return name
		}
	}
	return ""
}

// Marks counts the question marks that stand outside of quotes and comments.
func Marks(query string) (n int) {
	for t := range tokens(query, false) {
		if t.kind == mark {
			n += strings.Count(t.text, "?")
		}
	}
	return n
}

// SavepointName returns the name of a SAVEPOINT, a RELEASE SAVEPOINT or a ROLLBACK TO, in
// lower case: its last identifier. It returns "" for a name that a server may take for
// another one, and for a text that a server may read otherwise. A server compares these
// names by a collation, and reads what isn't ASCII by the character set of the session.
func SavepointName(query string) (name string) {
	for t := range tokens(query, false) {
		switch {
		case strings.ContainsFunc(t.text, func(r rune) bool { return r >= 0x80 }):
			return ""
		case t.kind == word:
			name = t.text
		case t.kind == quoted && t.text[0] != '\'':
			name = unquote(t.text)
		case t.kind == mark && !t.isAny(" \t\r\n;"):
			return ""
		}
	}
	if len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return !isLetter(r) && !strings.ContainsRune("$-.:", r) }) {
		return ""
	}
	return strings.ToLower(name)
}

// Executable reports whether the text may have an executable comment: it has the opening of
// one, perhaps inside quotes.
func Executable(query string) bool {
	return strings.Contains(query, "/*!") || strings.Contains(query, "/*M!")
}

// Conditional reports whether an executable comment, which some servers read and others
// don't, may decide what kind of statements the text has: it stands before the first word
// of a statement, or has a semicolon in it.
func Conditional(query string) bool {
	begun := false
	for t := range tokens(query, false) {
		switch {
		case t.kind == comment && opening(t.text) > 0 && (!begun || strings.Contains(t.text, ";")):
			return true
		case t.text == ";":
			begun = false
		case t.kind == word:
			begun = begun || strings.ContainsFunc(t.text, isLetter)
		}
	}
	return false
}
