-- The statements of shared leases and semaphores. Each reader and each permit has a row
-- of its own, in a slot above 0. The row of the lease, slot 0, is the entry row. Its column
-- used_for is 1 once the key has been shared, so that a writer knows that it must look
-- for readers. It is -n for a semaphore of n permits, which have the slots 1 to n.

-- name: ShareLease :execlastid
-- ShareLease takes a reader's row if no writer has the entry row, or the owner is that writer.
-- It locks the entry row shared meanwhile, so that the next writer sees the reader. The reply
-- is the token, or 0 if the entry row is locked, missing, held by a writer or not marked, or
-- if the server's clock is past not_after, or 1 if the reader's row is still held. Whether it is
-- free is asked for each column, and for the last one by the new hold as well, since the columns
-- before it are assigned by then, but under MariaDB's SIMULTANEOUS_ASSIGNMENT.
-- It never runs in a caller's transaction.
INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)
SELECT s.name, sqlc.arg(slot), sqlc.arg(owner), sqlc.arg(hold), LAST_INSERT_ID(clock_us()),
  sqlc.arg(ttl_us), clock_us() + CAST(sqlc.arg(ttl_us) AS SIGNED), 0, 0, sqlc.arg(label)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = 0 AND s.used_for = 1
  AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= clock_us() OR s.owner = sqlc.arg(owner))
  AND clock_us() <= CAST(sqlc.arg(not_after_us) AS SIGNED)
LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE
  token = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), LAST_INSERT_ID(GREATEST(lockstep_leases.token + 1, VALUES(token))), lockstep_leases.token + 0 * LAST_INSERT_ID(1)),
  owner = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), VALUES(owner), lockstep_leases.owner),
  ttl_us = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), VALUES(ttl_us), lockstep_leases.ttl_us),
  label = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), VALUES(label), lockstep_leases.label),
  asked_us = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), 0, lockstep_leases.asked_us),
  version = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), lockstep_leases.version + 1, lockstep_leases.version),
  holders = IF(CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), VALUES(holders), lockstep_leases.holders),
  expires_us = IF(lockstep_leases.holders = VALUES(holders) OR CHAR_LENGTH(lockstep_leases.holders) = 0 OR lockstep_leases.expires_us <= VALUES(token), VALUES(expires_us), lockstep_leases.expires_us);

-- name: ReadersOf :one
-- ReadersOf counts the readers of a key, also the expired ones, and reads how much longer
-- the last of them may read. A row is idle if it expired longer than its time to live
-- ago.
-- It never runs in a caller's transaction.
SELECT CAST(COALESCE(SUM(CHAR_LENGTH(holders) > 0), 0) AS SIGNED) AS readers,
  CAST(COALESCE(SUM(CHAR_LENGTH(holders) > 0 AND expires_us <= clock_us()), 0) AS SIGNED) AS expired,
  CAST(COALESCE(MAX(IF(CHAR_LENGTH(holders) > 0, expires_us, 0)) - clock_us(), 0) AS SIGNED) AS left_us,
  CAST(COALESCE(SUM(expires_us + ttl_us < clock_us()), 0) AS SIGNED) AS idle
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot > 0;

-- name: IdleReaders :many
-- IdleReaders locks a batch of a key's readers' rows that expired longer than their time
-- to live ago, except those that somebody has locked.
-- It never runs in a caller's transaction.
SELECT slot FROM lockstep_leases FORCE INDEX (PRIMARY)
WHERE name = sqlc.arg(name) AND slot > 0 AND expires_us + ttl_us < clock_us()
ORDER BY slot LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: FreePermits :many
-- FreePermits reads, without a lock, which permits of a semaphore of n are free. It reads
-- none if the semaphore has another n.
-- It never runs in a caller's transaction.
SELECT s.slot FROM lockstep_leases g JOIN lockstep_leases s ON s.name = g.name
WHERE g.name = sqlc.arg(name) AND g.slot = 0 AND g.used_for + CAST(sqlc.arg(permits) AS SIGNED) = 0
  AND s.slot BETWEEN 1 AND CAST(sqlc.arg(permits) AS SIGNED) AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= clock_us())
ORDER BY s.slot LIMIT 1000;

-- name: AcquirePermit :execresult
-- AcquirePermit takes a free permit of a semaphore of n, and locks the entry row shared meanwhile,
-- so that the semaphore has that n. The count of changed rows decides: 0 if the permit is held or
-- locked, or the entry row is locked, or the semaphore has another n, or the server's clock is
-- past not_after. The insert id is the token.
-- It never runs in a caller's transaction.
INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)
SELECT s.name, s.slot, sqlc.arg(owner), sqlc.arg(hold), GREATEST(s.token + 1, clock_us()),
  sqlc.arg(ttl_us), clock_us() + CAST(sqlc.arg(ttl_us) AS SIGNED), 0, 0, sqlc.arg(label)
FROM lockstep_leases s WHERE s.name = sqlc.arg(name) AND s.slot = sqlc.arg(slot)
  AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= clock_us())
  AND clock_us() <= CAST(sqlc.arg(not_after_us) AS SIGNED)
  AND (SELECT g.used_for FROM lockstep_leases g WHERE g.name = sqlc.arg(name) AND g.slot = 0 LOCK IN SHARE MODE) + CAST(sqlc.arg(permits) AS SIGNED) = 0
FOR UPDATE SKIP LOCKED
ON DUPLICATE KEY UPDATE
  owner = VALUES(owner), holders = VALUES(holders), ttl_us = VALUES(ttl_us), expires_us = VALUES(expires_us),
  label = VALUES(label), asked_us = 0, version = lockstep_leases.version + 1, token = LAST_INSERT_ID(VALUES(token));

-- name: PermitsOf :one
-- PermitsOf counts the rows of a semaphore's permits and those that are held, and reads
-- in how long the first permit expires.
-- It never runs in a caller's transaction.
SELECT COUNT(*) AS permits,
  CAST(COALESCE(SUM(CHAR_LENGTH(holders) > 0 AND expires_us > clock_us()), 0) AS SIGNED) AS held,
  CAST(COALESCE(MIN(expires_us) - clock_us(), 0) AS SIGNED) AS left_us
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot BETWEEN CAST(sqlc.arg(first) AS SIGNED) AND CAST(sqlc.arg(last) AS SIGNED);

-- name: ReaderAmong :one
-- ReaderAmong finds a reader of a key among a few owners, in the process whose holds
-- begin so.
-- It never runs in a caller's transaction.
SELECT owner FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot > 0 AND owner IN (sqlc.slice(owners))
  AND LOCATE(sqlc.arg(begins), holders) = 1 AND expires_us > clock_us() LIMIT 1;

-- name: PlacesOf :many
-- PlacesOf reads, without a lock, the rows of a key's readers: whether each is held, and
-- whether it has expired, and what rises with each reader and each transaction that one
-- has guarded. With the entry row locked no row is taken any more, and a free one doesn't change.
-- The limit counts in place of the session's sql_select_limit, as in the other statements
-- that have this number.
-- It never runs in a caller's transaction.
SELECT slot, owner, CHAR_LENGTH(holders) > 0 AS held, expires_us <= clock_us() AS expired, CAST(token + guards AS SIGNED) AS done
FROM lockstep_leases WHERE name = sqlc.arg(name) AND slot > 0 ORDER BY slot LIMIT 9223372036854775807;
