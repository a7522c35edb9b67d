package checkqueries

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// bound returns nil if the conditions give every column of the primary key of the last table
// a value that doesn't depend on its row.
func (k Keys) bound(all []reference, conditions []lexeme) error {
	r, earlier := all[len(all)-1], all[:len(all)-1]
	columns := k[r.table]
	if columns == nil {
		return fmt.Errorf("unknown table %s", r.table)
	}
	parts, err := conjuncts(conditions)
	if err != nil {
		return err
	}
	for _, column := range columns {
		if !slices.ContainsFunc(parts, func(part []lexeme) bool {
			left, right, ok := cut(part, "=")
			text := show(left)
			return ok && (text == column || text == r.alias+" . "+column) && isValue(right, earlier)
		}) {
			return fmt.Errorf("%s: no condition %s = a value, joined by AND: it is a range", r.table, column)
		}
	}
	return nil
}

// conjuncts returns the conditions between which there is AND.
func conjuncts(tokens []lexeme) (parts [][]lexeme, err error) {
	from, between := 0, false
	for i, t := range tokens {
		switch {
		case slices.ContainsFunc([]string{"OR", "XOR", "CASE", "|", "&"}, t.is):
			return nil, fmt.Errorf("%s among the conditions", t.text)
		case t.is("BETWEEN"):
			between = true
		case t.is("AND") && between:
			between = false
		case t.is("AND"):
			parts = append(parts, tokens[from:i])
			from = i + 1
		}
	}
	return append(parts, tokens[from:]), nil
}

var variable = regexp.MustCompile(`^([pv]_\w+|\d+|\?|'.*'|[xX]'.*')$`)

// isValue tells whether an expression is an argument, a constant, a variable of a procedure or
// a column of a reference that is read before.
func isValue(tokens []lexeme, earlier []reference) bool {
	switch len(tokens) {
	case 1:
		return variable.MatchString(tokens[0].text)
	case 2: // a sign, or a function of a value
		if tokens[0].is("-") {
			return isValue(tokens[1:], nil)
		}
		if tokens[0].is("CAST") {
			value, as, ok := cut(tokens[1].group, "AS")
			return ok && len(as) == 1 && isValue(value, earlier)
		}
		return tokens[0].is("UNHEX") && isValue(tokens[1].group, earlier)
	case 3:
		return tokens[1].is(".") && slices.ContainsFunc(earlier, func(r reference) bool { return tokens[0].is(r.alias) })
	case 4:
		return show(tokens[:3]) == "sqlc . arg" && len(tokens[3].group) == 1
	}
	return false
}

// inside checks the SELECTs in the groups of tokens.
func (k Keys) inside(tokens []lexeme, outer []reference) error {
	for _, t := range tokens {
		if t.group == nil {
			continue
		}
		if begins(t.group, "SELECT") {
			if err := k.union(t.group, outer); err != nil {
				return err
			}
			continue
		}
		if word := unknownIn(t.group); word != "" {
			return fmt.Errorf("%s in an expression", word)
		}
		if err := k.inside(t.group, outer); err != nil {
			return err
		}
	}
	return nil
}

// unknownIn returns a word that must not be at this place, or "".
func unknownIn(tokens []lexeme) string {
	for _, t := range tokens {
		for _, word := range []string{"SELECT", "UNION", "EXCEPT", "INTERSECT", "JOIN", "LEFT", "RIGHT", "ORDER", "GROUP", "WINDOW", "PROCEDURE", "USING", "WITH", ";"} {
			if t.is(word) && (!t.called || word != "LEFT" && word != "RIGHT") {
				return word
			}
		}
	}
	return ""
}

// lexeme is a word, a number, a string, a sign, or what stands in parentheses. A word is called
// if parentheses follow.
type lexeme struct {
	text   string
	group  []lexeme
	called bool
}

func (t lexeme) is(word string) bool { return t.group == nil && strings.EqualFold(t.text, word) }

var nextToken = regexp.MustCompile(`^(\s+|--[ \n].*\n?|--$|/\*[^+!](?s:.*?)\*/|[xX]'[0-9A-Fa-f]*'|'(?:[^'\\]|'')*'|\w+|[-+*/%=<>!,.;?@|&:]|[()])`)

// tokenize splits a statement. What it doesn't know, a hint for example, is an error.
func tokenize(text string) ([]lexeme, error) {
	open := [][]lexeme{{}}
	for text != "" {
		found := nextToken.FindString(text)
		text = text[len(found):]
		last := len(open) - 1
		switch {
		case found == "", found == "/" && strings.HasPrefix(text, "*"):
			return nil, fmt.Errorf("unknown text: %.40s", text)
		case strings.TrimSpace(found) == "" || strings.HasPrefix(found, "--") || strings.HasPrefix(found, "/*"):
		case found == "(":
			if n := len(open[last]); n > 0 {
				open[last][n-1].called = true
			}
			open = append(open, []lexeme{})
		case found == ")" && last > 0:
			group := lexeme{text: "(...)", group: open[last]}
			open = open[:last]
			open[last-1] = append(open[last-1], group)
		case found == ")":
			return nil, fmt.Errorf("a parenthesis too many before: %.40s", text)
		default:
			open[last] = append(open[last], lexeme{text: found})
		}
	}
	if len(open) > 1 {
		return nil, fmt.Errorf("a parenthesis is not closed")
	}
	return open[0], nil
}

// begins tells whether tokens begin with words.
func begins(tokens []lexeme, words ...string) bool {
	if len(tokens) < len(words) {
		return false
	}
	for i, word := range words {
		if !tokens[i].is(word) {
			return false
		}
	}
	return true
}

// cut returns the tokens before and after the first of the words.
func cut(tokens []lexeme, words ...string) (before, after []lexeme, found bool) {
	for i := range tokens {
		if begins(tokens[i:], words...) {
			return tokens[:i], tokens[i+len(words):], true
		}
	}
	return tokens, nil, false
}

// show returns the text of tokens.
func show(tokens []lexeme) string {
	words := make([]string, len(tokens))
	for i, t := range tokens {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}
