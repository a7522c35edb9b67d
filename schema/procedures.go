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

// Procedures returns the statements of FS that create the procedures, for MySQL only. Each follows
// the one that drops an earlier procedure of that name.
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

// wanted returns the procedures that there should be: none on an engine without them.
func (s *seen) wanted() (all []procedure, err error) {
	if !s.engine.Procedures {
		return nil, nil
	}
	statements, err := Procedures()
	if err != nil {
		return nil, err
	}
	for _, s := range statements {
		if p := createProcedure.FindStringSubmatch(s); p != nil {
			all = append(all, procedure{name: p[1], create: s, body: p[2]})
		}
	}
	return all, nil
}

// differs reports whether the procedure on the server has another body. White space doesn't
// count, since tools change it, nor a semicolon at the end, which MySQL keeps of one among
// several statements. A body that the user may not see counts as the same.
func (p procedure) differs(body sql.NullString) bool {
	return body.Valid && !slices.Equal(strings.Fields(strings.TrimRight(body.String, "; \n")), strings.Fields(p.body))
}

// installProcedures makes the missing procedures, and replaces those with another body. If
// the server refuses that, locks work without, and Check says so.
func (s *seen) installProcedures(ctx context.Context, db *sql.DB) error {
	wanted, err := s.wanted()
	if err != nil {
		return err
	}
	for _, p := range wanted {
		body, exists := s.procedures[p.name]
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

// procedures looks for those that are missing, and calls one without arguments: if the user
// may call it, the server refuses that before anything is executed. Who may call none doesn't
// learn whether there is one.
func (c *checking) procedures(ctx context.Context) (problem, err error) {
	wanted, err := c.seen.wanted()
	if err != nil || wanted == nil {
		return nil, err
	}
	var problems []string
	unseen := false
	for _, p := range wanted {
		if body, exists := c.seen.procedures[p.name]; !exists {
			problems, unseen = append(problems, p.name+" is missing, or this user may not call it"), true
		} else if p.differs(body) {
			problems = append(problems, p.name+" is not that of this version")
		}
	}
	err = query(ctx, c.conn, "CALL "+wanted[0].name+"()")
	_, missing := MissingPrivilege(err)
	grant := c.seen.grant([]string{"EXECUTE"}, "*")
	var server *mysql.MySQLError
	switch {
	case missing && len(problems) == len(wanted):
		return advice{mended(install+"; "+grant, "%w that this user may call: locks take one round trip more: run schema.Install as a user with CREATE ROUTINE and ALTER ROUTINE on the database, if they are missing, and %s: %w", ErrProcedures, grant, err)}, nil
	case missing && problems == nil:
		return advice{mended(grant, "%w that this user may call: locks take one round trip more: %s: %w", ErrProcedures, grant, err)}, nil
	case err != nil && !missing && !errors.As(err, &server): // of the server's, 1318 says that it is there, and 1305 that it isn't
		return nil, fmt.Errorf("schema: inspect procedures: %w", err)
	case problems == nil:
		return nil, nil
	}
	fix := install
	if unseen {
		fix += "; " + grant
	}
	return advice{mended(fix, "%w of this version: locks take one round trip more: run schema.Install as a user with CREATE ROUTINE and ALTER ROUTINE on the database, or the DDL in schema.FS: %s", ErrProcedures, strings.Join(problems, ", "))}, nil
}
