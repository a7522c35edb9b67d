-- name: LockNamed :execlastid
-- LockNamed takes the row of a key exclusively, waiting for it, and raises the
-- token, which is the reply. A row that still carries the token held is ours
-- already and keeps it; 1 is no token and stands for none held.
--
-- The new token is at least the server's clock in microseconds at the moment of
-- the grant: NOW(6) is fixed when the statement starts, its distance to
-- SYSDATE(6) adds what the statement has waited since. What is inserted is
-- computed before the wait for the row, and others may be granted the key
-- meanwhile and roll back. So a row that is made here has token 0, the reply is 1,
-- and the same statement once more, which has nothing to wait for, raises it.
INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (sqlc.arg(name), 0 * LAST_INSERT_ID(1), sqlc.arg(owner), CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000)
ON DUPLICATE KEY UPDATE
  token = LAST_INSERT_ID(IF(token = sqlc.arg(held), token, GREATEST(token + 1,
    UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))))),
  owner = VALUES(owner),
  conn_id = CONNECTION_ID(),
  locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)));

-- name: TouchNamed :execlastid
-- TouchNamed takes the row of a key exclusively, waiting for it, and leaves it
-- as it is; a missing row is made with token 0, never granted. The reply is the
-- token that the last holder has committed.
INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (sqlc.arg(name), LAST_INSERT_ID(0), '-', 0, UNIX_TIMESTAMP() * 1000000)
ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token);

-- name: CompareAndBumpNamed :execlastid
-- CompareAndBumpNamed takes the row of a key exclusively, waiting for it, and where
-- it carries the version wanted raises the token as LockNamed does. A key without a
-- row has version 0. The reply is the token, or 0 where the row carries another, which
-- leaves it as it is; what a refusal inserts was never granted. It is 1 where the row was
-- made: as with LockNamed the same statement once more raises it. A row that carries the
-- token held is ours already and keeps it; 1 is no token and stands for none held.
INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (
  sqlc.arg(name),
  0 * LAST_INSERT_ID(IF(CAST(sqlc.arg(version) AS UNSIGNED) > 0, 0, 1)),
  sqlc.arg(owner),
  CONNECTION_ID(),
  UNIX_TIMESTAMP() * 1000000
)
ON DUPLICATE KEY UPDATE
  token = GREATEST(token, LAST_INSERT_ID(IF(token = sqlc.arg(held), token, IF(token = CAST(sqlc.arg(version) AS UNSIGNED), GREATEST(token + 1,
    UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))), 0)))),
  owner = IF(LAST_INSERT_ID() = 0, owner, VALUES(owner)),
  conn_id = IF(LAST_INSERT_ID() = 0, conn_id, CONNECTION_ID()),
  locked_us = IF(LAST_INSERT_ID() = 0, locked_us, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))));

-- name: EnsureNamed :exec
-- EnsureNamed makes the row of a key where it is missing, with token 0. Inside a
-- transaction it takes a shared lock on a row that is there, waiting for it:
-- unlike a locking read it closes no gap where the row is missing.
INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (sqlc.arg(name), 0, '-', 0, UNIX_TIMESTAMP() * 1000000);

-- name: NamedForUpdate :one
-- NamedForUpdate takes an existing row exclusively and reads its token.
SELECT token FROM lockstep_locks WHERE name = sqlc.arg(name) FOR UPDATE;

-- name: NamedForShare :one
-- NamedForShare takes an existing row shared and reads its token.
SELECT token FROM lockstep_locks WHERE name = sqlc.arg(name) LOCK IN SHARE MODE;

-- name: NamedToken :one
-- NamedToken reads the token of a key as the transaction's snapshot shows it.
SELECT token FROM lockstep_locks WHERE name = sqlc.arg(name);

-- name: NamedPresent :many
-- NamedPresent tells which of the names have a row.
SELECT name FROM lockstep_locks WHERE name IN (sqlc.slice(names));

-- name: NamedHolders :many
-- NamedHolders reads the rows of the names: at READ UNCOMMITTED with those who
-- hold them now, otherwise with the last who committed.
SELECT name, token, owner, conn_id, locked_us FROM lockstep_locks WHERE name IN (sqlc.slice(names));

-- name: IdleNamed :many
-- IdleNamed locks up to a batch of rows that nobody holds and that were last
-- locked before the given number of microseconds ago. A row whose token is ahead
-- of the clock stays, since it would be made again with a lower one.
SELECT name FROM lockstep_locks
WHERE locked_us < UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED)
  AND token < UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))
LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: DeleteNamed :exec
-- DeleteNamed removes the row of a key.
DELETE FROM lockstep_locks WHERE name = sqlc.arg(name);
