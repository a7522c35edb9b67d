package guard

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/sqltext"
)

// cachedStmt is a text with question marks that a connection keeps prepared. MariaDB takes longer to
// parse one that begins or commits a transaction than to execute it. It goes on in the database
// in which it was prepared, the only one in which a session is fit.
type cachedStmt struct {
	uses   int
	asText bool        // it can't be prepared
	stmt   driver.Stmt // nil until it is prepared
}

const (
	usesAsText = 4    // before a text is prepared, which costs a round trip
	maxCached  = 16   // texts of one connection
	longest    = 3072 // bytes of a text
	smallText  = 4096 // bytes that every driver sends
)

// cached counts a use of a text of lockstep's, behind whose arguments come those of a statement of
// the program, and returns what is kept of it, or nil if it is sent as text. It is prepared where
// the driver doesn't write the program's arguments into it, and on MariaDB if it is sent again and
// again, unless the program could tell: by the rows of a read, in which floats have other digits
// then, or by an argument that a statement reads otherwise than a literal. driver.ErrSkip says
// that it can't be sent.
func (c *conn) cached(ctx context.Context, s rawsql.Statement, args []driver.NamedValue, reads bool) (*cachedStmt, error) {
	query, _ := s.SQL()
	needs := len(args) > 0 && c.pool.prepares.Load()
	if !needs && (!c.server.Compound || c.begin.failed || len(query) > longest || reads || slices.ContainsFunc(args, unlikeLiteral)) {
		return nil, nil
	}
	key := withTypes(query, args)
	k := c.lookUp(key)
	often := k.uses >= usesAsText || c.pool.options.PrepareAtOnce
	if k.uses++; k.stmt == nil && !k.asText && c.stmts[key] == k && (needs || often) {
		if err := c.prepareCached(ctx, query, k); err != nil {
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

// withTypes is the key under which a text is kept: MySQL reads an argument that is assigned to a
// variable by the type that it had when the text was executed first.
func withTypes(query string, args []driver.NamedValue) string {
	for _, arg := range args {
		query += fmt.Sprintf(" %T", arg.Value)
	}
	return query
}

// unlikeLiteral reports whether an argument isn't what it would be in a text. A float would be a DECIMAL
// there and not a DOUBLE, bytes a binary string and not one of characters, and an unsigned number
// a signed one if it is small enough.
func unlikeLiteral(arg driver.NamedValue) bool {
	switch arg.Value.(type) {
	case nil, int64, bool, string, time.Time:
		return false
	}
	return true
}

// lookUp returns the cache entry of a text. If there are too many, a new one takes the place of
// those that are not prepared.
func (c *conn) lookUp(key string) *cachedStmt {
	if k := c.stmts[key]; k != nil {
		return k
	}
	if c.stmts == nil {
		c.stmts = make(map[string]*cachedStmt)
	}
	for other, k := range c.stmts {
		if len(c.stmts) >= maxCached && k.stmt == nil {
			delete(c.stmts, other)
		}
	}
	k := new(cachedStmt)
	if len(c.stmts) < maxCached {
		c.stmts[key] = k
	}
	return k
}

// send sends such a text, or executes what is kept of it. driver.ErrSkip says that it wasn't
// executed.
func (c *conn) send(ctx context.Context, k *cachedStmt, s rawsql.Statement, args []driver.NamedValue) (driver.Rows, error) {
	if k != nil {
		_, own := s.SQL()
		values, err := c.values(own)
		if err != nil {
			return nil, err
		}
		rows, err := k.stmt.(driver.StmtQueryContext).QueryContext(ctx, append(values, args...))
		if !rawsql.NotPrepared(err) || c.progressOf(ctx, err) != notBegun {
			return rows, err
		}
		if k.stmt, k.uses = nil, 0; len(args) > 0 && c.pool.prepares.Load() {
			return nil, driver.ErrSkip
		}
	}
	text, ok := s.Text()
	queryer, can := c.base.(driver.QueryerContext)
	if !ok || !can {
		return nil, driver.ErrSkip
	}
	rows, err := queryer.QueryContext(ctx, text, args)
	c.learn(text, args, err)
	return rows, err
}

// learn notes whether the driver writes arguments into texts, which counts from the next on.
func (c *conn) learn(text string, args []driver.NamedValue, err error) {
	switch skips := errors.Is(err, driver.ErrSkip); {
	case len(args) == 0 || c.pool.interpolates.Load() || c.pool.prepares.Load():
	case err == nil:
		c.pool.interpolates.Store(true)
	case skips && (statement{}).of(text, args).size < smallText && sqltext.Marks(text) == len(args): // not for these
		c.pool.prepares.Store(true)
	}
}

// literal writes the arguments of a statement of the program into its text, if all are numbers, bytes or
// NULL and no question mark is quoted, as the driver does where it interpolates. MySQL takes longer to
// set a variable for each than to parse them; MariaDB keeps the text of a write prepared, and may give
// what a read computes of a number behind USING too few digits. Beside a number in the text, MySQL
// would read a text in a variable as a number, too.
func (c *conn) literal(query string, args []driver.NamedValue, reads bool) (string, []driver.NamedValue) {
	if !c.server.Procedures && !reads || !c.pool.interpolates.Load() || c.pool.prepares.Load() || len(args) == 0 {
		return query, args
	}
	pieces := strings.Split(query, "?")
	for i, arg := range args {
		text, ok := asLiteral(arg)
		if !ok {
			return query, args
		}
		pieces[i] += text
	}
	if strings.Contains(query, `\`) || sqltext.Marks(query) != len(args) {
		return query, args
	}
	return strings.Join(pieces, ""), nil
}

// asLiteral returns a number, a few bytes or NULL as the driver writes them.
func asLiteral(arg driver.NamedValue) (text string, ok bool) {
	switch v := arg.Value.(type) {
	case nil:
		return "NULL", true
	case int64:
		return strconv.FormatInt(v, 10), true
	case uint64:
		return strconv.FormatUint(v, 10), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case []byte:
		if v == nil {
			return "NULL", true
		}
		return "_binary X'" + hex.EncodeToString(v) + "'", len(v) < smallText
	case bool:
		if v {
			return "1", true
		}
		return "0", true
	}
	return "", false
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

// prepareCached prepares a text. If the server refuses that, it stays text; so it does on a
// cluster, whose nodes end a transaction while a statement is prepared: see checkPrepared.
func (c *conn) prepareCached(ctx context.Context, text string, k *cachedStmt) error {
	galera, err := c.onGalera(ctx)
	if err != nil {
		return err
	}
	k.asText = true
	preparer, ok := c.base.(driver.ConnPrepareContext)
	if !ok || galera {
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
