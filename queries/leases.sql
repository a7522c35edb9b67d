-- The statements of leases. A lease is held while its list of holders is not empty and it
-- has not expired. Every hold is a separator and an identifier of fixed length, in which
-- the separator doesn't occur.
--
-- The statements that acquire, renew and release a lease never wait: they insert what
-- SKIP LOCKED selects, so that a row which somebody has locked is skipped, and their WHERE asks
-- only whether the lease is free, or still its holder's. The count of changed rows decides, and an
-- insert id is only a reply. What else becomes of a row is decided in package rules by what
-- ReadLease has read, and written by SwapLease. So each statement that changes a row raises its
-- version, a renewal too: else who has read the row before takes over a lease that was renewed.
-- No statement but ShareLease reads a column after it was assigned: MariaDB's
-- SIMULTANEOUS_ASSIGNMENT would show the old value. No literal is '', since EMPTY_STRING_IS_NULL
-- would change it. VALUES(token) of several leases is the server's clock.

-- name: AcquireLease :execresult
-- AcquireLease takes a lease that is free or has expired. The count of changed rows decides: 0
-- if it isn't, if its key is a semaphore, if the row is locked or missing, or if the server's
-- clock is past not_after. The insert id is the token, with bit 62 set if the key has been
-- shared: there may be readers. A new holder has not been asked anything yet.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)
SELECT s.name, s.slot, sqlc.arg(owner), sqlc.arg(hold), GREATEST(s.token + 1, clock_us()), sqlc.arg(ttl_us), clock_us() + CAST(sqlc.arg(ttl_us) AS SIGNED), 0, 0, sqlc.arg(label)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= clock_us())
  AND s.used_for >= 0 AND clock_us() <= CAST(sqlc.arg(not_after_us) AS SIGNED) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  version = lockstep_leases.version + 1 + 0 * LAST_INSERT_ID(VALUES(token) + lockstep_leases.used_for * 4611686018427387904),
  owner = VALUES(owner), holders = VALUES(holders), token = VALUES(token), ttl_us = VALUES(ttl_us), expires_us = VALUES(expires_us),
  conn_id = CONNECTION_ID(), label = VALUES(label), asked_us = 0;

-- name: AcquireNoWait :execresult
-- AcquireNoWait does what AcquireLease does, at two thirds of the cost: an UPDATE needs no
-- temporary table. It never waits only where the server can refuse to wait (MariaDB, see
-- rawsql.NoWait): then it fails if the row is locked.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET
  version = version + 1 + 0 * LAST_INSERT_ID(GREATEST(token + 1, clock_us()) + used_for * 4611686018427387904),
  owner = sqlc.arg(owner), holders = sqlc.arg(hold), ttl_us = sqlc.arg(ttl_us), expires_us = clock_us() + CAST(sqlc.arg(ttl_us) AS SIGNED),
  conn_id = CONNECTION_ID(), label = sqlc.arg(label), asked_us = 0, token = GREATEST(token + 1, clock_us())
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND (CHAR_LENGTH(holders) = 0 OR expires_us <= clock_us())
  AND used_for >= 0 AND clock_us() <= CAST(sqlc.arg(not_after_us) AS SIGNED);

-- name: ReleaseLease :execrows
-- ReleaseLease frees a lease that has not expired and has no other hold. The count of changed
-- rows decides: 0 if it is not so, or if the row is locked.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards)
SELECT s.name, s.slot, s.owner, s.holders, s.token, 0, clock_us(), 0, 0
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) AND s.holders = sqlc.arg(hold) AND s.expires_us > clock_us() FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE version = lockstep_leases.version + 1, expires_us = VALUES(expires_us), holders = LEFT(lockstep_leases.holders, 0);

-- name: ReleaseNoWait :execrows
-- ReleaseNoWait does what ReleaseLease does, at two thirds of the cost: an UPDATE needs no
-- temporary table. It never waits only where the server can refuse to wait (MariaDB, see
-- rawsql.NoWait): then it fails if the row is locked.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET version = version + 1, expires_us = clock_us(), holders = LEFT(holders, 0)
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND holders = sqlc.arg(hold) AND expires_us > clock_us();

-- name: RenewLease :execresult
-- RenewLease sets the expiry of a lease that the owner still holds with this token and
-- hold. The count of changed rows decides: 0 if it doesn't, or if the row is locked. The
-- insert id is 2 if the owner has been asked something that it wasn't told yet, and else 1.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, asked_us)
SELECT s.name, s.slot, s.owner, s.holders, s.token, 0, clock_us() + s.ttl_us, 0, 0, sqlc.arg(told_us)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) AND s.owner = sqlc.arg(owner) AND s.token = sqlc.arg(token)
  AND LOCATE(sqlc.arg(hold), s.holders) > 0 AND s.expires_us > clock_us() FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  version = lockstep_leases.version + 1 + 0 * LAST_INSERT_ID(1 + (lockstep_leases.asked_us > VALUES(asked_us))),
  expires_us = VALUES(expires_us);

-- name: ReadLease :one
-- ReadLease reads a row and the server's clock, without a lock: what is then decided is written
-- by SwapLease.
-- It never runs in a caller's transaction.
SELECT slot, owner, label, holders, token, ttl_us, expires_us, used_for, guards, conn_id, asked_us, release_reason, version, CAST(clock_us() AS SIGNED) AS now_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot);

-- name: ReadLeaseAsItIs :one
-- ReadLeaseAsItIs is ReadLease in a transaction whose snapshot may be older: it locks the row,
-- unless somebody has locked it.
-- It runs in callers' transactions.
SELECT slot, owner, label, holders, token, ttl_us, expires_us, used_for, guards, conn_id, asked_us, release_reason, version, CAST(clock_us() AS SIGNED) AS now_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED;

-- name: SwapLease :execrows
-- SwapLease writes what was decided by what ReadLease has read, unless the row has changed since,
-- or the server's clock is past not_after. The count of changed rows decides: 0 also if the row is
-- locked. The version alone would not do: it begins anew in a row that was deleted, and goes back
-- with a restored backup. A row that is acquired gets the number of the session.
-- It runs in callers' transactions.
INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, conn_id, label, asked_us, release_reason)
SELECT s.name, s.slot, sqlc.arg(owner), sqlc.arg(holders), sqlc.arg(token), sqlc.arg(ttl_us), sqlc.arg(expires_us), CAST(sqlc.arg(used_for) AS SIGNED), 0,
  IF(CAST(sqlc.arg(acquired) AS SIGNED) = 1, CONNECTION_ID(), s.conn_id), sqlc.arg(label), sqlc.arg(asked_us), sqlc.arg(release_reason)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot) AND s.version = sqlc.arg(seen_version) AND s.token = sqlc.arg(seen_token)
  AND clock_us() <= CAST(sqlc.arg(not_after_us) AS SIGNED) FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE version = lockstep_leases.version + 1, owner = VALUES(owner), holders = VALUES(holders), token = VALUES(token),
  ttl_us = VALUES(ttl_us), expires_us = VALUES(expires_us), used_for = VALUES(used_for), conn_id = VALUES(conn_id), label = VALUES(label),
  asked_us = VALUES(asked_us), release_reason = VALUES(release_reason);

-- name: ReleaseReasonOf :one
-- ReleaseReasonOf reads, without a lock, what the owner of a lease was asked last.
-- It never runs in a caller's transaction.
SELECT asked_us, release_reason FROM lockstep_leases
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND owner = sqlc.arg(owner) AND token = sqlc.arg(token);

-- name: LockLease :one
-- LockLease locks the row of a lease, waiting for it, and reads its token.
-- It never runs in a caller's transaction.
SELECT token FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) FOR UPDATE;

-- name: LookLease :one
-- LookLease reads, without a lock, who holds a lease and for how much longer, 0 for a
-- free one.
-- It runs in callers' transactions.
SELECT owner, label, token, used_for, CAST(IF(CHAR_LENGTH(holders) = 0, 0, GREATEST(0, expires_us - clock_us())) AS SIGNED) AS left_us, ttl_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot);

-- name: QueueForLease :execrows
-- QueueForLease locks the queue row of a key, waiting for it in the server's queue:
-- whoever has it is the first of all who wait for the lease. It writes who has the
-- queue row and since when, for others to read, each text with spaces up to 255 bytes.
-- This is never committed.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET guards = 1, owner = sqlc.arg(owner), label = sqlc.arg(label), conn_id = CONNECTION_ID(),
  expires_us = clock_after_wait_us()
WHERE name = sqlc.arg(name) AND slot = -1;

-- name: EnsureLease :exec
-- EnsureLease inserts the row of a lease: free, with token 0. It does nothing if there is one,
-- after waiting for who has that locked, and it also waits for who has the gap locked. So it
-- is sent for a missing row, in a transaction of its own, and with a limit of the wait.
-- The queue row has the size that QueueForLease gives it.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)
VALUES (sqlc.arg(name), sqlc.arg(slot), RPAD('-', IF(CAST(sqlc.arg(slot) AS SIGNED) < 0, 255, 1), ' '), LEFT('-', 0), 0, 0, 0, 0, 0, RPAD('', IF(CAST(sqlc.arg(slot) AS SIGNED) < 0, 255, 0), ' '));

-- name: GuardLease :execrows
-- GuardLease writes the row of a lease that the owner still holds, in the caller's
-- transaction: nobody can take over the lease before that transaction ends, and on a
-- multi-primary cluster not without one of the two failing. The count of changed rows
-- decides.
-- It runs in callers' transactions.
UPDATE lockstep_leases SET version = version + 1, conn_id = CONNECTION_ID(), guards = guards + 1
WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) AND owner = sqlc.arg(owner) AND token = sqlc.arg(token)
  AND LOCATE(sqlc.arg(hold), holders) > 0 AND expires_us > clock_us();

-- name: LeaseInSnapshot :one
-- LeaseInSnapshot reads the row of a lease as the transaction's snapshot shows it.
-- It runs in callers' transactions.
SELECT token, holders, guards, expires_us, used_for FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot);

-- name: LeaseAsItIs :one
-- LeaseAsItIs locks the row of a lease, unless somebody has locked it, and reads its last
-- committed state.
-- It runs in callers' transactions.
SELECT token, holders, guards, expires_us, used_for FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = sqlc.arg(slot) FOR UPDATE SKIP LOCKED;

-- name: HeldRows :many
-- HeldRows reads, without a lock, the rows of a key from a slot on that have holders, also
-- expired ones, and the server's clock: what is then decided is written by SwapLease.
-- It never runs in a caller's transaction.
SELECT slot, owner, label, holders, token, ttl_us, expires_us, used_for, guards, conn_id, asked_us, release_reason, version, CAST(clock_us() AS SIGNED) AS now_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot >= sqlc.arg(first) AND CHAR_LENGTH(holders) > 0 ORDER BY slot LIMIT 9223372036854775807;

-- name: LeaseTransactions :many
-- LeaseTransactions reads the rows of a key that a transaction has guarded or acquired,
-- and how long ago they have expired. At READ UNCOMMITTED it also sees open transactions:
-- their rows differ from what it reads at another level.
-- It never runs in a caller's transaction.
SELECT slot, token, guards, conn_id, CAST(clock_us() - expires_us AS SIGNED) AS over_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot >= 0 AND conn_id > 0 AND CHAR_LENGTH(holders) > 0 LIMIT 9223372036854775807;

-- name: ListLeases :many
-- ListLeases reads a page of the leases, readers and permits that are held, by name and
-- slot.
-- It never runs in a caller's transaction.
SELECT name, slot, owner, label, token, ttl_us,
  CAST(expires_us - clock_us() AS SIGNED) AS left_us, CAST(CHAR_LENGTH(holders) AS SIGNED) AS holders_length, used_for, asked_us, release_reason
FROM lockstep_leases
WHERE (name > sqlc.arg(after) OR name = sqlc.arg(after) AND slot > sqlc.arg(after_slot))
  AND slot >= 0 AND CHAR_LENGTH(holders) > 0 AND expires_us > clock_us()
ORDER BY name, slot LIMIT ?;

-- name: InspectLease :many
-- InspectLease reads the row of a lease and its queue row, held or not, and the rows of
-- its readers and permits that are held.
-- It never runs in a caller's transaction.
SELECT name, slot, owner, label, token, ttl_us,
  CAST(IF(CHAR_LENGTH(holders) = 0, 0, GREATEST(0, expires_us - clock_us())) AS SIGNED) AS left_us, CAST(CHAR_LENGTH(holders) AS SIGNED) AS holders_length, used_for, asked_us, release_reason
FROM lockstep_leases
WHERE name = sqlc.arg(name) AND slot >= -1 AND (slot <= 0 OR CHAR_LENGTH(holders) > 0 AND expires_us > clock_us())
ORDER BY slot LIMIT 9223372036854775807;

-- name: ListQueues :many
-- ListQueues reads, at READ UNCOMMITTED, who has the queue rows of a page of keys:
-- the first in their queues. Their texts end in spaces: MariaDB's RTRIM may make NULL of
-- nothing.
-- It never runs in a caller's transaction.
SELECT name, owner, label, conn_id, expires_us AS since_us FROM lockstep_leases
WHERE name > sqlc.arg(after) AND slot = -1 AND guards > 0 ORDER BY name LIMIT ?;

-- name: InspectQueue :one
-- InspectQueue reads, at READ UNCOMMITTED, who has the queue row of a key.
-- It never runs in a caller's transaction.
SELECT name, owner, label, conn_id, expires_us AS since_us FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot = -1 AND guards > 0;

-- name: IdleLeases :many
-- IdleLeases reads, without a lock, a page of the rows that expired longer ago than the
-- given number of microseconds. It leaves out a row whose token is ahead of the clock,
-- since a new row would get a lower token, and a row that says what its key is used for
-- while readers or permits of the key are not idle. That row comes behind those of the
-- readers and permits. The clock needs NOW(6): without it MySQL 8.0 compares the time at
-- which a prepared statement was first executed.
-- It never runs in a caller's transaction.
SELECT i.name, i.slot FROM lockstep_leases i
WHERE (i.name < sqlc.arg(before) OR i.name = sqlc.arg(before) AND i.slot < sqlc.arg(before_slot)) AND i.slot >= -1
  AND i.expires_us < UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED) AND i.token < clock_us()
  AND (i.used_for = 0 OR NOT EXISTS (SELECT 1 FROM lockstep_leases o WHERE o.name = i.name AND o.slot > 0
    AND (o.expires_us >= UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED) OR o.token >= clock_us())))
ORDER BY i.name DESC, i.slot DESC LIMIT ?;

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

-- name: CountSwept :execrows
-- CountSwept changes the row of a lease whose readers' rows are deleted: a transaction that
-- has read before them sees that its snapshot is older.
-- It never runs in a caller's transaction.
UPDATE lockstep_leases SET guards = guards + 1, version = version + 1 WHERE name = sqlc.arg(name) AND slot = 0;

-- name: DeleteLease :execrows
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
-- is never acquired. Because of its used_for the cleanup keeps it.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards)
SELECT 'lockstep:epoch', -2, sqlc.arg(id), LEFT('-', 0), 0, 0,
  clock_us() - CAST(sqlc.arg(age_us) AS SIGNED), 1, 0 FROM DUAL;
