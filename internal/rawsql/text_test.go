package rawsql

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"
)

// TestText proves that every method sends the statement rewritten, once, with its
// arguments in the text where that is asked for or nothing can be prepared, and apart from
// it otherwise.
func TestText(t *testing.T) {
	full, locked := &mysql.MySQLError{Number: 1461}, &mysql.MySQLError{Number: 1205}
	methods := map[string]func(*Text, *testing.T, ...any) error{
		"Exec": func(text *Text, t *testing.T, args ...any) error {
			_, err := text.ExecContext(t.Context(), "SELECT ?", args...)
			return err
		},
		"Query": func(text *Text, t *testing.T, args ...any) error {
			rows, err := text.QueryContext(t.Context(), "SELECT ?", args...)
			if err != nil {
				return err
			}
			return errors.Join(rows.Err(), rows.Close())
		},
		"QueryRow": func(text *Text, t *testing.T, args ...any) error {
			var n int
			return text.QueryRowContext(t.Context(), "SELECT ?", args...).Scan(&n)
		},
	}
	prefix := Under("x=1")
	for _, c := range []struct {
		name    string
		rewrite func(Statement) Statement
		inline  bool
		arg     any
		want    []string // the statements, "?" where the argument is apart
		answer  error    // of the first of them
	}{
		{"as it is", nil, false, 7, []string{"SELECT ?"}, nil},
		{"rewritten", prefix, false, 7, []string{"SET STATEMENT x=1 FOR SELECT ?"}, nil},
		{"inline", prefix, true, 7, []string{"SET STATEMENT x=1 FOR SELECT 7"}, nil},
		{"inline, but can't be", nil, true, 1.5, []string{"SELECT ?"}, nil},
		{"not prepared", prefix, false, 7, []string{"SET STATEMENT x=1 FOR SELECT ?", "SET STATEMENT x=1 FOR SELECT 7"}, full},
		{"not prepared, and can't be text", nil, false, 1.5, []string{"SELECT ?"}, full},
		{"another error", nil, false, 7, []string{"SELECT ?"}, locked},
	} {
		for name, send := range methods {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
				check(t, err)
				defer func() { _ = db.Close() }() // the mock expects none
				for i, want := range c.want {
					answer := c.answer
					if i > 0 {
						answer = nil
					}
					expect(mock, name == "Exec", want, c.arg, answer)
				}
				err = send(&Text{DBTX: db, Rewrite: c.rewrite, Inline: c.inline}, t, c.arg)
				if failed := c.answer != nil && len(c.want) == 1; failed != (err != nil) || failed && !errors.Is(err, c.answer) {
					t.Errorf("it returned %v", err)
				}
				if err := mock.ExpectationsWereMet(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// expect expects a statement, with the argument where the text has a place for it.
func expect(mock sqlmock.Sqlmock, exec bool, query string, arg any, answer error) {
	rows := sqlmock.NewRows([]string{"n"}).AddRow(7)
	switch apart := strings.Contains(query, "?"); {
	case exec && apart:
		mock.ExpectExec(query).WithArgs(arg).WillReturnResult(sqlmock.NewResult(0, 0)).WillReturnError(answer)
	case exec:
		mock.ExpectExec(query).WithoutArgs().WillReturnResult(sqlmock.NewResult(0, 0)).WillReturnError(answer)
	case apart:
		mock.ExpectQuery(query).WithArgs(arg).WillReturnRows(rows).WillReturnError(answer)
	default:
		mock.ExpectQuery(query).WithoutArgs().WillReturnRows(rows).WillReturnError(answer)
	}
}

// TestTakesText proves that only the pool of go-sql-driver is known to take text.
func TestTakesText(t *testing.T) {
	mock, _, err := sqlmock.New()
	check(t, err)
	ours, err := sql.Open("mysql", "user@tcp(localhost:1)/db")
	check(t, err)
	if TakesText(mock) || !TakesText(ours) {
		t.Errorf("a mock: %t, go-sql-driver: %t", TakesText(mock), TakesText(ours))
	}
	_ = mock.Close() // it expects none
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
}
