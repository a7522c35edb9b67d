package rawsql

import (
	"crypto/rand"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Probe reports whether a transaction is open. Inside one the server answers with error
// 1568. Outside it changes nothing, since READ WRITE is the default (MySQL manual, "SET
// TRANSACTION Statement").
const Probe = "SET TRANSACTION READ WRITE"

// Progress reports how far a statement of the program has come that shares a text with one of
// lockstep's: NULL if it has not begun, 0 if it has failed, and else the number of its rows.
const Progress = "SELECT @lockstep_rows"

// ProbeSavepoint and ReleaseProbeSavepoint are sent before and after a statement that may end the
// transaction and begin another. If it has, the savepoint is gone, and the reply to the release
// is error 1305. The release also ends the savepoints that the statement itself has set. No
// procedure can set the savepoint anew, since each process has another name for it.
var (
	ProbeSavepoint        = "SAVEPOINT " + probeSavepoint
	ReleaseProbeSavepoint = "RELEASE SAVEPOINT " + probeSavepoint

	probeSavepoint = "lockstep_" + rand.Text()
)

// SeesOwnID is 1 on a server whose LAST_INSERT_ID() returns what LAST_INSERT_ID(expr) has set
// in the same statement, as MySQL and MariaDB do. The replies of locks and leases rely on it.
// TiDB and Vitess return the value of the statement before, so it is 0 there. It reads no
// table, and its second row restores the LAST_INSERT_ID() of the session.
const SeesOwnID = "(SELECT MIN(LAST_INSERT_ID(t.a) = LAST_INSERT_ID() + 0 * t.a)" +
	" FROM (SELECT LAST_INSERT_ID() ^ 1 AS a UNION ALL SELECT LAST_INSERT_ID()) t)"

// Facts reads facts about the server and the session: version, number of the session, whether
// a lock wait timeout rolls back the transaction, a name for server and database, the server's
// clock, and Settings. It reads no table, and so takes no snapshot. Package session reads the
// reply. All are texts: the driver itself reads numbers, and fails under character_set_results.
const Facts = "SELECT @@version, CONCAT(CONNECTION_ID()), CONCAT(0 + @@innodb_rollback_on_timeout), CONCAT_WS('/', @@hostname, @@port, DATABASE())," +
	" CONCAT(CAST(" + Clock + " AS SIGNED)), " + Settings

// Settings is a text of the session's settings that locks rely on, and SettingsBegin how it
// begins if the reply can be read. Package session has a rule for each.
const (
	Settings = "CONCAT_WS(' ', '" + SettingsBegin + "', CONCAT('sees_own_id=', " + SeesOwnID + "), CONCAT('autocommit=', 0 + @@autocommit)," +
		" CONCAT('one_charset=', @@character_set_client = @@character_set_connection)," +
		" CONCAT('completion_type=', @@completion_type), CONCAT('sql_mode=', @@sql_mode)," +
		" CONCAT('timestamp=', IF(" + clockMoves + ", 'DEFAULT', 'fixed')), " + SessionLevel + ")"
	SettingsBegin = "settings:"
	Nonce         = "nonce"
)

// clockMoves is 0 on a session with a fixed timestamp, which SYSDATE doesn't have. A statement that has
// waited for a minute looks the same, so what asks this waits for less.
const clockMoves = "ABS(TIMESTAMPDIFF(SECOND, NOW(), SYSDATE())) < 60"

// SessionLevel is the isolation level of the session behind LevelBegin. What names it on one server is
// a comment on the other; a proxy that takes out comments leaves a text without the level. The queries
// in queries/ call it session_level().
const (
	SessionLevel = "CONCAT('" + LevelBegin + "' /*!80000 , @@transaction_isolation *//*M! , @@tx_isolation */)"
	LevelBegin   = "isolation="
)

// The words by which a session says that no lock would hold on it; see package session.
const (
	OtherEngine  = "engine=other"
	NoAutocommit = "autocommit=0"
	OtherCharset = "character_set_connection"
	DirtyReads   = "dirty_reads"
	FixedClock   = "timestamp"
)

// SessionWords are those of the words that are so, each with a blank behind it. The queries in
// queries/ call it session_words(). It has no empty literal, which is NULL under MariaDB's
// EMPTY_STRING_IS_NULL.
const SessionWords = "CONCAT(LEFT('" + OtherEngine + " ', 13 * (1 - " + SeesOwnID + "))," +
	" LEFT('" + NoAutocommit + " ', 13 * (1 - @@autocommit))," +
	" LEFT('" + OtherCharset + " ', 25 * (@@character_set_client <> @@character_set_connection))," +
	" LEFT('" + DirtyReads + " ', 12 * (" + SessionLevel + " LIKE '" + LevelBegin + "READ-UN%'))," +
	" LEFT('" + FixedClock + " ', 10 * (1 - (" + clockMoves + "))))"

// Kill ends a session of the server. Users need no privilege to end their own sessions.
func Kill(session uint64) string { return "KILL " + strconv.FormatUint(session, 10) }

// Uptime reads how many seconds the server has been running.
const Uptime = "SHOW GLOBAL STATUS LIKE 'Uptime'"

// InTurn makes AcquireLease and SwapLease lock the queue row of the key as well, so that it doesn't
// overtake anybody who waits there: if somebody has the queue row, nothing is selected.
func InTurn(query string) string {
	return strings.Replace(query, "FROM lockstep_leases s WHERE", "FROM lockstep_leases q JOIN lockstep_leases s ON s.name = q.name AND q.slot = -1 WHERE", 1)
}

// SkipShared makes a shared locking read skip locked rows.
func (e Engine) SkipShared(query string) string {
	return strings.Replace(query, "LOCK IN SHARE MODE", e.ForShare+" SKIP LOCKED", 1)
}

// ForUpdate makes a shared locking read an exclusive one.
func ForUpdate(query string) string {
	return strings.Replace(query, "LOCK IN SHARE MODE", "FOR UPDATE", 1)
}

// Galera reads whether the server is a node of a Galera cluster. A server that knows no
// clusters returns no row.
const Galera = "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'"

// GroupView reads which view of its Group Replication the server is a member of. A server
// that is none returns no row, or has no such table.
const GroupView = "SELECT s.VIEW_ID FROM performance_schema.replication_group_members m" +
	" JOIN performance_schema.replication_group_member_stats s USING (MEMBER_ID)" +
	" WHERE m.MEMBER_ID = @@server_uuid AND m.MEMBER_STATE = 'ONLINE'"

// MaxPacket reads how long a statement may be.
const MaxPacket = "SELECT @@max_allowed_packet"

// Session reads the number of the session.
const Session = "SELECT CONNECTION_ID()"

// Process reads the name of the server, and the number and the client's address of the session, which
// together no other session has; no row where the server doesn't list its sessions.
func (e Engine) Process() string {
	return "SELECT " + serverName + ", id, host FROM " + e.Processes + " WHERE id = CONNECTION_ID()"
}

// HasProcess reads the name of the server, and whether it has the session of a number and an address.
func (e Engine) HasProcess() string {
	return "SELECT " + serverName + ", EXISTS (SELECT 1 FROM " + e.Processes + " WHERE id = ? AND host = ?)"
}

const serverName = "CONCAT_WS('/', @@hostname, @@port)"

// SetQueueWait prepares a session for waiting for a queue row: the wait has no limit but
// MariaDB's greatest, three years, and the server ends the session when it has been silent for
// that many seconds.
func (e Engine) SetQueueWait(silent int) string {
	return "SET SESSION innodb_lock_wait_timeout = 100000000, " + e.TimeLimit + " = 0, wait_timeout = " + strconv.Itoa(silent)
}

// LockWaitSeconds reads the session's lock wait timeout.
const LockWaitSeconds = "SELECT @@SESSION.innodb_lock_wait_timeout"

// SetLockWait sets the session's lock wait timeout, in whole seconds.
func SetLockWait(seconds int64) string {
	return "SET SESSION innodb_lock_wait_timeout = " + strconv.FormatInt(seconds, 10)
}

// ShortenLockWait limits the session's waits for locks to a second, MySQL's least, until
// RestoreLockWait.
const (
	ShortenLockWait = "SET @lockstep_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1"
	RestoreLockWait = "SET SESSION innodb_lock_wait_timeout = @lockstep_lock_wait"
)

// For returns a prefix that sets variables for the duration of one statement. MariaDB
// only.
func For(variables ...string) string {
	return "SET STATEMENT " + strings.Join(variables, ", ") + " FOR "
}

// The variables for For.
const (
	// NoWait answers 1205 at once if a row is locked.
	NoWait = "innodb_lock_wait_timeout=0"
	// RefuseStale answers 1020 if a row has changed since the snapshot.
	RefuseStale = "innodb_snapshot_isolation=ON"
	// InCase begins the second limit of AtMost.
	InCase = "innodb_lock_wait_timeout=LEAST(@@innodb_lock_wait_timeout,"
	// AllowStale locks such a row, whatever the default of the server.
	AllowStale = "innodb_snapshot_isolation=OFF"
)

// AtMost ends a statement that takes longer, with error 1969. The server takes
// microseconds, up to a year; 0 would mean no limit. A limit that ends within START TRANSACTION is
// lost to what follows in the same text: then the wait for a row ends with error 1205, some two
// seconds late at most.
func AtMost(d time.Duration) string {
	const year = 31536000 * time.Second
	d = min(d, year)
	us := roundedUp(d, time.Microsecond)
	return fmt.Sprintf("max_statement_time=%d.%06d, "+InCase+"%d)", us/1e6, us%1e6, LockWait(d)+1)
}

// HintAtMost makes a SELECT that takes longer end with error 3024. MySQL only. The server
// takes milliseconds in 32 bits and ignores a larger number; 0 would mean no limit. The
// number must be a literal.
func HintAtMost(query string, d time.Duration) string {
	ms := min(roundedUp(d, time.Millisecond), math.MaxUint32)
	return strings.Replace(query, "SELECT ", fmt.Sprintf("SELECT /*+ MAX_EXECUTION_TIME(%d) */ ", ms), 1)
}

// Limited limits the time of a locking SELECT: by a variable where For can set one, else by a hint.
func (e Engine) Limited(d time.Duration) func(Statement) Statement {
	if e.Compound {
		return Under(AtMost(d))
	}
	return Edited(func(query string) string { return HintAtMost(query, d) })
}

// LockWait returns the lock wait timeout for a limit, in whole seconds. MySQL's minimum
// is 1.
func LockWait(d time.Duration) int64 { return roundedUp(d, time.Second) }

// roundedUp returns how many units a limit has, rounded up, at least one.
func roundedUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return max(1, n)
}

// HintNoWait makes a locking SELECT answer 3572 at once if the row is locked. MySQL only:
// MariaDB has other words for the shared lock, and NOWAIT has other consequences there.
func HintNoWait(query string) string {
	query = strings.Replace(query, "LOCK IN SHARE MODE", "FOR SHARE", 1)
	return strings.TrimRight(query, "; \n") + " NOWAIT"
}

// Refuse makes a statement that skips a locked row fail instead, by variables for For if there are any.
// In a transaction whoever skips a row locks the gap behind it, at REPEATABLE READ, and whoever
// is refused locks nothing. Where that would roll the transaction back (MariaDB,
// innodb_rollback_on_timeout), a short limit stands in for it.
func (e Engine) Refuse(query string, rollsBack bool) (text string, variables []string) {
	const skip = " SKIP LOCKED"
	switch {
	case !strings.Contains(query, skip):
		return query, nil
	case !e.Compound:
		return strings.Replace(query, skip, " NOWAIT", 1), nil
	case rollsBack:
		variables = []string{AtMost(ShortLimit)}
	default:
		variables = []string{NoWait}
	}
	return strings.Replace(query, skip, "", 1), variables
}

// Refusing is Refuse for an engine without variables.
func (e Engine) Refusing(query string) string {
	query, _ = e.Refuse(query, false)
	return query
}

// Unlocked makes a query that locks rows exclusively, and skips locked ones, read them all without
// locks.
func Unlocked(query string) string {
	return strings.Replace(query, " FOR UPDATE SKIP LOCKED", "", 1)
}

// ShortLimit is how long what doesn't wait may take where the server can't refuse to wait. A
// shorter one would refuse what is free.
const ShortLimit = 20 * time.Millisecond

// Big lets a SELECT read more rows than the session's max_join_size, which the servers call a
// big select. Each server reads the words that are meant for it, and takes the others for a
// comment.
func Big(query string) string {
	return strings.Replace(query, "SELECT ", "/*M!100601 SET STATEMENT sql_big_selects=1 FOR */ SELECT /*+ SET_VAR(sql_big_selects=1) */ ", 1)
}

// Look is Big for who only looks at what others do. The statement waits a second for a table, since
// behind DDL that waits it would wait with it, and takes ten seconds at most, also on the server.
func Look(query string) string {
	return strings.Replace(query, "SELECT ", "/*M!100601 SET STATEMENT sql_big_selects=1,lock_wait_timeout=1,max_statement_time=10 FOR */ SELECT /*+ SET_VAR(sql_big_selects=1) SET_VAR(lock_wait_timeout=1) MAX_EXECUTION_TIME(10000) */ ", 1)
}

// Looking sends SELECTs as Look says.
func Looking(db DBTX) *Text { return Editing(db, Look) }

// Scanning sends SELECTs that read many rows as Big says.
func Scanning(db DBTX) *Text { return Editing(db, Big) }
