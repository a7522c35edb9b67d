package schema

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/dca00107/lockstep/internal/session"
)

// FS has the DDL: files with one or more statements, to be run in the order of their names. Every
// statement may be repeated. The procedures in the directory mysql are for MySQL only, and can be
// left out. The views in the directory views are optional; see Views.
//
//go:embed *.sql mysql/*.sql views/*.sql
var FS embed.FS

// Centers is the number of rows of lockstep_centers.
const Centers = 65536

// Install creates the missing tables and the center rows. It may be repeated, and many processes
// may run it at the same time: it doesn't change what exists. If a table differs from the DDL, or
// a view has its name, Install returns ErrTable, with the statement that fixes it, and changes
// nothing. Unless everything exists, it needs the privilege CREATE, which the locks themselves
// don't need. On MySQL it also creates the procedures, and replaces those with another body, if it
// has the privileges CREATE ROUTINE and ALTER ROUTINE. Locks work without them; see ErrProcedures.
// DDL commits implicitly, so Install takes a pool and never a transaction. It returns the server's
// error for the statement that failed, and ErrPrivilege, with the GRANT to run, if a privilege is
// missing. Run it again to continue from there. It returns ErrEngine, and creates nothing, if the
// server is neither MySQL nor MariaDB, nor TiDB or Vitess, which get no procedures.
func Install(ctx context.Context, db *sql.DB) error {
	if ctx == nil {
		return errors.New("schema: Install needs a context, got nil")
	}
	if db == nil {
		return fmt.Errorf("schema: Install needs a *sql.DB, got nil")
	}
	statements, err := Statements()
	if err != nil {
		return err
	}
	if err := checkEngine(ctx, db); err != nil {
		return err
	}
	tables, err := expected()
	if err != nil {
		return err
	}
	there, err := compared(ctx, db, tables, false)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if there.done(ctx, db, s) {
			continue
		}
		if err := execute(ctx, db, s); denied(err) {
			return refused(ctx, db, firstLine(s), err)
		} else if err != nil {
			if shards := session.Sharded(err); shards != nil {
				err = fmt.Errorf("%w: %w", shards, err)
			}
			return fmt.Errorf("schema: install %q: %w", firstLine(s), err)
		}
	}
	if err := there.installProcedures(ctx, db); err != nil || len(there.tables) == len(tables) {
		return err
	}
	_, err = compared(ctx, db, tables, true)
	return err
}

// compared looks at the tables, and returns an error for those that are wrong, and, if all
// should be there, those that are missing.
func compared(ctx context.Context, db *sql.DB, tables []table, all bool) (*seen, error) {
	there, err := look(ctx, db, tables)
	if err != nil {
		return nil, err
	}
	var found []error
	for _, t := range tables {
		if there.tables[t.name] != nil || all {
			found = append(found, there.compare(t))
		}
	}
	return there, errors.Join(found...)
}

// done reports whether a statement of Install has nothing to do, since its table or the center
// rows exist. What can't be seen counts as missing. It locks nothing, while to insert rows
// that exist waits for whoever holds one of them, and lets others wait for the rest.
func (s *seen) done(ctx context.Context, db *sql.DB, statement string) bool {
	if created := createTable.FindStringSubmatch(statement); created != nil {
		return s.tables[created[1]] != nil
	}
	problem, err := checkCenters(ctx, db)
	return problem == nil && err == nil
}

// execute sends a statement that may be repeated, and repeats it after a deadlock with
// another process that installs at the same time.
func execute(ctx context.Context, db *sql.DB, statement string) error {
	const tries = 20
	for try := 1; ; try++ {
		_, err := db.ExecContext(ctx, statement)
		if !isOne(err, 1213) || try == tries { // ER_LOCK_DEADLOCK
			return err
		}
	}
}

// Statements returns the statements of FS that create the tables, without comments, for migration
// tools that take one statement at a time. See also Procedures.
func Statements() ([]string, error) {
	names, err := fs.Glob(FS, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("schema: list the DDL: %w", err)
	}
	var all []string
	for _, name := range names {
		statements, err := statementsOf(name)
		if err != nil {
			return nil, err
		}
		all = append(all, statements...)
	}
	return all, nil
}

// statementsOf returns the statements of a file of FS.
func statementsOf(name string) (all []string, err error) {
	text, err := FS.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("schema: read the DDL: %w", err)
	}
	for statement := range strings.SplitSeq(withoutComments(string(text)), ";") {
		if s := strings.TrimSpace(statement); s != "" {
			all = append(all, s)
		}
	}
	return all, nil
}

// withoutComments drops the lines that are comments; the files have no other comments.
func withoutComments(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSuffix(line, " (")
}
