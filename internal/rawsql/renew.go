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

// The reply of RenewMany has the server's clock, the count of renewed rows from countBit on,
// and askedBit if somebody has asked a holder something that it wasn't told yet.
const (
	countBit = 1 << 52
	askedBit = 1 << 62
)

// RenewMany does for many rows, of any keys, what RenewLease does for one: it sets the
// expiry of those that are still held so, and skips those that somebody has locked. Renewed
// reads its reply. The insert id has askedBit set if a renewed row has a new question, which
// each row hands on to the next, as it does the count: that of affected rows is another one
// in a table WITH SYSTEM VERSIONING. Before any row is written, all are selected, which makes
// the insert id 0. Each row is looked up by its own key, so that no neighbour is locked. Send
// it after ReadCommitted.
func RenewMany(holds []Hold) string {
	return "/* name: RenewMany */ INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards, asked_us)" +
		" SELECT cur.name, cur.slot, cur.owner, cur.holds, " + Clock + ", 0, 0, LAST_INSERT_ID(0 * cur.slot), 0, wanted.told" + heldRows(holds) +
		" FOR UPDATE SKIP LOCKED ON DUPLICATE KEY UPDATE version = lockstep_leases.version + 1, expires_us = VALUES(token) + lockstep_leases.ttl_us" +
		" + 0 * LAST_INSERT_ID(IF(LAST_INSERT_ID() = 0, VALUES(token), LAST_INSERT_ID()) + " + strconv.Itoa(countBit) +
		" | IF(lockstep_leases.asked_us > VALUES(asked_us), " + strconv.Itoa(askedBit) + ", 0))"
}

// Renewed reads the reply of RenewMany: how many rows it has renewed, the server's clock from
// which their TTL counts, and whether one of them has a new question.
func Renewed(id int64) (rows int, clock int64, asked bool) {
	return int(id &^ askedBit / countBit), id % countBit, id&askedBit != 0
}

// HeldMany reads, without a lock, which of the rows are still held so, and whether the
// RenewMany with that clock has renewed them.
func HeldMany(holds []Hold, renewed int64) string {
	return fmt.Sprintf("SELECT cur.name, cur.slot, cur.expires_us = cur.ttl_us + %d AS renewed", renewed) + heldRows(holds) +
		fmt.Sprintf(" LIMIT %d", len(holds)) // whatever the session's sql_select_limit is
}

// QuestionsMany reads, without a lock, what the holders of the rows have been asked and
// not told of yet.
func QuestionsMany(holds []Hold) string {
	return "SELECT cur.name, cur.slot, cur.asked_us, cur.question" + heldRows(holds) + " AND cur.asked_us > wanted.told" +
		fmt.Sprintf(" LIMIT %d", len(holds))
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
		" WHERE cur.owner = wanted.owner AND cur.token = wanted.token AND LOCATE(wanted.hold, cur.holds) > 0 AND cur.expires_us > "+Clock...))
}
