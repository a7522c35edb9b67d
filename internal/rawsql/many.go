package rawsql

import "strings"

// now is the server's clock at the moment of the grant, in microseconds; see
// LockNamed in queries/locks.sql.
const now = "UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))"

// Table is one of the two tables of transaction locks.
type Table struct{ name, key string }

// The tables of named keys and of center locks.
var (
	Named   = Table{"lockstep_locks", "name"}
	Centers = Table{"lockstep_centers", "slot"}
)

// LockMany is LockNamed for n rows, which the server takes one by one in the
// order of the arguments: for each row its key and the owner. It affects two rows for
// each that was there, and one for each that it has made, which the same statement
// once more gives a token.
func (t Table) LockMany(n int) string {
	return "INSERT INTO " + t.name + " (" + t.key + ", token, owner, conn_id, locked_us) VALUES " +
		list("(?, 0, ?, CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000)", ", ", n) +
		" ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, " + now + "))," +
		" owner = VALUES(owner), conn_id = CONNECTION_ID(), locked_us = " + now
}

// LockManyReturning is LockMany that answers with the keys and their tokens, 0 for
// a row that it has made. MariaDB only.
func (t Table) LockManyReturning(n int) string {
	return t.LockMany(n) + " RETURNING " + t.key + ", token"
}

// TouchMany is TouchNamed for n rows: it takes them in the order of the
// arguments, the keys, and leaves them as they are.
func (t Table) TouchMany(n int) string {
	return "INSERT INTO " + t.name + " (" + t.key + ", token, owner, conn_id, locked_us) VALUES " +
		list("(?, 0, '-', 0, UNIX_TIMESTAMP() * 1000000)", ", ", n) +
		" ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token)"
}

// TokensMany reads the tokens of n rows that the transaction has locked. It
// looks each up by its own key and locks it again, so that it neither reads a
// snapshot nor touches a neighbour, as an IN list would.
func (t Table) TokensMany(n int) string {
	return "SELECT cur." + t.key + ", cur.token" + t.lookUp(n)
}

// SnapshotMany is TokensMany with the token that the transaction's snapshot
// shows beside each, 0 where it shows no row.
func (t Table) SnapshotMany(n int) string {
	return "SELECT cur." + t.key + ", cur.token, COALESCE((SELECT old.token FROM " + t.name + " old WHERE old." + t.key + " = cur." + t.key + "), 0)" + t.lookUp(n)
}

func (t Table) lookUp(n int) string {
	return " FROM (" + list("SELECT ? AS k", " UNION ALL ", n) + ") wanted" +
		" STRAIGHT_JOIN " + t.name + " cur FORCE INDEX (PRIMARY) ON cur." + t.key + " = wanted.k FOR UPDATE"
}

// list repeats a piece n times.
func list(piece, separator string, n int) string {
	return piece + strings.Repeat(separator+piece, n-1)
}
