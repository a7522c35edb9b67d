package sqltext

import (
	"maps"
	"slices"
	"testing"
)

func TestAliases(t *testing.T) {
	t.Parallel()
	tables := map[string]bool{"t": true}
	for references, want := range map[string][]string{
		"a":                                      nil,
		"UPDATE a x":                             nil,
		"t":                                      {"t"},
		"UPDATE t b JOIN a":                      {"b", "t"},
		"a JOIN T AS `B` ON a.id = b.id":         {"b", "t"},
		"a, shop.t x, b":                         {"t", "x"},
		"a JOIN t USING (id)":                    {"t"},
		"a JOIN t b USE INDEX (x), c":            {"b", "t"},
		"a AS t JOIN t AS a":                     {"a", "t"},
		"a JOIN (SELECT * FROM t WHERE x = 1) y": {"t", "y"},
		"a JOIN (SELECT x FROM t GROUP BY x) AS `z` ON t.id = a.t": {"t", "z"},
		"a LEFT JOIN (t \"q\", b) ON 't x' = 1":                    {"q", "t"},
		"a JOIN t/**/x":                                            {"t", "x"},
		"a JOIN t PARTITION (p0) x":                                {"partition", "t", "x"},
	} {
		got, ok := Aliases(references, tables)
		if names := slices.Sorted(maps.Keys(got)); !ok || !slices.Equal(names, want) {
			t.Errorf("Aliases(%q) = %q, %t, want %q", references, names, ok, want)
		}
	}
	for _, references := range []string{"a JOIN t FOR SYSTEM_TIME ALL x", "a JOIN t x y", "a JOIN t(1)", "t AS x y"} {
		if got, ok := Aliases(references, tables); ok {
			t.Errorf("Aliases(%q) = %v", references, got)
		}
	}
}

func TestAssignedTables(t *testing.T) {
	t.Parallel()
	for assignments, want := range map[string][]string{
		" a.n = 1": {"a"},
		" shop.A.n=?, `b`.`x` := f(1, 2, (3)), c . n = 'd.e, f'":    {"a", "b", "c"},
		"a.n = CASE WHEN b THEN 1 END, b.n = 1 WHERE c.n = 1, d":    {"a", "b"},
		"a.n = (SELECT b.n FROM c WHERE 1), d.n = 2 LIMIT 1":        {"a", "d"},
		"a.n = 1 /* , b.n = 1 */ ORDER BY b.n, c":                   {"a"},
		"a.limit = 1, b.`where` = 2, c.n = `order` + `limit`.`set`": {"a", "b", "c"},
	} {
		if got, ok := AssignedTables(assignments); !ok || !slices.Equal(got, want) {
			t.Errorf("AssignedTables(%q) = %q, %t, want %q", assignments, got, ok, want)
		}
	}
	for _, assignments := range []string{"", "n = 1", "a.n = 1, n = 2", "a.n", "a.n + 1", "a.n = 1, b", "@x := 1", "a.n = MATCH b, c AGAINST ('x')", "a.n = 1 RETURNING a, b", ".a.n = 1", "a. = 1"} {
		if got, ok := AssignedTables(assignments); ok {
			t.Errorf("AssignedTables(%q) = %q", assignments, got)
		}
	}
}

func TestListedTables(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]string{
		" a ": {"a"}, "A, shop.b.*, `c`.*": {"a", "b", "c"}, "LOW_PRIORITY QUICK IGNORE a": {"a"}, "`quick`": {"quick"},
	} {
		if got, ok := ListedTables(list); !ok || !slices.Equal(got, want) {
			t.Errorf("ListedTables(%q) = %q, %t, want %q", list, got, ok, want)
		}
	}
	for _, list := range []string{"", " QUICK ", "a b", "a,", ", a", "a JOIN b", "a.", "(a)", "'a'", "*"} {
		if got, ok := ListedTables(list); ok {
			t.Errorf("ListedTables(%q) = %q", list, got)
		}
	}
}
