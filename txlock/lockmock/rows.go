package lockmock

import (
	"database/sql/driver"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// rows answers the statements of locks as a server would whose rows all exist.
type rows struct {
	settings
	what   string
	tokens map[rowID]uint64 // of the rows that the transaction holds
	wanted map[rowID]uint64 // what the next statement gives them
	refuse func(rowID) error
	stale  bool
	// about is the version that a call is about, the row's unless that has changed.
	about   *uint64
	changed bool
	over    bool   // the transaction, behind the program's back
	taken   bool   // the statement that takes the row was sent in this call
	last    string // it
	keys    map[rowID]bool
	former  []byte // the fingerprint of who was first
	result  []byte // and what it has stored
}

// The errors of the servers.
const (
	snapshotChanged  = 1020 // MariaDB
	duplicate        = 1062
	lockWaitTimeout  = 1205
	deadlock         = 1213
	transactionOpen  = 1568
	statementTimeout = 1969 // MariaDB
	queryTimeout     = 3024 // MySQL
	noWait           = 3572 // MySQL
)

// untold is the token of a row whose test says none.
const untold = 100

// begin begins a call.
func (r *rows) begin(what string, keys []txlock.Key) {
	r.what, r.taken, r.keys = what, false, make(map[rowID]bool, len(keys))
	for _, key := range keys {
		r.keys[rowOf(key)] = true
	}
}

// next says which token a key is given next.
func (r *rows) next(key txlock.Key, token uint64) {
	if r.wanted == nil {
		r.wanted = make(map[rowID]uint64)
	}
	r.wanted[rowOf(key)] = token
}

func (r *rows) want(at rowID) uint64 {
	if token, ok := r.wanted[at]; ok {
		return token
	}
	return untold
}

// before is the token that the row carries before the grant.
func (r *rows) before(at rowID) uint64 {
	if r.about != nil {
		return *r.about
	}
	if token, ours := r.tokens[at]; ours {
		return token
	}
	if want := r.want(at); want > 0 {
		return want - 1
	}
	return 0
}

// current is what a plain read shows: of a stale snapshot less than the row has.
func (r *rows) current(token uint64) int64 {
	if r.stale && (r.taken || r.about != nil) {
		token--
	}
	return int64(token)
}

var sqlcName = regexp.MustCompile(`-- name: (\w+)`)

// nameOf returns the name that sqlc has given a statement, hints and prefixes apart.
func nameOf(query string) string {
	if found := sqlcName.FindStringSubmatch(query); found != nil {
		return found[1]
	}
	return ""
}

// answer is what the server replies.
func (r *rows) answer(query string, args []driver.Value) reply {
	switch query {
	case rawsql.Probe:
		if r.over {
			return reply{}
		}
		return reply{err: serverError(transactionOpen, "a transaction is open (asked before "+r.what+")")}
	case rawsql.Facts:
		return row(session.Reply(r.version, newName(r.what))...)
	case rawsql.LockWaitSeconds:
		return row(int64(50))
	case schema.ClusterQuery:
		return reply{columns: []string{"Variable_name", "Value"}}
	}
	if strings.HasPrefix(query, strings.TrimSuffix(rawsql.SetLockWait(0), "0")) {
		return reply{}
	}
	if nameOf(query) == nameOf(gen.SealOnce) {
		return reply{}
	}
	named := r.keysAmong(args)
	if len(named) == 0 {
		return reply{err: fmt.Errorf("lockmock has no answer to %q", query)}
	}
	name, at := nameOf(query), rowAt(named[len(named)-1])
	switch name {
	case nameOf(gen.NamedToken), nameOf(gen.CenterToken):
		return row(r.current(r.before(at)))
	case nameOf(gen.EnsureNamed), nameOf(gen.AnswerOnce):
		return reply{}
	case nameOf(gen.OnceAgain):
		return row(int64(0), r.former, int64(0))
	case nameOf(gen.OnceResult):
		return row(r.result)
	}
	if err := r.take(query, at); err != nil {
		return reply{err: err}
	}
	switch name {
	case nameOf(gen.LockNamed), nameOf(gen.LockCenter):
		return reply{id: int64(r.want(at))}
	case nameOf(gen.CompareAndBumpNamed), nameOf(gen.CompareAndBumpCenter):
		if r.changed {
			return reply{}
		}
		return reply{id: int64(r.want(at))}
	case nameOf(gen.Once):
		if r.former == nil {
			return reply{}
		}
		return reply{err: serverError(duplicate, r.what+" finds the row of another")}
	case nameOf(gen.TouchNamed):
		return reply{id: int64(r.before(at))}
	case nameOf(gen.NamedForUpdate), nameOf(gen.CenterForUpdate):
		return row(int64(r.before(at)))
	case nameOf(gen.NamedForShare), nameOf(gen.CenterForShare):
		r.tokens[at] = r.want(at) // nothing raises it
		return row(int64(r.want(at)))
	}
	return r.answerMany(query, named)
}

// answerMany replies to the statements that take several rows, which sqlc has no
// name for.
func (r *rows) answerMany(query string, named []driver.Value) reply {
	var all reply
	switch n := len(named); {
	case r.is(query, n, rawsql.Table.TouchMany):
		return reply{}
	case r.is(query, n, rawsql.Table.LockMany):
		return reply{affected: 2 * int64(n)}
	case r.is(query, n, rawsql.Table.LockManyReturning), r.is(query, n, rawsql.Table.TokensMany):
		for _, arg := range named {
			all.rows = append(all.rows, []driver.Value{arg, int64(r.want(rowAt(arg)))})
		}
		all.columns = []string{"k", "token"}
	case r.is(query, n, rawsql.Table.SnapshotMany):
		for _, arg := range named {
			token := r.before(rowAt(arg))
			all.rows = append(all.rows, []driver.Value{arg, int64(token), r.current(token)})
		}
		all.columns = []string{"k", "token", "old"}
	default:
		all.err = fmt.Errorf("lockmock has no answer to %q", query)
	}
	return all
}

func (r *rows) is(query string, n int, made func(rawsql.Table, int) string) bool {
	return strings.HasSuffix(query, made(rawsql.Named, n)) || strings.HasSuffix(query, made(rawsql.Centers, n))
}

// take refuses the first statement of a call that takes a row, where it is to be.
func (r *rows) take(query string, at rowID) error {
	first := !r.taken
	r.taken, r.last = true, query
	if r.stale && first && strings.Contains(query, rawsql.RefuseStale) {
		return serverError(snapshotChanged, "the row has changed since the snapshot ("+r.what+")")
	}
	if r.refuse == nil {
		return nil
	}
	return r.refuse(at)
}

// keysAmong returns those of a statement's arguments that name a key of the call.
func (r *rows) keysAmong(args []driver.Value) (named []driver.Value) {
	for _, arg := range args {
		if r.keys[rowAt(arg)] {
			named = append(named, arg)
		}
	}
	return named
}

// timeout is what the server answers when the wait for a row ends.
func (r *rows) timeout(what string) error {
	number := uint16(lockWaitTimeout)
	switch {
	case strings.Contains(r.last, "max_statement_time"):
		number = statementTimeout
	case strings.Contains(r.last, "MAX_EXECUTION_TIME"):
		number = queryTimeout
	case strings.HasSuffix(r.last, "NOWAIT"):
		number = noWait
	}
	return serverError(number, what+" has waited for too long")
}

// busy is what the server answers when a row is locked and not to be waited for.
func (r *rows) busy(what string) error {
	if r.mariaDB() {
		return serverError(lockWaitTimeout, what+" finds the row locked")
	}
	return serverError(noWait, what+" finds the row locked")
}

// published is the reply as the mock gives it: by a server of another name, of whose
// rows the library knows nothing.
func (r *rows) published(n note) reply {
	if n.query == rawsql.Facts {
		return row(session.Reply(r.version, newName(r.what))...)
	}
	return n.reply
}

func serverError(number uint16, message string) error {
	return &mysql.MySQLError{Number: number, Message: "lockmock: " + message}
}
