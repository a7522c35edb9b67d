package checkqueries

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	const (
		one = "-- name: One :exec\n-- One does something; it has a comment.\nDELETE FROM t WHERE a = ';' AND b = 'it''s';\n"
		two = "-- name: Two :one\nSELECT a, /* ; */ b FROM t; -- done;\n"
	)
	for name, test := range map[string]struct {
		queries, methods string
		want             []string // parts of the problems, in their order
	}{
		"right":                           {one + two, "One Two", nil},
		"a method of another type":        {one, "One", nil},
		"dropped":                         {one + two, "One", []string{"q.sql:4: the query Two has 0 methods"}},
		"second statement under one name": {one + "DELETE FROM t;\n", "One", []string{"q.sql:4: the statement has no name"}},
		"second on the same line":         {"-- name: One :exec\nDELETE FROM t; DELETE FROM t;", "One", []string{"q.sql:2: the statement has no name"}},
		"statement before the first name": {"DELETE FROM t;\n" + one, "One", []string{"q.sql:1: the statement has no name"}},
		"name without statement":          {"-- name: Two :one\n" + one, "One", []string{"q.sql:1: the name Two has no statement"}},
		"last name without statement":     {one + "-- name: Two :one\n", "One", []string{"q.sql:4: the name Two has no statement"}},
		"same name twice":                 {one + one, "One", []string{"q.sql:4: the name One is taken"}},
		"no semicolon":                    {"-- name: One :exec\nDELETE FROM t", "One", []string{"q.sql:2: the statement has no end"}},
		"no command":                      {"-- name: One\nDELETE FROM t;", "One", []string{"q.sql:1: sqlc does not know", "q.sql:2: the statement has no name"}},
		"unknown command":                 {"-- name: One :exce\nDELETE FROM t;", "One", []string{"q.sql:1: sqlc does not know", "q.sql:2:"}},
		"no blank":                        {"--name: One :exec\nDELETE FROM t;", "One", []string{"q.sql:1: sqlc does not know", "q.sql:2:"}},
		"hint":                            {"-- name: One :one\nSELECT /*+ MAX_EXECUTION_TIME(1) */ a FROM t FOR UPDATE;", "One", nil},
		"minus minus":                     {"-- name: One :one\nSELECT 5--1 FROM t;", "One", nil},
	} {
		dir := t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, "q.sql"), []byte(test.queries), 0o644))
		code := "package gen\n\ntype Queries struct{}\n\nfunc (Other) Two() {}\n\ntype Other struct{}\n"
		for method := range strings.FieldsSeq(test.methods) {
			code += "\nfunc (q *Queries) " + method + "() {}\n"
		}
		check(t, os.WriteFile(filepath.Join(dir, "q.sql.go"), []byte(code), 0o644))
		problems := testdb.Got(Check([]string{dir}, dir))(t)
		testdb.ErrorIf(t, !slices.EqualFunc(problems, test.want, strings.Contains), "%s: %q, want %q", name, problems, test.want)
	}
}

var check = testdb.Must

const root = "../../../.."

// rendered are the texts of package rawsql that run in callers' transactions.
var rendered = map[string]func(t rawsql.Table) string{
	"LockMany":          func(t rawsql.Table) string { return t.LockMany(2) },
	"LockManyReturning": func(t rawsql.Table) string { return t.LockManyReturning(2) },
	"TouchMany":         func(t rawsql.Table) string { return t.TouchMany(2) },
	"TokensMany":        func(t rawsql.Table) string { return t.TokensMany(2) },
	"SnapshotMany":      func(t rawsql.Table) string { return t.SnapshotMany(2) },
}

// partsOf says which declarations of package rawsql are parts of rendered texts, or change
// nothing of which rows a statement touches.
var partsOf = []string{"lookUp", "Named", "Centers", "call", "Open", "granted", "ForUpdate", "HintAtMost", "ReadersDone", "readers", "statements"}

// elsewhere are the declarations of package rawsql whose texts never run in a caller's
// transaction, or touch no table of lockstep's.
var elsewhere = []string{
	"AcquireMany", "ReleaseMany", "RenewMany", "HeldMany", "DeleteReaders", "Big", "Look", "InTurn", "wantedJoin", "heldRows", // of managers
	"Unlocked",                                                                                                                                                                         // of Purge
	"Facts", "Progress", "SeesOwnID", "GroupView", "MaxPacket", "Session", "Process", "HasProcess", "LockWaitSeconds", "WriteAndCommit", "tiDBSettings", "tiDBBegan", "vitessSettings", // no table of lockstep's, or another session
}

// TestPoints: what runs in a caller's transaction touches only single rows, by their whole
// primary keys. A range would lock the record behind it and the gaps, and strangers would wait.
func TestPoints(t *testing.T) {
	t.Parallel()
	keys := testdb.Got(PrimaryKeys(filepath.Join(root, "schema")))(t)
	queries := testdb.Got(Places(filepath.Join(root, "queries")))(t)
	texts := make(map[string]string)
	for name, query := range queries {
		if query.InCallers {
			texts[name] = query.Text
		}
	}
	for name, text := range rendered {
		texts[name+" of names"], texts[name+" of centers"] = text(rawsql.Named), text(rawsql.Centers)
	}
	texts["ReadersDone"] = rawsql.ReadersDone([]byte("key"), []int64{5, 7})
	for name, text := range texts {
		err := keys.Point(text)
		testdb.ErrorIf(t, err != nil, "%s runs in callers' transactions, and is no point: %v", name, err)
	}
	script := testdb.Got(os.ReadFile(filepath.Join(root, "schema/mysql/0005_procedures.sql")))(t)
	lockstep, _, found := strings.Cut(string(script), "-- +goose StatementBegin\nDROP PROCEDURE IF EXISTS lockstep_program_2")
	testdb.ErrorIf(t, !found, "there is no lockstep_program_2, behind which the statements are the program's")
	testdb.Wants(t, "the procedures run in callers' transactions, and have what is no point", keys.Script(lockstep), nil)
}

var (
	statementIn = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|CALL|LOCK TABLES)\b`)
	tableIn     = regexp.MustCompile(`lockstep_(locks|leases|once|jobs|centers)\b`)
)

// TestTextsArePlaced: of every text of a statement in the code it is known where it runs.
func TestTextsArePlaced(t *testing.T) {
	t.Parallel()
	var found []string
	walk(t, "internal/rawsql", func(name, text string) {
		if statementIn.MatchString(text) || tableIn.MatchString(text) {
			found = append(found, name)
		}
	})
	for _, name := range found {
		testdb.ErrorIf(t, rendered[name] == nil && !slices.Contains(partsOf, name) && !slices.Contains(elsewhere, name),
			"internal/rawsql: nothing says where %s runs: add it to rendered, and to the others only if it never runs in a caller's transaction", name)
	}
	for _, name := range slices.Concat(partsOf, elsewhere) {
		testdb.ErrorIf(t, !slices.Contains(found, name), "internal/rawsql has no text %s", name)
	}
	// The commands' statements run on connections of their own: package ops.
	for _, dir := range []string{"txlock", "locksqlc", "lockgorm", "lockhttp", "internal/guard", "internal/session", "internal/bridge", "internal/idempotent", "internal/retry", "internal/fault", "internal/holderlookup"} {
		walk(t, dir, func(name, text string) {
			testdb.ErrorIf(t, statementIn.MatchString(text) && tableIn.MatchString(text),
				"%s: %s has a statement of its own: it belongs in queries or internal/rawsql", dir, name)
		})
	}
}

// walk calls see with every string of the code in a directory, and the declaration that it is
// in.
func walk(t *testing.T, dir string, see func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/locktest/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				seeStrings(d, d.Name.Name, see)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if value, ok := spec.(*ast.ValueSpec); ok {
						seeStrings(value, value.Names[0].Name, see)
					}
				}
			}
		}
		return nil
	})
	check(t, err)
}

func seeStrings(in ast.Node, name string, see func(name, text string)) {
	for n := range ast.Preorder(in) {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			see(name, literal.Value)
		}
	}
}

// TestPoint: what isn't known to be a point is refused.
func TestPoint(t *testing.T) {
	t.Parallel()
	keys := Keys{"one": {"name"}, "two": {"name", "slot"}}
	for statement, point := range map[string]bool{
		"SELECT a FROM one WHERE name = ? FOR UPDATE":                                                                              true,
		"SELECT a FROM one WHERE name = sqlc.arg(name) LOCK IN SHARE MODE":                                                         true,
		"SELECT a FROM two WHERE name = ? AND slot = 0 AND (b > 1 OR c) FOR UPDATE SKIP LOCKED;":                                   true,
		"SELECT a, LEFT(b, 1) FROM two t WHERE t.name = ? AND t.slot = CAST(sqlc.arg(s) AS SIGNED)":                                true,
		"UPDATE two SET a = 1 WHERE slot = -1 AND name = ? AND d BETWEEN 1 AND 2":                                                  true,
		"DELETE FROM one WHERE name = ?":                                                                                           true,
		"INSERT INTO one (name) VALUES (?), (?) ON DUPLICATE KEY UPDATE a = VALUES(a)":                                             true,
		"INSERT IGNORE INTO one (name) SELECT ? FROM DUAL WHERE @@log_bin = 0":                                                     true,
		"SELECT a FROM (SELECT ? AS k UNION ALL SELECT ?) w STRAIGHT_JOIN one cur FORCE INDEX (PRIMARY) ON cur.name = w.k LIMIT 2": true,
		"SELECT (SELECT old.a FROM one old WHERE old.name = cur.name) FROM one cur WHERE cur.name = ?":                             true,

		"SELECT a FROM one":                                                                 false,
		"SELECT COUNT(*) FROM one WHERE a = ?":                                              false,
		"SELECT a FROM one WHERE name = ? OR a = 1":                                         false,
		"SELECT a FROM one WHERE NOT name = ?":                                              false,
		"SELECT a FROM one WHERE name >= ?":                                                 false,
		"SELECT a FROM one WHERE name <=> name":                                             false,
		"SELECT a FROM one WHERE name = name":                                               false,
		"SELECT a FROM one WHERE name = a":                                                  false,
		"SELECT a FROM one WHERE name = ? = 0":                                              false,
		"SELECT a FROM one WHERE name IN (?)":                                               false,
		"SELECT a FROM one WHERE name IN (sqlc.slice(s))":                                   false,
		"SELECT a FROM one WHERE a BETWEEN 1 AND name = ?":                                  false,
		"SELECT a FROM one WHERE (name = ?)":                                                false,
		"SELECT a FROM one WHERE name = ? ORDER BY a":                                       false,
		"SELECT a FROM one WHERE name = ? GROUP BY a":                                       false,
		"SELECT a FROM two WHERE name = ? FOR UPDATE":                                       false,
		"SELECT a FROM three WHERE name = ?":                                                false,
		"SELECT a FROM one, two WHERE name = ?":                                             false,
		"SELECT a FROM one LEFT JOIN two ON a = b WHERE name = ?":                           false,
		"SELECT /*+ BKA(one) */ a FROM one WHERE name = ?":                                  false,
		"SELECT a FROM one WHERE name = ?; DELETE FROM one":                                 false,
		"SELECT a FROM one WHERE name = ? AND a = (SELECT b FROM one)":                      false,
		"SELECT a FROM one WHERE name = (SELECT MAX(name) FROM one)":                        false,
		"SELECT a FROM (SELECT name FROM one) w":                                            false,
		"SELECT a FROM (SELECT ? AS k) w STRAIGHT_JOIN one cur ON cur.name = w.k":           false,
		"SELECT a FROM one cur STRAIGHT_JOIN two b FORCE INDEX (PRIMARY) ON b.name = cur.a": false,
		"INSERT INTO one (name) SELECT name FROM one WHERE a = ?":                           false,
		"INSERT INTO one (name) VALUES ((SELECT MAX(name) FROM one))":                       false,
		"INSERT INTO one (name) VALUES (?) ON DUPLICATE KEY UPDATE a = (SELECT 1 FROM one)": false,
		"REPLACE INTO one (name) VALUES (?)":                                                false,
		"UPDATE one SET a = 1":                                                              false,
		"UPDATE one SET a = (SELECT 1 FROM two WHERE name = ?) WHERE name = ?":              false,
		"UPDATE one SET a = 1 WHERE name = ? ORDER BY a LIMIT 1":                            false,
		"UPDATE one, two SET a = 1 WHERE name = ?":                                          false,
		"DELETE FROM one":                   false,
		"DELETE FROM two WHERE name = ?":    false,
		"TRUNCATE one":                      false,
		"SELECT a FROM one WHERE name = 'x": false,
		"SELECT (a FROM one WHERE name = ?": false,
	} {
		err := keys.Point(statement)
		testdb.ErrorIf(t, (err == nil) != point, "%s: %v, want a point: %t", statement, err, point)
	}
	err := keys.Script("CREATE PROCEDURE p(a INT) BEGIN IF a THEN UPDATE one SET a = 1 WHERE name = p_a; ELSE SELECT a FROM one; END IF; END;")
	testdb.ErrorIf(t, err == nil, "a range in a procedure passes")
}

// TestChangesAreCounted: MariaDB answers OK, with no changed row, to an UPDATE or DELETE that KILL
// QUERY or its time limit has interrupted, so whoever sends one is told how many it has changed.
func TestChangesAreCounted(t *testing.T) {
	t.Parallel()
	queries := testdb.Got(Places("../../../../queries"))(t)
	changes := regexp.MustCompile(`(?m)^(UPDATE|DELETE)\b`)
	for name, q := range queries {
		head, _, _ := strings.Cut(q.Text, "\n")
		testdb.ErrorIf(t, changes.MatchString(q.Text) && strings.HasSuffix(head, ":exec"), "%s doesn't tell how many rows it has changed: make it :execrows", name)
	}
}

// TestPlaces: a query must say where it runs, in one way.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"-- name: One :exec\n" + inCallers + "\nDELETE FROM t;\n":                     true,
		"-- name: One :exec\nDELETE FROM t;\n":                                        false,
		"-- name: One :exec\n" + inCallers + "\n" + inOwn + "\nDELETE FROM t;\n":      false,
		"-- name: One :exec\n" + inOwn + "\nDELETE FROM t;\n-- name: Two :exec\nX;\n": false,
	} {
		file := filepath.Join(t.TempDir(), "q.sql")
		check(t, os.WriteFile(file, []byte(text), 0o644))
		queries, err := Places(file)
		testdb.ErrorIf(t, (err == nil) != ok || ok && !queries["One"].InCallers, "%q: %v, %v", text, queries, err)
	}
}

var (
	setsID  = regexp.MustCompile(`(?i)\bLAST_INSERT_ID\s*\(\s*[^\s)]`)
	readsID = regexp.MustCompile(`(?i)\bLAST_INSERT_ID\s*\(\s*\)`)
)

// readsOwnID reports whether one of the statements of a text reads the LAST_INSERT_ID() that it
// sets itself.
func readsOwnID(text string) bool {
	return slices.ContainsFunc(strings.Split(text, ";"), func(statement string) bool {
		return setsID.MatchString(statement) && readsID.MatchString(statement)
	})
}

// ownID are the texts that read within themselves the LAST_INSERT_ID() that they set: the
// question whether a server can do that, and two statements for servers that can.
var ownID = []string{"SeesOwnID", "CompareAndBumpNamed", "CompareAndBumpCenter"}

// TestOwnIDIsNotRead: no statement of leases, or of anything else but those of ownID, relies on a
// LAST_INSERT_ID() that it sets and reads itself, which is an older one on TiDB and Vitess.
func TestOwnIDIsNotRead(t *testing.T) {
	t.Parallel()
	queries := testdb.Got(Places(filepath.Join(root, "queries")))(t)
	texts := make(map[string]string) // all strings of one declaration are one text
	for name, query := range queries {
		lines := slices.DeleteFunc(strings.Split(query.Text, "\n"), func(line string) bool { return strings.HasPrefix(line, "--") })
		texts[name] = strings.Join(lines, "\n")
	}
	several := []rawsql.Wanted{{Name: "a"}, {Name: "b"}}
	texts["AcquireMany"], texts["ReleaseMany"] = rawsql.AcquireMany(several, 1), rawsql.ReleaseMany(several, 1)
	texts["RenewMany"] = rawsql.RenewMany([]rawsql.Hold{{Name: "a"}})
	walk(t, "internal/rawsql", func(name, text string) { texts[name] += " " + text })
	var found []string
	for name, text := range texts {
		if readsOwnID(text) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	want := slices.Sorted(slices.Values(ownID))
	testdb.ErrorIf(t, !slices.Equal(found, want), "LAST_INSERT_ID() is set and read within %v, want only within %v", found, want)
}
