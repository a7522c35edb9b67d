package checkqueries

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	const (
		one = "-- name: One :exec\n-- One does something; it has a comment.\nDELETE FROM t WHERE a = ';' AND b = 'it''s';\n"
		two = "-- name: Two :one\nSELECT a, /* ; */ b FROM t; -- done;\n"
	)
	for _, test := range []struct {
		name    string
		queries string
		methods []string
		want    []string // parts of the problems, in their order
	}{
		{"right", one + two, []string{"One", "Two"}, nil},
		{"a method of another type", one, []string{"One"}, nil},
		{"dropped", one + two, []string{"One"}, []string{"q.sql:4: the query Two has 0 methods"}},
		{"second statement under one name", one + "DELETE FROM t;\n", []string{"One"}, []string{"q.sql:4: the statement has no name"}},
		{"second on the same line", "-- name: One :exec\nDELETE FROM t; DELETE FROM t;", []string{"One"}, []string{"q.sql:2: the statement has no name"}},
		{"statement before the first name", "DELETE FROM t;\n" + one, []string{"One"}, []string{"q.sql:1: the statement has no name"}},
		{"name without statement", "-- name: Two :one\n" + one, []string{"One"}, []string{"q.sql:1: the name Two has no statement"}},
		{"last name without statement", one + "-- name: Two :one\n", []string{"One"}, []string{"q.sql:4: the name Two has no statement"}},
		{"same name twice", one + one, []string{"One"}, []string{"q.sql:4: the name One is taken"}},
		{"no semicolon", "-- name: One :exec\nDELETE FROM t", []string{"One"}, []string{"q.sql:2: the statement has no end"}},
		{"no command", "-- name: One\nDELETE FROM t;", []string{"One"}, []string{"q.sql:1: sqlc does not know", "q.sql:2: the statement has no name"}},
		{"unknown command", "-- name: One :exce\nDELETE FROM t;", []string{"One"}, []string{"q.sql:1: sqlc does not know", "q.sql:2:"}},
		{"no blank", "--name: One :exec\nDELETE FROM t;", []string{"One"}, []string{"q.sql:1: sqlc does not know", "q.sql:2:"}},
		{"hint", "-- name: One :one\nSELECT /*+ MAX_EXECUTION_TIME(1) */ a FROM t FOR UPDATE;", []string{"One"}, nil},
		{"minus minus", "-- name: One :one\nSELECT 5--1 FROM t;", []string{"One"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "q.sql"), test.queries)
			code := "package gen\n\ntype Queries struct{}\n\nfunc (Other) Two() {}\n\ntype Other struct{}\n"
			for _, method := range test.methods {
				code += "\nfunc (q *Queries) " + method + "() {}\n"
			}
			write(t, filepath.Join(dir, "q.sql.go"), code)
			problems, err := Check([]string{dir}, dir)
			check(t, err)
			if len(problems) != len(test.want) {
				t.Fatalf("problems: %q, want %d", problems, len(test.want))
			}
			for i, want := range test.want {
				if !strings.Contains(problems[i], want) {
					t.Errorf("problem %q, want %q", problems[i], want)
				}
			}
		})
	}
}

func TestCheckWithoutQueries(t *testing.T) {
	t.Parallel()
	if _, err := Check([]string{t.TempDir()}, t.TempDir()); err == nil {
		t.Error("a directory without queries passes")
	}
	if _, err := Check([]string{filepath.Join(t.TempDir(), "none")}, t.TempDir()); err == nil {
		t.Error("a directory that does not exist passes")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	check(t, os.WriteFile(path, []byte(text), 0o644))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
