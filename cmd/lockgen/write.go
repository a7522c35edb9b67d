package main

import (
	"bytes"
	"fmt"
	"go/format"
	"go/types"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// writer writes the output.
type writer struct {
	*plan
	bytes.Buffer
	imports map[string]string // the path, and the name of the package
	dbArg   bool              // emit_methods_with_db_argument
}

// write returns the text of the output. In part says that not all queries are in the plan.
func write(p *plan, constraint string, part bool) ([]byte, error) {
	w := &writer{plan: p, dbArg: takesDB(p), imports: map[string]string{
		"context": "context", "database/sql": "sql", "github.com/dca00107/lockstep/locksqlc": "locksqlc", txlockPath: "txlock",
	}}
	for _, q := range p.queries {
		w.method(q)
	}
	var all bytes.Buffer
	err := frame.Execute(&all, map[string]any{
		"Constraint": constraint, "Package": p.pkg.Name, "Imports": w.importLines(), "Queries": p.queries,
		"DBArg": w.dbArg, "Methods": w.String(),
		"RLocks":  slices.ContainsFunc(p.queries, (*query).shares),
		"Querier": p.pkg.Types.Scope().Lookup("Querier") != nil && !w.dbArg && !part, "Part": part, "Tx": w.tx(),
	})
	if err != nil {
		return nil, err
	}
	return format.Source(all.Bytes())
}

// takesDB tells whether the methods take a DBTX, by emit_methods_with_db_argument. New takes
// none then.
func takesDB(p *plan) bool {
	made, ok := p.pkg.Types.Scope().Lookup("New").(*types.Func)
	return ok && made.Signature().Params().Len() == 0
}

// tx is the type of the transaction that WithLocks takes. Prepared statements are those of
// database/sql.
func (w *writer) tx() string {
	queries, _ := w.pkg.Types.Scope().Lookup("Queries").Type().Underlying().(*types.Struct)
	switch {
	case w.dbArg:
		return "DBTX"
	case queries != nil && slices.ContainsFunc(slices.Collect(queries.Fields()), func(f *types.Var) bool { return f.Name() == "tx" }):
		return "*sql.Tx"
	}
	return "txlock.Tx"
}

// printf writes to a buffer, which never fails.
func (w *writer) printf(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// importLines are the imports, those of the standard library first.
func (w *writer) importLines() []string {
	var standard, other []string
	for _, path := range slices.Sorted(maps.Keys(w.imports)) {
		line := fmt.Sprintf("%q", path)
		if name := w.imports[path]; name != path[strings.LastIndex(path, "/")+1:] {
			line = name + " " + line
		}
		if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
			other = append(other, line)
		} else {
			standard = append(standard, line)
		}
	}
	return append(append(standard, ""), other...)
}

// typ writes a type, and imports what it needs.
func (w *writer) typ(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p == w.pkg.Types {
			return ""
		}
		if w.imports[p.Path()] == "" {
			name := p.Name()
			for slices.Contains(slices.Collect(maps.Values(w.imports)), name) || w.pkg.Types.Scope().Lookup(name) != nil {
				name += "_"
			}
			w.imports[p.Path()] = name
		}
		return w.imports[p.Path()]
	})
}

// local is the name of a parameter, apart from the names that the method uses itself.
func (w *writer) local(name string) string {
	own := []string{"l", "keys", "element", "parsed", "err", "result", "append"}
	for slices.Contains(own, name) || slices.Contains(slices.Collect(maps.Values(w.imports)), name) || name != "ctx" && w.pkg.Types.Scope().Lookup(name) != nil {
		name += "_"
	}
	return name
}

// method writes the method of a query.
func (w *writer) method(q *query) {
	var params, args []string
	for i := range q.sig.Params().Len() {
		param := q.sig.Params().At(i)
		if isDBTX(w.pkg, param) {
			args = append(args, "l.tx")
			continue
		}
		params = append(params, w.local(param.Name())+" "+w.typ(param.Type()))
		args = append(args, w.local(param.Name()))
	}
	var results []string
	for r := range q.sig.Results().Variables() {
		results = append(results, w.typ(r.Type()))
	}
	w.printf("\n")
	w.comment(q)
	returns, fail := "("+strings.Join(results, ", ")+")", "return err"
	if len(results) == 2 && w.fails(q) {
		returns, fail = "(result "+results[0]+", err error)", "return result, err"
	}
	w.printf("func (l *Locked) %s(%s) %s {\n", q.name, strings.Join(params, ", "), returns)
	args[0] = "l.under(" + args[0] + w.locks(q, fail) + ")"
	w.printf("return l.queries.%s(%s)\n}\n", q.name, strings.Join(args, ", "))
}

// fails tells whether the method returns errors before its query is sent.
func (w *writer) fails(q *query) bool {
	return q.shares() || slices.ContainsFunc(q.keys, func(k key) bool {
		return slices.ContainsFunc(k.values, func(v value) bool { c, _ := v.conversion(); return c == fromByte })
	})
}

// comment writes what sqlc has made of the comments of the query, behind a sentence with
// the name of the method if they have none.
func (w *writer) comment(q *query) {
	var lines []string
	if q.decl.Doc != nil {
		for _, c := range q.decl.Doc.List {
			lines = append(lines, c.Text)
		}
	}
	if !slices.ContainsFunc(lines[:min(1, len(lines))], func(line string) bool { return strings.HasPrefix(line, "// "+q.name+" ") }) {
		says := "takes its locks first"
		if len(q.keys) == 0 {
			says = "takes no locks"
		}
		w.printf("// %s is the method of Queries, and %s.\n", q.name, says)
		if len(lines) > 0 {
			w.printf("//\n")
		}
	}
	for _, line := range lines {
		w.printf("%s\n", line)
	}
}

// locks writes how the keys of a query are made, and returns them as arguments of under. Those
// that are all shared it takes before.
func (w *writer) locks(q *query, fail string) (args string) {
	if len(q.keys) == 0 {
		return ""
	}
	keys := slices.Clone(q.keys)
	if q.shares() { // rlock needs no marks
		for i := range keys {
			keys[i].shared = false
		}
	}
	simple := !slices.ContainsFunc(keys, func(k key) bool {
		return slices.ContainsFunc(k.values, func(v value) bool { c, _ := v.conversion(); return v.many || c == fromByte })
	})
	switch {
	case simple:
		for _, k := range keys {
			args += ", " + w.key(k, nil)
		}
	case len(keys) == 1 && keys[0].list():
		args = ", " + w.keys(keys[0]) + "..."
	default:
		w.printf("var keys []txlock.Key\n")
		for _, k := range keys {
			w.appended(k, fail)
		}
		args = ", keys..."
	}
	if q.shares() {
		w.printf("if err := l.rlock(ctx%s); err != nil {\n%s\n}\n", args, fail)
		return ""
	}
	return args
}

// list tells whether Keys makes the keys of a slice.
func (k key) list() bool {
	c, _ := k.values[0].conversion()
	return k.values[0].many && c == asIs && !k.shared
}

// appended writes how a key, or many, get into the list.
func (w *writer) appended(k key, fail string) {
	v := k.values[0]
	if k.list() {
		w.printf("keys = append(keys, %s...)\n", w.keys(k))
		return
	}
	// Identifiers get names of their own: each in a block, so that several may be there.
	w.WriteString(map[bool]string{true: "for _, element := range " + w.expr(v), false: ""}[v.many] + "{\n")
	names := map[int]string{}
	for i, v := range k.values {
		if v.many {
			names[i] = "element"
		}
		if c, _ := v.conversion(); c == fromByte {
			from := w.expr(v)
			if v.many {
				from = "element"
			}
			names[i] = fmt.Sprintf("parsed%d", i)
			if i == 0 {
				names[i] = "parsed"
			}
			w.printf("%s, err := %s.FromBytes(%s)\nif err != nil {\n%s\n}\n", names[i], strings.TrimSuffix(w.typ(v.id), ".UUID"), from, fail)
		}
	}
	w.printf("keys = append(keys, %s)\n}\n", w.key(k, names))
}

// keys writes the keys of a slice.
func (w *writer) keys(k key) string {
	return k.family.name + ".Keys(" + w.expr(k.values[0]) + "...)"
}

// key writes a key. Some of its values may have names.
func (w *writer) key(k key, names map[int]string) string {
	var parts []string
	for i, v := range k.values {
		expr := names[i]
		if expr == "" {
			expr = w.expr(v)
		}
		if c, _ := v.conversion(); c == convert {
			expr = w.typ(v.id) + "(" + expr + ")"
		}
		parts = append(parts, expr)
	}
	id := parts[0]
	if len(parts) > 1 {
		fields := k.family.id.Underlying().(*types.Struct)
		for i := range parts {
			parts[i] = fields.Field(i).Name() + ": " + parts[i]
		}
		id = w.typ(k.family.id) + "{" + strings.Join(parts, ", ") + "}"
	}
	text := k.family.name + ".Key(" + id + ")"
	if k.shared {
		text = "txlock.Shared(" + text + ")"
	}
	return text
}

// expr writes a parameter.
func (w *writer) expr(v value) string {
	root, field, isField := strings.Cut(v.expr, ".")
	if isField {
		return w.local(root) + "." + field
	}
	return w.local(root)
}

// Constant, Text are for the template.
func (q *query) Constant() string { return q.constant }
func (q *query) Text() string     { return q.full }

var frame = template.Must(template.New("").Parse(`{{if .Constraint}}//go:build {{.Constraint}}

{{end}}` + notice + `

package {{.Package}}

import (
{{range .Imports}}{{.}}
{{end}})

// Locked has the queries of a transaction: each takes the locks of its annotation first.
{{- if .Part}} It
// has only those that lockgen -only has found the locks of.
{{- end}}
type Locked struct {
	queries *Queries
	locks   *txlock.Scope
	last    bool // CommitWith
	rows    int64
{{- if .DBArg}}
	tx      DBTX
{{- end}}
}
{{if .Querier}}
var _ Querier = (*Locked)(nil)
{{end}}
// WithLocks returns the queries in a transaction that is already open. They also return the
// errors of txlock.Scope.Lock: txlock.Retryable reports for which of them to retry the
// transaction.
func (q *Queries) WithLocks(ctx context.Context, tx {{.Tx}}) (*Locked, error) {
	locks, err := {{if .DBArg}}txlock.JoinDBTX{{else}}txlock.Join{{end}}(ctx, tx)
	if err != nil {
		return nil, err
	}
	return &Locked{queries: {{if .DBArg}}q{{else if eq .Tx "*sql.Tx"}}q.WithTx(tx){{else}}New(tx){{end}}, locks: locks{{if .DBArg}}, tx: tx{{end}}}, nil
}

// Run is locksqlc.Run with Locked. It acquires the given keys first, in one order in all
// programs; queries that lock the same keys then need no statement for it.
func (q *Queries) Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(q *Locked) error) error {
	return locksqlc.Run(ctx, db, keys, func(tx *sql.Tx) error {
		locked, err := q.WithLocks(ctx, tx)
		if err != nil {
			return err
		}
		return fn(locked)
	})
}

// Locks returns the locks of the transaction.
func (l *Locked) Locks() *txlock.Scope { return l.locks }

// CommitWith returns the queries for the last one of the transaction, which commits it if it
// changes so many rows, in one round trip: see txlock.Scope.CommitWith.
func (l *Locked) CommitWith(rows int64) *Locked {
	last := *l
	last.last, last.rows = true, rows
	return &last
}

// under is the context of a query, which takes the locks of the keys with it.
func (l *Locked) under(ctx context.Context, keys ...txlock.Key) context.Context {
	if len(keys) > 0 {
		ctx = l.locks.LockWith(ctx, keys...)
	}
	if l.last {
		ctx = l.locks.CommitWith(ctx, l.rows)
	}
	return ctx
}
{{if .RLocks}}
// rlock shares the locks of all keys.
func (l *Locked) rlock(ctx context.Context, keys ...txlock.Key) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := l.locks.RLockAll(ctx, keys...)
	return err
}
{{end}}
// "duplicate key false" here says that sqlc has written other queries since: run lockgen.
var (
{{range .Queries}}	_ = map[bool]int{false: 0, {{.Constant}} == {{printf "%q" .Text}}: 1}
{{end}})
{{.Methods}}`))
