package sqltext

import (
	"slices"
	"testing"
)

func TestClosed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
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
	} {
		if got, ok := Closed(text); !ok || !slices.Equal(got, want) {
			t.Errorf("Closed(%q) = %q, %t, want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"(", ")", ")(", "a) OR (b", "((a)", "'a", "\"a", "`a", "'a''", "a'", "/* a", "/*/", "/*", "a -- b", "a --", "-- a\n", "a # b", "#\n",
		"a; b", ";", "/*! a */", "/*!50000 a */", "/*M! a */", `'a\' OR b'`, `"\\"`, `a\`, "a\x00",
	} {
		if words, ok := Closed(text); ok {
			t.Errorf("Closed(%q) = %q", text, words)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"INSERT INTO a SELECT 1 FROM b":         "INSERT INTO a ",
		"INSERT INTO a (x) select 1":            "INSERT INTO a (x) ",
		"INSERT INTO `SELECT` /* SELECT */ SET": "INSERT INTO `SELECT` /* SELECT */ SET",
		"INSERT INTO a.select SELECT 1":         "INSERT INTO a.select ",
		"INSERT INTO select.a SELECT 1":         "INSERT INTO select.a ",
		"INSERT INTO a (SELECT 1)":              "INSERT INTO a (SELECT 1)",
		"INSERT INTO selected":                  "INSERT INTO selected",
	} {
		if got, _ := Cut(text, "SELECT"); got != want {
			t.Errorf("Cut(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestUnquoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a = 'b@c' AND `d@` = \"@\" /* @ */ OR e": "a =  AND  =   OR e",
		"n = @x":  "n = @x",
		"'it''s'": "",
	} {
		if got := Unquoted(text); got != want {
			t.Errorf("Unquoted(%q) = %q, want %q", text, got, want)
		}
	}
}
