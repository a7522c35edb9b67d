package guard

import (
	"context"
	"database/sql/driver"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// commits tells whether a lock statement is to commit the transaction, and returns its
// text for that. Nothing but that text commits by itself: where a wrapper has changed the
// statement so that it isn't known, it is an ordinary one, and COMMIT follows it.
func (c *conn) commits(ctx context.Context, query string, args []driver.NamedValue) (string, bool) {
	call := c.call(ctx)
	switch {
	case call == nil || !call.Commits || len(args) > 0 || c.tx == nil || !c.tx.owned:
		return "", false
	case judge(query).kind == kindCommit:
		return "COMMIT", true
	case c.status.nested: // to the guard below it would be the program's
		return "", false
	case c.server.MariaDB:
		return rawsql.CommitIfRaised(query)
	}
	return rawsql.CommitCall(query)
}

// commitBy sends a lock statement that commits the transaction, unless its reply is 0.
// Afterwards the Commit of the *sql.Tx sends nothing.
func (c *conn) commitBy(ctx context.Context, text string) (*reply, error) {
	s := statement{kind: kindQuiet, name: "COMMIT", end: endUnknown}
	if err := c.check(ctx, s); err != nil {
		return nil, err
	}
	if text != "COMMIT" { // else the locks are taken
		if err := c.fit(ctx); err != nil {
			return nil, err
		}
		if err := c.begun(ctx); err != nil {
			return nil, err
		}
	} else if c.opening.pending && !c.opening.failed {
		c.tx.finish(true)
		return &reply{}, nil
	}
	if why := c.mayCommit(); why != nil {
		return nil, why
	}
	c.tx.finish(true) // before the server frees the locks
	sent := c.committing()
	r, err := read(ctx, c.base, text)
	err = sent.outcome(err)
	if err != nil {
		c.tx.finish(false)
		if c.pool.rules.Ended(err, c.server) != nil {
			s.end = endRolledBack // as after COMMIT alone
		}
		return nil, c.failed(ctx, s, err)
	}
	if id, err := r.number(0); len(r.columns) > 0 && (id == 0 || err != nil) {
		c.tx.finish(false)
		return r, c.settle(ctx, statement{kind: kindQuiet}, false)
	}
	c.status.open = false
	return r, c.finished(nil)
}

// committed tells whether a lock statement has committed the transaction, and closes the
// book then.
func (c *conn) committed() bool {
	if c.tx == nil || !c.tx.Finished() {
		return false
	}
	c.opening = opening{}
	c.end(true)
	return true
}

// finish notes that a lock statement commits the transaction, or that it hasn't.
func (t *Tx) finish(finished bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finished = finished
}

// Finished tells whether a lock statement has committed the transaction; see Call.Commits.
func (t *Tx) Finished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.finished
}
