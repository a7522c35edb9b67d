package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// kept is a text with question marks that a connection keeps prepared. MariaDB takes longer to
// parse one that begins or commits a transaction than to execute it. It goes on in the database
// in which it was prepared, the only one in which a session is fit.
type kept struct {
	uses   int
	asText bool        // it can't be prepared
	stmt   driver.Stmt // nil until it is prepared
}

const (
	usesAsText = 16   // before a text is prepared, which costs a round trip
	mostKept   = 16   // texts of one connection
	longest    = 3072 // bytes of a text
)

// readOpener sends BEGIN and a lock statement, and reads the reply to its end.
func (c *conn) readOpener(ctx context.Context, both rawsql.Statement) (*reply, error) {
	query, args := both.SQL()
	if k := c.keep(query); k != nil {
		if r, err := c.readKept(ctx, k, query, args); r != nil || err != nil {
			return r, err
		}
	}
	text, ok := both.Text()
	if !ok {
		return nil, fmt.Errorf("lockstep: no text for %q", query)
	}
	return read(ctx, c.base, text)
}

// keep counts a use of a text, and returns what is kept of it, or nil if it is sent with its
// arguments in it.
func (c *conn) keep(query string) *kept {
	if !c.server.MariaDB || c.opening.failed || len(query) > longest {
		return nil
	}
	k := c.remember(query)
	k.uses++
	if k.asText || k.uses <= usesAsText && !c.pool.options.KeepAtOnce {
		return nil
	}
	return k
}

// remember returns what is kept of a text. If there are too many, a new one takes the place of
// those that are not prepared.
func (c *conn) remember(query string) *kept {
	if k := c.kept[query]; k != nil {
		return k
	}
	if c.kept == nil {
		c.kept = make(map[string]*kept)
	}
	for other, k := range c.kept {
		if len(c.kept) >= mostKept && k.stmt == nil {
			delete(c.kept, other)
		}
	}
	k := new(kept)
	if len(c.kept) < mostKept {
		c.kept[query] = k
	}
	return k
}

// readKept executes a text that is prepared, or prepares it before. It returns neither a
// reply nor an error if the server doesn't take it so: then it was not executed.
func (c *conn) readKept(ctx context.Context, k *kept, query string, args []any) (*reply, error) {
	if k.stmt == nil {
		if err := c.prepareKept(ctx, query, k); err != nil || k.asText {
			return nil, err
		}
	}
	values, err := c.values(args)
	if err != nil {
		return nil, err
	}
	rows, err := k.stmt.(driver.StmtQueryContext).QueryContext(ctx, values)
	if rawsql.NotPrepared(err) {
		k.stmt, k.uses = nil, 0
		return nil, nil
	}
	return readRows(rows, err)
}

// values are arguments of lockstep's own as the driver takes them.
func (c *conn) values(args []any) ([]driver.NamedValue, error) {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
		if err := c.CheckNamedValue(&values[i]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// keepText returns what is kept of a text with arguments of the program, prepared, or nil if it
// is sent as it is. It is prepared if the driver doesn't write arguments into texts. MariaDB
// also has those prepared that are sent again and again, if the reply is lockstep's own, in
// which the program sees no other types. driver.ErrSkip says that it can't be sent.
func (c *conn) keepText(ctx context.Context, text string, args []driver.NamedValue, own bool) (*kept, error) {
	needs := c.pool.prepares.Load()
	if len(args) == 0 || !needs && (!own || !c.server.MariaDB || len(text) > longest) {
		return nil, nil
	}
	k := c.remember(text)
	often := k.uses >= usesAsText || c.pool.options.KeepAtOnce
	if k.uses++; k.stmt == nil && !k.asText && c.kept[text] == k && (needs || often) {
		if err := c.prepareText(ctx, text, k); err != nil {
			return nil, err
		}
	}
	switch {
	case k.stmt != nil:
		return k, nil
	case needs:
		return nil, driver.ErrSkip
	}
	return nil, nil
}

// prepareText prepares a text, but on a cluster, whose nodes end a transaction while a
// statement is prepared; see checkPrepared.
func (c *conn) prepareText(ctx context.Context, text string, k *kept) error {
	if galera, err := c.onGalera(ctx); err != nil || galera {
		k.asText = galera
		return err
	}
	return c.prepareKept(ctx, text, k)
}

// queryText sends a text with arguments of the program, or executes what is kept of it.
// driver.ErrSkip says that it wasn't executed.
func (c *conn) queryText(ctx context.Context, k *kept, text string, args []driver.NamedValue) (driver.Rows, error) {
	if k == nil {
		rows, err := c.base.(driver.QueryerContext).QueryContext(ctx, text, args)
		if errors.Is(err, driver.ErrSkip) && len(args) > 0 && (statement{}).of(text, args).size < 4*mostText { // not for its size
			c.pool.prepares.Store(true) // from the next on
		}
		return rows, err
	}
	rows, err := k.stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if rawsql.NotPrepared(err) {
		k.stmt, k.uses = nil, 0
		return nil, driver.ErrSkip
	}
	return rows, err
}

// prepareKept prepares a text. If the server refuses that, it stays text.
func (c *conn) prepareKept(ctx context.Context, text string, k *kept) error {
	k.asText = true
	preparer, ok := c.base.(driver.ConnPrepareContext)
	if !ok {
		return nil
	}
	stmt, err := preparer.PrepareContext(ctx, text)
	switch {
	case err != nil && c.lost(ctx, err):
		return err
	case err != nil:
		return nil //nolint:nilerr // the text has the same
	}
	if _, ok := stmt.(driver.StmtQueryContext); !ok {
		return stmt.Close()
	}
	k.stmt, k.asText = stmt, false
	return nil
}
