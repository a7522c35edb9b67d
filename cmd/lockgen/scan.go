package main

import "strings"

// comment is a comment of a .sql file.
type comment struct {
	line   int
	text   string // without its marks
	alone  bool   // begins its line, and nothing follows on it
	inside bool   // stands behind the first word of the statement
}

// statement is what stands between two semicolons, or rather its comments.
type statement struct{ comments []comment }

// statements splits the text of a .sql file as sqlc does.
func statements(text string) []statement {
	var all []statement
	var s statement
	begun := false // by a word
	end := func() {
		if len(s.comments) > 0 {
			all = append(all, s)
		}
		s, begun = statement{}, false
	}
	for at := 0; at < len(text); {
		body, length := commentAt(text[at:])
		switch c := text[at]; {
		case length > 0:
			rest, _, _ := strings.Cut(text[at+length:], "\n")
			s.comments = append(s.comments, comment{
				line:   1 + strings.Count(text[:at], "\n"),
				text:   body,
				alone:  (at == 0 || text[at-1] == '\n') && strings.TrimSpace(rest) == "" && !strings.Contains(body, "\n"),
				inside: begun,
			})
			at += length
		case c == ';':
			end()
			at++
		case strings.IndexByte(" \t\r\n", c) >= 0:
			at++
		default:
			begun = true
			at += quoted(text[at:])
		}
	}
	end()
	return all
}

// commentAt returns the comment that a text begins with, and its length without the end of
// the line, or 0.
func commentAt(text string) (body string, length int) {
	line, _, _ := strings.Cut(text, "\n")
	switch {
	case strings.HasPrefix(text, "#"):
		return strings.TrimRight(line[1:], "\r"), len(line)
	case line == "--", strings.HasPrefix(line, "-- "), strings.HasPrefix(line, "--\t"), strings.HasPrefix(line, "--\r"):
		return strings.TrimRight(line[2:], "\r"), len(line)
	case strings.HasPrefix(text, "/*") && !strings.HasPrefix(text, "/*!") && !strings.HasPrefix(text, "/*M!"):
		body, _, closed := strings.Cut(text[2:], "*/")
		if !closed {
			return body, len(text)
		}
		return body, len(body) + 4
	}
	return "", 0
}

// quoted returns the length of the string or quoted name that a text begins with, or 1.
func quoted(text string) int {
	quote := text[0]
	if quote != '\'' && quote != '"' && quote != '`' {
		return 1
	}
	for at := 1; at < len(text); at++ {
		switch {
		case text[at] == '\\' && quote != '`':
			at++
		case text[at] == quote: // a doubled one ends here and begins anew
			return at + 1
		}
	}
	return len(text)
}
