package rawsql

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInline proves that each argument replaces its question mark, and that what can't be
// written safely is refused.
func TestInline(t *testing.T) {
	for _, c := range []struct {
		query string
		args  []any
		want  string
	}{
		{"SELECT 1", nil, "SELECT 1"},
		{"a = ? AND b = ?", []any{[]byte("x?'\\\x00"), "?"}, "a = X'783f275c00' AND b = X'3f'"},
		{"? ? ? ?", []any{int64(math.MinInt64), uint64(math.MaxUint64), int32(-7), 3}, "-9223372036854775808 18446744073709551615 -7 3"},
		{"LIMIT ?", []any{int32(10)}, "LIMIT 10"},
		{"?", []any{[]byte{}}, "X''"},
	} {
		if got, ok := Inline(c.query, c.args); !ok || got != c.want {
			t.Errorf("Inline(%q) = %q, %v, want %q", c.query, got, ok, c.want)
		}
	}
	for _, args := range [][]any{{}, {1, 2}, {1.5}, {nil}, {[]byte(nil)}, {true}} {
		if got, ok := Inline("a = ?", args); ok {
			t.Errorf("Inline of %v is not refused: %q", args, got)
		}
	}
}

// TestQuestionMarks proves that every question mark in the statements of queries/ stands
// for an argument.
func TestQuestionMarks(t *testing.T) {
	files, err := filepath.Glob("../../gen/*.sql.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	quoted := regexp.MustCompile("'[^']*'|--[^\n]*|/\\*.*?\\*/")
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(t, err)
		queries := strings.Split(string(text), "`")
		for i := 1; i < len(queries); i += 2 {
			for _, found := range quoted.FindAllString(queries[i], -1) {
				if strings.Contains(found, "?") {
					t.Errorf("%s: %q", file, found)
				}
			}
		}
	}
}
