//go:build !race

package main

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// schemaOf reads a schema of several files.
func schemaOf(t *testing.T, files ...string) (*catalog, error) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)+".sql"), []byte(text), 0o644))
	}
	found, err := sqlFiles(dir, []string{"."})
	must(t, err)
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
		schema, err := schemaOf(t, c.schema)
		must(t, err)
		err = schema.tables["t"].columns["k"].compares(c.fold)
		if c.want == asBytes && err != nil || c.want != asBytes && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// compared compares families with the schema of the shop, where a text is replaced by another.
func compared(t *testing.T, pkg *goPackage, old, changed string) problems {
	t.Helper()
	text, err := os.ReadFile("testdata/schema.sql")
	must(t, err)
	schema, err := schemaOf(t, strings.ReplaceAll(string(text), old, changed))
	must(t, err)
	p := &plan{pkg: pkg}
	p.compare(schema)
	return p.problems
}

// TestFamilySaysHow proves that a family of texts over a column that compares bytes is
// refused unless it says so.
func TestFamilySaysHow(t *testing.T) {
	t.Parallel()
	pkg, err := shop()
	must(t, err)
	for exact, want := range map[bool]string{false: "compares bytes, and the family doesn't declare it", true: ""} {
		changed, fam := *pkg, *pkg.tables["products"]
		fam.fold, fam.exact = "", exact
		changed.tables = maps.Clone(pkg.tables)
		changed.tables["products"] = &fam
		said := compared(t, &changed, "utf8mb4_bin", "utf8mb4_0900_bin")
		if want == "" && len(said) > 0 || !strings.Contains(said.Error(), want) {
			t.Errorf("exact=%t: lockgen says %s, want %q", exact, said, want)
		}
	}
}

// TestMigrations proves that what undoes a migration is not read.
func TestMigrations(t *testing.T) {
	t.Parallel()
	const up = "CREATE TABLE t (k VARBINARY(9));\n"
	for _, undo := range []string{"-- +goose Down", "-- +migrate Down", "-- migrate:down", "---- create above / drop below ----"} {
		schema, err := schemaOf(t, up+undo+"\nDROP TABLE t;", "ALTER TABLE t ADD COLUMN n INT")
		must(t, err)
		if schema.tables["t"] == nil || schema.tables["t"].columns["n"] == nil {
			t.Errorf("%s: the schema has %v", undo, schema.tables)
		}
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "1.down.sql"), []byte("DROP TABLE t"), 0o644))
	if files, err := sqlFiles(dir, []string{"."}); err != nil || len(files) != 0 {
		t.Errorf("the files are %v, %v", files, err)
	}
}

// TestSchemaRefuses proves that families over what the schema doesn't have, or of texts
// under an unknown collation, are refused where they are marked.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	pkg, err := shop()
	must(t, err)
	for name, c := range map[string]struct{ old, new, want string }{
		"no table":    {"CREATE TABLE carts", "CREATE TABLE baskets", "locks.go:32: the schema has no table carts"},
		"no column":   {"id         BINARY(16)", "cart_id BINARY(16)", "locks.go:32: table carts has no column id in the schema"},
		"a collation": {"utf8mb4_bin", "utf8mb4_unicode_ci", "locks.go:23: products.sku has the collation utf8mb4_unicode_ci, but the family folds as utf8mb4_bin does"},
	} {
		if said := compared(t, pkg, c.old, c.new); !strings.Contains(said.Error(), c.want) || len(said) != 1 {
			t.Errorf("%s: lockgen says:\n%s\nwant:\n%s", name, said, c.want)
		}
	}
}
