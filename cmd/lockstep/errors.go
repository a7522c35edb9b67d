package main

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
)

// The exit codes.
const (
	done     = 0
	nothing  = 1 // not found, or nothing to do
	usage    = 2
	trouble  = 3 // the server, or the way to it
	declined = 4 // a question was answered by no, or the server refuses it to this user
)

// failure is an error with its exit code.
type failure struct {
	code int
	error
}

func (f failure) Unwrap() error { return f.error }

var (
	deniedTable   = regexp.MustCompile("^([A-Z][A-Z, ]*) command denied .*for table (?:`.*`\\.)?['`](\\w+)['`]$")
	deniedColumn  = regexp.MustCompile(`^([A-Z][A-Z, ]*) command denied .*for column .* in table '(\w+)'$`)
	deniedRoutine = regexp.MustCompile(`^(\w[\w ]*) command denied .*for routine '(.*)\.`)
	deniedAll     = regexp.MustCompile(`at least one of\) the (.*) privilege`)
)

// explained says in one sentence what the server or the driver means by an error, and what
// to do, with the exit code.
func (a *app) explained(err error) (text string, code int) {
	var known failure
	var server *mysql.MySQLError
	var way *net.OpError
	switch {
	case errors.As(err, &known):
		return err.Error(), known.code
	case errors.As(err, &server):
		if missing := missingGrant(server, a.given.DBName); missing != "" {
			return "this user may not do that: GRANT " + missing + " TO " + a.grantee(), declined
		}
		switch server.Number {
		case 1045: // ER_ACCESS_DENIED_ERROR
			return "the server doesn't let this user in: is the password right, and is there an account for this host? " + server.Message, trouble
		case 1044, 1049: // ER_DBACCESS_DENIED_ERROR, ER_BAD_DB_ERROR
			return "the database can't be used: is its name right, and has this user a privilege in it? " + server.Message, trouble
		}
	case errors.As(err, &way):
		return "the server can't be reached: is it running, and are host and port right? " + way.Error(), trouble
	case errors.Is(err, context.DeadlineExceeded):
		return "there was no answer within " + a.timeout.String() + ": --timeout gives more time", trouble
	case errors.Is(err, mysql.ErrInvalidConn):
		return "the connection was lost: the server has ended it, or was stopped: try again", trouble
	}
	return err.Error(), trouble
}

// missingGrant returns what has to be granted for a statement that the server has refused,
// or nothing if it wasn't for want of a privilege.
func missingGrant(server *mysql.MySQLError, database string) string {
	message := strings.Replace(server.Message, "SELECT with locking clause", "SELECT, DELETE", 1) // or UPDATE
	for _, denied := range []*regexp.Regexp{deniedTable, deniedColumn} {
		if found := denied.FindStringSubmatch(message); found != nil {
			return found[1] + " ON `" + database + "`." + found[2]
		}
	}
	if found := deniedRoutine.FindStringSubmatch(message); found != nil {
		return strings.ToUpper(found[1]) + " ON `" + found[2] + "`.*"
	}
	if found := deniedAll.FindStringSubmatch(message); found != nil {
		return found[1] + " ON *.*"
	}
	if server.Number == 1356 { // ER_VIEW_INVALID, MariaDB for a view on tables that the user may not read
		return "SELECT ON `" + database + "`.*"
	}
	return ""
}

// grantee asks who this user is, as GRANT wants it.
func (a *app) grantee() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	account := ""
	if err := a.db.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&account); err != nil {
		return "this user"
	}
	return ops.Grantee(account)
}

// inNames finds the password in what looks like a data source name.
var inNames = regexp.MustCompile(`:(.*)@(\w*\(|/)`)

// hide notes a password, which is never printed. One of two characters would be all over the
// text, and its place would tell it.
func (a *app) hide(password string) {
	if len(password) > 2 {
		a.secrets = append(a.secrets, password)
	}
}

// scrub removes passwords from a text, whoever has put them there.
func (a *app) scrub(text string) string {
	for _, secret := range a.secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}
