package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// resolved is a parameter of a query as sqlc's gen: json has it.
type resolved struct {
	Column struct {
		Name     string `json:"name"`
		Original string `json:"original_name"`
		Table    struct {
			Name string `json:"name"`
		} `json:"table"`
	} `json:"column"`
}

// readRequest reads what sqlc writes by gen: json, if sqlc.yaml asks for it.
func readRequest(path string) (map[string][]resolved, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("lockgen: %w: run sqlc generate", err)
	}
	var request struct {
		Queries []struct {
			Name   string     `json:"name"`
			Params []resolved `json:"params"`
		} `json:"queries"`
	}
	if err := json.Unmarshal(text, &request); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	known := map[string][]resolved{}
	for _, q := range request.Queries {
		known[q.Name] = q.Params
	}
	return known, nil
}

// ambiguous is the table of a column that may be of several.
const ambiguous = "?"

// resolve finds the tables of columns that the query names without one: by the schema, and
// where several tables have such a column, by what sqlc has found. What stays ambiguous is
// no key: the ? in a subquery may be the key of another row.
func (p *plan) resolve(q *query) {
	if q.does == nil {
		return
	}
	for i := range q.does.bound {
		c := &q.does.bound[i]
		if p.qualify(q, c); c.alias == ambiguous {
			q.bySQLC(c, slices.Index(q.does.marks, q.does.binding[i]), p.known[q.name])
		}
	}
	for i := range q.does.equal {
		p.qualify(q, &q.does.equal[i][0])
		p.qualify(q, &q.does.equal[i][1])
	}
}

// qualify finds the table of a column by the schema.
func (p *plan) qualify(q *query, c *columnRef) {
	if c.alias != "" {
		return
	}
	var aliases []string
	for _, t := range q.does.tables {
		table := p.schema.tables[t.name]
		if table != nil && table.columns[c.name] != nil && !slices.Contains(aliases, t.alias) {
			aliases = append(aliases, t.alias)
		}
	}
	switch len(aliases) {
	case 0:
	case 1:
		c.alias = aliases[0]
	default:
		c.alias = ambiguous
	}
}

// bySQLC finds the table of the column that a ? is, unless the query names it twice.
func (q *query) bySQLC(c *columnRef, at int, params []resolved) {
	if at >= len(q.args) {
		return
	}
	arg := q.args[at][strings.LastIndex(q.args[at], ".")+1:]
	for _, p := range params {
		if normal(p.Column.Name) != normal(arg) || !strings.EqualFold(p.Column.Original, c.name) {
			continue
		}
		var found []tableRef
		for _, t := range q.does.tables {
			if t.name == strings.ToLower(p.Column.Table.Name) && !slices.Contains(found, t) {
				found = append(found, t)
			}
		}
		if len(found) == 1 {
			c.alias = found[0].alias
		}
	}
}
