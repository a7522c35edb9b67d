package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
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
	ErrNoWrite = errors.New("this statement doesn't commit with it: it must be a single INSERT, UPDATE, DELETE or REPLACE without RETURNING, sent by Exec")
	ErrElse    = errors.New("its context is for the last statement of another transaction, or of one that has ended")
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

var (
	writing   = map[string]bool{"INSERT": true, "UPDATE": true, "DELETE": true, "REPLACE": true}
	returning = map[string]bool{"returning": true}
)

// writes reports whether the statement, of which s is the judgement, is one that only writes.
func (s statement) writes(query string) bool {
	word, _, _ := strings.Cut(s.name, " ")
	return s.kind == kindPlain && s.leaves && writing[word] && sqltext.Mentions(query, returning) == ""
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

// mostText is the longest statement, in bytes, that is sent with its COMMIT, in a text twice as long.
const mostText = 1 << 16

// shares reports whether a statement can share a text with one of lockstep's: the reply can be
// read, and the statement isn't read otherwise there, as its text is ASCII and its question
// marks are its arguments, and asks for nothing of the statement before, nor for a variable by a
// name of lockstep's. Where the session may have moved to another database, what is prepared and
// the procedures would be those of the first.
func (c *conn) shares(query string, args []driver.NamedValue) bool {
	foreign := func(b byte) bool { return b >= 0x80 }
	switch {
	case !c.status.flags.IsValid(), c.status.nested, c.old, c.facts.Unfit != nil, !c.server.Compound && !c.pool.procedures(c.server):
		return false
	}
	ours := strings.Contains(query, "@") && strings.Contains(strings.ToLower(query), "lockstep_") // in quotes, too
	return !ours && len(query) <= mostText && strings.Count(query, "?") == len(args) && !slices.ContainsFunc([]byte(query), foreign) && sqltext.Mentions(query, stateful) == ""
}

// sharesNot reports whether nothing of the program's statement was executed, as it can't share a
// text with one of lockstep's: the server doesn't have the procedure, which is noted, or takes no
// argument where one is, or the driver hasn't sent the text.
func (c *conn) sharesNot(err error) bool {
	server := new(mysql.MySQLError)
	switch {
	case errors.Is(err, driver.ErrSkip), errors.Is(err, mysql.ErrPktTooLarge):
		return true
	case !errors.As(err, &server):
		return false
	case fault.NoProcedure(err) && strings.Contains(server.Message, "lockstep_"):
		c.pool.noProcedures.Store(true)
		return true
	}
	switch state := string(server.SQLState[:]); server.Number { // by which a trigger that signals such a number is told
	case 1064: // ER_PARSE_ERROR
		return state == "42000"
	case 1295: // ER_UNSUPPORTED_PS
		return state == "HY000"
	}
	return rawsql.NotPrepared(err)
}

// writeAndCommit sends a statement and its COMMIT in one text. The row of the reply, with the
// number of rows and the insert id, comes before the COMMIT: an error of the server without
// it, or with another number, is that of a statement after which nothing is committed.
func (c *conn) writeAndCommit(ctx context.Context, last *Last, w write) (driver.Result, error) {
	s := w.statement
	query, args := c.literal(w.query, w.args)
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
	if c.sharesNot(err) {
		c.tx.finish(false)
		return nil, driver.ErrSkip
	}
	err = sent.outcome(err)
	done, known := writtenBy(r)
	refused := last.refuses(done.rows)
	open, told := c.status.inTransaction()
	switch {
	case err != nil:
		c.tx.finish(false)
		return nil, c.notWritten(ctx, s, known && refused == nil, err)
	case known && refused != nil:
		c.tx.finish(false)
		return nil, cmp.Or(c.after(ctx, s, nil), refused)
	case !known, told && open:
		c.tx.finish(false)
		c.tx.abort(fault.Outcome(fault.UnknownReply("a statement that commits", fmt.Sprintf("%d rows of %d columns", len(r.rows), len(r.columns)))), true)
		return nil, c.tx.refuse()
	}
	c.status.open = false
	return done, c.finished(nil)
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

// notWritten judges the error of a statement and its COMMIT; commits tells that the COMMIT was
// begun. What the statement has changed may be there afterwards, and must not be committed by
// another COMMIT.
func (c *conn) notWritten(ctx context.Context, s statement, commits bool, err error) error {
	server := new(mysql.MySQLError)
	answered := errors.As(err, &server) && fault.Ended(err, c.server) == nil
	interrupts := answered && !commits && fault.Interrupts(err)
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
