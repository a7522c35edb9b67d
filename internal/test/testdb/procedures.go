package testdb

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/schema"
)

// WithoutProcedures tells whether the tests run without lockstep's procedures on MySQL, as
// LOCKSTEP_PROCEDURES=none asks for.
func WithoutProcedures() bool { return os.Getenv("LOCKSTEP_PROCEDURES") == "none" }

// DropProcedures drops lockstep's procedures, or those of these names.
func (db *DB) DropProcedures(tb testing.TB, names ...string) {
	tb.Helper()
	check(tb, db.dropProcedures(tb.Context(), names...))
}

func (db *DB) dropProcedures(ctx context.Context, names ...string) error {
	statements, err := schema.Procedures()
	if err != nil {
		return err
	}
	for _, statement := range statements {
		name, drops := strings.CutPrefix(statement, "DROP PROCEDURE IF EXISTS ")
		if !drops || names != nil && !slices.Contains(names, name) {
			continue
		}
		if err := db.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// installProcedures lets the application user call lockstep's procedures, or drops them.
func (db *DB) installProcedures(ctx context.Context) error {
	if db.Engine() != MySQL {
		return nil
	}
	if WithoutProcedures() {
		return db.dropProcedures(ctx)
	}
	for _, account := range db.accounts() {
		if err := db.exec(ctx, fmt.Sprintf("GRANT EXECUTE ON `%s`.* TO %s", db.name, account)); err != nil {
			return err
		}
	}
	return nil
}
