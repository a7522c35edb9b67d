//go:build !race

package main

import (
	"context"
	"database/sql"
	"go/types"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/tools/go/packages"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// judge returns what lockgen says of a statement.
func (g *grammar) judge(schema *catalog, text string) problems {
	pkg := &goPackage{Package: &packages.Package{Name: "random"}, families: map[string]*family{}, tables: map[string]*family{}}
	for _, t := range g.tables {
		if t.family != nil {
			fam := &family{name: t.name, id: t.family.id, fold: t.family.fold, tables: map[string][]string{t.name: t.keys}, marks: map[string]place{}}
			pkg.families[t.name], pkg.tables[t.name] = fam, fam
		}
	}
	vars := []*types.Var{types.NewParam(0, nil, "ctx", types.Typ[types.Int])}
	for _, p := range g.params {
		kind := p.kind
		if p.many {
			kind = types.NewSlice(kind)
		}
		vars = append(vars, types.NewParam(0, nil, p.name, kind))
	}
	m := &method{sql: text, sig: types.NewSignatureType(nil, nil, nil, types.NewTuple(vars...), nil, false)}
	for _, p := range g.marks {
		m.args = append(m.args, p.name)
	}
	q := &query{source: &source{name: "Random", kind: ":exec", locks: g.items}, method: m}
	p := &plan{pkg: pkg, queries: []*query{q}}
	p.compare(schema)
	p.problems = slices.DeleteFunc(p.problems, func(problem) bool { return true })
	p.understand(q)
	for _, i := range q.locks {
		p.lock(q, i)
	}
	p.enforce(q)
	return p.problems
}

// values draws what is passed, and returns the text with slices as long as what they have.
func (g *grammar) values(text string) (sent string, args []any, of map[string][]any) {
	of = map[string][]any{}
	for _, p := range g.params {
		for range 1 + 2*g.IntN(2)*map[bool]int{true: 1}[p.many] {
			if types.Identical(p.kind, types.Typ[types.String]) {
				of[p.name] = append(of[p.name], g.one("bob", "BOB", "Bob ", "abc", "abcd", "abcde", "abcd ", "2", "é", "bo"))
			} else {
				of[p.name] = append(of[p.name], []int64{1, 2, 3, 4, 5, 9, 127, 200, -1, 1 << 53}[g.IntN(10)])
			}
		}
		text = strings.ReplaceAll(text, "/*SLICE:"+p.name+"*/?", strings.TrimPrefix(strings.Repeat(",?", len(of[p.name])), ","))
	}
	for _, p := range g.marks {
		args = append(args, of[p.name]...)
	}
	return text, args, of
}

// locked returns the keys that the statement locks; none if one of them can't be locked.
func (g *grammar) locked(of map[string][]any) (keys map[string]bool, ok bool) {
	keys = map[string]bool{}
	add := func(key txlock.Key) {
		keys[key.String()] = true
		ok = ok && key.Validate() == nil
	}
	ok = true
	for _, i := range g.items {
		t := g.tables[slices.IndexFunc(g.tables, func(t *lockedTable) bool { return t.name == i.family })]
		if len(i.params) > 1 {
			add(t.key([]any{of[i.params[0]][0], of[i.params[1]][0]}))
			continue
		}
		for _, id := range of[i.params[0]] {
			add(t.key([]any{id}))
		}
	}
	return keys, ok
}

// record is a row of a locked table.
type record struct{ key, all string }

// records reads all rows of all locked tables.
func records(t *testing.T, tx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, tables []*lockedTable,
) map[record]bool {
	t.Helper()
	var selects []string
	for _, table := range tables {
		if table.key == nil {
			continue
		}
		first, second, text := "0", "0", "''"
		switch {
		case len(table.keys) == 2:
			first, second = table.keys[0], table.keys[1]
		case table.keys[0] == "name":
			text = "CAST(name AS BINARY)"
		default:
			first = table.keys[0]
		}
		all := append(slices.Clone(table.keys), table.columns...)
		for i := range all {
			all[i] = "IFNULL(HEX(" + all[i] + "), '-')"
		}
		selects = append(selects, "SELECT '"+table.name+"', "+first+", "+second+", "+text+", CONCAT_WS(' ', "+strings.Join(all, ", ")+") FROM "+table.name)
	}
	rows, err := tx.QueryContext(t.Context(), strings.Join(selects, " UNION ALL "))
	must(t, err)
	found := map[record]bool{}
	for rows.Next() {
		var name, text, all string
		var first, second int64
		must(t, rows.Scan(&name, &first, &second, &text, &all))
		table := tables[slices.IndexFunc(tables, func(t *lockedTable) bool { return t.name == name })]
		id := []any{first, second}
		if table.keys[0] == "name" {
			id = []any{text}
		}
		found[record{table.key(id).String(), all}] = true
	}
	must(t, rows.Err())
	return found
}

// TestAcceptedWritesAreLocked draws statements and the locks of annotations. Each that lockgen
// accepts is executed, and changes no row but those whose keys are locked, or which it makes.
func TestAcceptedWritesAreLocked(t *testing.T) {
	onServers(t, acceptedWrites)
}

func acceptedWrites(t *testing.T, engine testdb.Engine) {
	t.Helper()
	schema, err := random()
	must(t, err)
	text := randomSchema
	if engine == testdb.MariaDB { // whose name for it the parser doesn't know
		text = strings.ReplaceAll(text, "utf8mb4_0900_bin", "utf8mb4_nopad_bin")
	}
	database := testdb.Fresh(t, engine)
	db, err := sql.Open("mysql", database.AdminDSN(func(cfg *mysql.Config) { cfg.MultiStatements, cfg.InterpolateParams = true, true }))
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), text+randomRows)
	must(t, err)
	seed := testdb.Seed()
	t.Logf("LOCKSTEP_SEED=%d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	tables := randomTables()
	before := records(t, db, tables)
	accepted, changed, kinds := 0, 0, map[string]int{}
	for n := range testdb.Long(2000, 100000) {
		g := &grammar{Rand: draw, tables: tables}
		statement := g.statement()
		if len(g.judge(schema, statement)) > 0 {
			continue
		}
		accepted++
		sent, args, of := g.values(statement)
		keys, ok := g.locked(of)
		if !ok {
			continue
		}
		wrong, some := g.execute(t, db, before, sent, args, keys)
		if !some {
			continue
		}
		changed++
		kinds[strings.Fields(sent)[0]]++
		if len(wrong) > 0 {
			t.Errorf("LOCKSTEP_SEED=%d, statement %d: %q of %v has changed %v under the locks %v", seed, n, sent, args, wrong, slices.Sorted(maps.Keys(keys)))
		}
	}
	t.Logf("%d accepted, %d times rows were changed: %v", accepted, changed, kinds)
	if len(kinds) < 4 || changed < 100 {
		t.Error("too few statements were accepted to show anything")
	}
}

// execute sends a statement, and returns the keys of rows that it has changed without their
// locks, and whether it has changed any. It leaves nothing.
func (g *grammar) execute(t *testing.T, db *sql.DB, before map[record]bool, sent string, args []any, keys map[string]bool) (wrong []string, some bool) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer func() { must(t, tx.Rollback()) }()
	result, err := tx.ExecContext(t.Context(), sent, args...)
	if err != nil {
		return nil, false
	}
	count, err := result.RowsAffected()
	must(t, err)
	if count == 0 {
		return nil, false
	}
	id, err := result.LastInsertId()
	must(t, err)
	made := g.made(sent, id, count)
	after := records(t, tx, g.tables)
	existed := map[string]bool{}
	for r := range before {
		existed[r.key] = true
		if !after[r] && !keys[r.key] {
			wrong = append(wrong, r.key)
		}
	}
	for r := range after {
		if !before[r] && !keys[r.key] && (existed[r.key] || !made[r.key]) {
			wrong = append(wrong, r.key)
		}
	}
	return wrong, true
}

// made returns the keys that the server has made for an INSERT.
func (g *grammar) made(sent string, first, count int64) map[string]bool {
	keys := map[string]bool{}
	for _, table := range g.tables {
		if first > 0 && slices.Contains([]string{"accounts", "tiny"}, table.name) && strings.Contains(sent, "INTO "+table.name+" ") {
			for n := range count {
				keys[table.key([]any{first + n}).String()] = true
			}
		}
	}
	return keys
}
