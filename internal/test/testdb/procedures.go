package testdb

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/schema"
)

// WithoutProcedures tells whether the tests run without lockstep's procedures on MySQL, as
// LOCKSTEP_PROCEDURES=none asks for.
func WithoutProcedures() bool { return os.Getenv("LOCKSTEP_PROCEDURES") == "none" }

// installProcedures lets the application user call lockstep's procedures, or drops them.
func (db *DB) installProcedures(ctx context.Context) error {
	if db.Engine() != MySQL {
		return nil
	}
	statements, err := schema.Procedures()
	if err != nil {
		return err
	}
	if WithoutProcedures() {
		return db.exec(ctx, slices.DeleteFunc(statements, func(s string) bool { return !strings.HasPrefix(s, "DROP ") })...)
	}
	for _, account := range db.accounts() {
		if err := db.exec(ctx, fmt.Sprintf("GRANT EXECUTE ON `%s`.* TO %s", db.name, account)); err != nil {
			return err
		}
	}
	return nil
}
