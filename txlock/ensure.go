package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// Ensure creates the rows of named keys beforehand, on a connection of its own and outside of any
// transaction. It isn't needed for correctness. It lets the first shared and bounded locks of this
// process use fewer statements. It also avoids what happens if a transaction creates the row of a
// new key and rolls back: all waiters but one get ErrDeadlock, and that one keeps new keys beside
// it waiting until it ends. On a guarded pool a lock that begins its transaction creates the row
// before the transaction, as Scope.Lock describes. The rows of hashed keys always exist.
//
// It doesn't wait for a holder of the keys. It returns ErrInvalidKey, ErrSchema and ErrReadOnly,
// and the errors of the driver.
func Ensure(ctx context.Context, db *sql.DB, keys ...Key) error {
	if ctx == nil {
		return errors.New("txlock: Ensure needs a context, got nil")
	}
	if db == nil {
		return fmt.Errorf("ensure: the *sql.DB is nil")
	}
	if err := checkKeys(keys); err != nil {
		return err
	}
	server, err := introduce(ctx, db)
	if err != nil {
		return fault.Of("ensure", err, server)
	}
	for part := range partsOf(sorted(keys), chunk) {
		if part[0].hashed {
			continue
		}
		if err := ensure(ctx, db, part); err != nil {
			return fault.Of("ensure", err, server)
		}
		for _, key := range part {
			known.add(server.Name, key.record())
		}
	}
	return nil
}

// ensure makes the missing ones of some named rows. It looks first at READ
// UNCOMMITTED: to insert a row that is there would wait for who holds it.
func ensure(ctx context.Context, db *sql.DB, keys []Key) error {
	names := make([][]byte, len(keys))
	for i, key := range keys {
		names[i] = []byte(key.name)
	}
	present := make(map[string]bool, len(keys))
	err := uncommitted(ctx, db, func(tx *sql.Tx) error {
		found, err := queries.NamedPresent(ctx, tx, names)
		for _, name := range found {
			present[string(name)] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		if present[string(name)] {
			continue
		}
		if err := insertIgnore(ctx, db, name); err != nil {
			return err
		}
	}
	return nil
}

// insertIgnore makes a row, again after a deadlock: in autocommit that is safe,
// and on a multi-primary cluster to be expected.
func insertIgnore(ctx context.Context, db gen.DBTX, name []byte) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := queries.EnsureNamed(ctx, db, name)
		if err != nil && !fault.Interpret(err).Gone {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewExponentialBackOff()), backoff.WithMaxTries(20), backoff.WithMaxElapsedTime(30*time.Second))
	return err
}

// uncommitted runs fn in a transaction that sees what others have not committed.
func uncommitted(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	return rawsql.InTx(ctx, db, sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true}, fn)
}
