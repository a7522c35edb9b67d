package rawsql

import (
	"bytes"
	"fmt"
	"strconv"
)

// ReadCommitted makes the next transaction, which may be a single statement, lock no
// gaps. Later transactions are as before.
const ReadCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

// Clock is the server's clock at the beginning of the statement, in microseconds. The files
// in queries/ call it clock_us().
const Clock = "UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))"

// Hold is a hold on a row of lockstep_leases: who has it, and with which token.
type Hold struct {
	Name  string
	Slot  int64
	Owner string
	Hold  string
	Token uint64
	Told  int64 // the last question that its holder was told of, by its moment
}

// countBit is where the count of rows begins in the reply of RenewMany, above the server's clock.
const countBit = 52

// RenewMany does for many rows, of any keys, what RenewLease does for one: it sets the
// expiry of those that are still held so, and skips those that somebody has locked. Renewed
// reads its reply, the same for each row. It counts the rows itself: in a table WITH SYSTEM
// VERSIONING the count of affected rows is another one. Each row is looked up by its own key, so
// that no neighbour is locked. Send it after ReadCommitted.
func RenewMany(holds []Hold) string {
	return "/* name: RenewMany */ INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards)" +
		" SELECT cur.name, cur.slot, cur.owner, cur.holders, " + Clock + ", 0, COUNT(IF(cur.asked_us > wanted.told, NULL, 1)) OVER (), 0, 0" + heldRows(holds) +
		" FOR UPDATE SKIP LOCKED ON DUPLICATE KEY UPDATE version = lockstep_leases.version + 1, expires_us = VALUES(token) + lockstep_leases.ttl_us" +
		fmt.Sprintf(" + 0 * LAST_INSERT_ID(VALUES(expires_us) << %d | VALUES(token))", countBit)
}

// Renewed reads the reply of RenewMany: how many rows it has renewed whose holders were asked
// nothing that they weren't told of, and the server's clock from which their TTL counts.
func Renewed(id int64) (rows int, clock int64) {
	return int(id >> countBit), id & (1<<countBit - 1)
}

// HeldMany reads, without a lock, which of the rows are still held so, whether the RenewMany with
// that clock has renewed them, and what their holders have been asked: when, 0 for what they were
// told of, and why.
func HeldMany(holds []Hold, renewed int64) string {
	return fmt.Sprintf("SELECT cur.name, cur.slot, cur.expires_us = cur.ttl_us + %d AS renewed, cur.asked_us * (cur.asked_us > wanted.told), cur.release_reason", renewed) + heldRows(holds) +
		fmt.Sprintf(" LIMIT %d", len(holds)) // whatever the session's sql_select_limit is
}

// DeleteReaders deletes rows of a key that the transaction has locked. It looks up each by its
// own key: of a list of slots the servers may make a scan, which waits for the rows of others.
// To sql_safe_updates on MariaDB the list itself is a scan.
func DeleteReaders(name []byte, slots []int64) string {
	return "/*M!100601 SET STATEMENT sql_safe_updates=0 FOR */ DELETE cur" + readers(name, slots)
}

// ReadersDone reads, for rows of a key's readers, what rises with each reader and with each
// transaction that one has guarded. It looks up each by its own key: where plain reads lock, a
// range would lock the rows of others.
func ReadersDone(name []byte, slots []int64) string {
	return "/* name: ReadersDone */ SELECT cur.slot, CAST(cur.token + cur.guards AS SIGNED)" + readers(name, slots) + fmt.Sprintf(" LIMIT %d", len(slots))
}

// readers looks up rows of a key, each by its own key.
func readers(name []byte, slots []int64) string {
	b := fmt.Appendf(nil, " FROM (SELECT %d AS slot", slots[0])
	for _, slot := range slots[1:] {
		b = fmt.Appendf(b, " UNION ALL SELECT %d", slot)
	}
	b = append(b, ") wanted STRAIGHT_JOIN lockstep_leases cur FORCE INDEX (PRIMARY) ON cur.name = "...)
	return string(append(appendHex(b, name), " AND cur.slot = wanted.slot"...))
}

// heldRows joins the rows that are still held so. The names of the columns stand in the
// first line.
func heldRows(holds []Hold) string {
	b := []byte(" FROM (")
	name, slot, owner, hold, token, told := " AS name, ", " AS slot, ", " AS owner, ", " AS hold, ", " AS token, ", " AS told"
	for _, h := range holds {
		b = appendHex(append(b, "SELECT "...), []byte(h.Name))
		b = strconv.AppendInt(append(b, name...), h.Slot, 10)
		b = appendHex(append(b, slot...), []byte(h.Owner))
		b = appendHex(append(b, owner...), []byte(h.Hold))
		b = strconv.AppendUint(append(b, hold...), h.Token, 10)
		b = strconv.AppendInt(append(b, token...), h.Told, 10)
		b = append(append(b, told...), " UNION ALL "...)
		name, slot, owner, hold, token, told = ", ", ", ", ", ", ", ", ", ", ""
	}
	b = bytes.TrimSuffix(b, []byte(" UNION ALL "))
	return string(append(b, ") wanted STRAIGHT_JOIN lockstep_leases cur FORCE INDEX (PRIMARY) ON cur.name = wanted.name AND cur.slot = wanted.slot"+
		" WHERE cur.owner = wanted.owner AND cur.token = wanted.token AND LOCATE(wanted.hold, cur.holders) > 0 AND cur.expires_us > "+Clock...))
}
