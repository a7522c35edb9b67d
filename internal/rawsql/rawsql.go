// Package rawsql holds the SQL that can't be compiled from queries/: sqlc drops
// SET, doesn't parse KILL, SET STATEMENT and RETURNING, leaves @@variables
// untyped and has no VALUES list of variable length. Everything else is in
// queries/ and compiled into package gen.
package rawsql

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Probe tells whether a transaction is open: the server answers it with error
// 1568 inside one, and outside it changes nothing, since the access mode is the
// default one (MySQL manual, "SET TRANSACTION Statement").
const Probe = "SET TRANSACTION READ WRITE"

// Bracket and EndBracket stand before and after a statement that may end the transaction
// and begin another: the savepoint is gone then, and the reply to EndBracket is error
// 1305. Savepoints that the statement itself has set are released with it.
const (
	Bracket    = "SAVEPOINT lockstep_bracket"
	EndBracket = "RELEASE SAVEPOINT lockstep_bracket"
)

// Facts reads who the server is: version, session, whether a lock wait timeout
// rolls back the transaction, and a name for server and database, behind NoAutocommit
// or OtherCharset where the session has that. It reads no table, so that it fixes no
// snapshot.
const Facts = "SELECT VERSION(), CONNECTION_ID(), @@innodb_rollback_on_timeout, CONCAT_WS('/'," +
	" IF(@@autocommit, NULL, '" + NoAutocommit + "'), IF(@@character_set_client = @@character_set_connection, NULL, '" + OtherCharset + "')," +
	" @@hostname, @@port, DATABASE())"

// The words by which a session says that no lock would hold on it, see package session.
const (
	NoAutocommit = "autocommit=0"
	OtherCharset = "character_set_connection"
)

// Kill ends a session of the server. A user may end his own sessions without a
// privilege.
func Kill(session uint64) string { return "KILL " + strconv.FormatUint(session, 10) }

// Uptime reads for how many seconds the server has run.
const Uptime = "SHOW GLOBAL STATUS LIKE 'Uptime'"

// InTurn makes AcquireLease take the turnstile of the key as well, so that it passes
// nobody who waits there: where somebody has it, nothing is selected.
func InTurn(query string) string {
	return strings.Replace(query, "FROM lockstep_leases s WHERE", "FROM lockstep_leases q JOIN lockstep_leases s ON s.name = q.name AND q.slot = -1 WHERE", 1)
}

// SkipShared makes a shared locking read pass over locked rows. The two servers have
// different words for it.
func SkipShared(query string, mariaDB bool) string {
	if mariaDB {
		return strings.Replace(query, "LOCK IN SHARE MODE", "LOCK IN SHARE MODE SKIP LOCKED", 1)
	}
	return strings.Replace(query, "LOCK IN SHARE MODE", "FOR SHARE SKIP LOCKED", 1)
}

// Galera reads whether the server is a node of a Galera cluster: no row where it can't be.
const Galera = "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'"

// Session reads the number of the session, for Kill.
const Session = "SELECT CONNECTION_ID()"

// SetTurnstile prepares a session for waiting at a turnstile: as long as need be, and
// with an end when it is silent for that many seconds while it has it.
func SetTurnstile(silent int, mariaDB bool) string {
	unlimited := "max_execution_time"
	if mariaDB {
		unlimited = "max_statement_time"
	}
	return "SET SESSION innodb_lock_wait_timeout = 1073741824, " + unlimited + " = 0, wait_timeout = " + strconv.Itoa(silent)
}

// LockWaitSeconds reads the session's lock wait timeout.
const LockWaitSeconds = "SELECT @@SESSION.innodb_lock_wait_timeout"

// SetLockWait sets the session's lock wait timeout, in whole seconds.
func SetLockWait(seconds int64) string {
	return "SET SESSION innodb_lock_wait_timeout = " + strconv.FormatInt(seconds, 10)
}

// For prefixes a statement with variables for its duration. MariaDB only.
func For(variables ...string) string {
	return "SET STATEMENT " + strings.Join(variables, ", ") + " FOR "
}

// The variables for For.
const (
	// NoWait answers 1205 at once where a row is locked.
	NoWait = "innodb_lock_wait_timeout=0"
	// RefuseStale answers 1020 where a row has changed since the snapshot.
	RefuseStale = "innodb_snapshot_isolation=ON"
	// AllowStale doesn't, whatever the default of the server.
	AllowStale = "innodb_snapshot_isolation=OFF"
)

// AtMost ends a statement that takes longer, with 1969. The server has microseconds,
// of which 0 is no limit, and a year at most.
func AtMost(d time.Duration) string {
	const year = 31536000 * time.Second
	us := roundedUp(min(d, year), time.Microsecond)
	return fmt.Sprintf("max_statement_time=%d.%06d", us/1e6, us%1e6)
}

// HintAtMost makes a SELECT end with 3024 where it takes longer. MySQL only, which has
// milliseconds, of which 0 is no limit, in 32 bits: it takes no notice of more. The
// number must be a literal.
func HintAtMost(query string, d time.Duration) string {
	ms := min(roundedUp(d, time.Millisecond), math.MaxUint32)
	return strings.Replace(query, "SELECT ", fmt.Sprintf("SELECT /*+ MAX_EXECUTION_TIME(%d) */ ", ms), 1)
}

// LockWait is the lock wait timeout for a limit, in whole seconds, of which 1 is the
// least that MySQL has.
func LockWait(d time.Duration) int64 { return roundedUp(d, time.Second) }

// roundedUp is how many units a limit has, at least one.
func roundedUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return max(1, n)
}

// HintNoWait makes a locking SELECT answer 3572 at once where the row is locked.
// MySQL only: MariaDB has the same words but for the shared lock, and other
// consequences.
func HintNoWait(query string) string {
	query = strings.Replace(query, "LOCK IN SHARE MODE", "FOR SHARE", 1)
	return strings.TrimRight(query, "; \n") + " NOWAIT"
}
