-- The statements of leases. A lease is held while its list of holds is not empty and it
-- has not expired. Every hold is a separator and an identifier of fixed length, in which
-- the separator doesn't occur.
--
-- The statements that acquire, renew and release a lease never wait: they insert what
-- SKIP LOCKED selects, so that a row which somebody has locked is skipped. The first
-- assignment decides, and is also the reply. (In an UPDATE the WHERE decides.) Assignments
-- see earlier ones, except under MariaDB's SIMULTANEOUS_ASSIGNMENT: so no column is read
-- after it was assigned, and the token comes last. MariaDB's REPLACE makes NULL of an empty
-- result under sql_mode=ORACLE, so an empty list is not its result. In a comparison LAST_INSERT_ID() never has an expression of
-- constants: MariaDB would evaluate that while it prepares the statement, and reply with
-- it although no row was selected. VALUES(token) is the server's clock. No literal is '',
-- since EMPTY_STRING_IS_NULL would change it.

-- name: AcquireLease :execlastid
-- AcquireLease takes a free lease, or re-enters one that the owner holds already in this
-- process, which it knows by the beginning of the holds. It takes over a lease of the
-- same owner in another process, which must be gone. The reply is the token, or why it
-- was refused: 0 the row is locked or missing, 1 somebody else holds the lease, 2 the
-- list of holds is full, 3 the server's clock is past not_after, 4 the key is a
-- semaphore. If the key has been shared, the token has bit 62 set: there may be readers.
-- A refusal shortens an expiry that is further ahead than one time to live, as it is
-- after the clock was set back. A new holder has not been asked anything yet.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards, note)
SELECT s.name, s.slot, sqlc.arg(owner), sqlc.arg(hold), clock_us(), sqlc.arg(ttl_us), 0, 0, 0, sqlc.arg(note)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  guards = lockstep_leases.guards + 0 * LAST_INSERT_ID(CASE
    WHEN VALUES(token) > CAST(sqlc.arg(not_after_us) AS SIGNED) THEN 3
    WHEN lockstep_leases.used_for < 0 THEN 4
    WHEN CHAR_LENGTH(lockstep_leases.holds) = 0 OR lockstep_leases.expires_us <= VALUES(token)
      OR lockstep_leases.owner = VALUES(owner) AND LOCATE(LEFT(VALUES(holds), 9), lockstep_leases.holds) = 0 THEN GREATEST(lockstep_leases.token + 1, VALUES(token))
    WHEN lockstep_leases.owner <> VALUES(owner) THEN 1
    WHEN CHAR_LENGTH(lockstep_leases.holds) + CHAR_LENGTH(VALUES(holds)) > 8192 THEN 2
    ELSE lockstep_leases.token END),
  holds = IF(LAST_INSERT_ID() < 16, lockstep_leases.holds,
    IF(LAST_INSERT_ID() > lockstep_leases.token, VALUES(holds), CONCAT(lockstep_leases.holds, VALUES(holds)))),
  owner = IF(LAST_INSERT_ID() < 16, lockstep_leases.owner, VALUES(owner)),
  expires_us = IF(LAST_INSERT_ID() < 16, LEAST(lockstep_leases.expires_us, VALUES(token) + lockstep_leases.ttl_us),
    IF(LAST_INSERT_ID() > lockstep_leases.token, VALUES(token) + VALUES(ttl_us), GREATEST(lockstep_leases.expires_us, VALUES(token) + VALUES(ttl_us)))),
  ttl_us = IF(LAST_INSERT_ID() < 16, lockstep_leases.ttl_us,
    IF(LAST_INSERT_ID() > lockstep_leases.token, VALUES(ttl_us), GREATEST(lockstep_leases.ttl_us, VALUES(ttl_us)))),
  conn_id = IF(LAST_INSERT_ID() < 16, lockstep_leases.conn_id, CONNECTION_ID()),
  note = IF(LAST_INSERT_ID() > GREATEST(lockstep_leases.token, 15), VALUES(note), lockstep_leases.note),
  asked_us = IF(LAST_INSERT_ID() > GREATEST(lockstep_leases.token, 15), 0, lockstep_leases.asked_us),
  token = IF(LAST_INSERT_ID() < 16, lockstep_leases.token, LAST_INSERT_ID()),
  used_for = IF(lockstep_leases.used_for = 1 AND LAST_INSERT_ID() >= 16,
    lockstep_leases.used_for + 0 * LAST_INSERT_ID(LAST_INSERT_ID() + 4611686018427387904), lockstep_leases.used_for);

-- name: AcquireNoWait :execlastid
-- AcquireNoWait does what AcquireLease does where that is simple, at two thirds of the cost:
-- an UPDATE needs no temporary table, and MariaDB prepares every item of a statement at
-- every execution, so few are left. It never waits only where the server can refuse to wait
-- (MariaDB, see rawsql.NoWait): then it fails if the row is locked. The reply 5 means that
-- AcquireLease must be sent: for an owner that has the lease already, for an expiry that is
-- to be shortened, and where the clock is past not_after or not past the token.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET holds = sqlc.arg(hold), owner = sqlc.arg(owner), note = sqlc.arg(note), asked_us = 0, conn_id = CONNECTION_ID(),
  expires_us = (LAST_INSERT_ID() & 4611686018427387903) + CAST(sqlc.arg(ttl_us) AS SIGNED), ttl_us = sqlc.arg(ttl_us),
  token = LAST_INSERT_ID() & 4611686018427387903
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND LAST_INSERT_ID(CASE
  WHEN used_for < 0 OR clock_us() NOT BETWEEN token + 1 AND CAST(sqlc.arg(not_after_us) AS SIGNED) THEN 5
  WHEN CHAR_LENGTH(holds) = 0 OR expires_us <= clock_us() THEN clock_us() + IF(used_for = 1, 4611686018427387904, 0)
  WHEN owner = sqlc.arg(owner) OR expires_us > clock_us() + ttl_us THEN 5
  ELSE 1 END) >= 16;

-- name: ReleaseLease :execlastid
-- ReleaseLease removes a hold from the list. Without holds the lease is free. The reply
-- is the token, or 0 the row is locked or missing, 1 the hold is not in the list, 2 the
-- hold was removed, but the lease had expired.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards)
SELECT s.name, s.slot, s.owner, sqlc.arg(hold), clock_us(), 0, 0, 0, 0
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  guards = lockstep_leases.guards + 0 * LAST_INSERT_ID(CASE
    WHEN LOCATE(VALUES(holds), lockstep_leases.holds) = 0 THEN 1
    WHEN lockstep_leases.expires_us <= VALUES(token) THEN 2
    ELSE lockstep_leases.token END),
  expires_us = IF(lockstep_leases.holds = VALUES(holds), LEAST(lockstep_leases.expires_us, VALUES(token)), lockstep_leases.expires_us),
  holds = IF(lockstep_leases.holds = VALUES(holds), LEFT(lockstep_leases.holds, 0), REPLACE(lockstep_leases.holds, VALUES(holds), LEFT(lockstep_leases.holds, 0)));

-- name: ReleaseNoWait :execlastid
-- ReleaseNoWait frees a lease that has not expired and has no other hold. It is to
-- ReleaseLease what AcquireNoWait is to AcquireLease, which must be sent if the reply is 0.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET expires_us = clock_us() + 0 * LAST_INSERT_ID(token), holds = LEFT(holds, 0)
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND holds = sqlc.arg(hold) AND expires_us > clock_us();

-- name: KeepLease :execlastid
-- KeepLease is ReleaseLease that keeps the lease held if the hold was the last one and
-- keep_us after its grant are not over: until then, by an owner that nobody else can be.
-- The reply is 3 then, and what its owner was asked is forgotten. A second KeepLease finds another separator in the list, and not the
-- hold. The token is the time of the grant, unless it is ahead of the clock: then the time
-- counts from now. The time to live is as long, so that no refusal shortens the expiry.
-- It never runs in a caller's transaction.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards)
SELECT s.name, s.slot, CONCAT('released: ', LEFT(s.owner, 245)), sqlc.arg(hold), clock_us(), sqlc.arg(keep_us), 0, 0, 0
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  guards = lockstep_leases.guards + 0 * LAST_INSERT_ID(CASE
    WHEN LOCATE(VALUES(holds), lockstep_leases.holds) = 0 THEN 1
    WHEN lockstep_leases.expires_us <= VALUES(token) THEN 2
    WHEN lockstep_leases.holds = VALUES(holds) AND LEAST(lockstep_leases.token, VALUES(token)) + VALUES(ttl_us) > VALUES(token) THEN 3
    ELSE lockstep_leases.token END),
  owner = IF(LAST_INSERT_ID() = 3, VALUES(owner), lockstep_leases.owner),
  asked_us = IF(LAST_INSERT_ID() = 3, 0, lockstep_leases.asked_us),
  ttl_us = IF(LAST_INSERT_ID() = 3, VALUES(ttl_us), lockstep_leases.ttl_us),
  expires_us = IF(LAST_INSERT_ID() = 3, LEAST(lockstep_leases.token, VALUES(token)) + VALUES(ttl_us),
    IF(lockstep_leases.holds = VALUES(holds), LEAST(lockstep_leases.expires_us, VALUES(token)), lockstep_leases.expires_us)),
  holds = IF(LAST_INSERT_ID() = 3, REPLACE(lockstep_leases.holds, ';', ','),
    IF(lockstep_leases.holds = VALUES(holds), LEFT(lockstep_leases.holds, 0), REPLACE(lockstep_leases.holds, VALUES(holds), LEFT(lockstep_leases.holds, 0))));

-- name: RenewLease :execlastid
-- RenewLease sets the expiry of a lease that the owner still holds with this token and
-- hold. The reply is the token, or 0 the row is locked or missing, 1 the owner doesn't
-- hold the lease any more. If the owner has been asked something that it wasn't told yet,
-- the token has bit 62 set.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards, asked_us)
SELECT s.name, s.slot, sqlc.arg(owner), sqlc.arg(hold), sqlc.arg(token), 0, 0, 0, 0, sqlc.arg(told_us)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  guards = lockstep_leases.guards + 0 * LAST_INSERT_ID(IF(
    lockstep_leases.owner = VALUES(owner) AND lockstep_leases.token = VALUES(token) AND LOCATE(VALUES(holds), lockstep_leases.holds) > 0
    AND lockstep_leases.expires_us > clock_us(),
    lockstep_leases.token + IF(lockstep_leases.asked_us > VALUES(asked_us), 4611686018427387904, 0), 1)),
  expires_us = IF(LAST_INSERT_ID() = 1, lockstep_leases.expires_us, clock_us() + lockstep_leases.ttl_us);

-- name: QuestionOf :one
-- QuestionOf reads, without a lock, what the owner of a lease was asked last.
-- It never runs in a caller's transaction.
SELECT asked_us, question FROM lockstep_leases
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND owner = sqlc.arg(owner) AND token = sqlc.arg(token);

-- name: RaiseToken :execlastid
-- RaiseToken raises the token of a lease that the owner still holds with this hold to at
-- least the given one. The reply is the token, or 0 the row is locked or missing, 1 the
-- owner doesn't hold the lease any more.
-- It never runs in a caller's transaction.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards)
SELECT s.name, s.slot, sqlc.arg(owner), sqlc.arg(hold), sqlc.arg(token), 0, 0, 0, 0
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  guards = lockstep_leases.guards + 0 * LAST_INSERT_ID(IF(
    lockstep_leases.owner = VALUES(owner) AND LOCATE(VALUES(holds), lockstep_leases.holds) > 0
    AND lockstep_leases.expires_us > clock_us(), GREATEST(lockstep_leases.token, VALUES(token)), 1)),
  token = IF(LAST_INSERT_ID() = 1, lockstep_leases.token, LAST_INSERT_ID());

-- name: LockLease :one
-- LockLease locks the row of a lease, waiting for it, and reads its token.
-- It never runs in a caller's transaction.
SELECT token FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) FOR UPDATE;

-- name: LookLease :one
-- LookLease reads, without a lock, who holds a lease and for how much longer, 0 for a
-- free one.
-- It runs in callers' transactions.
SELECT owner, note, token, used_for, CAST(IF(CHAR_LENGTH(holds) = 0, 0, GREATEST(0, expires_us - clock_us())) AS SIGNED) AS left_us, ttl_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot);

-- name: QueueForLease :execrows
-- QueueForLease locks the turnstile of a key, waiting for it in the server's queue:
-- whoever has it is the first of all who wait for the lease. It writes who has the
-- turnstile and since when, for others to read, each text with spaces up to 255 bytes.
-- This is never committed.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET guards = 1, owner = sqlc.arg(owner), note = sqlc.arg(note), conn_id = CONNECTION_ID(),
  expires_us = clock_after_wait_us()
WHERE name = sqlc.arg(name) AND slot = -1;

-- name: EnsureLease :exec
-- EnsureLease inserts the row of a lease: free, with token 0. It does nothing if there is one,
-- after waiting for who has that locked, and it also waits for who has the gap locked. So it
-- is sent for a missing row, in a transaction of its own, and with a limit of the wait.
-- The turnstile has the size that QueueForLease gives it.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards, note)
VALUES (sqlc.arg(name), sqlc.arg(slot), RPAD('-', IF(CAST(sqlc.arg(slot) AS SIGNED) < 0, 255, 1), ' '), LEFT('-', 0), 0, 0, 0, 0, 0, RPAD('', IF(CAST(sqlc.arg(slot) AS SIGNED) < 0, 255, 0), ' '));

-- name: GuardLease :execlastid
-- GuardLease writes the row of a lease that the owner still holds, in the caller's
-- transaction: nobody can take over the lease before that transaction ends, and on a
-- multi-primary cluster not without one of the two failing. The reply is the token, or 0
-- if the owner doesn't hold the lease any more.
-- It runs in callers' transactions.
UPDATE lockstep_leases SET conn_id = CONNECTION_ID(), guards = guards + 1 + 0 * LAST_INSERT_ID(token)
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND owner = sqlc.arg(owner) AND token = sqlc.arg(token)
  AND LOCATE(sqlc.arg(hold), holds) > 0 AND expires_us > clock_us();

-- name: LeaseInSnapshot :one
-- LeaseInSnapshot reads the row of a lease as the transaction's snapshot shows it.
-- It runs in callers' transactions.
SELECT token, holds, guards, expires_us, used_for FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot);

-- name: LeaseAsItIs :one
-- LeaseAsItIs locks the row of a lease, unless somebody has locked it, and reads its last
-- committed state.
-- It runs in callers' transactions.
SELECT token, holds, guards, expires_us, used_for FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED;

-- name: ForceRelease :execlastid
-- ForceRelease frees a lease, whoever holds it, and raises the token, so that the
-- holder's renewals and guards fail. The reply is the holder's token, or 0 the row is
-- locked or missing, 1 nobody held the lease.
-- It never runs in a caller's transaction.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards)
SELECT s.name, s.slot, s.owner, s.holds, clock_us(), 0, 0, 0, 0
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  guards = lockstep_leases.guards + 0 * LAST_INSERT_ID(IF(CHAR_LENGTH(lockstep_leases.holds) = 0 OR lockstep_leases.expires_us <= VALUES(token), 1, lockstep_leases.token)),
  expires_us = IF(LAST_INSERT_ID() = 1, lockstep_leases.expires_us, VALUES(token)),
  holds = IF(LAST_INSERT_ID() = 1, lockstep_leases.holds, LEFT(lockstep_leases.holds, 0)),
  token = IF(LAST_INSERT_ID() = 1, lockstep_leases.token, lockstep_leases.token + 1);

-- name: AskHolders :execresult
-- AskHolders asks everybody who has held something under a key since before the given
-- moment, and has not been asked since, to give it up. It skips rows that are locked. The
-- insert id is the server's clock, and the count of affected rows has two for each row.
-- It never runs in a caller's transaction.
INSERT INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards, asked_us, question)
SELECT s.name, s.slot, s.owner, s.holds, s.token, 0, 0, 0, 0, LAST_INSERT_ID(clock_us()), sqlc.arg(question)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot >= 0 AND LEFT(s.holds, 1) = ';'
  AND s.expires_us > clock_us() AND s.token <= CAST(sqlc.arg(since_us) AS SIGNED)
  AND s.asked_us < CAST(sqlc.arg(since_us) AS SIGNED) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE question = VALUES(question), asked_us = GREATEST(lockstep_leases.asked_us + 1, VALUES(asked_us),
  IF(CAST(sqlc.arg(since_us) AS SIGNED) = 9223372036854775807, 0, CAST(sqlc.arg(since_us) AS SIGNED)));

-- name: NotAsked :one
-- NotAsked counts, without a lock, those who have held something since before the given
-- moment, and of them those whom AskHolders would ask. It reads the moment for the next
-- AskHolders: by the server's clock, or their last token if that is ahead of it.
-- It never runs in a caller's transaction.
SELECT COUNT(*) AS holders, CAST(COALESCE(SUM(asked_us < CAST(sqlc.arg(since_us) AS SIGNED)), 0) AS SIGNED) AS not_asked,
  CAST(GREATEST(clock_us(), COALESCE(MAX(token), 0)) AS SIGNED) AS now_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot >= 0 AND LEFT(holds, 1) = ';'
  AND expires_us > clock_us() AND token <= CAST(sqlc.arg(since_us) AS SIGNED);

-- name: LeaseTransactions :many
-- LeaseTransactions reads the rows of a key that a transaction has guarded or acquired,
-- and how long ago they have expired. At READ UNCOMMITTED it also sees open transactions:
-- their rows differ from what it reads at another level.
-- It never runs in a caller's transaction.
SELECT slot, token, guards, conn_id, CAST(clock_us() - expires_us AS SIGNED) AS over_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot >= 0 AND conn_id > 0 AND CHAR_LENGTH(holds) > 0 LIMIT 9223372036854775807;

-- name: ListLeases :many
-- ListLeases reads a page of the leases, readers and permits that are held, by name and
-- slot.
-- It never runs in a caller's transaction.
SELECT name, slot, owner, note, token, ttl_us,
  CAST(expires_us - clock_us() AS SIGNED) AS left_us, CAST(CHAR_LENGTH(holds) AS SIGNED) AS holds_length, used_for, asked_us, question
FROM lockstep_leases
WHERE (name > sqlc.arg(after) OR name = sqlc.arg(after) AND slot > sqlc.arg(after_slot))
  AND slot >= 0 AND CHAR_LENGTH(holds) > 0 AND expires_us > clock_us()
ORDER BY name, slot LIMIT ?;

-- name: InspectLease :many
-- InspectLease reads the row of a lease and its turnstile, held or not, and the rows of
-- its readers and permits that are held.
-- It never runs in a caller's transaction.
SELECT name, slot, owner, note, token, ttl_us,
  CAST(IF(CHAR_LENGTH(holds) = 0, 0, GREATEST(0, expires_us - clock_us())) AS SIGNED) AS left_us, CAST(CHAR_LENGTH(holds) AS SIGNED) AS holds_length, used_for, asked_us, question
FROM lockstep_leases
WHERE name = sqlc.arg(name) AND slot >= -1 AND (slot <= 0 OR CHAR_LENGTH(holds) > 0 AND expires_us > clock_us())
ORDER BY slot LIMIT 9223372036854775807;

-- name: ListTurnstiles :many
-- ListTurnstiles reads, at READ UNCOMMITTED, who has the turnstiles of a page of keys:
-- the first in their queues. Their texts end in spaces: MariaDB's RTRIM may make NULL of
-- nothing.
-- It never runs in a caller's transaction.
SELECT name, owner, note, conn_id, expires_us AS since_us FROM lockstep_leases
WHERE name > sqlc.arg(after) AND slot = -1 AND guards > 0 ORDER BY name LIMIT ?;

-- name: InspectTurnstile :one
-- InspectTurnstile reads, at READ UNCOMMITTED, who has the turnstile of a key.
-- It never runs in a caller's transaction.
SELECT name, owner, note, conn_id, expires_us AS since_us FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = -1 AND guards > 0;

-- name: IdleLeases :many
-- IdleLeases reads, without a lock, a page of the rows that expired longer ago than the
-- given number of microseconds. It leaves out a row whose token is ahead of the clock,
-- since a new row would get a lower token, and a row that says what its key is used for
-- while readers or permits of the key are not idle. The clock needs NOW(6): without it
-- MySQL 8.0 compares the time at which a prepared statement was first executed.
-- It never runs in a caller's transaction.
SELECT i.name, i.slot FROM lockstep_leases i
WHERE (i.name > sqlc.arg(after) OR i.name = sqlc.arg(after) AND i.slot > sqlc.arg(after_slot)) AND i.slot >= -1
  AND i.expires_us < UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED) AND i.token < clock_us()
  AND (i.used_for = 0 OR NOT EXISTS (SELECT 1 FROM lockstep_leases o WHERE o.name = i.name AND o.slot > 0
    AND (o.expires_us >= UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED) OR o.token >= clock_us())))
ORDER BY i.name, i.slot LIMIT ?;

-- name: IdleLease :one
-- IdleLease locks a row of IdleLeases that is still idle, unless somebody has locked it,
-- and reads what the key is used for.
-- It never runs in a caller's transaction.
SELECT used_for FROM lockstep_leases FORCE INDEX (PRIMARY)
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot)
  AND expires_us < UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED) AND token < clock_us()
FOR UPDATE SKIP LOCKED;

-- name: CountPlaces :one
-- CountPlaces counts the rows of the readers and permits of a key.
-- It never runs in a caller's transaction.
SELECT COUNT(*) FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot > 0;

-- name: CountSwept :exec
-- CountSwept changes the row of a lease whose readers' rows are deleted: a transaction that
-- has read before them sees that its snapshot is older.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET guards = guards + 1 WHERE name = sqlc.arg(name) AND slot = 0;

-- name: DeleteLease :exec
-- DeleteLease deletes the row of a lease.
-- It never runs in a caller's transaction.
DELETE FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot);

-- name: ReadEpoch :one
-- ReadEpoch reads the mark of the database's data, and how old it is.
-- It never runs in a caller's transaction.
SELECT owner, CAST(clock_us() - expires_us AS SIGNED) AS age_us
FROM lockstep_leases WHERE name = 'lockstep:epoch' AND slot = -2;

-- name: BeginEpoch :exec
-- BeginEpoch marks the data of a database that has no mark yet. The row has no hold and
-- is never acquired. Because of its used_for the janitor keeps it.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_leases (name, slot, owner, holds, token, ttl_us, expires_us, used_for, guards)
SELECT 'lockstep:epoch', -2, sqlc.arg(id), LEFT('-', 0), 0, 0,
  clock_us() - CAST(sqlc.arg(age_us) AS SIGNED), 1, 0 FROM DUAL;
