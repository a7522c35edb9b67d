package guard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// errAborted is what a node of a Galera cluster should have answered.
var errAborted = &mysql.MySQLError{Number: 1213, Message: "the cluster has aborted the transaction while a statement was prepared"}

// checkPrepared makes sure, after a statement was prepared in a transaction with locks,
// that a node of a Galera cluster hasn't ended the transaction meanwhile. MariaDB
// 10.11.14 answers some 4 % of the aborts that come during a prepare with success, and
// executes what follows in autocommit; all other commands are answered with 1213. If the
// transaction has ended, checkPrepared dooms it. It returns an error only if it can't
// find out.
func (c *conn) checkPrepared(ctx context.Context) error {
	t := c.tx
	if t == nil || c.open > 0 || t.Err() != nil || c.call(ctx) == nil && !t.holds() {
		return nil
	}
	galera, err := c.onGalera(ctx)
	if err == nil && !galera {
		return nil
	}
	open := false
	if err == nil {
		open, err = c.probe(ctx)
	}
	if err == nil && !open {
		err = errAborted
	}
	if err != nil {
		err = c.judgeError(ctx, statement{kind: kindQuiet}, err)
	}
	if t.Err() != nil {
		return nil // the statement is refused when it is executed
	}
	return err
}

// onGalera reports whether the server is a node of a Galera cluster. It asks the server
// once per pool.
func (c *conn) onGalera(ctx context.Context) (bool, error) {
	if known := c.pool.galera.Load(); known != nil {
		return *known, nil
	}
	row, err := readRow(ctx, c.base, rawsql.Galera, 2)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	on := err == nil && row[1] == "ON"
	if err == nil && !on && row[1] != "OFF" {
		return false, fault.UnknownReply(rawsql.Galera, fmt.Sprintf("%q", row))
	}
	c.pool.galera.Store(&on)
	return on, nil
}

// repeats reports whether the server is a MariaDB that is such a node: it takes a compound
// statement outside of a transaction for a single one, and after an abort executes it once more
// (wsrep_retry_autocommit). If the columns of its rows were written before, they are in the
// reply twice, and nobody can read that.
func (c *conn) repeats(ctx context.Context) (bool, error) {
	if !c.server.Compound {
		return false, nil
	}
	return c.onGalera(ctx)
}
