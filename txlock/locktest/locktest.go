// Package locktest is for the tests of programs that use lockstep.
//
// On go-sqlmock, ExpectJoin, ExpectLock, ExpectRun and their likes queue the statements
// that a call of the library sends, and what they are answered:
//
//	locktest.ExpectRun(mock, Orders.Keys(42)).Granted(7)
//
// They are made by the library itself, which rehearses the call, so that they are what it
// sends on a plain pool, as that of a mock is. ExpectLeases is for those of a lease.Manager.
//
// Without any SQL, Memory is a stand-in for the server in the memory of the test:
// its Scope, Manager, Semaphore and Quorum have the methods and the errors of
// txlock.Scope, lease.Manager, lease.Semaphore and quorum.Manager, and a clock that the
// test moves.
//
// Production code doesn't import this package, which links go-sqlmock: what it needs
// for its tests, AssertLocked, is in package txlock.
package locktest

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/asserts"
	"github.com/dca00107/lockstep/txlock"
)

// WithoutAssertions returns a context under which txlock.AssertLocked and its likes
// return nil: for tests of code that is called without its lock, and for those on a
// pool where nobody knows what is held, as that of sqlmock. Nothing but this package can
// switch them off.
func WithoutAssertions(ctx context.Context) context.Context { return asserts.Off(ctx) }

// AssertLocked is txlock.AssertLocked, for tests that have this package at hand.
// Production code calls that one.
func AssertLocked(ctx context.Context, tx txlock.Tx, key txlock.Key) error {
	return txlock.AssertLocked(ctx, tx, key)
}

// The servers that a mock may be, for Server.
const (
	MySQL   = "8.4.0"
	MariaDB = "11.8.2-MariaDB"
)

// Option is an option of ExpectJoin and its likes.
type Option func(*settings)

type settings struct {
	version     string
	nothingRead bool
	verbatim    bool
}

// Server says what SELECT VERSION() is answered: the library sends other statements to
// MariaDB than to MySQL, and to some old versions. The default is MySQL.
func Server(version string) Option { return func(s *settings) { s.version = version } }

// NothingRead says that the program joins with txlock.NothingRead. The default is that
// it doesn't. The transactions of ExpectRun and ExpectDo are joined so anyway.
func NothingRead(s *settings) { s.nothingRead = true }

// Verbatim hands the statements as they are to the mock's matcher: for a matcher of
// your own that compares. The default is a regular expression that matches the
// statement and no other, as sqlmock.QueryMatcherRegexp needs it, or the statement
// itself where the matcher is sqlmock.QueryMatcherEqual.
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
var limits = regexp.MustCompile(`(max_statement_time=|MAX_EXECUTION_TIME\\\()\d+(\\\.\d+)?`)

// text is what makes the mock's matcher take a statement.
func (s settings) text(query string, loose bool) string {
	if s.verbatim {
		return query
	}
	pattern := "^" + regexp.QuoteMeta(strings.Join(strings.Fields(query), " ")) + "$"
	if loose {
		pattern = limits.ReplaceAllString(pattern, `$1[\d.]+`)
	}
	return pattern
}

// served counts the servers that were made up: each has a name of its own, so that what
// the library remembers of the rows of one is nothing to the next.
var served atomic.Int64

func newName() string { return fmt.Sprintf("locktest/%d", served.Add(1)) }
