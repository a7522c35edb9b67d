package rawsql

import (
	"fmt"
	"math/bits"
	"strconv"
)

// MaxBatch is how many leases one statement takes or frees at most: there is a bit for
// each in its reply.
const MaxBatch = 32

// clockBits is how many bits of the reply are the clock, from a base on: 18 minutes.
const clockBits = 30

// Wanted is a lease that is taken or freed together with others.
type Wanted struct {
	Name string
	Slot int64
	Hold string

	// To free it, the rest is not needed.
	Owner, Label    string
	TTLUs, NotAfter int64
}

// AcquireMany does for many rows what AcquireNoWait does for one, and takes nothing that
// has been shared. It skips rows that are locked by somebody, and all for which only
// AcquireLease can tell. No two may have the same row. Reply has its reply if the server's
// clock is less than 9 minutes from near. MariaDB waits for a moment before it skips a row,
// so that two such statements may be a deadlock there (1213), which writes nothing.
func AcquireMany(all []Wanted, near int64) string {
	return "/* name: AcquireMany */ INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)" +
		wantedRows(all, true) + " SELECT cur.name, cur.slot, wanted.owner, wanted.hold, " + Clock + ", wanted.ttl, " + doneBits + ", 0, 0, wanted.label" +
		wantedJoin +
		" WHERE cur.used_for = 0 AND (CHAR_LENGTH(cur.holders) = 0 OR cur.expires_us <= " + Clock + ")" +
		" AND " + Clock + " BETWEEN cur.token + 1 AND wanted.after AND " + within(near) +
		" FOR UPDATE SKIP LOCKED ON DUPLICATE KEY UPDATE version = lockstep_leases.version + 1, holders = VALUES(holders), owner = VALUES(owner), label = VALUES(label), asked_us = 0," +
		" conn_id = CONNECTION_ID(), ttl_us = VALUES(ttl_us), expires_us = VALUES(token) + VALUES(ttl_us), token = VALUES(token)" + reply(near)
}

// ReleaseMany does for many rows what ReleaseNoWait does for one, as AcquireMany.
func ReleaseMany(all []Wanted, near int64) string {
	return "/* name: ReleaseMany */ INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards)" +
		wantedRows(all, false) + " SELECT cur.name, cur.slot, cur.owner, cur.holders, " + Clock + ", 0, " + doneBits + ", 0, 0" +
		wantedJoin +
		" WHERE cur.holders = wanted.hold AND cur.expires_us > " + Clock + " AND " + within(near) +
		" FOR UPDATE SKIP LOCKED ON DUPLICATE KEY UPDATE version = lockstep_leases.version + 1, holders = LEFT(lockstep_leases.holders, 0), expires_us = VALUES(token)" + reply(near)
}

// Reply reads the reply of the two: a bit for each row that was written, and the server's
// clock. It returns false if the insert id and the count of affected rows contradict each
// other, or if there is a bit of a row that wasn't asked for. MariaDB counts 3 for a row of a
// table WITH SYSTEM VERSIONING, where it adds one of history, and 2 elsewhere.
func Reply(id, affected, near int64, rows int) (done uint32, clock int64, ok bool) {
	if affected == 0 {
		return 0, 0, true
	}
	if id < 0 || id>>(clockBits+rows) != 0 {
		return 0, 0, false
	}
	done = uint32(id >> clockBits) //nolint:gosec // it has no more bits
	n := int64(bits.OnesCount32(done))
	return done, base(near) + id&(1<<clockBits-1), 2*n <= affected && affected <= 3*n
}

func base(near int64) int64 { return near - 1<<(clockBits-1) }

func within(near int64) string {
	return fmt.Sprintf("%s BETWEEN %d AND %d", Clock, base(near), base(near)+1<<clockBits-1)
}

// doneBits are the bits of all rows that are selected, which are those that are written.
const doneBits = "BIT_OR(wanted.bit) OVER ()"

// reply makes the bits and the clock the insert id, the same for each row.
func reply(near int64) string {
	return fmt.Sprintf(" + 0 * LAST_INSERT_ID(VALUES(expires_us) | VALUES(token) - %d)", base(near))
}

// wantedRows names the rows that are wanted, as a table. MySQL doesn't know that before 8.0.19,
// where the statement is an error, and each row is written by one of its own.
func wantedRows(all []Wanted, taking bool) string {
	b := []byte(" WITH wanted (name, slot, hold, bit) AS (VALUES ")
	if taking {
		b = []byte(" WITH wanted (name, slot, hold, bit, owner, label, ttl, after) AS (VALUES ")
	}
	for i, w := range all {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, "/*!80019 ROW*/("...)
		b = appendHex(b, []byte(w.Name))
		b = strconv.AppendInt(append(b, ", "...), w.Slot, 10)
		b = appendHex(append(b, ", "...), []byte(w.Hold))
		b = strconv.AppendInt(append(b, ", "...), 1<<(clockBits+i), 10)
		if taking {
			b = appendHex(append(b, ", "...), []byte(w.Owner))
			b = appendHex(append(b, ", "...), []byte(w.Label))
			b = strconv.AppendInt(append(b, ", "...), w.TTLUs, 10)
			b = strconv.AppendInt(append(b, ", "...), w.NotAfter, 10)
		}
		b = append(b, ')')
	}
	return string(append(b, ')'))
}

// wantedJoin joins the rows that are wanted, each by its own key.
const wantedJoin = " FROM wanted STRAIGHT_JOIN lockstep_leases cur FORCE INDEX (PRIMARY) ON cur.name = wanted.name AND cur.slot = wanted.slot"
