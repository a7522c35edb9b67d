package rawsql

import (
	"strconv"
	"strings"
)

// ClockAfterWait is the server's clock at the moment of the grant, in microseconds; see
// LockNamed in queries/locks.sql, where it is clock_after_wait_us().
const ClockAfterWait = "UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))"

// Table is one of the two tables of transaction locks.
type Table struct{ name, key string }

// The tables of named keys and of centers.
var (
	Named   = Table{"lockstep_locks", "name"}
	Centers = Table{"lockstep_centers", "slot"}
)

// LockMany does for n rows what LockNamed does for one. The server locks them one by one
// in the order of the arguments, which are the key and the owner of each row. The count
// of affected rows has two for each row that existed, and one for each that was inserted;
// to give those a token, the same statement is sent once more.
func (t Table) LockMany(n int) string {
	return "INSERT INTO " + t.name + " (" + t.key + ", token, owner, conn_id, locked_us) VALUES " +
		list("(?, 0, ?, CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000)", ", ", n) +
		" ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, " + ClockAfterWait + "))," +
		" owner = VALUES(owner), conn_id = CONNECTION_ID(), locked_us = " + ClockAfterWait
}

// LockManyReturning does what LockMany does and returns the keys and their tokens, 0 for
// a row that was inserted. MariaDB only.
func (t Table) LockManyReturning(n int) string {
	return t.LockMany(n) + " RETURNING " + t.key + ", token"
}

// TouchMany does for n rows what TouchNamed does for one: it locks them in the order of
// the arguments, the keys, and doesn't change them.
func (t Table) TouchMany(n int) string {
	return "INSERT INTO " + t.name + " (" + t.key + ", token, owner, conn_id, locked_us) VALUES " +
		list("(?, 0, '-', 0, UNIX_TIMESTAMP() * 1000000)", ", ", n) +
		" ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token)"
}

// TokensMany reads the tokens of n rows that the transaction has locked. It looks up each
// by its own key and locks it again: so it reads no snapshot, and locks no neighbours as
// an IN list would.
func (t Table) TokensMany(n int) string {
	return "SELECT cur." + t.key + ", cur.token" + t.lookUp(n)
}

// SnapshotMany does what TokensMany does, and also reads the token that the transaction's
// snapshot shows for each row, 0 if it shows no row.
func (t Table) SnapshotMany(n int) string {
	return "SELECT cur." + t.key + ", cur.token, COALESCE((SELECT old.token FROM " + t.name + " old WHERE old." + t.key + " = cur." + t.key + "), 0)" + t.lookUp(n)
}

// lookUp has a limit of its own, which counts instead of the session's sql_select_limit.
func (t Table) lookUp(n int) string {
	return " FROM (" + list("SELECT ? AS k", " UNION ALL ", n) + ") wanted" +
		" STRAIGHT_JOIN " + t.name + " cur FORCE INDEX (PRIMARY) ON cur." + t.key + " = wanted.k LIMIT " + strconv.Itoa(n) + " FOR UPDATE"
}

// list repeats a piece n times.
func list(piece, separator string, n int) string {
	return piece + strings.Repeat(separator+piece, n-1)
}
