package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// seat is made of a text and a number.
type seat struct {
	Row    string
	Number int
}

func (s seat) String() string { return fmt.Sprintf("%s/%d", s.Row, s.Number) }

// TestFamiliesOfTexts proves that a family of texts which says nothing of their comparison
// locks nothing: every verb refuses its keys before any SQL.
func TestFamiliesOfTexts(t *testing.T) {
	t.Parallel()
	type code string
	for name, c := range map[string]struct {
		key  txlock.Key
		want string // "" if it is valid
	}{
		"strings":                  {txlock.NewFamily[string]("f").Key("a"), `txlock.Fold("utf8mb4_0900_ai_ci")`},
		"strings, the other cure":  {txlock.NewFamily[string]("f").Key("a"), "txlock.Exact"},
		"of a named type":          {txlock.NewFamily[code]("f", txlock.Hashed()).Key("a"), "txlock.Exact"},
		"in a namespace":           {txlock.NewFamily[string]("f", txlock.In("shop")).Key("a"), "txlock.Exact"},
		"by String":                {txlock.NewStringerFamily[seat]("f").Key(seat{"a", 1}), "txlock.Exact"},
		"behind a pointer":         {txlock.NewStringerFamily[*seat]("f").Key(&seat{"a", 1}), "txlock.Exact"},
		"of a place and an offset": {txlock.NewStringerFamily[time.Time]("f").Key(time.Unix(1, 0)), "txlock.Exact"},
		"both":                     {txlock.NewFamily[string]("f", txlock.Exact(), txlock.Fold("utf8mb4_bin")).Key("a"), "leave one of them out"},
		"exact":                    {txlock.NewFamily[string]("f", txlock.Exact()).Key("aB "), ""},
		"folded":                   {txlock.NewFamily[code]("f", txlock.Fold("utf8mb4_bin")).Key("a"), ""},
		"exact, by String":         {txlock.NewStringerFamily[seat]("f", txlock.Exact()).Key(seat{"a", 1}), ""},
		"numbers":                  {txlock.NewFamily[int64]("f").Key(1), ""},
		"numbers by String":        {txlock.NewStringerFamily[time.Duration]("f").Key(1), ""},
		"UUIDs":                    {txlock.NewFamily[uuid.UUID]("f").Key(uuid.Max), ""},
		"UUIDs by String":          {txlock.NewStringerFamily[uuid.UUID]("f").Key(uuid.Max), ""},
	} {
		err := c.key.Validate()
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, txlock.ErrInvalidKey) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestCheckColumns compares families with columns of all kinds, and demands the cure where
// a row would have several keys.
func TestCheckColumns(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		noPad := map[testdb.Engine]string{testdb.MariaDB: "utf8mb4_nopad_bin", testdb.MySQL: "utf8mb4_0900_bin"}[db.Engine()]
		of := func(charset, collation string) string { return " CHARACTER SET " + charset + " COLLATE " + collation }
		type checker interface {
			CheckColumns(ctx context.Context, db *sql.DB, table string, names ...string) error
		}
		exact, numbers := txlock.NewFamily[string]("f", txlock.Exact()), txlock.NewFamily[int64]("f")
		folded := func(collation string) checker { return txlock.NewFamily[string]("f", txlock.Fold(collation)) }
		for _, c := range []struct {
			column string
			family checker
			want   string
		}{
			{"VARBINARY(9)", exact, ""},
			{"VARCHAR(9)" + of("utf8mb4", noPad), exact, ""},
			{"BLOB", exact, ""},
			{"BINARY(9)", exact, "zero bytes at the end"},
			{"CHAR(9)" + of("utf8mb4", noPad), exact, "blanks at the end"},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_bin"), exact, `txlock.Fold("utf8mb4_bin")`},
			{"ENUM('a')" + of("utf8mb4", "utf8mb4_bin"), exact, "is a ENUM"},
			{"ENUM('a')" + of("utf8mb4", "utf8mb4_bin"), folded("utf8mb4_bin"), "is a ENUM"},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_general_ci"), exact, "such as Bob and bob"},
			{"TEXT" + of("latin1", "latin1_swedish_ci"), exact, "such as Bob and bob"},
			{"BIGINT", exact, "make the identifier an integer"},
			{"DATE", exact, "is a DATE"},
			{"SET('a')" + of("utf8mb4", "utf8mb4_bin"), folded("utf8mb4_bin"), "is a SET"},
			{"GEOMETRY", exact, "isn't known"},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_general_ci"), folded("utf8mb4_general_ci"), ""},
			{"CHAR(9)" + of("utf8mb4", "utf8mb4_bin"), folded("utf8mb4_bin"), ""},
			{"VARCHAR(9)" + of("utf8mb3", "utf8mb3_general_ci"), folded("utf8mb3_general_ci"), ""},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_unicode_ci"), folded("utf8mb4_general_ci"), "has the collation utf8mb4_unicode_ci"},
			{"VARBINARY(9)", folded("utf8mb4_bin"), "has the collation binary"},
			{"BIGINT", folded("utf8mb4_bin"), "make the identifier an integer"},
			{"VARBINARY(9)", folded("utf8mb4_turkish_ci"), "doesn't know the collation utf8mb4_turkish_ci"},
			{"VARBINARY(9)", txlock.NewFamily[string]("f"), "txlock.Exact"},
			{"BIGINT UNSIGNED", numbers, ""},
			{"VARCHAR(9)", numbers, "make it BIGINT"},
			{"CHAR(36)", txlock.NewFamily[uuid.UUID]("f"), ""},
			{"BINARY(16)", txlock.NewFamily[uuid.UUID]("f"), ""},
			{"BIGINT", txlock.NewFamily[uuid.UUID]("f"), "make the column CHAR(36)"},
			{"VARBINARY(99)", txlock.NewStringerFamily[*seat]("f", txlock.Exact()), "make sure by a test"},
			{"BIGINT", txlock.Family[int]{}, "the zero Family"},
		} {
			table := db.CreateTable(t, "checked", "k "+c.column)
			err := c.family.CheckColumns(t.Context(), db.Admin(), table, "k")
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, txlock.ErrInvalidKey) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", c.column, err, c.want)
			}
		}

		seats := txlock.NewStringerFamily[seat]("seat", txlock.Exact())
		table := db.CreateTable(t, "seats", "r VARBINARY(9), n INT, c VARCHAR(9)"+of("utf8mb4", "utf8mb4_bin"))
		wants(t, "two columns", seats.CheckColumns(t.Context(), db.Admin(), table, "r", "n"), nil)
		wants(t, "padded in two columns", seats.CheckColumns(t.Context(), db.Admin(), table, "c", "n"), txlock.ErrInvalidKey)
		wants(t, "the wrong order", seats.CheckColumns(t.Context(), db.Admin(), table, "n", "r"), txlock.ErrInvalidKey)
		wants(t, "too few columns", seats.CheckColumns(t.Context(), db.Admin(), table), txlock.ErrInvalidKey)
		wants(t, "too many columns", exact.CheckColumns(t.Context(), db.Admin(), table, "r", "r"), txlock.ErrInvalidKey)
		wants(t, "no such column", exact.CheckColumns(t.Context(), db.Admin(), table, "x"), txlock.ErrInvalidKey)
		if err := exact.CheckColumns(t.Context(), db.Admin(), "no`such", "x"); err == nil || !strings.Contains(err.Error(), "inspect column `x` of `no``such`") {
			t.Errorf("no such table: %v", err)
		}
		if err := exact.CheckColumns(t.Context(), nil, table, "r"); err == nil {
			t.Error("CheckColumns without a pool succeeds")
		}
	})
}
