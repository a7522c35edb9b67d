package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// notInFront are what only the package behind may use.
var notInFront = []string{"Queries", "New", "Prepare", "DBTX", "Querier"}

// writeFront returns the text of a package in front of the one that sqlc writes: aliases of
// all but Queries, so that whoever can't import the package behind takes the locks.
func writeFront(p *plan, constraint, name string) ([]byte, error) {
	names := map[string][]string{}
	scope := p.pkg.Types.Scope()
	for _, n := range []string{"Run", "WithLocks"} {
		if scope.Lookup(n) != nil {
			return nil, fmt.Errorf("lockgen: -front: %s has a %s, and so has the package in front: give sqlc's another name, by rename in sqlc.yaml", p.pkg.PkgPath, n)
		}
	}
	for _, n := range scope.Names() {
		query := slices.ContainsFunc(p.queries, func(q *query) bool { return q.constant == n })
		if ast.IsExported(n) && !slices.Contains(notInFront, n) && !query {
			switch scope.Lookup(n).(type) {
			case *types.TypeName:
				names["type"] = append(names["type"], n)
			case *types.Const:
				names["const"] = append(names["const"], n)
			case *types.Var:
				names["var"] = append(names["var"], n)
			case *types.Func:
				if isEnumValues(scope.Lookup(n)) {
					names["var"] = append(names["var"], n)
				}
			}
		}
	}
	var out bytes.Buffer
	tx := (&writer{plan: p, dbArg: takesDB(p)}).tx()
	if tx == "DBTX" {
		tx = "behind.DBTX"
	}
	err := front.Execute(&out, map[string]any{
		"Constraint": constraint, "Package": name, "Import": strconv.Quote(p.pkg.PkgPath), "Names": names,
		"DBArg": takesDB(p), "Tx": tx,
	})
	if err != nil {
		return nil, err
	}
	return format.Source(out.Bytes())
}

// isEnumValues tells whether this is what sqlc writes by emit_all_enum_values.
func isEnumValues(fn types.Object) bool {
	sig := fn.Type().(*types.Signature)
	return sig.Params().Len() == 0 && strings.HasPrefix(fn.Name(), "All") && strings.HasSuffix(fn.Name(), "Values")
}

// packageName returns the name of the package in a directory, which is the directory's
// where there are no files but the output.
func packageName(dir string, tags []string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("lockgen: -front: %w", err)
	}
	context := build.Default
	context.BuildTags = tags
	context.ReadDir = func(dir string) (others []fs.FileInfo, err error) {
		entries, err := os.ReadDir(dir)
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil && entry.Name() != output {
				others = append(others, info)
			}
		}
		return others, err
	}
	pkg, err := context.ImportDir(dir, 0)
	name := pkg.Name
	if none := (*build.NoGoError)(nil); errors.As(err, &none) {
		name, err = filepath.Base(dir), nil
	}
	if err != nil {
		return "", fmt.Errorf("lockgen: -front: %w", err)
	}
	if !token.IsIdentifier(name) {
		return "", fmt.Errorf("lockgen: -front: %s has no Go files, and %q is no name of a package: write a file with a package clause there", dir, name)
	}
	return name, nil
}

var front = template.Must(template.New("").Parse(`{{if .Constraint}}//go:build {{.Constraint}}

{{end}}` + notice + `

package {{.Package}}

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/txlock"
	behind {{.Import}}
)

{{range $kind, $names := .Names}}
{{$kind}} (
{{range $names}}	{{.}} = behind.{{.}}
{{end}})
{{end}}
// Locked has the queries of a transaction: each takes the locks of its annotation first.
type Locked = behind.Locked

// WithLocks returns the queries in a transaction that is open already. They return the
// errors of txlock.Scope.Lock, too.
func WithLocks(ctx context.Context, tx {{.Tx}}) (*Locked, error) {
	return behind.New({{if not .DBArg}}tx{{end}}).WithLocks(ctx, tx)
}

// Run is locksqlc.Run with Locked. It acquires the given keys first, in one order in all
// programs; queries that lock the same keys then need no statement for it.
func Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(q *Locked) error) error {
	return behind.New({{if not .DBArg}}db{{end}}).Run(ctx, db, keys, fn)
}
`))
