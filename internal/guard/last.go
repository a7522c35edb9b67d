package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/sqltext"
)

// Last marks a statement of the program that commits its transaction if it has changed so
// many rows, or any number if that is negative; see txlock's Scope.CommitWith.
type Last struct {
	Tx   *TxState
	Rows int64

	handled bool // by the guarded pool around this one
}

// WithLast marks the next statement of the program under the context.
func WithLast(ctx context.Context, l Last) context.Context {
	return &inBand[Last]{Context: ctx, value: l}
}

// The errors of what can't be the last statement of a transaction. Nothing was sent.
var (
	ErrNoWrite = errors.New("CommitWith is for a single INSERT, UPDATE, DELETE or REPLACE without RETURNING, sent by Exec; the transaction stays open")
	ErrElse    = errors.New("its context, of LockWith or CommitWith, is for another transaction, or for one that has ended: take that of this transaction's Scope")
	// ErrPrepared is the error of a statement that was prepared under the context of a mark, which
	// would be ignored.
	ErrPrepared = errors.New("it was prepared under the context of LockWith or CommitWith, and is executed under another one: execute it under that context; the transaction stays open")
)

// marked makes sure that the marks of a statement of the program are those of this pool, or of
// another guarded pool around this one, which has seen to them.
func (c *conn) marked(ctx context.Context) error {
	if c.call(ctx) != nil {
		return nil
	}
	last, first := valueOf[Last](ctx), valueOf[*First](ctx)
	if last != nil && !last.handled {
		if last.Tx.pool != c.pool {
			return ErrElse
		}
		last.handled = c.status.nested
	}
	if first != nil && !(*first).taken && !(*first).handled {
		if (*first).Tx.pool != c.pool {
			return ErrElse
		}
		(*first).handled = c.status.nested
	}
	return nil
}

// last returns the mark of the last statement, or nil for any other. Lock statements under
// its context are none.
func (c *conn) last(ctx context.Context) *Last {
	if last := valueOf[Last](ctx); last != nil && last.Tx.pool == c.pool && c.call(ctx) == nil {
		return last
	}
	return nil
}

// stateful are what tells of the statement before.
var stateful = map[string]bool{"last_insert_id": true, "identity": true, "insert_id": true, "row_count": true, "found_rows": true, "warning_count": true, "error_count": true}

var writing = map[string]bool{"INSERT": true, "UPDATE": true, "DELETE": true, "REPLACE": true}

// writes reports whether the statement, of which s is the judgement, is one that only writes.
func (s statement) writes(query string) bool {
	word, _, _ := strings.Cut(s.name, " ")
	return s.kind == kindPlain && s.leaves && writing[word] && !slices.Contains(sqltext.Words(query, len(query)), "RETURNING")
}

// write is a statement of the program.
type write struct {
	statement statement
	writes    bool // it does nothing else
	query     string
	args      []driver.NamedValue
	shares    bool // it can share a text with COMMIT
}

// write sends the last statement of a transaction, and its COMMIT with it where the server
// can do both in one round trip. Send sends it alone.
func (c *conn) write(ctx context.Context, last *Last, w write, send func() (driver.Result, error)) (driver.Result, error) {
	switch {
	case c.tx == nil || c.tx != last.Tx:
		return nil, cmp.Or(last.Tx.refuse(), ErrElse)
	case !w.writes:
		return nil, ErrNoWrite
	case c.open > 0:
		return nil, fault.ErrOpenRows
	}
	if err := c.before(ctx, w.statement); err != nil {
		return nil, err
	}
	if why := cmp.Or(c.mayCommit(), ctx.Err()); why != nil {
		return nil, why
	}
	if w.shares {
		result, err := c.writeAndCommit(ctx, last, w)
		if !errors.Is(err, driver.ErrSkip) {
			return result, err
		}
	}
	result, err := send()
	if err := c.after(ctx, w.statement, err); err != nil {
		return nil, err
	}
	n, err := result.RowsAffected()
	if err == nil {
		err = last.refuses(n)
	}
	if err != nil {
		return nil, err
	}
	_, err = c.commitBy(ctx, "COMMIT", endCommits)
	return result, err
}

// refuses returns fault.Rows if the statement has changed another number of rows.
func (l *Last) refuses(n int64) error {
	if l.Rows < 0 || n == l.Rows {
		return nil
	}
	return fault.Rows(n, l.Rows)
}

// What may share a text with a statement of lockstep's, in which it is twice as long. A session of MySQL
// keeps the text and its arguments afterwards.
const (
	mostText   = 1 << 16 // bytes of a statement with its arguments
	mostNumber = 24      // bytes of a number
)

// shares reports whether a statement can share a text with one of lockstep's: the reply can be
// read, and the statement isn't read otherwise there, as its text is ASCII and its question
// marks are its arguments, and asks for nothing of the statement before, nor for a variable by a
// name of lockstep's. Where the session may have moved to another database, what is prepared and
// the procedures would be those of the first.
func (c *conn) shares(query string, args []driver.NamedValue) bool {
	foreign := func(b byte) bool { return b >= 0x80 }
	named := func(arg driver.NamedValue) bool { return arg.Name != "" } // the driver refuses it
	switch {
	case !c.status.flags.IsValid(), c.status.nested, c.old, c.facts.Unfit != nil, strings.Count(query, "?") != len(args), !c.server.Compound && !c.callable(query, args),
		strings.Contains(query, "@") && strings.Contains(strings.ToLower(query), "lockstep_"), // in quotes, too
		(statement{}).of(query, args).size+mostNumber*len(args) > mostText:
		return false
	}
	return !slices.ContainsFunc(args, named) && !slices.ContainsFunc([]byte(query), foreign) && sqltext.Mentions(query, stateful) == ""
}

// callable reports whether a procedure of MySQL can execute a statement of the program, in which there is
// no limit of time. How the driver treats arguments must be known. Where some would be variables, which
// literal says, they must be what they are alone: a number is no column of ORDER BY then, a text no number
// of LIMIT, and a float a DECIMAL. Nor are bytes that the driver writes into a text characters, as they are
// in a variable.
func (c *conn) callable(query string, args []driver.NamedValue) bool {
	interpolates := c.pool.interpolates.Load()
	switch {
	case !c.pool.procedures(c.server), len(args) > 0 && !interpolates && !c.pool.prepares.Load():
		return false
	case strings.Contains(query, "/*") && strings.Contains(strings.ToLower(query), "max_execution_time"):
		return false
	}
	texts, others := false, false
	for _, arg := range args {
		switch arg.Value.(type) {
		case nil, int64, uint64, bool:
		case float64:
			others = true
		case []byte:
			texts, others = true, true
		default:
			texts = true
		}
	}
	if others && interpolates {
		_, variables := c.literal(query, args, true)
		return len(variables) == 0
	}
	_, by := sqltext.Cut(query, "BY", "LIMIT")
	return !texts || !strings.Contains(by, "?")
}

// progress is how far a statement of the program has come whose text, that it shares with one of
// lockstep's, was answered with an error.
type progress int

const (
	unknown  progress = iota
	notBegun          // it can be sent alone
	failed            // it has changed nothing, or the server has undone that
	executed          // what followed it has failed
)

// progressOf asks the server, unless the error says it. That is the session's own variable, so that
// nobody's trigger can signal an error in its place.
func (c *conn) progressOf(ctx context.Context, err error) progress {
	server := new(mysql.MySQLError)
	switch {
	case errors.Is(err, driver.ErrSkip), errors.Is(err, mysql.ErrPktTooLarge), c.noProcedure(err):
		return notBegun
	case !errors.As(err, &server), fault.Ended(err, c.server) != nil, fault.Interrupts(err):
		return unknown
	case fault.OfRow(err):
		return failed
	}
	r, err := read(ctx, c.base, rawsql.Progress)
	switch {
	case err != nil || len(r.rows) != 1 || len(r.columns) != 1:
		return unknown
	case r.rows[0][0] == nil:
		return notBegun
	case text(r.rows[0][0]) == "0":
		return failed
	}
	return executed
}

// noProcedure reports whether the server doesn't have a procedure that executes statements of the
// program, and notes that.
func (c *conn) noProcedure(err error) bool {
	server := new(mysql.MySQLError)
	none := c.server.Procedures && fault.NoProcedure(err) && errors.As(err, &server) && ofProgram.MatchString(server.Message)
	if none {
		c.pool.noProcedures.Store(true)
	}
	return none
}

var ofProgram = regexp.MustCompile(`\.lockstep_(lock_1|lock_read_2|program_2)\b`)

// writeAndCommit sends a statement and its COMMIT in one text. The row of the reply, with the
// number of rows and the insert id, comes before the COMMIT: an error of the server without
// it, or with another number, is that of a statement after which nothing is committed.
func (c *conn) writeAndCommit(ctx context.Context, last *Last, w write) (driver.Result, error) {
	s := w.statement
	query, args := c.literal(w.query, w.args, false)
	both, ok := c.server.WriteAndCommit(query, len(args), last.Rows)
	if !ok {
		return nil, driver.ErrSkip
	}
	k, err := c.cached(ctx, both, args, false)
	switch {
	case errors.Is(err, driver.ErrSkip):
		return nil, err
	case err != nil:
		return nil, c.failed(ctx, statement{kind: kindQuiet}, err)
	}
	c.tx.finish(true) // before the server frees the locks
	sent := c.committing()
	r, err := readRows(c.send(ctx, k, both, args))
	done, known := writtenBy(r)
	refused := last.refuses(done.rows)
	reached := executed
	if err != nil && !known {
		reached = c.progressOf(ctx, err)
	}
	if reached == notBegun {
		c.tx.finish(false)
		return nil, driver.ErrSkip
	}
	err = sent.outcome(err)
	open, told := c.status.inTransaction()
	switch {
	case err != nil:
		c.tx.finish(false)
		return nil, c.notWritten(ctx, s, known && refused == nil, reached, err)
	case known && refused != nil:
		c.tx.finish(false)
		return nil, cmp.Or(c.after(ctx, s, nil), refused)
	case !known, told && open:
		c.tx.finish(false)
		c.tx.abort(fault.Outcome(fault.UnknownReply("a statement that commits", fmt.Sprintf("%d rows of %d columns", len(r.rows), len(r.columns)))), true)
		return nil, c.tx.refuse()
	}
	return done, c.closed()
}

// writtenBy reads the reply to a statement and its COMMIT.
func writtenBy(r *reply) (done written, known bool) {
	if r == nil || len(r.rows) != 1 || len(r.columns) != 2 {
		return done, false
	}
	id, err := strconv.ParseUint(text(r.rows[0][0]), 10, 64)
	if err == nil {
		done.id = int64(id)
		done.rows, err = r.number(1)
	}
	return done, err == nil && done.rows >= 0
}

// notWritten judges the error of a statement and its COMMIT, which has begun if commits is true.
// What the statement has changed may be there afterwards, and must not be committed by another
// COMMIT.
func (c *conn) notWritten(ctx context.Context, s statement, commits bool, reached progress, err error) error {
	server := new(mysql.MySQLError)
	answered := errors.As(err, &server) && fault.Ended(err, c.server) == nil
	interrupts := answered && !commits && reached != failed && (fault.Interrupts(err) || !fault.KeepsOpen(err))
	if commits || !answered {
		s.name, s.end = "COMMIT", endCommits
	}
	err = c.failed(ctx, s, err)
	if (commits || interrupts) && c.tx.refuse() == nil {
		err = fault.Interrupted(err)
		c.tx.abort(err, false)
	}
	return err
}

// written is the result of a statement that has committed.
type written struct{ id, rows int64 }

// LastInsertId returns the first id that the server has made.
func (w written) LastInsertId() (int64, error) { return w.id, nil }

// RowsAffected returns the number of changed rows.
func (w written) RowsAffected() (int64, error) { return w.rows, nil }
