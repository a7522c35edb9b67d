package lockmock

import (
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/DATA-DOG/go-sqlmock"
)

// Servers that a mock can stand for, see [Server].
const (
	MySQL   = "8.4.0"
	MariaDB = "11.8.2-MariaDB"
)

// Option is an option of the functions of this package, such as [ExpectJoin].
type Option func(*settings)

type settings struct {
	version     string
	nothingRead bool
	verbatim    bool
}

// Server says what the mock answers when it is asked for its version: the library sends
// other statements to MariaDB than to MySQL, and to some old versions. The default is
// [MySQL].
func Server(version string) Option { return func(s *settings) { s.version = version } }

// NothingRead says that the program joins with [txlock.NothingRead]. The default is that
// it doesn't. The transactions of [ExpectRun], [ExpectOptimistic] and [ExpectDo] are
// always joined in this way.
func NothingRead(s *settings) { s.nothingRead = true }

// Verbatim gives the statements to the mock's matcher as they are, for a matcher of your
// own that compares texts. The default depends on the matcher: for
// [sqlmock.QueryMatcherEqual] it is the statement itself, for any other a regular
// expression that matches this statement only, as [sqlmock.QueryMatcherRegexp] needs it.
func Verbatim(s *settings) { s.verbatim = true }

func settingsOf(mock sqlmock.Sqlmock, options []Option) settings {
	s := settings{version: MySQL, verbatim: comparesText(mock)}
	for _, option := range options {
		option(&s)
	}
	return s
}

// mariaDB tells which numbers the errors of the server have.
func (s settings) mariaDB() bool { return strings.Contains(s.version, "MariaDB") }

// limits are the parts of a statement that say for how long it may take. What is left
// of a limit when it is sent differs.
var limits = regexp.MustCompile(`(max_statement_time=|MAX_EXECUTION_TIME\()\d+(\.\d+)?`)

// text is what makes the mock's matcher take a statement. Where that is an expression it
// begins with the call, which no statement does: so the mock's messages name it.
func (s settings) text(what, query string, loose bool) string {
	if s.verbatim {
		return query
	}
	statement := literal(strings.Join(strings.Fields(query), " "))
	if loose {
		statement = limits.ReplaceAllString(statement, `$1\E[\d.]+\Q`)
	}
	return "^(" + literal(what+" sends: ") + ")?" + statement + "$"
}

// literal is the expression of a text, and better to read than regexp.QuoteMeta's.
func literal(text string) string {
	return `\Q` + strings.ReplaceAll(text, `\E`, `\E\\E\Q`) + `\E`
}

// served counts the servers that were made up: each has a name of its own, so that what
// the library remembers of the rows of one is nothing to the next.
var served atomic.Int64

// newName is the name of a server for a call, which the mock's messages show.
func newName(what string) string { return fmt.Sprintf("%s, server %d", what, served.Add(1)) }
