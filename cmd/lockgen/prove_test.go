//go:build !race

package main

import (
	"errors"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

var namedMark = regexp.MustCompile(`:(\w+)`)

// random is the schema of the random statements.
var random = sync.OnceValues(func() (*catalog, error) {
	dir, err := os.MkdirTemp("", "lockgen")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "schema.sql")
	err = os.WriteFile(file, []byte(randomSchema), 0o600)
	schema, unread := readSchema([]string{file})
	return schema, errors.Join(err, unread, os.RemoveAll(dir))
})

// verdict returns what lockgen says of a statement over the random tables. :name is a text,
// :ids a slice, all others are integers; locks are as in an annotation.
func verdict(t *testing.T, locks, text string) string {
	t.Helper()
	schema := testdb.Got(random())(t)
	g := &grammar{tables: randomTables()}
	sql := namedMark.ReplaceAllStringFunc(text, func(mark string) string {
		p := &param{name: mark[1:], kind: types.Typ[types.Int64], many: strings.HasSuffix(mark, "s")}
		if strings.HasPrefix(mark, ":name") {
			p.kind = types.Typ[types.String]
		}
		for _, old := range g.params {
			if old.name == p.name {
				p = old
			}
		}
		if len(g.params) == 0 || g.params[len(g.params)-1] != p {
			g.params = append(g.params, p)
		}
		g.marks = append(g.marks, p)
		return "?"
	})
	for locks != "" {
		m := oneItem.FindStringSubmatch(locks)
		g.items = append(g.items, item{family: m[1], params: strings.Split(m[2], ", ")})
		locks = locks[len(m[0]):]
	}
	return g.judge(schema, sql).Error()
}

// TestUnproven proves that a write passes only if each row that it may change is locked.
func TestUnproven(t *testing.T) {
	t.Parallel()
	const passes, row, another, several, values = "", "its condition must say that", "it may meet the row of another", "each row needs a lock of its own", "must be a parameter"
	for _, c := range []struct{ locks, sql, want string }{
		{"plain(id)", "UPDATE plain SET n = 1 WHERE id = :id", passes},
		{"plain(id)", "UPDATE plain AS p SET n = 1 WHERE (p.id <=> (:id)) AND n > 3 ORDER BY n LIMIT 1", passes},
		{"plain(ids)", "DELETE FROM plain WHERE id IN (:ids)", passes},
		{"plain(id), plain(ids)", "DELETE FROM plain WHERE id IN (:ids) OR id = :id AND n = 1", passes},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE id = :id OR n = 2", row},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE NOT (id = :id)", row},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE id = :id XOR n = 2", row},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE id IN (:id, 3)", row},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE (id = :id) = n", "doesn't compare it"},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE CAST(id AS SIGNED) = :id", "doesn't compare it"},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE id = CAST(:id AS UNSIGNED)", "doesn't compare it"},
		{"users(name)", "UPDATE users SET n = 1 WHERE CAST(name AS CHAR(3)) = :name", "doesn't compare it"},
		{"users(name)", "UPDATE users SET n = 1 WHERE name = :name COLLATE utf8mb4_bin", "doesn't compare it"},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE EXISTS (SELECT 1 FROM given WHERE id = :id)", "doesn't compare it"},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE owner = \"x\" AND id = :id", "sql_mode decides"},
		{"plain(id)", `UPDATE plain SET n = 1 WHERE owner = 'it\'s' AND id = :id`, "sql_mode decides"},
		{"plain(id)", "UPDATE plain SET n = 1 WHERE id = :id || n = :id", "sql_mode decides"},
		{"plain(id)", "UPDATE d.plain SET n = 1 WHERE id = :id", "it is named with a database"},
		{"", "UPDATE rich SET n = 1 WHERE id = :id", "it stands in the view rich"},
		// The key of a row changes.
		{"plain(id)", "UPDATE plain SET id = :other WHERE id = :id", several},
		{"plain(id)", "UPDATE plain SET id = id + 1 WHERE id = :id", "only a parameter of a key can be its new value"},
		{"plain(id), plain(other)", "UPDATE plain SET id = :other WHERE id = :id", passes},
		{"plain(id)", "UPDATE plain SET id = id WHERE id = :id", passes},
		{"pairs(account, line), pairs(account, other)", "UPDATE pairs SET line = :other WHERE account = :account AND line = :line", passes},
		{"enums(name), enums(name2)", "UPDATE enums SET name = :name2 WHERE name = :name", "is an ENUM"},
		// Joins.
		{"plain(id), given(other)", "UPDATE plain a, given b SET a.n = 1, b.n = 1 WHERE a.id = :id AND b.id = :other", passes},
		{"plain(id), given(id)", "UPDATE plain a JOIN given b ON a.id = b.id SET a.n = 1, b.n = 1 WHERE a.id = :id", passes},
		{"plain(id)", "UPDATE plain a LEFT JOIN free b ON a.id = :id SET a.n = 1", row},
		{"plain(id)", "UPDATE free b LEFT JOIN plain a ON a.id = :id SET a.n = 1", passes},
		{"plain(id)", "UPDATE free b JOIN plain a USING (id) SET a.n = 1 WHERE id = :id", "doesn't compare it"},
		{"plain(id)", "DELETE a, b FROM plain a JOIN given b ON a.id = b.id WHERE a.id = :id", "writes given"},
		{"users(name)", "UPDATE users a JOIN exact b ON a.name = b.name SET a.n = 1 WHERE b.name = :name", "doesn't compare it"},
		// Inserted rows.
		{"", "INSERT INTO accounts (code) VALUES (:code)", passes},
		{"", "INSERT INTO accounts (id, code) VALUES (NULL, :code), (DEFAULT, 4)", passes},
		{"", "INSERT INTO accounts (code) SELECT code FROM free UNION SELECT 3", passes},
		{"", "INSERT INTO given (n) VALUES (:n)", "it leaves out id, which has no AUTO_INCREMENT"},
		{"", "INSERT INTO plain (n) VALUES (:n)", "it leaves out id, which has no AUTO_INCREMENT"},
		{"plain(id)", "INSERT INTO plain (id, n) VALUES (:id, 1), (:other, 1)", several},
		{"plain(id), plain(other)", "INSERT INTO plain (id, n) VALUES (:id, 1), (:other, 1)", passes},
		{"plain(id)", "INSERT INTO plain VALUES (:id, 'x', 1)", "it must name the columns"},
		{"plain(id)", "INSERT INTO plain (id) VALUES (:id + 1)", values},
		{"plain(id)", "INSERT INTO plain (id, n) SELECT :id, n FROM free", passes},
		{"plain(id)", "INSERT INTO plain (n, id) SELECT free.*, :id FROM free", values},
		{"plain(id)", "INSERT INTO plain (id) SELECT :id FROM free GROUP BY 1 WITH ROLLUP", values},
		{"plain(id)", "INSERT INTO plain (id, n) VALUES (:id, 1) ON DUPLICATE KEY UPDATE n = VALUES(n), id = VALUES(id)", passes},
		{"plain(id)", "INSERT INTO plain (id, n) VALUES (:id, 1) ON DUPLICATE KEY UPDATE id = :other", several},
		{"users(name)", "INSERT INTO users (name, code) VALUES (:name, 1) ON DUPLICATE KEY UPDATE n = 1", another},
		{"users(name)", "REPLACE INTO users (name, code) VALUES (:name, 1)", another},
		{"prefixed(name)", "REPLACE INTO prefixed (name) VALUES (:name)", another},
		{"doubled(id)", "REPLACE INTO doubled (id) VALUES (:id)", another},
		{"", "REPLACE INTO tiny (n) VALUES (:n)", another},
		{"bytes(name)", "REPLACE INTO bytes (name) VALUES (:name)", passes},
		{"bytes(name)", "INSERT IGNORE INTO bytes (name) VALUES (:name)", "IGNORE cuts off"},
		{"tiny(id)", "INSERT IGNORE INTO tiny (id, code) VALUES (:id, 1)", "IGNORE stores the nearest value"},
		{"plain(id)", "INSERT IGNORE INTO plain (id, n) VALUES (:id, 1)", passes},
		{"exact(name)", "INSERT INTO exact (name) VALUES (:name)", "cuts off blanks"},
		// Foreign keys.
		{"parents(id)", "DELETE FROM parents WHERE id = :id", "a foreign key on parents changes rows of it"},
		{"parents(id)", "REPLACE INTO parents (id) VALUES (:id)", "a foreign key on parents changes rows of it"},
		{"parents(id), parents(other)", "UPDATE parents SET id = :other WHERE id = :id", "a foreign key on parents changes rows of it"},
		{"parents(id)", "UPDATE parents SET n = 1 WHERE id = :id", passes},
		// What the parser doesn't read as the servers do, and what lockgen doesn't know.
		{"plain(id)", "UPDATE plain /*M! , given AS g */ SET n = 1 WHERE id = :id", "is read by some servers only"},
		{"plain(id)", "UPDATE plain SET n = 1 /*! , id = 2 */ WHERE id = :id", "is read by some servers only"},
		{"", "SELECT /*+ SET_VAR(sql_mode = 'ANSI_QUOTES') */ n FROM free", "is read by some servers only"},
		{"", "SELECT /*+ MAX_EXECUTION_TIME(10) */ n, '/*!' FROM free -- /*!", passes},
		{"", "UPDATE free SET n = 1 WHERE id IN (WITH plain AS (SELECT 1) SELECT 1 FROM plain)", "WITH plain hides the table"},
		{"", "INSERT INTO accounts (id) WITH accounts AS (SELECT 1) SELECT 1", "WITH accounts hides the table"},
		{"", "UPDATE elsewhere SET n = 1", "the schema has no table elsewhere"},
		{"", "UPDATE free SET n = bump(:n)", "doesn't know the function bump"},
		{"", "UPDATE free SET n = d.lower(:n)", "doesn't know the parser's Schema of FuncCallExpr"},
		{"", "SELECT n FROM free INTO OUTFILE '/tmp/x'", "doesn't know the parser's SelectIntoOpt of SelectStmt"},
		{"", "UPDATE free PARTITION (p0) SET n = 1", "doesn't know the parser's PartitionNames of TableName"},
		{"", "SELECT @a := 3", "doesn't know the parser's Value of VariableExpr"},
		{"plain(id)", "CALL p(:id)", "it is neither SELECT"},
		{"", "WITH c AS (SELECT id, COUNT(*) OVER (PARTITION BY code) k FROM free) SELECT CASE WHEN k BETWEEN 1 AND 2 THEN NOW() - INTERVAL 1 DAY END, TRIM(LEADING 'x' FROM 'y') FROM c GROUP BY 1 HAVING MAX(k) LIKE '3' ORDER BY 1 LIMIT 2 FOR UPDATE", passes},
	} {
		said := verdict(t, c.locks, c.sql)
		testdb.ErrorIf(t, c.want == passes && said != "" || !strings.Contains(said, c.want),
			"%s under %q: lockgen says:\n%s\nwant:\n%s", c.sql, c.locks, said, c.want)
		testdb.ErrorIf(t, said != "" && !strings.Contains(said, "because") && !strings.Contains(said, "must be the key"),
			"%s: lockgen doesn't say how to go on: %s", c.sql, said)
	}
}

// TestIdentifies proves that columns of which one value may have several keys are refused.
func TestIdentifies(t *testing.T) {
	t.Parallel()
	number, text := types.Type(types.Typ[types.Int64]), types.Type(types.Typ[types.String])
	for def, c := range map[string]struct {
		id   types.Type
		want string
	}{
		"BIGINT":                             {number, ""},
		"YEAR":                               {number, "may be equal to several integers"},
		"DECIMAL(9, 2)":                      {number, "may be equal to several integers"},
		"VARBINARY(9)":                       {number, "may be equal to several integers"},
		"DOUBLE":                             {number, "may be equal to several integers"},
		"BIGINT AS (1 + 1) STORED":           {number, "is generated of other columns"},
		"SET ('a', 'b') COLLATE utf8mb4_bin": {text, "is a SET"},
		"BINARY(16)":                         {types.NewStruct(nil, nil), "lockgen knows integers, strings and uuid.UUID"},
	} {
		schema := testdb.Got(schemaOf(t, "CREATE TABLE t (k "+def+")"))(t)
		err := schema.tables["t"].columns["k"].identifies(c.id, "utf8mb4_bin")
		testdb.ErrorIf(t, c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)), "%s: %v, want %q", def, err, c.want)
	}
}

// TestValuers proves that a type which decides what is sent is no key.
func TestValuers(t *testing.T) {
	t.Parallel()
	pkg := types.NewPackage("example.com/names", "names")
	name := types.NewNamed(types.NewTypeName(token.NoPos, pkg, "Name", nil), types.Typ[types.String], nil)
	v := value{id: types.Typ[types.String], kind: name}
	must(t, v.fits())
	name.AddMethod(types.NewFunc(token.NoPos, pkg, "Value", types.NewSignatureType(types.NewVar(0, pkg, "", name), nil, nil, nil, nil, false)))
	testdb.Fails(t, "the schema", v.fits(), "whose method Value may send another value")
}

// TestUnknownSchemas proves that a schema counts as a whole, and that what lockgen doesn't know in it is refused.
func TestUnknownSchemas(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"CREATE TABEL t (i INT)":                                           "0.sql: line 1",
		"CREATE TABLE a.t (i INT); CREATE TABLE b.t (i INT)":               "creates table t twice",
		"CREATE TABLE a.t (i INT); CREATE TABLE IF NOT EXISTS b.t (j INT)": "creates table t twice",
		"ALTER TABLE t ADD COLUMN i INT":                                   "alters table t, which it doesn't make",
		"CREATE TABLE t (i INT); ALTER TABLE t CACHE":                      "doesn't know what",
		"CREATE SEQUENCE s":                                                "doesn't know what",
	} {
		_, err := schemaOf(t, text)
		testdb.Fails(t, text, err, want)
	}
	const table = "CREATE TABLE t (a INT, b INT, c INT NOT NULL, PRIMARY KEY (a, b));"
	for text, want := range map[string]string{
		"":                                   "primary a,b",
		"CREATE UNIQUE INDEX u ON t (b)":     "primary a,b; u b",
		"CREATE INDEX u ON t (b)":            "primary a,b",
		"ALTER TABLE t ADD UNIQUE (c(3), b)": "primary a,b;  b",
		"ALTER TABLE t ADD KEY (c), ADD UNIQUE (c), DROP INDEX c":  "primary a,b;  c",
		"ALTER TABLE t ADD COLUMN IF NOT EXISTS b INT UNIQUE":      "primary a,b",
		"ALTER TABLE t DROP PRIMARY KEY":                           "",
		"ALTER TABLE t ADD d INT UNIQUE":                           "primary a,b;  d",
		"ALTER TABLE t RENAME COLUMN a TO d":                       "primary d,b",
		"ALTER TABLE t CHANGE a d INT":                             "primary d,b",
		"ALTER TABLE t DROP COLUMN a":                              "primary ,b",
		"CREATE TABLE s LIKE t; DROP TABLE t; RENAME TABLE s TO t": "primary a,b",
		"ALTER TABLE t ADD UNIQUE u (b), RENAME INDEX u TO v":      "primary a,b; v b",
		"ALTER TABLE t ADD UNIQUE u (b), DROP INDEX u":             "primary a,b",
		"CREATE UNIQUE INDEX u ON t (b); DROP INDEX u ON t":        "primary a,b",
	} {
		schema := testdb.Got(schemaOf(t, table+text))(t)
		var got []string
		for _, i := range schema.tables["t"].unique {
			got = append(got, i.name+" "+strings.Join(i.columns, ","))
		}
		testdb.ErrorIf(t, strings.Join(got, "; ") != want, "%s: unique keys are %q, want %q", text, got, want)
	}
}

// FuzzParse looks for statements that make lockgen panic.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"INSERT INTO accounts (id) WITH accounts AS (SELECT 1) SELECT 1", "INSERT INTO plain () VALUES ()", "UPDATE plain SET id = ? WHERE id IN (?, ?) OR (id, n) = (?, 1)",
		"DELETE a.*, b FROM plain a NATURAL JOIN (given b, free c)", "REPLACE INTO plain SELECT * FROM (SELECT 1) x", "TABLE plain", "VALUES ROW(1)", "INSERT INTO plain TABLE free",
	} {
		f.Add(text)
	}

	schema, err := random()
	testdb.Must(f, err)
	tables := randomTables()
	f.Fuzz(func(_ *testing.T, text string) {
		g := &grammar{tables: tables}
		for range strings.Count(text, "?") {
			p := &param{name: "id", kind: types.Typ[types.Int64]}
			g.params, g.marks = []*param{p}, append(g.marks, p)
		}
		if len(g.params) > 0 {
			g.items = []item{{family: "plain", params: []string{"id"}}}
		}
		_ = g.judge(schema, text)
	})
}

// schemaOf reads a schema of several files.
func schemaOf(t *testing.T, files ...string) (*catalog, error) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)+".sql"), []byte(text), 0o644))
	}
	found := testdb.Got(sqlFiles(dir, []string{"."}))(t)
	return readSchema(found)
}

// TestCollations proves that a family of texts needs a column that compares bytes, or the
// folding of the column's collation.
func TestCollations(t *testing.T) {
	t.Parallel()
	const asBytes, none, mentions = "", "has no collation", `txlock.Fold("utf8mb4_general_ci")`
	for name, c := range map[string]struct{ schema, fold, want string }{
		"bytes":                       {"CREATE TABLE t (k VARBINARY(9))", "", asBytes},
		"bytes by another name":       {"CREATE TABLE t (k VARCHAR(9) CHARACTER SET binary)", "", asBytes},
		"bytes by the table":          {"CREATE TABLE t (k VARCHAR(9)) CHARSET binary", "", asBytes},
		"long bytes":                  {"CREATE TABLE t (k BLOB)", "", asBytes},
		"binary, not padded":          {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_0900_bin)", "", asBytes},
		"by the table":                {"CREATE TABLE t (k VARCHAR(9)) COLLATE utf8mb4_0900_bin", "", asBytes},
		"by the database":             {"CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin; CREATE TABLE t (k VARCHAR(9))", "", asBytes},
		"converted":                   {"CREATE TABLE t (k VARCHAR(9)); ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin", "", asBytes},
		"modified":                    {"CREATE TABLE t (k VARCHAR(9)); ALTER TABLE t MODIFY k VARBINARY(9)", "", asBytes},
		"renamed":                     {"CREATE TABLE s (j VARBINARY(9)); ALTER TABLE s RENAME COLUMN j TO k; RENAME TABLE s TO t", "", asBytes},
		"changed and renamed":         {"CREATE TABLE s (j VARCHAR(9)); ALTER TABLE s CHANGE j k VARBINARY(9), RENAME TO t", "", asBytes},
		"added":                       {"CREATE TABLE t (i INT) COLLATE utf8mb4_0900_bin; ALTER TABLE t ADD COLUMN k VARCHAR(9)", "", asBytes},
		"like another":                {"CREATE TABLE s (k VARBINARY(9)); CREATE TABLE t LIKE s", "", asBytes},
		"made once":                   {"CREATE TABLE t (k VARBINARY(9)); CREATE TABLE IF NOT EXISTS t (k VARCHAR(9))", "", asBytes},
		"folded":                      {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci)", "utf8mb4_general_ci", asBytes},
		"folded by the older name":    {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8_general_ci)", "utf8mb3_general_ci", asBytes},
		"folded, nothing said":        {"CREATE TABLE t (k VARCHAR(9))", "utf8mb4_uca1400_ai_ci", asBytes},
		"folded of that charset":      {"CREATE TABLE t (k VARCHAR(9)) CHARSET latin1", "latin1_swedish_ci", asBytes},
		"folded, binary":              {"CREATE TABLE t (k VARCHAR(9) CHARACTER SET latin1 BINARY)", "latin1_bin", asBytes},
		"folded, of an enumeration":   {"CREATE TABLE t (k ENUM ('a', 'b') COLLATE utf8mb4_general_ci)", "utf8mb4_general_ci", asBytes},
		"nothing said":                {"CREATE TABLE t (k VARCHAR(9))", "", none},
		"only the charset":            {"CREATE TABLE t (k VARCHAR(9)) CHARSET utf8mb4", "", none},
		"no longer":                   {"CREATE TABLE t (k VARBINARY(9)); ALTER TABLE t MODIFY k VARCHAR(9)", "", none},
		"converted to a default":      {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_0900_bin); ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", "", none},
		"not converted":               {"CREATE TABLE t (k VARCHAR(9)); ALTER TABLE t COLLATE utf8mb4_0900_bin", "", none},
		"made anew":                   {"CREATE TABLE t (k VARBINARY(9)); DROP TABLE t; CREATE TABLE t (k TEXT)", "", none},
		"the attribute BINARY":        {"CREATE TABLE t (k VARCHAR(9) BINARY)", "", none},
		"without case":                {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci)", "", mentions},
		"without case, by the table":  {"CREATE TABLE t (k TEXT) CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci", "", mentions},
		"an enumeration":              {"CREATE TABLE t (k ENUM ('a') COLLATE utf8mb4_general_ci)", "", mentions},
		"binary, padded":              {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_bin)", "", `txlock.Fold("utf8mb4_bin")`},
		"CHAR drops blanks":           {"CREATE TABLE t (k CHAR(9) COLLATE utf8mb4_0900_bin)", "", `txlock.Fold("utf8mb4_0900_bin")`},
		"folded otherwise":            {"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_bin)", "utf8mb4_general_ci", "has the collation utf8mb4_bin, but the family folds as utf8mb4_general_ci does"},
		"folded of another charset":   {"CREATE TABLE t (k VARCHAR(9)) CHARSET latin1", "utf8mb4_bin", "has the collation latin1_..., but the family folds as utf8mb4_bin does"},
		"filled up":                   {"CREATE TABLE t (k BINARY(9))", "", "fills values up with zero bytes"},
		"a number with several texts": {"CREATE TABLE t (k DECIMAL(9, 2))", "", "is decimal(9,2), of which one value may have several texts"},
	} {
		schema := testdb.Got(schemaOf(t, c.schema))(t)
		err := schema.tables["t"].columns["k"].compares(c.fold)
		testdb.ErrorIf(t, c.want == asBytes && err != nil || c.want != asBytes && (err == nil || !strings.Contains(err.Error(), c.want)),
			"%s: %v, want %q", name, err, c.want)
	}
}

// compared compares families with the schema of the shop, where a text is replaced by another.
func compared(t *testing.T, pkg *goPackage, old, changed string) problems {
	t.Helper()
	text := testdb.Got(os.ReadFile("testdata/schema.sql"))(t)
	schema := testdb.Got(schemaOf(t, strings.ReplaceAll(string(text), old, changed)))(t)
	p := &plan{pkg: pkg}
	p.compare(schema)
	return p.problems
}

// TestFamilySaysHow proves that a family of texts over a column that compares bytes is refused unless it says so.
func TestFamilySaysHow(t *testing.T) {
	t.Parallel()
	pkg := testdb.Got(shop())(t)
	for exact, want := range map[bool]string{false: "compares bytes, and the family doesn't declare it", true: ""} {
		changed, fam := *pkg, *pkg.tables["products"]
		fam.fold, fam.exact = "", exact
		changed.tables = maps.Clone(pkg.tables)
		changed.tables["products"] = &fam
		said := compared(t, &changed, "utf8mb4_bin", "utf8mb4_0900_bin")
		testdb.ErrorIf(t, want == "" && len(said) > 0 || !strings.Contains(said.Error(), want), "exact=%t: lockgen says %s, want %q", exact, said, want)
	}
}

// TestMigrations proves that what undoes a migration is not read.
func TestMigrations(t *testing.T) {
	t.Parallel()
	const up = "CREATE TABLE t (k VARBINARY(9));\n"
	for _, undo := range []string{"-- +goose Down", "-- +migrate Down", "-- migrate:down", "---- create above / drop below ----"} {
		schema := testdb.Got(schemaOf(t, up+undo+"\nDROP TABLE t;", "ALTER TABLE t ADD COLUMN n INT"))(t)
		testdb.ErrorIf(t, schema.tables["t"] == nil || schema.tables["t"].columns["n"] == nil, "%s: the schema has %v", undo, schema.tables)
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "1.down.sql"), []byte("DROP TABLE t"), 0o644))
	files, err := sqlFiles(dir, []string{"."})
	testdb.ErrorIf(t, err != nil || len(files) != 0, "the files are %v, %v", files, err)
}

// TestSchemaRefuses proves that families over what the schema doesn't have, or of texts
// under an unknown collation, are refused where they are marked.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	pkg := testdb.Got(shop())(t)
	for name, c := range map[string]struct{ old, new, want string }{
		"no table":    {"CREATE TABLE carts", "CREATE TABLE baskets", "locks.go:32: the schema has no table carts"},
		"no column":   {"id         BINARY(16)", "cart_id BINARY(16)", "locks.go:32: table carts has no column id in the schema"},
		"a collation": {"utf8mb4_bin", "utf8mb4_unicode_ci", "locks.go:23: products.sku has the collation utf8mb4_unicode_ci, but the family folds as utf8mb4_bin does"},
	} {
		said := compared(t, pkg, c.old, c.new)
		testdb.ErrorIf(t, !strings.Contains(said.Error(), c.want) || len(said) != 1, "%s: lockgen says:\n%s\nwant:\n%s", name, said, c.want)
	}
}
