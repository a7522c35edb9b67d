package sqltext

import (
	"iter"
	"strings"
)

// Next splits a text after its first statement.
func Next(query string) (first, rest string) {
	if strings.IndexByte(query, ';') < 0 {
		return query, ""
	}
	for i := 0; i < len(query); {
		if n := skip(query[i:]); n > 0 {
			i += n
			continue
		}
		if query[i] == ';' {
			if isEnd(query[i+1:]) {
				return query[:i], ""
			}
			return query[:i], query[i+1:]
		}
		i++
	}
	return query, ""
}

// isEnd reports whether what follows a statement is no other, not even an empty one, which
// the server refuses after it has executed the first. It removes semicolons from the end of
// a text, but a wrapper may have put a comment there.
func isEnd(rest string) bool {
	for {
		rest = strings.TrimLeft(rest, " \t\n\v\f\r")
		if rest == "" {
			return true
		}
		n := skip(rest)
		if n == 0 || strings.IndexByte("'\"`", rest[0]) >= 0 || rest[0] == '/' && !isClosed(rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
}

// Words returns the first n words of a statement, in capitals, without comments and
// quoted text.
func Words(query string, n int) []string {
	var w []string
	for i := 0; i < len(query) && len(w) < n; {
		if isLetter(query[i]) {
			end := i
			for end < len(query) && isLetter(query[end]) {
				end++
			}
			w = append(w, strings.ToUpper(query[i:end]))
			i = end
			continue
		}
		if executable := opening(query[i:]); executable > 0 {
			i += executable
		} else if skipped := skip(query[i:]); skipped > 0 {
			i += skipped
		} else if query[i] == ';' {
			break
		} else {
			i++
		}
	}
	return w
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= '0' && c <= '9'
}

// opening returns the length of the opening of an executable comment, /*!50000 or
// MariaDB's /*M!, that s begins with, or 0. The content of such a comment is part of the
// statement.
func opening(s string) int {
	for _, o := range []string{"/*!", "/*M!"} {
		if strings.HasPrefix(s, o) {
			n := len(o)
			for n < len(s) && s[n] >= '0' && s[n] <= '9' {
				n++
			}
			return n
		}
	}
	return 0
}

// skip returns the length of the comment or quoted text that s begins with, or 0.
func skip(s string) int {
	switch {
	case strings.HasPrefix(s, "/*"):
		return through(s, 2, "*/")
	case s[0] == '#', strings.HasPrefix(s, "--") && (len(s) == 2 || s[2] <= ' '):
		return through(s, 1, "\n")
	case s[0] == '\'', s[0] == '"', s[0] == '`':
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] == '\\' && s[0] != '`':
				i++
			case s[i] == s[0]:
				return i + 1
			}
		}
		return len(s)
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

// Mentions returns the first of the names, in lower case, that the text has as an
// identifier, quoted or not, or "". Text in double quotes counts as an identifier, which
// it is under ANSI_QUOTES.
func Mentions(query string, names map[string]bool) string {
	for name := range identifiers(query) {
		if names[name] {
			return name
		}
	}
	return ""
}

// SavepointName returns the name of a SAVEPOINT, a RELEASE SAVEPOINT or a ROLLBACK TO, in
// lower case: its last identifier. It returns "" for a name that a server may take for
// another one, and for a text that a server may read otherwise. A server compares these
// names by a collation, and reads what isn't ASCII by the character set of the session.
func SavepointName(query string) (name string) {
	n := 0
	for i := 0; i < len(query); i += n {
		switch c := query[i]; {
		case isLetter(c), c == '$':
			n = unquoted(query[i:])
			name = query[i : i+n]
		case c == '`', c == '"':
			name, n = quoted(query[i:])
		case skip(query[i:]) > 0:
			n = skip(query[i:])
		case strings.IndexByte(" \t\r\n;", c) >= 0:
			n = 1
		default:
			return ""
		}
		if strings.ContainsFunc(query[i:i+n], func(r rune) bool { return r >= 0x80 }) {
			return ""
		}
	}
	if len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return !isLetter(byte(r)) && strings.IndexByte("$-.:", byte(r)) < 0 }) {
		return ""
	}
	return strings.ToLower(name)
}

// identifiers yields the identifiers and keywords of the text in lower case.
func identifiers(query string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for query != "" {
			name, n := identifier(query)
			if name != "" && !yield(strings.ToLower(name)) {
				return
			}
			query = query[n:]
		}
	}
}

// Executable reports whether the text may have an executable comment: it has the opening of
// one, perhaps inside quotes.
func Executable(query string) bool {
	return strings.Contains(query, "/*!") || strings.Contains(query, "/*M!")
}

// identifier returns the identifier that a text begins with, without its quotes, and its
// length. For anything else it returns "" and how many bytes to skip.
func identifier(s string) (name string, n int) {
	switch {
	case isIdentifier(s[0]):
		n = unquoted(s)
		return s[:n], n
	case opening(s) > 0:
		return "", opening(s)
	case s[0] == '`' || s[0] == '"':
		return quoted(s)
	}
	return "", max(skip(s), 1)
}

// quoted does what identifier does, for a text that begins with a quote.
func quoted(s string) (name string, n int) {
	if n = skip(s); n <= 1 {
		return "", 1
	}
	q := s[:1]
	for n < len(s) && s[n:n+1] == q { // skip takes a doubled quote for the end of one quoted text and the start of another
		n += skip(s[n:])
	}
	return strings.ReplaceAll(strings.TrimSuffix(s[1:n], q), q+q, q), n
}

// Conditional reports whether an executable comment, which some servers read and others
// don't, may decide what kind of statements the text has: it stands before the first word
// of a statement, or has a semicolon in it.
func Conditional(query string) bool {
	if !Executable(query) {
		return false
	}
	begun := false
	for i := 0; i < len(query); i++ {
		switch n := skip(query[i:]); {
		case opening(query[i:]) > 0:
			if !begun || strings.Contains(query[i:i+n], ";") {
				return true
			}
			i += n - 1
		case n > 0:
			i += n - 1
		case query[i] == ';':
			begun = false
		case isLetter(query[i]):
			begun = true
		}
	}
	return false
}

// isIdentifier reports whether a byte may be part of an unquoted identifier.
func isIdentifier(c byte) bool { return isLetter(c) || c == '$' || c >= 0x80 }

// unquoted returns the length of the unquoted identifier that s begins with.
func unquoted(s string) (n int) {
	for n < len(s) && isIdentifier(s[n]) {
		n++
	}
	return n
}
