package sqltext

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// gives demands what a function gives for each text.
func gives[T any](t *testing.T, of func(text string) T, wanted map[string]T) {
	t.Helper()
	for text, want := range wanted {
		got := of(text)
		testdb.ErrorIf(t, !reflect.DeepEqual(got, want), "%q gives %#v, want %#v", text, got, want)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	gives(t, func(text string) []string { return Words(text, 4) }, map[string][]string{
		"":                                  nil,
		"  \t\n":                            nil,
		"-- only a comment":                 nil,
		"/* only a comment */":              nil,
		"/* never closed SELECT":            nil,
		"; SELECT 1":                        nil,
		"\r\n\tSelect\r\n1":                 {"SELECT", "1"},
		"((SELECT 1))":                      {"SELECT", "1"},
		"/* a */ SELECT /* b */ 1":          {"SELECT", "1"},
		"-- a\n# b\nSELECT 1":               {"SELECT", "1"},
		"--a SELECT":                        {"A", "SELECT"}, // no comment without a space
		"SELECT 1 -- 2":                     {"SELECT", "1"},
		"SELECT 5--1":                       {"SELECT", "5", "1"},
		"/*!50000 SELECT */ 1":              {"SELECT", "1"},
		"/*M!100100 SELECT */ 1":            {"SELECT", "1"},
		"/*M SELECT */ DO 1":                {"DO", "1"},
		"/*! /* inner */ COMMIT */":         {"COMMIT"},
		"ROLLBACK TO `SELECT`":              {"ROLLBACK", "TO"},
		"SELECT 'it''s', \"x\\\"y\", a":     {"SELECT", "A"},
		"SELECT `a``b`, c":                  {"SELECT", "C"},
		"SELECT 'never closed":              {"SELECT"},
		"SELECT 1; COMMIT":                  {"SELECT", "1"},
		"SELECT @@session.autocommit, x, y": {"SELECT", "SESSION", "AUTOCOMMIT", "X"},
	})
}

func TestNext(t *testing.T) {
	t.Parallel()
	gives(t, func(text string) (parts []string) {
		for first, rest := Next(text); ; first, rest = Next(rest) {
			if parts = append(parts, first); rest == "" {
				return parts
			}
		}
	}, map[string][]string{
		"":                                  {""},
		"SELECT 1":                          {"SELECT 1"},
		"SELECT 1;":                         {"SELECT 1"},
		"SELECT 1;;":                        {"SELECT 1", ""},
		"SELECT 1; SELECT 2; SELECT 3;\n":   {"SELECT 1", " SELECT 2", " SELECT 3"},
		"SELECT 'a;b'; SELECT 2":            {"SELECT 'a;b'", " SELECT 2"},
		"SELECT 'a\\';b'; SELECT 2":         {"SELECT 'a\\';b'", " SELECT 2"},
		`SELECT "a;b", ` + "`c;d\\`; DO 2":  {`SELECT "a;b", ` + "`c;d\\`", " DO 2"},
		"SELECT 1 /* ; */; DO 2":            {"SELECT 1 /* ; */", " DO 2"},
		"SELECT 1 -- ;\n; DO 2":             {"SELECT 1 -- ;\n", " DO 2"},
		"SELECT 1 # ;\n; DO 2":              {"SELECT 1 # ;\n", " DO 2"},
		"SELECT 'never closed; DO 2":        {"SELECT 'never closed; DO 2"},
		"SELECT 1; /* a comment is */ -- x": {"SELECT 1"},
		"SELECT 1;; /* a comment */":        {"SELECT 1", ""},
		"SELECT 1; (":                       {"SELECT 1", " ("},
		"SELECT 1; `":                       {"SELECT 1", " `"},
		"SELECT 1; /*! */":                  {"SELECT 1", " /*! */"},
		"SELECT 1; /* never closed":         {"SELECT 1", " /* never closed"},
	})
}

func TestMentions(t *testing.T) {
	t.Parallel()
	names := map[string]bool{"orders": true, "größe": true, "a$b": true}
	gives(t, func(text string) string { return Mentions(text, names) }, map[string]string{
		"":                                     "",
		"UPDATE orders SET v = 1":              "orders",
		"UPDATE `Orders` SET v = 1":            "orders",
		"UPDATE `shop`.`orders` SET v = 1":     "orders",
		"UPDATE orders/**/SET v = 1":           "orders",
		"/*!50000 UPDATE orders */":            "orders",
		"DELETE FROM a$b":                      "a$b",
		"DELETE FROM größe":                    "größe",
		"UPDATE orders_2 SET v = 1":            "",
		"UPDATE `orders ` SET v = 1":           "",
		"UPDATE t SET v = 'orders'":            "",
		"UPDATE t SET v = 1 -- orders":         "",
		"/* orders */ UPDATE t SET v = 1":      "",
		"UPDATE t SET v = 'it''s orders'":      "",
		"UPDATE t SET v = 'orders\\' orders '": "",
	})
}

// FuzzText looks for texts on which the functions panic, hang or lose a part.
func FuzzText(f *testing.F) {
	for _, seed := range []string{
		"SELECT 1; COMMIT", "/*!50000 SELECT", "/*M!", "--", "-", "#", "'\\", "`a``", "/*", "/*/", ";;", "\x80", "a$b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		for rest := query; rest != ""; {
			first, next := Next(rest)
			testdb.FatalIf(t, len(first)+len(next) > len(rest) || len(next) >= len(rest), "Next(%q) = %q, %q", rest, first, next)
			rest = next
		}
		got := Words(query, 3)
		testdb.ErrorIf(t, len(got) > 3, "Words(%q, 3) = %q", query, got)
		Mentions(query, map[string]bool{"orders": true})
	})
}

// TestSavepointName proves that a name which a server may take for another one is none.
func TestSavepointName(t *testing.T) {
	t.Parallel()
	gives(t, SavepointName, map[string]string{
		"SAVEPOINT a":    "a",
		"savepoint SP1;": "sp1",
		"RELEASE SAVEPOINT `a-b.c:d` /* a trace */": "a-b.c:d",
		"ROLLBACK WORK TO SAVEPOINT é$1 # end":      "",
		"ROLLBACK TO $1 -- end":                     "$1",
		`ROLLBACK TO "a"`:                           "a",
		"SAVEPOINT `a `":                            "",
		"SAVEPOINT `a b`":                           "",
		"SAVEPOINT `a``b`":                          "",
		"SAVEPOINT `a\\`":                           "",
		"SAVEPOINT \u212a":                          "", // KELVIN SIGN, k in lower case
		"SAVEPOINT a /* \u00e4 */":                  "",
		"SAVEPOINT a{":                              "", // a letter in swe7
		"SAVEPOINT a\x00":                           "",
		"SAVEPOINT ``":                              "",
		"SAVEPOINT " + strings.Repeat("a", 64):      strings.Repeat("a", 64),
		"SAVEPOINT " + strings.Repeat("a", 65):      "",
	})
}

func TestConditional(t *testing.T) {
	t.Parallel()
	gives(t, Conditional, map[string]bool{
		"SELECT 1":                                false,
		"SELECT /* a; b */ 1":                     false,
		"SELECT '/*! ; */'":                       false,
		"-- /*! COMMIT */\nSELECT 1":              false,
		"SELECT /*!40001 SQL_NO_CACHE */ 1":       false,
		"INSERT /*! IGNORE */ INTO t VALUES (1)":  false,
		"SELECT 1; INSERT /*M! IGNORE */ t ()":    false,
		"/*! COMMIT */":                           true,
		"/*!99999 SELECT */ DROP TABLE t":         true,
		"SELECT 1; /*M!100100 COMMIT AND CHAIN*/": true,
		"SELECT 1 /*!50000 ; COMMIT AND CHAIN */": true,
		"((/*! BEGIN */":                          true,
		"SELECT 1 /*!50000 ; COMMIT":              true,
	})
}

func TestClosed(t *testing.T) {
	t.Parallel()
	gives(t, func(text string) []string {
		words, ok := Closed(text)
		testdb.ErrorIf(t, !ok, "Closed(%q) is false", text)
		return words
	}, map[string][]string{
		"":                               nil,
		"a = 1":                          {"A", "1"},
		"a = 1 or b":                     {"A", "1", "OR", "B"},
		"(a = 1 OR b) AND c":             {"AND", "C"},
		"a||b := 2":                      {"A", "||", "B", ":=", "2"},
		"a(b || c)":                      {"A"},
		"a, b(c, d)":                     {"A", ",", "B"},
		"'a) OR (b' \"x -- \" `c`":       nil,
		"'it''s' = a":                    {"A"},
		"a /* b) */ c":                   {"A", "C"},
		"a /*+ b */":                     {"A"},
		"5--1":                           {"5", "1"},
		"a\u00a0OR\u00a0b":               {"A\u00a0OR\u00a0B"},
		"a.`or` = `b``c`":                {"A"},
		"UPDATE `t` SET `a`=? WHERE (b)": {"UPDATE", "SET", "WHERE"},
	})
	for _, text := range []string{
		"(", ")", ")(", "a) OR (b", "((a)", "'a", "\"a", "`a", "'a''", "a'", "/* a", "/*/", "/*", "a -- b", "a --", "-- a\n", "a # b", "#\n",
		"a; b", ";", "/*! a */", "/*!50000 a */", "/*M! a */", `'a\' OR b'`, `"\\"`, `a\`, "a\x00",
	} {
		words, ok := Closed(text)
		testdb.ErrorIf(t, ok, "Closed(%q) = %q", text, words)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	gives(t, func(text string) string { got, _ := Cut(text, "SELECT"); return got }, map[string]string{
		"INSERT INTO a SELECT 1 FROM b":         "INSERT INTO a ",
		"INSERT INTO a (x) select 1":            "INSERT INTO a (x) ",
		"INSERT INTO `SELECT` /* SELECT */ SET": "INSERT INTO `SELECT` /* SELECT */ SET",
		"INSERT INTO a.select SELECT 1":         "INSERT INTO a.select ",
		"INSERT INTO select.a SELECT 1":         "INSERT INTO select.a ",
		"INSERT INTO a (SELECT 1)":              "INSERT INTO a (SELECT 1)",
		"INSERT INTO selected":                  "INSERT INTO selected",
	})
}

func TestUnquoted(t *testing.T) {
	t.Parallel()
	gives(t, Unquoted, map[string]string{
		"a = 'b@c' AND `d@` = \"@\" /* @ */ OR e": "a =  AND  =   OR e",
		"n = @x":  "n = @x",
		"'it''s'": "",
	})
}
