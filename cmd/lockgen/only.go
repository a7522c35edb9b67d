package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// only are the tables and queries of -only. An empty one asks for the locks of all.
type only []string

// parseOnly reads the flag.
func parseOnly(flag string) (names only, err error) {
	for name := range strings.SplitSeq(flag, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		} else if flag != "" {
			return nil, fmt.Errorf("lockgen: -only %q has an empty name", flag)
		}
	}
	return names, nil
}

// has reports whether a query must say its locks: it is named, it uses a table that is, or its
// text has the name of one, where what it does can't be told.
func (o only) has(q *query) bool {
	return len(o) == 0 || slices.ContainsFunc(o, func(name string) bool {
		return name == q.name || regexp.MustCompile(`(?i)(^|\W)`+regexp.QuoteMeta(name)+`($|\W)`).MatchString(q.sql) ||
			q.does != nil && slices.ContainsFunc(q.does.uses, func(u *use) bool { return u.table == strings.ToLower(name) })
	})
}

// unknown returns an error for names that are neither those of tables with a family nor of
// queries.
func (o only) unknown(p *plan) error {
	for _, name := range o {
		query := slices.ContainsFunc(p.queries, func(q *query) bool { return q.name == name })
		if p.pkg.tables[strings.ToLower(name)] == nil && !query {
			return fmt.Errorf("lockgen: -only %s: no query has that name, and no family is marked by //lockstep:table %s(...)", name, name)
		}
	}
	return nil
}

// asks does a step for a query, and keeps its problems apart from those of the package.
func (p *plan) asks(q *query, step func()) {
	all := p.problems
	p.problems = nil
	step()
	q.problems = append(q.problems, p.problems...)
	p.problems = all
}

// leave takes the queries out that don't say their locks and that -only doesn't ask for.
// What is asked of them is left for later, and so are the tables that no family locks; all
// other problems are those of the package.
func (p *plan) leave(o only) (part bool, later problems) {
	if len(o) > 0 {
		later = p.unlocked()
	}
	p.queries = slices.DeleteFunc(p.queries, func(q *query) bool {
		if o.has(q) {
			p.problems = append(p.problems, q.problems...)
			return false
		}
		later = append(later, q.problems...)
		part = part || len(q.problems) > 0
		return len(q.problems) > 0
	})
	return part, later.sorted()
}

// unlocked returns the tables that a query changes and no family locks.
func (p *plan) unlocked() (found problems) {
	for _, table := range slices.Sorted(maps.Keys(p.schema.tables)) {
		for _, q := range p.queries {
			if p.pkg.tables[table] == nil && q.does != nil && q.does.changes(table) {
				found.add(q.place, "%s changes %s, which no family locks: mark one by //lockstep:table %s(...)", q.name, table, table)
				break
			}
		}
	}
	return found
}
