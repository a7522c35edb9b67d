package schema

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// ErrProcedures is returned when a MySQL server doesn't have the procedures of this version
// of lockstep, or the user may not call them. It is a warning; see Check.
var ErrProcedures = errors.New("schema: no procedures")

// procedure is what one CREATE PROCEDURE statement of the DDL says.
type procedure struct{ name, create, body string }

var (
	gooseStatement  = regexp.MustCompile(`(?s)-- \+goose StatementBegin\n(.*?);\n-- \+goose StatementEnd\n`)
	createProcedure = regexp.MustCompile(`(?s)^CREATE PROCEDURE (\w+)\(.*?\n((?:\w+: )?BEGIN\n.*)$`)
)

// Procedures returns the statements of FS that make the procedures, for MySQL only.
// Before each stands the one that drops an earlier procedure of that name.
func Procedures() ([]string, error) {
	text, err := FS.ReadFile("mysql/0005_procedures.sql")
	if err != nil {
		return nil, fmt.Errorf("schema: read the DDL: %w", err)
	}
	var all []string
	for _, statement := range gooseStatement.FindAllStringSubmatch(string(text), -1) {
		all = append(all, statement[1])
	}
	return all, nil
}

// lookForProcedures returns the procedures that there should be, and the bodies of those
// that the user may see, by name. It returns nothing for MariaDB, which needs none.
func lookForProcedures(ctx context.Context, db *sql.DB) (wanted []procedure, found map[string]sql.NullString, err error) {
	version, err := versionOf(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	if strings.Contains(version, "MariaDB") {
		return nil, nil, nil
	}
	statements, err := Procedures()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range statements {
		if p := createProcedure.FindStringSubmatch(s); p != nil {
			wanted = append(wanted, procedure{name: p[1], create: s, body: p[2]})
		}
	}
	rows, err := db.QueryContext(ctx, `SELECT routine_name, routine_definition FROM information_schema.routines
		WHERE routine_schema = DATABASE() AND routine_name LIKE 'lockstep%' LIMIT 1000`)
	if err != nil {
		return nil, nil, fmt.Errorf("schema: look at the procedures: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found = make(map[string]sql.NullString)
	for rows.Next() {
		var name string
		var body sql.NullString
		if err := rows.Scan(&name, &body); err != nil {
			return nil, nil, fmt.Errorf("schema: look at the procedures: %w", err)
		}
		found[name] = body
	}
	return wanted, found, rows.Err()
}

// differs tells whether the procedure on the server has another body. White space doesn't
// count, since tools change it, nor a semicolon at the end, which MySQL keeps of one among
// several statements. A body that the user may not see counts as the same.
func (p procedure) differs(body sql.NullString) bool {
	return body.Valid && !slices.Equal(strings.Fields(strings.TrimRight(body.String, "; \n")), strings.Fields(p.body))
}

// installProcedures makes the missing procedures, and replaces those with another body. If
// the server refuses that, locks work without, and Check says so.
func installProcedures(ctx context.Context, db *sql.DB) error {
	wanted, found, err := lookForProcedures(ctx, db)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		body, exists := found[p.name]
		switch {
		case !exists:
			_, err = db.ExecContext(ctx, p.create)
		case p.differs(body):
			err = p.replace(ctx, db)
		}
		if server := new(mysql.MySQLError); err != nil && !errors.As(err, &server) {
			return fmt.Errorf("schema: install the procedure %s: %w", p.name, err)
		}
	}
	return nil
}

// replace drops the procedure and makes it anew. To drop it waits for the transactions that
// have called it, and whoever calls it waits behind: so it gives up soon. The connection has
// another limit then, and isn't used again.
func (p procedure) replace(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}()
	for _, statement := range []string{"SET SESSION lock_wait_timeout = 2", "DROP PROCEDURE IF EXISTS " + p.name, p.create} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// checkProcedures calls each procedure without arguments, which the server refuses, if it
// has the procedure and the user may call it, before anything is executed.
func checkProcedures(ctx context.Context, db *sql.DB) (problem, err error) {
	wanted, found, err := lookForProcedures(ctx, db)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, p := range wanted {
		err := query(ctx, db, "CALL "+p.name+"()")
		var server *mysql.MySQLError
		switch {
		case err == nil, errors.As(err, &server) && server.Number == 1318: // ER_SP_WRONG_NO_OF_ARGS
			if err == nil || p.differs(found[p.name]) {
				problems = append(problems, p.name+" is not that of this version")
			}
		case errors.As(err, &server) && server.Number == 1305: // ER_SP_DOES_NOT_EXIST
			problems = append(problems, p.name+" is missing")
		case denied(err):
			cure, _ := MissingPrivilege(err)
			return fmt.Errorf("%w that this user may call: locks take one round trip more: %s: %w", ErrProcedures, cure, err), nil
		default:
			return nil, fmt.Errorf("schema: look at the procedure %s: %w", p.name, err)
		}
	}
	if problems == nil {
		return nil, nil
	}
	return fmt.Errorf("%w of this version: locks take one round trip more: run schema.Install as a user with CREATE ROUTINE and ALTER ROUTINE on the database, or the DDL in schema.FS: %s", ErrProcedures, strings.Join(problems, ", ")), nil
}
