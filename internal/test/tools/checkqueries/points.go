package checkqueries

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The two lines of which every query has one in its comment.
const (
	inCallers = "-- It runs in callers' transactions."
	inOwn     = "-- It never runs in a caller's transaction."
)

// Query is a query of a file, with the place that its comment tells.
type Query struct {
	Text      string
	InCallers bool // it may run in a caller's transaction
}

// Places reads the queries of files and directories by their names. A query whose comment
// doesn't say where it runs is an error.
func Places(paths ...string) (map[string]Query, error) {
	files, err := sqlFiles(paths)
	if err != nil {
		return nil, err
	}
	queries := make(map[string]Query)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, part := range strings.Split("\n"+string(text), "\n-- name: ")[1:] {
			name, _, _ := strings.Cut(part, " ")
			in, own := strings.Count(part, "\n"+inCallers+"\n"), strings.Count(part, "\n"+inOwn+"\n")
			if in+own != 1 {
				return nil, fmt.Errorf("%s: the comment of %s must have one of the lines %q and %q", file, name, inCallers, inOwn)
			}
			queries[name] = Query{"-- name: " + part, in > 0}
		}
	}
	return queries, nil
}

// Keys are the columns of the primary keys, by the names of the tables.
type Keys map[string][]string

var (
	createTable = regexp.MustCompile(`(?s)CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n\) ENGINE`)
	primaryKey  = regexp.MustCompile(`PRIMARY KEY \((.*?)\)`)
	otherKey    = regexp.MustCompile(`\b(UNIQUE|INDEX|FOREIGN|KEY)\b`)
)

// PrimaryKeys reads the primary keys of the tables in a directory of *.sql files. Another index
// is an error: its locks would be more than the row's.
func PrimaryKeys(dir string) (Keys, error) {
	files, err := sqlFiles([]string{dir})
	if err != nil {
		return nil, err
	}
	keys := make(Keys)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, table := range createTable.FindAllStringSubmatch(string(text), -1) {
			key := primaryKey.FindStringSubmatch(table[2])
			if key == nil || otherKey.MatchString(primaryKey.ReplaceAllString(table[2], "")) {
				return nil, fmt.Errorf("%s: the table %s must have a primary key, and no other index", file, table[1])
			}
			keys[table[1]] = strings.Split(key[1], ", ")
		}
	}
	return keys, nil
}

// Point returns nil if a statement touches only single rows, each by its whole primary key: it
// locks no range then, at any isolation level, if the rows exist. What it doesn't know is an
// error.
func (k Keys) Point(statement string) error {
	tokens, err := tokenize(statement)
	if err != nil {
		return err
	}
	if n := len(tokens); n > 0 && tokens[n-1].is(";") {
		tokens = tokens[:n-1]
	}
	return k.statement(tokens)
}

func (k Keys) statement(tokens []lexeme) error {
	switch {
	case begins(tokens, "SELECT"):
		return k.union(tokens, nil)
	case begins(tokens, "INSERT"):
		return k.insert(tokens[1:])
	case begins(tokens, "UPDATE") && len(tokens) > 2 && tokens[2].is("SET"):
		return k.write(tokens[1].text, tokens[3:])
	case begins(tokens, "DELETE", "FROM") && len(tokens) > 3 && tokens[3].is("WHERE"):
		return k.write(tokens[2].text, tokens[3:])
	}
	return fmt.Errorf("unknown statement: %s", show(tokens))
}

// Script returns nil if every statement of the procedures in a file is a point.
func (k Keys) Script(text string) error {
	tokens, err := tokenize(text)
	if err != nil {
		return err
	}
	var wrong []error
	for len(tokens) > 0 {
		one, rest, _ := cut(tokens, ";")
		tokens = rest
		if err := k.scripted(one); err != nil {
			wrong = append(wrong, fmt.Errorf("%w: %.200s", err, show(one)))
		}
	}
	return errors.Join(wrong...)
}

// scripted checks a statement of a procedure, with the words that stand before it.
func (k Keys) scripted(tokens []lexeme) error {
	switch {
	case begins(tokens, "CREATE", "PROCEDURE"), begins(tokens, "try", ":"):
		_, tokens, _ = cut(tokens, "BEGIN")
		return k.scripted(tokens)
	case begins(tokens, "BEGIN"), begins(tokens, "ELSE"), begins(tokens, "REPEAT"):
		return k.scripted(tokens[1:])
	case begins(tokens, "IF"), begins(tokens, "ELSEIF"):
		condition, then, _ := cut(tokens, "THEN")
		return errors.Join(k.inside(condition, nil), k.scripted(then))
	case begins(tokens, "DROP", "PROCEDURE"):
		return nil
	case begins(tokens, "DECLARE"):
		_, handler, found := cut(tokens, "SELECT")
		if found {
			return k.union(append([]lexeme{{text: "SELECT"}}, handler...), nil)
		}
	}
	for _, word := range []string{"CALL", "SET", "DECLARE", "START", "COMMIT", "ROLLBACK", "LEAVE", "END", "UNTIL"} {
		if begins(tokens, word) && unknownIn(tokens) == "" {
			return k.inside(tokens, nil)
		}
	}
	return k.statement(tokens)
}

// write checks what follows the name of the table of an UPDATE or a DELETE.
func (k Keys) write(table string, rest []lexeme) error {
	before, where, _ := cut(rest, "WHERE")
	if word := unknownIn(rest); word != "" {
		return fmt.Errorf("%s in an UPDATE or a DELETE", word)
	}
	one := []reference{{table: table, alias: table}}
	return errors.Join(k.bound(one, where), k.inside(before, one), k.inside(where, one))
}

// insert checks what follows the word INSERT.
func (k Keys) insert(tokens []lexeme) error {
	if begins(tokens, "IGNORE") {
		tokens = tokens[1:]
	}
	if len(tokens) < 4 || !begins(tokens, "INTO") || k[tokens[1].text] == nil || tokens[2].group == nil {
		return fmt.Errorf("unknown INSERT: %s", show(tokens))
	}
	source, update, _ := cut(tokens[3:], "ON", "DUPLICATE", "KEY", "UPDATE")
	source, returning, _ := cut(source, "RETURNING")
	for _, part := range [][]lexeme{update, returning} {
		if word := unknownIn(part); word != "" {
			return fmt.Errorf("%s behind an INSERT", word)
		}
	}
	if err := k.inside(slices.Concat(update, returning), nil); err != nil {
		return err
	}
	if begins(source, "SELECT") {
		return k.union(source, nil)
	}
	if !begins(source, "VALUES") {
		return fmt.Errorf("unknown INSERT: %s", show(source))
	}
	for _, t := range source[1:] {
		if t.group == nil && !t.is(",") {
			return fmt.Errorf("%s in VALUES", t.text)
		}
	}
	return k.inside(source, nil)
}

// union checks SELECTs with UNION ALL between them. The outer references are those of the
// statement around it.
func (k Keys) union(tokens []lexeme, outer []reference) error {
	for {
		one, rest, more := cut(tokens, "UNION", "ALL")
		if err := k.selection(one, outer); err != nil || !more {
			return err
		}
		tokens = rest
	}
}

// selection checks a SELECT.
func (k Keys) selection(tokens []lexeme, outer []reference) error {
	if !begins(tokens, "SELECT") {
		return fmt.Errorf("unknown SELECT: %s", show(tokens))
	}
	list, from, _ := cut(tokens[1:], "FROM")
	if word := unknownIn(list); word != "" {
		return fmt.Errorf("%s in a SELECT", word)
	}
	from, locks := cutLocks(from)
	from, limit, _ := cut(from, "LIMIT")
	from, having, _ := cut(from, "HAVING")
	from, where, _ := cut(from, "WHERE")
	for _, t := range locks {
		if !slices.ContainsFunc([]string{"OF", "cur", "SKIP", "LOCKED", "NOWAIT"}, t.is) {
			return fmt.Errorf("%s behind a locking SELECT", t.text)
		}
	}
	for _, part := range [][]lexeme{limit, having, where} {
		if word := unknownIn(part); word != "" {
			return fmt.Errorf("%s in a SELECT", word)
		}
	}
	all, err := k.references(from, where, outer)
	if err != nil {
		return err
	}
	return k.inside(slices.Concat(list, where, having, limit), all)
}

// cutLocks cuts the words for a locking read off.
func cutLocks(tokens []lexeme) (rest, locks []lexeme) {
	for _, words := range [][]string{{"FOR", "UPDATE"}, {"FOR", "SHARE"}, {"LOCK", "IN", "SHARE", "MODE"}} {
		if before, after, ok := cut(tokens, words...); ok {
			return before, after
		}
	}
	return tokens, nil
}

// reference is a table of a FROM, or what stands for one, without the name of a table.
type reference struct{ table, alias string }

// references reads a FROM: one table, or a list of constants that each other table is joined
// with, by its primary key and in this order.
func (k Keys) references(from, where []lexeme, outer []reference) ([]reference, error) {
	all := slices.Clone(outer)
	for first := true; len(from) > 0; first = false {
		one, rest, _ := cut(from, "STRAIGHT_JOIN")
		from = rest
		one, on, joined := cut(one, "ON")
		one, index, forced := cut(one, "FORCE", "INDEX")
		if forced && (len(index) != 1 || show(index[0].group) != "PRIMARY") {
			return nil, fmt.Errorf("unknown table: %s", show(from))
		}
		r, err := k.reference(one)
		if err == nil && !first && (!joined || !forced) {
			err = fmt.Errorf("%s must be joined by STRAIGHT_JOIN, FORCE INDEX (PRIMARY) and ON", r.alias)
		}
		if err := errors.Join(err, k.inside(on, all)); err != nil {
			return nil, err
		}
		if all = append(all, r); r.table == "" {
			continue
		}
		conditions := where
		if joined {
			conditions = on
		}
		if err := k.bound(all, conditions); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (k Keys) reference(tokens []lexeme) (reference, error) {
	switch n := len(tokens); {
	case n == 1 && tokens[0].is("DUAL"):
		return reference{}, nil
	case n == 2 && begins(tokens[0].group, "SELECT"):
		return reference{alias: tokens[1].text}, k.union(tokens[0].group, nil)
	case n == 3 && tokens[0].is("JSON_TABLE") && tokens[1].group != nil:
		return reference{alias: tokens[2].text}, nil
	case (n == 1 || n == 2) && k[tokens[0].text] != nil:
		return reference{tokens[0].text, tokens[n-1].text}, nil
	}
	return reference{}, fmt.Errorf("unknown table: %s", show(tokens))
}
