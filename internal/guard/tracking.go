package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// before is called before a statement is sent. It refuses a statement of a doomed
// transaction, and a lock statement that would hold nothing.
func (c *conn) before(ctx context.Context, s statement) error {
	if err := c.check(ctx, s); err != nil {
		return err
	}
	call := c.call(ctx)
	switch {
	case call == nil:
		c.old = c.old || !s.leaves
		if s.kind == kindBegin {
			if err := c.learnLevel(ctx); err != nil {
				return err
			}
		}
	case call.Restores:
		return nil
	default:
		if err := c.fit(ctx); err != nil {
			return err
		}
		c.borrowed = c.borrowed || call.Borrows
	}
	if err := c.sendBegin(ctx); err != nil || call != nil {
		return err
	}
	outside := c.tx == nil || !c.status.open
	c.status.chosen = c.status.chosen || outside && s.chooses
	c.status.choose(s, outside)
	return c.setProbeSavepoint(ctx, s)
}

// check does what before does with a statement that begins the transaction itself.
func (c *conn) check(ctx context.Context, s statement) error {
	call := c.call(ctx)
	if call == nil {
		return c.checkProgram(ctx, s)
	}
	if call.Tx != c.tx {
		if err := call.Tx.Err(); err != nil {
			return err
		}
		return fault.ErrEnded
	}
	if c.open > 0 {
		return fault.ErrOpenRows
	}
	if call.Restores {
		return nil
	}
	if err := c.tx.Err(); err != nil {
		return err
	}
	if call.Fresh && c.tx.MayHaveSnapshot() {
		return ErrReads
	}
	return nil
}

// checkProgram does what check does, for a statement of the program. A SET that is
// refused may have been meant to restore the session, so nobody uses the connection after
// it.
func (c *conn) checkProgram(ctx context.Context, s statement) error {
	switch {
	case c.tx == nil && c.unusable: // a wrapper has called neither IsValid nor ResetSession
		return driver.ErrBadConn
	case c.tx == nil, !c.tx.owned && (s.kind == kindBegin || s.kind == kindRollback):
		return nil // who begins transactions as text may always begin another
	case !c.tx.owned && s.kind == kindCommit:
		return c.mayCommitText(ctx)
	}
	why := c.tx.refuse()
	if lacks := c.server.Lacks.Plain; why == nil && lacks != "" && c.tx.owned && (s.kind == kindUncertain || s.kind >= kindBegin) {
		return session.Lacks(c.server.Engine, lacks+s.name)
	}
	if why != nil {
		c.unusable = c.unusable || strings.HasPrefix(s.name, "SET ")
	}
	return why
}

// setProbeSavepoint sets a savepoint before a statement that may end the transaction and begin
// another, as each does under autocommit = 0 that ends it. settle releases it afterwards: if that
// succeeds, the transaction is the same.
// It does so only if locks have joined the transaction. If a procedure rolls back to an
// older savepoint of the program, this one is gone too: so whenever the release succeeds,
// no lock was released.
func (c *conn) setProbeSavepoint(ctx context.Context, s statement) error {
	s.reopens = s.reopens || s.kind == kindUncertain && !c.status.autocommit()
	if !s.reopens || c.tx == nil || c.probeSavepoint || !c.tx.used() || !c.status.open {
		return nil
	}
	if err := c.exec(ctx, rawsql.ProbeSavepoint); err != nil {
		return c.failed(ctx, statement{kind: kindQuiet}, err)
	}
	c.probeSavepoint = true
	return nil
}

// after notes in the transaction state a statement that was sent, and returns its error.
func (c *conn) after(ctx context.Context, s statement, err error) error {
	switch {
	case errors.Is(err, driver.ErrSkip):
		return err // not sent: database/sql prepares it next
	case err != nil:
		return c.failed(ctx, s, err)
	}
	c.ran(ctx, s)
	return c.settle(ctx, s, false)
}

// ran notes a statement that the server has executed.
func (c *conn) ran(ctx context.Context, s statement) {
	call := c.call(ctx)
	switch {
	case call != nil:
		c.borrowed = c.borrowed && !call.Restores
		if call.Reads {
			c.tx.ran(statement{kind: kindPlain}, false)
		}
	case s.kind == kindBegin, s.kind == kindCommit, s.kind == kindRollback:
		c.boundary(s)
	case c.tx != nil:
		c.tx.ran(s, false)
	}
}

// boundary notes a BEGIN, COMMIT or ROLLBACK that the program has sent as text. In a
// transaction of database/sql it ends what the *sql.Tx held. On a *sql.Conn it is how
// transactions begin and end.
func (c *conn) boundary(s statement) {
	if c.tx != nil && c.tx.owned {
		why := fault.Committed(s.name)
		if s.kind == kindRollback {
			why = fault.RolledBackBy(s.name)
		}
		c.tx.markEndedByProgram(why)
		c.status.open = s.kind == kindBegin || s.chain || c.status.inReply()
		return
	}
	was := c.tx
	if was != nil && s.kind == kindBegin {
		was.markEndedByProgram(fault.Committed(s.name))
	}
	c.end(s.kind == kindCommit)
	if s.kind == kindBegin || s.chain || c.status.inReply() {
		c.tx = c.newTxState()
		c.tx.reads = s.reads
		if s.chain && was != nil {
			c.tx.session = was.session // it keeps the level
		}
		c.status.trust()
	}
}

// end ends the transaction.
func (c *conn) end(committed bool) {
	if t := c.tx; t != nil {
		c.tx = nil
		t.end()
		if committed {
			t.notifyCommitted()
		}
	}
}

// settle finds out, after a statement and all its rows, whether the statement has ended
// the transaction. The flag in the reply says whether one is open. If the probe
// savepoint is gone, the transaction has ended and another may have begun. An error tells
// neither, and some drivers hide the flag: then, if the statement or an error that isn't
// known may have ended the transaction, the server is asked.
func (c *conn) settle(ctx context.Context, s statement, failed bool) error {
	probeSavepoint, was, doubt := c.probeSavepoint, c.status.open, c.status.doubt
	c.probeSavepoint, c.status.doubt = false, nil
	if c.tx == nil || c.tx.refuse() != nil {
		return nil
	}
	open, told := c.status.inTransaction()
	ask := was && (doubt != nil || s.asks(told, failed))
	told = told && !failed
	ended := told && !open
	var err error
	switch {
	case ended:
	case probeSavepoint:
		err = c.exec(ctx, rawsql.ReleaseProbeSavepoint)
		open = true
		if ended = fault.NoSavepoint(err); ended {
			open, err = c.probe(ctx)
		}
	case ask:
		open, err = c.probe(ctx)
		ended = !open
	case !told:
		open = was
	}
	if err != nil { // nobody knows
		if s.end != endCommits && (probeSavepoint || s.asks(told, failed)) {
			s.end = endUnknown
		}
		err = c.judgeError(ctx, s, err)
		c.tx.abort(cmp.Or(c.committedBy(s, err), fault.RolledBack(s.name)), s.end != endRolledBack)
		return err
	}
	c.status.open = open
	if was && ended {
		return c.over(s, doubt)
	}
	return nil
}

// over stops a transaction that is no longer open after a statement, and perhaps its error.
// If the statement ends it by its words, the program wanted that, and its statements go on.
func (c *conn) over(s statement, answer error) error {
	if s.end == endCommits && answer == nil { // COMMIT as text, which has succeeded
		s.end = endCommitted
	}
	c.status.chosen = c.status.chosen || s.chooses
	why := c.committedBy(s, answer)
	switch s.end {
	case endCommitted, endUndone:
		c.tx.markEndedByProgram(why)
		return nil
	case endRolledBack:
		why = fault.RolledBack(s.name)
	}
	c.tx.abort(why, s.end != endRolledBack)
	return c.tx.refuse()
}

// committedBy returns the error which says that a statement has committed the
// transaction, or may have, or has ended it so that what follows commits by itself, or
// nil. Answer is that of the transaction's own COMMIT.
func (c *conn) committedBy(s statement, answer error) error {
	switch s.end {
	case endCommitted:
		return fault.Committed(s.name)
	case endUndone:
		return fault.RolledBackBy(s.name)
	case endUnknown:
		return fault.MayHaveCommitted(s.name)
	case endCommits:
		return fault.Outcome(answer)
	}
	return nil
}

// failed notes a statement that the server has answered with an error, or hasn't
// answered.
func (c *conn) failed(ctx context.Context, s statement, err error) error {
	c.demoted = c.demoted || fault.ReadOnly(err)
	c.status.choose(statement{}, true) // nobody knows what it has chosen
	t := c.tx
	if t == nil {
		return err
	}
	if s.end == endCommits && ctx.Err() != nil && c.lost(ctx, err) { // the driver has closed it while COMMIT was under way
		err = fmt.Errorf("%w: %w", mysql.ErrInvalidConn, err)
	}
	server := new(mysql.MySQLError)
	if s.kind == kindCommit && !t.owned && (!errors.As(err, &server) || server.Number != 1064) { // ER_PARSE_ERROR: it was no COMMIT
		c.end(false) // it is over, whatever has become of it
		return c.finished(t.outcome(err))
	}
	if s.end == endCommits && fault.NotCommitted(err) {
		s.end = endRolledBack
	}
	err = c.judgeError(ctx, s, err)
	t.ran(s, true)
	if why := c.settle(ctx, s, true); why != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}

// judgeError tells from the error of a statement, or of its rows, what is left of the
// transaction.
func (c *conn) judgeError(ctx context.Context, s statement, err error) error {
	t := c.tx
	if t == nil {
		return err
	}
	why := fault.Ended(err, c.server)
	lost := why == nil && c.lost(ctx, err)
	switch {
	case lost:
		if s.size >= large {
			err = fault.Large(s.size, err)
		}
		why = fault.Lost(err)
		if s.end.byWords() {
			s.end = endUnknown // it may never have been executed
		}
	case why == nil:
		if s.end == endCommits || c.server.Gateway || !fault.KeepsOpen(err) {
			c.status.doubt = err
		}
		return err
	}
	if s.sets && (!lost || errors.Is(err, driver.ErrBadConn)) { // the server evaluates all values before it sets the first; or it wasn't sent
		s.end = endRolledBack
	}
	if first := c.committedBy(s, err); s.end == endCommits {
		why, err = first, first
	} else if first != nil {
		why, err = first, fmt.Errorf("%w: %w", first, err)
	}
	first := t.abort(why, s.end != endRolledBack)
	if !lost {
		return err
	}
	c.unusable = true
	if first && t.used() {
		if killErr := c.pool.kill(c); killErr != nil {
			return errors.Join(err, killErr)
		}
	}
	return err
}

// lost reports whether this error means that the connection is gone. A base without a
// Validator may be a wrapper around a connection that the driver has closed.
func (c *conn) lost(ctx context.Context, err error) bool {
	if fromServer := new(mysql.MySQLError); errors.As(err, &fromServer) {
		return false
	}
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) {
		return true
	}
	alive, told := c.alive()
	return !alive || !told && ctx.Err() != nil
}

// mayCommit returns why the transaction must not be committed: the server has rolled it
// back, or it has lost locks before its end.
func (c *conn) mayCommit() error {
	t := c.tx
	if t == nil {
		return nil
	}
	if !t.holds() {
		return t.refuse()
	}
	if err := t.Err(); err != nil {
		return err
	}
	if name, found := t.unfenced(); found {
		return fault.Unfenced(name)
	}
	return nil
}

// mayCommitText does what mayCommit does, for a transaction that was begun as text. It
// rolls back a transaction that must not be committed.
func (c *conn) mayCommitText(ctx context.Context) error {
	if c.committed() {
		return nil
	}
	why := c.mayCommit()
	if why == nil {
		return nil
	}
	c.end(false)
	return errors.Join(why, c.exec(ctx, "ROLLBACK"))
}
