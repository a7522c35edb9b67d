package guard

import (
	"cmp"
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/internal/session"
)

// This file is what a connection knows about its session, which a statement of the program
// may change: the facts are old after each that isn't known to leave the session alone. They
// are asked again before the next lock statement, before a transaction, which runs at the session's
// level, and before the pool hands the connection out. No verdict is drawn from the text of what may
// have changed them.

// fit returns why no lock would hold on the session, or nil. It asks if the facts are old.
func (c *conn) fit(ctx context.Context) error {
	if err := c.refresh(ctx); err != nil {
		return err
	}
	return cmp.Or(c.facts.Unfit, c.tx.unfit())
}

// learnLevel asks for old facts before a transaction begins, unless SET TRANSACTION has chosen its
// level.
func (c *conn) learnLevel(ctx context.Context) error {
	if c.status.level != sql.LevelDefault || c.open > 0 {
		return nil
	}
	return c.refresh(ctx)
}

// refresh asks for the facts if they are old.
func (c *conn) refresh(ctx context.Context) error {
	if !c.old {
		return nil
	}
	err := c.ask(ctx)
	if err == nil || c.tx == nil {
		return err
	}
	err = c.judgeError(ctx, statement{kind: kindQuiet}, err)
	return cmp.Or(c.tx.refuse(), err)
}

// ask asks for the facts. A session that is in another database than at its beginning is
// unfit: its locks would be in the tables there.
func (c *conn) ask(ctx context.Context) error {
	facts, err := introduce(ctx, c.base, false)
	if err != nil {
		return err
	}
	if facts.Unfit == nil && facts.Name != c.server.Name {
		facts.Unfit = session.Elsewhere(facts.Name, c.server.Name)
	}
	c.facts, c.old = facts, false
	return nil
}

// becameUnfit reports whether the program has made the session unfit, or may have; a new one
// isn't then, unless the data source name or the server makes each unfit.
func (c *conn) becameUnfit(ctx context.Context) bool {
	if c.old && c.ask(ctx) != nil {
		return true
	}
	return c.facts.Unfit != nil && !c.unfitAtFirst
}
