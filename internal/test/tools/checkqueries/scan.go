package checkqueries

import "strings"

type kind int

const (
	nameLine   kind = iota
	statement       // with its semicolon
	unfinished      // the last one, without
)

// item is a name line or a statement, at the line where it begins.
type item struct {
	kind kind
	line int
	text string // of a name line
}

// scan splits SQL into its name lines and statements. A semicolon in a string
// or a comment ends nothing.
func scan(text string) []item {
	var items []item
	begin := 0 // the line where the statement began; 0 is between statements
	line := 1
	for len(text) > 0 {
		n := 1
		switch c := text[0]; {
		case isComment(text):
			n = commentLen(text)
			if comment := strings.TrimSpace(text[:n]); nameLike.MatchString(comment) {
				items = append(items, item{nameLine, line, comment})
			}
		case c == ';':
			if begin > 0 {
				items = append(items, item{statement, begin, ""})
				begin = 0
			}
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		default:
			if begin == 0 {
				begin = line
			}
			n = quotedLen(text)
		}
		line += strings.Count(text[:n], "\n")
		text = text[n:]
	}
	if begin > 0 {
		items = append(items, item{unfinished, begin, ""})
	}
	return items
}

// isComment reports whether a comment begins. Two hyphens are one only before
// a blank: 5--1 is 6.
func isComment(text string) bool {
	if strings.HasPrefix(text, "--") {
		return len(text) == 2 || strings.ContainsRune(" \t\r\n", rune(text[2])) || nameLike.MatchString(text)
	}
	// A hint or a version comment is part of a statement.
	return text[0] == '#' || strings.HasPrefix(text, "/*") && !strings.HasPrefix(text, "/*+") && !strings.HasPrefix(text, "/*!")
}

func commentLen(text string) int {
	begin, end := "", "\n"
	if text[0] == '/' {
		begin, end = "/*", "*/"
	}
	if i := strings.Index(text[len(begin):], end); i >= 0 {
		return len(begin) + i + len(end)
	}
	return len(text)
}

// quotedLen is the length of the string or quoted name that begins, or 1.
// A doubled quote is two strings side by side, which comes to the same.
func quotedLen(text string) int {
	quote := text[0]
	if quote != '\'' && quote != '"' && quote != '`' {
		return 1
	}
	for i := 1; i < len(text); i++ {
		if text[i] == '\\' && quote != '`' {
			i++
		} else if text[i] == quote {
			return i + 1
		}
	}
	return len(text)
}
