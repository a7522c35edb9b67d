package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// Views returns the statements that create the views lockstep_held and lockstep_waits on a server of
// that version, which SELECT VERSION() answers. The views are optional, and lockstep doesn't use
// them: they show held locks and leases, and lock waits, by name in any SQL client. Without the
// privilege PROCESS, and on MySQL SELECT on performance_schema.*, a user sees less. Each statement
// may be repeated. For TiDB and Vitess it returns ErrEngine.
func Views(version string) ([]string, error) {
	engine := rawsql.EngineOf(version)
	if err := session.Lacks(engine, engine.Lacks.Views); err != nil {
		return nil, err
	}
	return statementsOf(engine.Views)
}

// InstallViews creates or replaces the views of Views. It needs the privileges CREATE VIEW, DROP,
// and SELECT on lockstep's tables, and those that users of the views need. DDL commits implicitly,
// so it takes a pool. It returns the server's error for the statement that failed, and
// ErrPrivilege, with the GRANT to run, if a privilege is missing. On TiDB and Vitess it returns
// ErrEngine.
func InstallViews(ctx context.Context, db *sql.DB) error {
	if ctx == nil {
		return errors.New("schema: InstallViews needs a context, got nil")
	}
	if db == nil {
		return fmt.Errorf("schema: InstallViews needs a *sql.DB, got nil")
	}
	var version string
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return fmt.Errorf("schema: read the server's version: %w", err)
	}
	statements, err := Views(version)
	if err != nil {
		return err
	}
	for _, s := range statements {
		_, err := db.ExecContext(ctx, s)
		if !denied(err) {
			if err != nil {
				return fmt.Errorf("schema: install %q: %w", firstLine(s), err)
			}
			continue
		}
		to, database, userErr := grantee(ctx, db)
		if userErr != nil {
			return userErr
		}
		grants := fmt.Sprintf("GRANT CREATE VIEW, DROP, SELECT ON `%s`.* TO %s", database, to)
		if rawsql.EngineOf(version) == rawsql.MySQL {
			grants += "; GRANT SELECT ON performance_schema.* TO " + to
		}
		grants += "; GRANT PROCESS ON *.* TO " + to
		return mended(grants, "schema: install %q: %w: %s: %w", firstLine(s), ErrPrivilege, grants, err)
	}
	return nil
}
