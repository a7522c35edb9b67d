// Package guard wraps a driver.Connector of go-sql-driver/mysql. Each connection of the
// wrapped connector tracks the state of its transaction: whether one is open, which
// statements ran in it, and whether the server has ended it without telling the program.
//
// # Why the driver
//
// A server that answers 1213 (deadlock) has rolled back the whole transaction, but
// database/sql doesn't know that: the next statement of the *sql.Tx commits by itself,
// and Rollback doesn't undo it. Only the driver sees every statement and every error,
// including the errors that come while rows are read. So such a transaction is stopped
// here.
//
// # In order of reading
//
//   - guard.go: [Wrap], and the connector, which
//     also kills the session of a lost connection. server.go: what is known of the server.
//   - conn.go: the connection. It forwards everything to the driver.
//   - begin.go: how a transaction begins, together with its first lock where that can be;
//     stmtcache.go: what of that stays prepared; reply.go: what is read of it. closing.go: how a
//     lock statement commits.
//   - first.go: how a statement of the program takes a lock with it. last.go: how one commits.
//   - tracking.go: what the connection checks before each statement and notes after it.
//   - facts.go: when it asks its session again, which a statement may have changed.
//   - txstate.go: [TxState], the state of one transaction, and what a lock asks of it.
//   - savepoints.go: which locks a ROLLBACK TO SAVEPOINT may have released.
//   - judge.go: what a statement may do to its transaction, by its words.
//   - status.go: whether a transaction is open, by the flags of the server's reply.
//   - inband.go: how package txlock marks its statements ([Call]) and finds the transaction state
//     ([Ask]), through database/sql and whatever wraps it.
//   - prepared.go, rows.go and galera.go: prepared statements, rows, and a fault of
//     Galera's.
//
// # What it is not
//
// It knows nothing of locks and of their tables. Package txlock builds on it.
package guard
