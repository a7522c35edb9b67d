package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// ErrPrivilege is returned when the user lacks a privilege that locks or Install need. Its text
// has the GRANT to run. txlock.ErrPrivilege is the same error.
var ErrPrivilege = errors.New("lockstep: a privilege is missing")

// denied reports whether the server has refused a statement because a privilege is missing.
func denied(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	switch server.Number {
	case 1044, 1142, 1143, 1227, 1370, 8121: // ER_DBACCESS_DENIED, ER_TABLEACCESS_DENIED, ER_COLUMNACCESS_DENIED, ER_SPECIFIC_ACCESS_DENIED, ER_PROCACCESS_DENIED, TiDB's ErrPrivilegeCheckFail; 1045 is a wrong password
		return true
	}
	return false
}

var (
	deniedTable = regexp.MustCompile(`\blockstep_\w+`)
	deniedUser  = regexp.MustCompile(`user '((?:[^']|'')*)'@'((?:[^']|'')*)'`)
	deniedCall  = regexp.MustCompile(`'((?:[^']|'')*)\.lockstep_\w+'`)
)

// MissingPrivilege reports whether a statement was refused because a privilege is missing,
// and which GRANT to run, as far as the server's error names the table and the user. The
// server names the host of the client, which may differ from the host of the account.
func MissingPrivilege(err error) (fix string, missing bool) {
	if !denied(err) {
		return "", false
	}
	tables, user := deniedTable.FindAllString(err.Error(), -1), deniedUser.FindStringSubmatch(err.Error())
	if len(tables) == 0 || user == nil {
		return "see schema.Check", true
	}
	if routine := deniedCall.FindStringSubmatch(err.Error()); routine != nil {
		return fmt.Sprintf("GRANT EXECUTE ON `%s`.* TO '%s'@'%s', with the host of the account", routine[1], user[1], user[2]), true
	}
	table := tables[len(tables)-1] // it comes after the names of the user and the database
	return fmt.Sprintf("GRANT %s ON %s TO '%s'@'%s', in the program's database and with the host of the account: schema.Check names both", strings.Join(needs(table), ", "), table, user[1], user[2]), true
}

// needs returns the privileges that locks need on a table.
func needs(table string) []string {
	if table == "lockstep_centers" {
		return []string{"SELECT", "INSERT", "UPDATE"} // its rows are never deleted
	}
	return []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
}

// privileges looks for what the user may do with tables. What the server says of the columns, and
// one EXPLAIN for DELETE, are enough if nothing is missing.
func (c *checking) privileges(ctx context.Context, tables []table) (problem, err error) {
	if len(tables) == 0 || !slices.ContainsFunc(tables, c.lacks) && c.mayDelete(ctx, tables) {
		return nil, nil
	}
	var found []error
	for _, t := range tables {
		problem, err := c.checkPrivileges(ctx, t)
		if err != nil {
			return nil, err
		}
		found = append(found, problem)
	}
	return errors.Join(found...), nil
}

// lacks reports whether, by what the server says, a privilege on a column is missing, or the table.
func (c *checking) lacks(t table) bool {
	seen := c.seen.tables[t.name]
	if seen == nil {
		return true
	}
	for _, col := range t.columns {
		has := seen.columns[col.name].privileges
		if !strings.Contains(has, "select") || !strings.Contains(has, "insert") || !t.isKey(col.name) && !strings.Contains(has, "update") {
			return true
		}
	}
	return false
}

func (t table) isKey(column string) bool {
	return strings.Contains(","+t.primary+",", ","+column+",")
}

// mayDelete reports whether the user may delete rows, by one statement, which does nothing.
func (c *checking) mayDelete(ctx context.Context, right []table) bool {
	var names []string
	for _, t := range right {
		if slices.Contains(needs(t.name), "DELETE") {
			names = append(names, t.name)
		}
	}
	all := strings.Join(names, ", ")
	return all == "" || query(ctx, c.conn, "EXPLAIN DELETE "+all+" FROM "+all+" WHERE 1 = 0") == nil
}

// checkPrivileges sends EXPLAIN for one statement of each kind. The server refuses it as
// it would refuse the statement: so nothing is executed, and the server itself judges
// roles, wildcards and privileges of columns. A read-only server may refuse it for being
// read-only; then the privilege isn't judged. That a table is missing the server says only to a user
// with the privilege, and refuses anyone else, whether the table is there or not. Since it also refuses
// a GRANT on a missing table, lockstep install precedes one on a table that isn't seen.
func (c *checking) checkPrivileges(ctx context.Context, t table) (problem, err error) {
	var names, assignments []string
	for _, col := range t.columns {
		names = append(names, col.name)
		if !t.isKey(col.name) {
			assignments = append(assignments, col.name+" = "+col.name)
		}
	}
	columns := strings.Join(names, ", ")
	statements := map[string]string{
		"SELECT": "SELECT " + columns + " FROM " + t.name + " LIMIT 1",
		"INSERT": "INSERT INTO " + t.name + " (" + columns + ") VALUES (" + strings.Repeat("0, ", len(names)-1) + "0)",
		"UPDATE": "UPDATE " + t.name + " SET " + strings.Join(assignments, ", ") + " LIMIT 1",
		"DELETE": "DELETE FROM " + t.name + " LIMIT 1",
	}
	unseen := c.seen.tables[t.name] == nil
	var missing []string
	var refused []error
	for _, privilege := range needs(t.name) {
		err := query(ctx, c.conn, "EXPLAIN "+statements[privilege])
		switch {
		case denied(err):
			missing, refused = append(missing, privilege), append(refused, err)
		case isReadOnly(err), unseen && isMissing(err):
		case err != nil:
			return nil, fmt.Errorf("schema: check whether %s is allowed on %s: %w", privilege, t.name, err)
		}
	}
	if missing == nil {
		return nil, nil
	}
	grant := c.seen.grant(missing, t.name)
	fix := grant
	if unseen {
		fix = install + "; " + grant
	}
	return mended(fix, "%w on %s: %s: %w", ErrPrivilege, t.name, grant, errors.Join(refused...)), nil
}

// query sends a statement, and reads its rows.
func query(ctx context.Context, db querier, statement string) (err error) {
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() { // to the end: an error may come after the first row
	}
	return rows.Err()
}

func isReadOnly(err error) bool { return isOne(err, 1290, 1836) } // ER_OPTION_PREVENTS_STATEMENT, ER_READ_ONLY_MODE

func isMissing(err error) bool { return isOne(err, 1109, 1146) } // ER_UNKNOWN_TABLE, ER_NO_SUCH_TABLE

// isOne reports whether an error is one of the server's with these numbers.
func isOne(err error, numbers ...uint16) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && slices.Contains(numbers, server.Number)
}

// grantee returns the account of the session, quoted for GRANT, and its database.
func grantee(ctx context.Context, db *sql.DB) (account, database string, err error) {
	if err := db.QueryRowContext(ctx, "SELECT CURRENT_USER(), COALESCE(DATABASE(), ' ')").Scan(&account, &database); err != nil {
		return "", "", fmt.Errorf("schema: read the user: %w", err)
	}
	return quoted(account), database, nil
}

// quoted quotes an account.
func quoted(account string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	at := strings.LastIndexByte(account, '@')
	return quote(account[:max(at, 0)]) + "@" + quote(account[at+1:])
}

// refused returns the error of a statement of Install that the user may not send.
func refused(ctx context.Context, db *sql.DB, statement string, err error) error {
	to, database, userErr := grantee(ctx, db)
	if userErr != nil {
		return fmt.Errorf("schema: install %q: %w: %w", statement, ErrPrivilege, err)
	}
	grant := fmt.Sprintf("GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `%s`.* TO %s", database, to)
	return mended(grant, "schema: install %q: %w: %s: %w", statement, ErrPrivilege, grant, err)
}
