package checks

import (
	"regexp"
	"slices"
	"strings"
)

// A statement is the words of an SQL text, or of a part of it: names, literals and signs.
type statement []string

var (
	anyWord = regexp.MustCompile("(?s)/\\*.*?\\*/|--(?:[ \t][^\n]*)?(?:\n|$)|#[^\n]*|" + // comments
		`'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|` + "`[^`]*`|[\\w$]+|\\S")
	comment = regexp.MustCompile(`^(?:/\*|--|#)`)
	aName   = regexp.MustCompile("^[`\\w$]")
)

// Words of SQL that may stand behind a table's name, but are no alias of it, and those that may
// stand between a verb and a table.
var (
	noAlias = strings.Fields("CROSS FOR FORCE IGNORE INNER LEFT NATURAL ON OUTER PARTITION RIGHT USE USING")
	leading = strings.Fields("DELAYED HIGH_PRIORITY IGNORE INTO LOW_PRIORITY QUICK TABLE")
	clauses = strings.Fields("LIMIT ORDER RETURNING WHERE")
)

// statementOf returns the words of a text, without comments.
func statementOf(text string) statement {
	return slices.DeleteFunc(anyWord.FindAllString(text, -1), comment.MatchString)
}

// first reports whether a statement begins with one of some words.
func (s statement) first(words ...string) bool {
	return len(s) > 0 && slices.Contains(words, strings.ToUpper(s[0]))
}

// has reports whether a word is anywhere in a statement.
func (s statement) has(word string) bool {
	return slices.ContainsFunc(s, func(w string) bool { return strings.EqualFold(w, word) })
}

// cut cuts a statement at the first of some words that is in no parentheses: before it, or all if
// there is none, and from it on.
func (s statement) cut(words ...string) (before, from statement) {
	depth := 0
	for i, word := range s {
		switch {
		case word == "(":
			depth++
		case word == ")":
			depth--
		case depth == 0 && s[i:].first(words...):
			return s[:i], s[i:]
		}
	}
	return s, nil
}

// each calls f for the parts between some words, up to the next clause.
func (s statement) each(f func(part statement), between ...string) {
	s, _ = s.cut(clauses...)
	for len(s) > 0 {
		part, from := s.cut(between...)
		f(part)
		s = from.after()
	}
}

// after returns a statement without its first word.
func (s statement) after() statement { return s[min(1, len(s)):] }

// name returns the name at the beginning of a statement, which may be qualified, and what follows.
func (s statement) name() (name string, rest statement) {
	for len(s) > 0 && aName.MatchString(s[0]) {
		name += strings.Trim(s[0], "`")
		if s = s[1:]; len(s) < 2 || s[0] != "." || !aName.MatchString(s[1]) {
			break
		}
		name, s = name+".", s[1:]
	}
	return name, s
}

// tables maps what a statement calls its tables to their names, and "" to that of the only one.
func (s statement) tables() map[string]string {
	tables := map[string]string{}
	s.each(func(part statement) {
		table, rest := part.name()
		alias := table
		if rest.first("AS") {
			rest = rest[1:]
		}
		if name, _ := rest.name(); name != "" && !rest.first(noAlias...) {
			alias = name
		}
		tables[unqualified(alias)] = table
	}, ",", "JOIN", "STRAIGHT_JOIN")
	if len(tables) == 1 {
		for _, only := range tables {
			tables[""] = only
		}
	}
	return tables
}

func unqualified(name string) string { return strings.ToLower(name[strings.LastIndex(name, ".")+1:]) }

// writtenTables returns the tables of which a text writes rows, as far as it names them.
func writtenTables(text string) (written []string) {
	s := statementOf(text)
	if s.first("WITH") {
		_, s = s.cut("DELETE", "UPDATE")
	}
	if len(s) == 0 {
		return nil
	}
	verb, s := s[:1], s[1:]
	for s.first(leading...) {
		s = s[1:]
	}
	switch {
	case verb.first("INSERT", "REPLACE", "TRUNCATE"):
		table, _ := s.name()
		return []string{table}
	case verb.first("UPDATE"):
		from, set := s.cut("SET")
		tables := from.tables()
		set.after().each(func(part statement) {
			column, _ := part.name()
			add(&written, tables[unqualified(column[:max(0, strings.LastIndex(column, "."))])])
		}, ",")
	case verb.first("DELETE"):
		of, from := s.cut("FROM") // DELETE o FROM orders o
		if len(of) == 0 {
			if of, from = s.after().cut("USING"); from == nil { // DELETE FROM orders
				table, _ := of.name()
				return []string{table}
			}
		}
		tables := from.after().tables()
		of.each(func(part statement) {
			table, _ := part.name()
			add(&written, tables[unqualified(table)])
		}, ",")
	}
	return written
}
