//go:build !race

package main

import (
	"context"
	"database/sql"
	"fmt"
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

// param is a parameter of a random statement, as sqlc would pass it.
type param struct {
	name string
	kind types.Type // int64 or string, or a slice
	many bool
}

// lockedTable is a table of the random statements, and how a row of it is locked.
type lockedTable struct {
	name    string
	keys    []string // the columns of the family's key, none for a table without a family
	columns []string // others, of which n counts changes
	family  *family
	key     func(id []any) txlock.Key // of the values of keys
}

type lineID struct {
	Account int64
	Line    int32
}

func (l lineID) String() string { return fmt.Sprintf("%d-%d", l.Account, l.Line) }

// The tables of the random statements. What differs between them is what makes one row have
// several keys, or one write meet several rows.
const randomSchema = `
CREATE TABLE accounts (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, code INT NOT NULL UNIQUE, owner VARCHAR(9), n INT NOT NULL DEFAULT 0);
CREATE TABLE plain (id BIGINT NOT NULL PRIMARY KEY, owner VARCHAR(9), n INT NOT NULL DEFAULT 0);
CREATE TABLE given (id BIGINT NOT NULL DEFAULT 3 PRIMARY KEY, owner VARCHAR(9), n INT NOT NULL DEFAULT 0);
CREATE TABLE tiny (id TINYINT NOT NULL AUTO_INCREMENT PRIMARY KEY, code INT NOT NULL UNIQUE, n INT NOT NULL DEFAULT 0);
CREATE TABLE users (name CHAR(4) COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, code INT UNIQUE, n INT NOT NULL DEFAULT 0);
CREATE TABLE exact (name VARCHAR(4) COLLATE utf8mb4_0900_bin NOT NULL PRIMARY KEY, n INT NOT NULL DEFAULT 0);
CREATE TABLE bytes (name VARBINARY(4) NOT NULL PRIMARY KEY, n INT NOT NULL DEFAULT 0);
CREATE TABLE prefixed (name VARBINARY(4) NOT NULL, n INT NOT NULL DEFAULT 0, UNIQUE KEY (name(2)));
CREATE TABLE enums (name ENUM ('bob', 'abc') COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, n INT NOT NULL DEFAULT 0);
CREATE TABLE doubled (id BIGINT NOT NULL PRIMARY KEY, half BIGINT AS (id DIV 2) STORED UNIQUE, n INT NOT NULL DEFAULT 0);
CREATE TABLE parents (id BIGINT NOT NULL PRIMARY KEY, code INT, n INT NOT NULL DEFAULT 0);
CREATE TABLE children (account BIGINT NOT NULL, line INT NOT NULL, code INT, n INT NOT NULL DEFAULT 0, PRIMARY KEY (account, line),
	FOREIGN KEY (account) REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE pairs (account BIGINT NOT NULL, line INT NOT NULL, code INT, n INT NOT NULL DEFAULT 0, PRIMARY KEY (account, line));
CREATE TABLE free (id BIGINT NOT NULL PRIMARY KEY, code INT, owner VARCHAR(9), n INT NOT NULL DEFAULT 0);
CREATE VIEW rich AS SELECT id, code, n FROM accounts WHERE id > 0;`

const randomRows = `
INSERT INTO accounts (id, code, owner) VALUES (1, 1, 'bob'), (2, 3, 'BOB'), (3, 2, 'abc'), (4, 4, NULL);
INSERT INTO plain (id, owner) VALUES (1, 'bob'), (2, 'BOB'), (3, 'abc'), (4, NULL);
INSERT INTO given (id, owner) VALUES (1, 'bob'), (2, 'BOB'), (4, 'abc');
INSERT INTO tiny (id, code) VALUES (1, 2), (2, 1), (127, 3);
INSERT INTO users (name, code) VALUES ('bob', 1), ('Abc', 2), ('2', NULL);
INSERT INTO exact (name) VALUES ('bob'), ('BOB'), ('abcd'), ('2');
INSERT INTO bytes (name) VALUES ('bob'), ('BOB'), ('abcd'), ('2');
INSERT INTO prefixed (name) VALUES ('bob'), ('BOB'), ('abcd'), ('2');
INSERT INTO enums (name) VALUES ('bob');
INSERT INTO doubled (id) VALUES (1), (2), (5);
INSERT INTO parents (id, code) VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO children (account, line, code) VALUES (1, 1, 1), (1, 2, 2), (2, 1, 3);
INSERT INTO pairs (account, line, code) VALUES (1, 1, 1), (1, 2, 2), (2, 1, 3);
INSERT INTO free (id, code, owner) VALUES (1, 1, 'bob'), (2, 3, 'BOB'), (3, 2, 'abc');`

// randomTables returns the tables with their families.
func randomTables() []*lockedTable {
	number, text := types.Typ[types.Int64], types.Typ[types.String]
	line := types.NewStruct([]*types.Var{types.NewField(0, nil, "Account", number, false), types.NewField(0, nil, "Line", number, false)}, nil)
	numbers := func(name string, columns ...string) *lockedTable {
		f := txlock.NewFamily[int64](name)
		return &lockedTable{name: name, keys: []string{"id"}, columns: columns, family: &family{id: number}, key: func(id []any) txlock.Key { return f.Key(id[0].(int64)) }}
	}
	texts := func(name, fold string, columns ...string) *lockedTable {
		f := txlock.NewFamily[string](name, txlock.Exact())
		if fold != "" {
			f = txlock.NewFamily[string](name, txlock.Fold(fold))
		}
		return &lockedTable{name: name, keys: []string{"name"}, columns: columns, family: &family{id: text, fold: fold, exact: fold == ""}, key: func(id []any) txlock.Key { return f.Key(id[0].(string)) }}
	}
	twos := func(name string) *lockedTable {
		f := txlock.NewStringerFamily[lineID](name)
		return &lockedTable{name: name, keys: []string{"account", "line"}, columns: []string{"code", "n"}, family: &family{id: line}, key: func(id []any) txlock.Key {
			return f.Key(lineID{id[0].(int64), int32(id[1].(int64))})
		}}
	}
	return []*lockedTable{
		numbers("accounts", "code", "owner", "n"), numbers("plain", "owner", "n"), numbers("given", "owner", "n"), numbers("tiny", "code", "n"),
		numbers("doubled", "n"), numbers("parents", "code", "n"), texts("users", "utf8mb4_general_ci", "code", "n"), texts("exact", "", "n"),
		texts("bytes", "", "n"), texts("prefixed", "", "n"), texts("enums", "utf8mb4_general_ci", "n"), twos("pairs"), twos("children"),
		{name: "free", columns: []string{"id", "code", "owner", "n"}}, {name: "rich", columns: []string{"id", "code", "n"}},
	}
}

// grammar draws a statement.
type grammar struct {
	*rand.Rand
	tables []*lockedTable
	params []*param
	items  []item
	marks  []*param // one for each ?
}

func (g *grammar) one(of ...string) string { return of[g.IntN(len(of))] }
func (g *grammar) often(percent int) bool  { return g.IntN(100) < percent }

func isText(column string) bool { return column == "name" || column == "owner" }

// mark writes a ?, of a new parameter or one that is there.
func (g *grammar) mark(text, many bool) string {
	kind := types.Type(types.Typ[types.Int64])
	if text {
		kind = types.Typ[types.String]
	}
	var p *param
	for _, old := range g.params {
		if old.many == many && types.Identical(old.kind, kind) && g.often(20) {
			p = old
		}
	}
	if p == nil {
		p = &param{name: fmt.Sprintf("p%d", len(g.params)), kind: kind, many: many}
		g.params = append(g.params, p)
	}
	g.marks = append(g.marks, p)
	if many {
		return "/*SLICE:" + p.name + "*/?"
	}
	return "?"
}

// key writes that a row of a table has a key, and mostly notes its lock.
func (g *grammar) key(t *lockedTable, alias string) string {
	if len(t.keys) == 0 {
		return "1"
	}
	var all, names []string
	many := len(t.keys) == 1 && g.often(15)
	for _, k := range t.keys {
		column := alias + k
		switch {
		case many:
			all = append(all, column+" IN ("+g.mark(isText(k), true)+")")
		case g.often(15) && isText(k):
			all = append(all, g.one("CAST("+column+" AS CHAR(3))", column+" COLLATE utf8mb4_bin", "CONCAT("+column+", '')")+" = "+g.mark(true, false))
		case g.often(10):
			all = append(all, g.one("-", "0 + ", "NOT ")+column+g.one(" = ", " <=> ", " >= ")+g.mark(isText(k), false))
		case len(t.keys) == 1 && g.often(15):
			all = append(all, column+g.one(" IN (", " NOT IN (")+g.mark(isText(k), false)+", "+g.one("1", "NULL", "'bob'")+")")
		default:
			all = append(all, g.one(column+" = %s", "%s = "+column, column+" <=> %s", "("+column+" = (%s))"))
			all[len(all)-1] = fmt.Sprintf(all[len(all)-1], g.mark(isText(k), false))
		}
		names = append(names, g.marks[len(g.marks)-1].name)
	}
	g.lock(t, names)
	return strings.Join(all, " AND ")
}

// lock notes the lock of a key, or rarely not.
func (g *grammar) lock(t *lockedTable, names []string) {
	if len(t.keys) > 0 && g.often(92) {
		g.items = append(g.items, item{family: t.name, params: names})
	}
}

// condition writes one that mostly says the key of a table.
func (g *grammar) condition(t *lockedTable, alias string, depth int) string {
	n := g.IntN(10)
	switch {
	case depth == 0 || n < 4:
		return g.key(t, alias)
	case n < 6:
		return g.condition(t, alias, depth-1) + " AND " + g.condition(t, alias, depth-1)
	case n < 7:
		return g.one("", "NOT ") + "(" + g.condition(t, alias, depth-1) + g.one(" OR ", " OR ", " XOR ", " || ") + g.condition(t, alias, depth-1) + ")"
	case n < 8:
		other := g.tables[g.IntN(len(g.tables))]
		return g.one("EXISTS", "NOT EXISTS", "1 IN") + " (SELECT 1 FROM " + other.name + " x WHERE " + g.condition(other, g.one("x.", ""), depth-1) + ")"
	}
	column := alias + t.columns[g.IntN(len(t.columns))]
	return column + g.one(" > ", " = ", " <> ", " IS NOT NULL AND 1 = ") + g.mark(isText(column), false)
}

// sets writes what is assigned.
func (g *grammar) sets(t *lockedTable, alias string) string {
	all := alias + "n = " + alias + "n + 1"
	if g.often(35) {
		column := append(slices.Clone(t.keys), t.columns...)[g.IntN(len(t.keys)+len(t.columns))]
		value := g.one("?", "?", column, "VALUES("+column+")", "DEFAULT", "3", "'abc'")
		if value == "?" {
			value = g.mark(isText(column), false)
			if slices.Equal(t.keys, []string{column}) && g.often(50) {
				g.lock(t, []string{g.marks[len(g.marks)-1].name})
			}
		}
		all += ", " + alias + column + " = " + value
	}
	return all
}

// insert writes an INSERT or a REPLACE.
func (g *grammar) insert() string {
	t := g.tables[g.IntN(len(g.tables))]
	columns := slices.Clone(t.keys)
	if g.often(30) {
		columns = nil
	}
	for _, c := range t.columns {
		if g.often(60) {
			columns = append(columns, c)
		}
	}
	var rows []string
	for range 1 + g.IntN(6)/4 {
		var row, names []string
		for _, c := range columns {
			value := g.one("NULL", "DEFAULT", "7", "'abc'")
			if g.often(90) {
				value = g.mark(isText(c), false)
				if slices.Contains(t.keys, c) {
					names = append(names, g.marks[len(g.marks)-1].name)
				}
			}
			row = append(row, value)
		}
		if len(names) == len(t.keys) {
			g.lock(t, names)
		}
		rows = append(rows, strings.Join(row, ", "))
	}
	verb := g.one("INSERT", "INSERT", "INSERT IGNORE", "REPLACE")
	text := verb + " INTO " + t.name + " (" + strings.Join(columns, ", ") + ") "
	switch other := g.tables[g.IntN(len(g.tables))]; {
	case len(rows) == 1 && g.often(20) && !strings.Contains(rows[0], "DEFAULT"):
		text += g.one("", "WITH "+g.one("c", t.name)+" AS (SELECT 1) ") + "SELECT " + g.one("", "DISTINCT ") + rows[0] + " FROM " + other.name + " y WHERE " + g.condition(other, "y.", 1)
	default:
		text += "VALUES (" + strings.Join(rows, "), (") + ")"
	}
	if strings.HasPrefix(verb, "INSERT") && g.often(40) {
		text += " ON DUPLICATE KEY UPDATE " + g.sets(t, "")
	}
	return text
}

// statement writes a statement.
func (g *grammar) statement() string {
	t, other := g.tables[g.IntN(len(g.tables))], g.tables[g.IntN(len(g.tables))]
	with := ""
	if g.often(10) {
		with = "WITH " + g.one("c", t.name, other.name) + " AS (SELECT 1 AS id) "
	}
	end := g.one("", "", "", " ORDER BY n DESC LIMIT 1")
	switch g.IntN(10) {
	case 0, 1, 2, 3:
		return g.insert()
	case 4, 5:
		return with + "UPDATE " + g.one("", "", "IGNORE ") + t.name + g.one("", "", "", " /*M! , plain AS more */", " /*! USE INDEX (PRIMARY) */") +
			" SET " + g.sets(t, "") + " WHERE " + g.condition(t, g.one("", t.name+"."), 2) + end
	case 6:
		return with + "DELETE FROM " + t.name + " WHERE " + g.condition(t, "", 2) + end
	}
	from := t.name + " a " + g.one("JOIN ", "LEFT JOIN ", "RIGHT JOIN ", "STRAIGHT_JOIN ") + other.name + " b ON "
	switch g.IntN(3) {
	case 0:
		from += g.key(t, "a.")
	case 1:
		from += g.key(other, "b.")
	default:
		from += "a." + append(slices.Clone(t.keys), "n")[0] + " = b." + append(slices.Clone(other.keys), "n")[0]
	}
	if g.often(40) {
		return with + "DELETE " + g.one("a", "b", "a, b", t.name) + " FROM " + from + " WHERE " + g.condition(t, "a.", 1)
	}
	text := with + "UPDATE " + from + " SET "
	switch g.IntN(3) {
	case 0:
		text += g.sets(t, "a.")
	case 1:
		text += g.sets(other, "b.")
	default:
		text += g.sets(t, "a.") + ", " + g.sets(other, "b.")
	}
	return text + " WHERE " + g.condition(t, "a.", 1) + " AND " + g.condition(other, "b.", g.IntN(2))
}

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
	rows := testdb.Got(tx.QueryContext(t.Context(), strings.Join(selects, " UNION ALL ")))(t)
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

// TestAcceptedWritesAreLocked draws statements and the locks of annotations.
func TestAcceptedWritesAreLocked(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		schema := testdb.Got(random())(t)
		text := randomSchema
		if engine == testdb.MariaDB { // whose name for it the parser doesn't know
			text = strings.ReplaceAll(text, "utf8mb4_0900_bin", "utf8mb4_nopad_bin")
		}
		database := testdb.Fresh(t, engine)
		db := database.ConnectAdmin(t, func(cfg *mysql.Config) { cfg.MultiStatements, cfg.InterpolateParams = true, true })
		testdb.Got(db.ExecContext(t.Context(), text+randomRows))(t)
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
			testdb.ErrorIf(t, len(wrong) > 0,
				"LOCKSTEP_SEED=%d, statement %d: %q of %v has changed %v under the locks %v", seed, n, sent, args, wrong, slices.Sorted(maps.Keys(keys)))
		}
		t.Logf("%d accepted, %d times rows were changed: %v", accepted, changed, kinds)
		testdb.ErrorIf(t, len(kinds) < 4 || changed < 100, "too few statements were accepted to show anything")
	})
}

// execute sends a statement, and returns the keys of rows that it has changed without their
// locks, and whether it has changed any. It leaves nothing.
func (g *grammar) execute(t *testing.T, db *sql.DB, before map[record]bool, sent string, args []any, keys map[string]bool) (wrong []string, some bool) {
	t.Helper()
	tx := testdb.Got(db.BeginTx(t.Context(), nil))(t)
	defer func() { must(t, tx.Rollback()) }()
	result, err := tx.ExecContext(t.Context(), sent, args...)
	if err != nil {
		return nil, false
	}
	count := testdb.Got(result.RowsAffected())(t)
	if count == 0 {
		return nil, false
	}
	id := testdb.Got(result.LastInsertId())(t)
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
