package main

import (
	"cmp"
	"fmt"
	"go/types"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// plan says which locks each query takes.
type plan struct {
	pkg     *goPackage
	schema  *catalog
	queries []*query
	problems
}

// query is a query with its locks.
type query struct {
	*source
	*method
	does *meaning // nil where it can't be told
	keys []key
	open error // why it can't be told whether it does more
	problems
}

// shares tells whether all keys of the query are shared.
func (q *query) shares() bool {
	return len(q.keys) > 0 && !slices.ContainsFunc(q.keys, func(k key) bool { return !k.shared })
}

// key is a key that a query locks.
type key struct {
	family *family
	shared bool
	values []value
}

// value is a parameter of a query as a part of a key.
type value struct {
	expr string // in sqlc's method: "arg.ID"
	id   types.Type
	kind types.Type // of the parameter, or of an element where there are many
	many bool
	fold string // of the family
}

// taken are the names of Locked's and Queries' own methods, and of Locked's fields.
var taken = []string{"WithLocks", "Run", "Locks", "CommitWith", "under", "rlock", "queries", "locks", "last", "rows", "tx"}

// make reads the annotations and refuses what is missing or wrong.
func (p *plan) make(sources map[string]*source) {
	p.problems = append(p.problems, p.pkg.found...)
	if len(p.pkg.tables) == 0 {
		p.add(place{file: p.pkg.Name}, "no family is marked by //lockstep:table: lockgen would have nothing to check")
	}
	if locked := p.pkg.Types.Scope().Lookup("Locked"); locked != nil {
		p.add(p.pkg.place(locked.Pos()), "lockgen needs the name Locked itself: give sqlc's another name, by rename in sqlc.yaml")
	}
	for _, name := range slices.Sorted(maps.Keys(p.pkg.methods)) {
		if m := p.pkg.methods[name]; m.constant != "" && sources[name] == nil {
			p.add(p.pkg.place(m.decl.Pos()), "no .sql file has the query %s: run sqlc generate", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		s, m := sources[name], p.pkg.methods[name]
		if slices.Contains(taken, name) {
			p.add(s.place, "lockgen needs the name %s itself: rename the query", name)
		}
		if m == nil || m.constant == "" || !strings.HasPrefix(m.full, "-- name: "+s.name+" "+s.kind+"\n") {
			p.add(s.place, "sqlc has not generated %s as %s: run sqlc generate", name, s.kind)
			continue
		}
		p.queries = append(p.queries, &query{source: s, method: m})
	}
	for _, q := range p.queries {
		p.asks(q, func() { p.understand(q) })
	}
	for _, q := range p.queries {
		p.asks(q, func() {
			for _, i := range q.locks {
				p.lock(q, i)
			}
			p.enforce(q)
		})
	}
}

// understand parses the SQL of a query.
func (p *plan) understand(q *query) {
	q.does, q.open = parse(q.sql, q.args, p.schema)
	if q.open != nil && !q.vouched {
		p.add(q.place, "lockgen can't analyze %s (%s). Rewrite it, or add a line below its name: -- lock: none, because ...  or with the keys that it needs: -- lock: Family(parameter), because ...", q.name, clip(q.open.Error()))
	}
	switch {
	case strings.Contains(q.sql, "sqlc."):
		p.add(q.place, "sqlc has left a macro in the SQL of %s, which the server will refuse. This is an error of sqlc: write the query another way, a minus as 0 - sqlc.arg(x) for example", q.name)
	case q.does != nil && q.kind != ":copyfrom" && len(q.args) != len(q.does.marks):
		p.add(q.place, "sqlc passes %d arguments for the %d parameters of %s, which the server will refuse. This is an error of sqlc: write (a, b) = (?, ?) as a = ? AND b = ?, use each argument once, or leave out query_parameter_limit", len(q.args), len(q.does.marks), q.name)
	}
}

// lock finds the parameters of a key.
func (p *plan) lock(q *query, i item) {
	fam := p.pkg.families[i.family]
	if fam == nil {
		p.add(i.place, "there is no txlock.Family %s in package %s", i.family, p.pkg.Name)
		return
	}
	columns := 1
	for _, c := range fam.tables {
		columns = len(c)
	}
	ids := idFields(fam.id, columns)
	if len(ids) != len(i.params) {
		p.add(i.place, "%s: a key of %s has %d parts", i, fam.name, len(ids))
		return
	}
	k := key{family: fam, shared: i.shared}
	for n, param := range i.params {
		v, err := q.parameter(p.pkg, param)
		if err == nil {
			v.id, v.fold = ids[n], fam.fold
			err = v.fits()
		}
		if err == nil && v.many && len(ids) > 1 {
			err = fmt.Errorf("a slice can't be a part of a key")
		}
		if err == nil {
			err = p.isColumn(q, fam, n, v)
		}
		if err != nil {
			p.add(i.place, "%s: %s %v", i, param, err)
			return
		}
		k.values = append(k.values, v)
	}
	q.keys = append(q.keys, k)
}

// normal is a name without case and underscores, in which Go and SQL differ.
func normal(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// parameter finds a parameter by its name in SQL or in Go.
func (q *query) parameter(pkg *goPackage, name string) (value, error) {
	var all []string
	var found, renamed []value
	add := func(expr, inGo string, t types.Type) {
		all = append(all, snake(inGo))
		v := value{expr: expr, kind: t}
		if s, ok := t.Underlying().(*types.Slice); ok && !isBytes(t) {
			v.many, v.kind = true, s.Elem()
		}
		if normal(inGo) == normal(name) {
			found = append(found, v)
		} else if q.isFor(expr, name) {
			renamed = append(renamed, v)
		}
	}
	for i := 1; i < q.sig.Params().Len(); i++ {
		param := q.sig.Params().At(i)
		if st := paramsOf(q, param); st != nil {
			for f := range st.Fields() {
				add(param.Name()+"."+f.Name(), f.Name(), f.Type())
			}
		} else if !isDBTX(pkg, param) {
			add(param.Name(), param.Name(), param.Type())
		}
	}
	if len(found) == 0 {
		found = renamed
	}
	if len(found) != 1 {
		return value{}, fmt.Errorf("is no parameter of %s, which has: %s", q.name, cmp.Or(strings.Join(all, ", "), "none"))
	}
	return found[0], nil
}

// isFor tells whether a parameter stands for a column of that name: sqlc.yaml can rename it.
func (q *query) isFor(expr, column string) bool {
	return q.does != nil && slices.ContainsFunc(q.does.named[strings.ToLower(column)], func(mark int) bool { return q.does.args[mark] == expr })
}

// paramsOf returns the struct of a query's parameters.
func paramsOf(q *query, param *types.Var) *types.Struct {
	t := param.Type()
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if named, ok := t.(*types.Named); ok && normal(named.Obj().Name()) == normal(q.name+"Params") {
		st, _ := named.Underlying().(*types.Struct)
		return st
	}
	return nil
}

// isDBTX tells whether a parameter is that of emit_methods_with_db_argument.
func isDBTX(pkg *goPackage, param *types.Var) bool {
	named, ok := param.Type().(*types.Named)
	return ok && named.Obj().Name() == "DBTX" && named.Obj().Pkg() == pkg.Types
}

// isColumn returns an error where a parameter is not the family's column in a query that
// names a table of the family.
func (p *plan) isColumn(q *query, fam *family, part int, v value) error {
	if q.does == nil {
		return nil
	}
	var want []string
	for _, table := range slices.Sorted(maps.Keys(fam.tables)) {
		if !q.does.mentions(table) || p.schema.tables[table] == nil {
			continue
		}
		name := fam.tables[table][part]
		column := p.schema.tables[table].columns[name]
		if column == nil {
			continue // and the family is refused
		}
		if err := column.takes(v); err != nil {
			return err
		}
		if q.vouched || slices.Contains(q.does.argsOf(table, name), v.expr) {
			return nil
		}
		want = append(want, table+"."+name)
	}
	if want == nil {
		return nil
	}
	return fmt.Errorf("must be the key of the row, but the query doesn't compare it with %s", strings.Join(want, " or "))
}

// enforce refuses a query that writes rows of a table, or reads them where the package writes
// it, unless lockgen can prove that it locks their keys.
func (p *plan) enforce(q *query) {
	if q.vouched || q.does == nil {
		return
	}
	seen := map[string]bool{}
	for _, u := range q.does.uses {
		fam := p.pkg.tables[u.table]
		if fam == nil || !u.writes && !p.writes(u.table) || !p.schema.hasAll(u.table, fam.tables[u.table]) {
			continue
		}
		why := cmp.Or(ambivalent(q.sql), u.unproven(fam.tables[u.table], q.of(fam, u.writes)))
		does, verb := "reads", "rlock"
		if u.writes {
			does, verb = "writes", "lock"
		}
		if why == "" || seen[does+u.table] {
			continue
		}
		seen[does+u.table] = true
		advice := p.advice(q, fam, u.table)
		switch {
		case len(q.of(fam, u.writes)) > 0:
			p.add(q.place, "%s %s rows of %s whose keys it may not lock: %s. If they are locked all the same, write below its name: -- %s: %s, because ...  or: -- lock: none, because ...", q.name, does, u.table, why, verb, advice)
		case u.writes:
			p.add(q.place, "%s writes %s, which is locked by %s. Write below its name: -- lock: %s  or: -- lock: none, because ... (%s)", q.name, u.table, fam.name, advice, why)
		default:
			p.add(q.place, "%s reads %s, which this package also writes. Write below its name: -- lock: %[3]s  or: -- rlock: %[3]s  or: -- lock: none, because ...", q.name, u.table, advice)
		}
	}
}

// of returns the keys of a family that the query locks, exclusively or in any way.
func (q *query) of(fam *family, exclusively bool) (keys []key) {
	for _, k := range q.keys {
		if k.family == fam && (!k.shared || !exclusively) {
			keys = append(keys, k)
		}
	}
	return keys
}

// writes tells whether a query of the package changes rows of a table that are there.
func (p *plan) writes(table string) bool {
	fam := p.pkg.tables[table]
	return slices.ContainsFunc(p.queries, func(q *query) bool {
		if q.does == nil {
			return len(q.of(fam, true)) > 0
		}
		return q.does.changes(table)
	})
}

// advice is the key that an annotation could have.
func (p *plan) advice(q *query, fam *family, table string) string {
	var params []string
	for _, column := range fam.tables[table] {
		param := "<" + column + ">"
		if args := q.does.argsOf(table, column); len(args) > 0 {
			param = snake(args[0][strings.LastIndex(args[0], ".")+1:])
		}
		params = append(params, param)
	}
	return item{family: fam.name, params: params}.String()
}

// snake writes FromID as from_id.
func snake(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r) || unicode.IsDigit(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
