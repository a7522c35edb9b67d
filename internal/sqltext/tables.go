package sqltext

import (
	"slices"
	"strings"
)

// token is a name, in lower case and without its quotes, or one byte of something else.
type token struct {
	text   string
	name   bool
	quoted bool
}

func (t token) is(mark string) bool { return !t.name && t.text == mark }

func tokens(text string) (all []token) {
	for i := 0; i < len(text); {
		n := 1
		switch {
		case isIdentifier(text[i]):
			n = unquoted(text[i:])
			all = append(all, token{text: strings.ToLower(text[i : i+n]), name: true})
		case text[i] == '`' || text[i] == '"':
			var name string
			name, n = quoted(text[i:])
			all = append(all, token{text: strings.ToLower(name), name: true, quoted: true})
		case skip(text[i:]) > 0:
			n = skip(text[i:])
			if text[i] == '\'' {
				all = append(all, token{text: "'"})
			}
		case text[i] > ' ':
			all = append(all, token{text: text[i : i+1]})
		}
		i += n
	}
	return all
}

// afterTable holds reserved words of both servers that may follow a table and its alias.
var afterTable = []string{
	"join", "inner", "cross", "left", "right", "natural", "straight_join", "on", "using", "use", "force", "ignore",
	"where", "group", "having", "order", "limit", "union", "set",
}

// Aliases returns the names, in lower case, by which the rest of a statement may refer to
// one of the tables: their own names and their aliases in these table references. It
// returns false if that is not certain.
func Aliases(references string, tables map[string]bool) (aliases map[string]bool, ok bool) {
	all := tokens(references)
	at := func(i int) token {
		if i < len(all) {
			return all[i]
		}
		return token{}
	}
	ends := func(t token) bool { return !t.name || !t.quoted && slices.Contains(afterTable, t.text) }
	aliases = make(map[string]bool)
	for i, t := range all {
		switch {
		case t.is(")"): // of a derived table, for example
		case t.name && tables[t.text] && !at(i+1).is("."):
			aliases[t.text] = true
		default:
			continue
		}
		next := i + 1
		if a := at(next); a.name && !a.quoted && a.text == "as" {
			next++
		}
		alias := at(next)
		if t.name && (alias.is("(") || !ends(alias) && !ends(at(next+1))) {
			return nil, false
		}
		if !ends(alias) {
			aliases[alias.text] = true
		}
	}
	return aliases, true
}

// AssignedTables returns the tables, in lower case, whose columns an UPDATE sets. It
// takes what follows SET, and returns false if an assignment doesn't name its table.
func AssignedTables(assignments string) (tables []string, ok bool) {
	all := tokens(Until(assignments, "WHERE", "ORDER", "LIMIT"))
	for len(all) > 0 {
		path, n := pathOf(all)
		if len(path) < 2 || n == len(all) || !all[n].is("=") && !all[n].is(":") {
			return nil, false
		}
		tables = append(tables, path[len(path)-2])
		all = all[n:]
	value:
		for depth := 0; len(all) > 0; {
			t := all[0]
			all = all[1:]
			switch {
			case t.is("("):
				depth++
			case t.is(")"):
				depth--
			case t.is(",") && depth == 0:
				break value
			}
		}
	}
	return tables, len(tables) > 0
}

// ListedTables returns the tables, in lower case, of the list of a DELETE, such as QUICK
// a, shop.b.*. It returns false for anything else.
func ListedTables(list string) (tables []string, ok bool) {
	all := tokens(list)
	for len(all) > 0 && !all[0].quoted && slices.Contains([]string{"low_priority", "quick", "ignore"}, all[0].text) {
		all = all[1:]
	}
	for len(all) > 0 {
		path, n := pathOf(all)
		if len(path) == 0 {
			return nil, false
		}
		tables = append(tables, path[len(path)-1])
		if all = all[n:]; len(all) > 1 && all[0].is(".") && all[1].is("*") {
			all = all[2:]
		}
		if len(all) == 0 {
			break
		}
		if !all[0].is(",") || len(all) == 1 {
			return nil, false
		}
		all = all[1:]
	}
	return tables, len(tables) > 0
}

// pathOf returns the names, joined by dots, that the tokens begin with, and the number of
// these tokens.
func pathOf(all []token) (path []string, n int) {
	for n < len(all) && all[n].name {
		path = append(path, all[n].text)
		if n++; n+1 >= len(all) || !all[n].is(".") || !all[n+1].name {
			break
		}
		n++
	}
	return path, n
}
