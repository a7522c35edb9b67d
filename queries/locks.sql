-- name: LockNamed :execlastid
-- LockNamed locks the row of a key exclusively, waiting for it, and raises the token. The
-- reply is the token. If the row still has the token held, this transaction holds the
-- lock already, and the token stays. If it holds none, held is 1, which is no token.
--
-- The new token is at least the server's clock in microseconds at the moment of the
-- grant: NOW(6) is fixed when the statement starts, and the distance to SYSDATE(6) is how
-- long it has waited since. The values to insert are computed before that wait, and
-- meanwhile others may be granted the key and roll back. So an inserted row gets token 0,
-- and the reply is 1. The same statement, sent once more, need not wait and raises the
-- token.
-- It runs in callers' transactions.
INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (sqlc.arg(name), 0 * LAST_INSERT_ID(1), sqlc.arg(owner), CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000)
ON DUPLICATE KEY UPDATE
  token = LAST_INSERT_ID(IF(token = sqlc.arg(held), token, GREATEST(token + 1,
    clock_after_wait_us()))),
  owner = VALUES(owner),
  conn_id = CONNECTION_ID(),
  locked_us = clock_after_wait_us();

-- name: TouchNamed :execlastid
-- TouchNamed locks the row of a key exclusively, waiting for it, and doesn't change it. A
-- missing row is inserted with token 0, never granted. The reply is the token that the
-- last holder has committed.
-- It runs in callers' transactions.
INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (sqlc.arg(name), LAST_INSERT_ID(0), '-', 0, UNIX_TIMESTAMP() * 1000000)
ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token);

-- name: CompareAndBumpNamed :execlastid
-- CompareAndBumpNamed locks the row of a key exclusively, waiting for it. If the row has
-- the version wanted, it raises the token as LockNamed does. A key without a row has
-- version 0. The reply is the token, or 0 if the row has another version and stays as it
-- is; a row that a refusal inserts was never granted. The reply is 1 if the row was
-- inserted: the same statement, sent once more, raises the token. If the row has the
-- token held, this transaction holds the lock already, and the token stays. If it holds
-- none, held is 1, which is no token.
-- It runs in callers' transactions.
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
    clock_after_wait_us()), 0)))),
  owner = IF(LAST_INSERT_ID() = 0, owner, VALUES(owner)),
  conn_id = IF(LAST_INSERT_ID() = 0, conn_id, CONNECTION_ID()),
  locked_us = IF(LAST_INSERT_ID() = 0, locked_us, clock_after_wait_us());

-- name: EnsureNamed :exec
-- EnsureNamed inserts the row of a key with token 0 if it is missing. Inside a
-- transaction it takes a shared lock on an existing row, waiting for it. Unlike a locking
-- read it locks no gap if the row is missing.
-- It runs in callers' transactions.
INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us)
VALUES (sqlc.arg(name), 0, '-', 0, UNIX_TIMESTAMP() * 1000000);

-- name: NamedForUpdate :one
-- NamedForUpdate locks an existing row exclusively and reads its token.
-- It runs in callers' transactions.
SELECT token FROM lockstep_locks WHERE name = sqlc.arg(name) FOR UPDATE;

-- name: NamedForShare :one
-- NamedForShare locks an existing row shared and reads its token.
-- It runs in callers' transactions.
SELECT token FROM lockstep_locks WHERE name = sqlc.arg(name) LOCK IN SHARE MODE;

-- name: NamedToken :one
-- NamedToken reads the token of a key as the transaction's snapshot shows it.
-- It runs in callers' transactions.
SELECT token FROM lockstep_locks WHERE name = sqlc.arg(name);

-- name: NamedVersion :one
-- NamedVersion reads the token of a key, and whether that may be one which isn't committed.
-- It never runs in a caller's transaction.
SELECT token, session_level() AS level FROM lockstep_locks WHERE name = sqlc.arg(name);

-- name: NamedPresent :many
-- NamedPresent tells which of at most 900 names have a row. The limit counts in place of the
-- session's sql_select_limit, as in NamedHolders.
-- It never runs in a caller's transaction.
SELECT name FROM lockstep_locks WHERE name IN (sqlc.slice(names)) LIMIT 900;

-- name: NamedHolders :many
-- NamedHolders reads the rows of the names: at READ UNCOMMITTED with their present
-- holders, otherwise with the last holders that have committed.
-- It never runs in a caller's transaction.
SELECT name, token, REPLACE(owner, X'00', LEFT('-', 0)) AS owner, conn_id, locked_us FROM lockstep_locks WHERE name IN (sqlc.slice(names)) LIMIT 900;

-- name: IdleNamed :many
-- IdleNamed locks a batch of rows that nobody holds, and that were last locked longer ago
-- than the given number of microseconds, in the order of their names from after on. It
-- leaves out a row whose token is ahead of the clock: a new row would get a lower token.
-- It never runs in a caller's transaction.
SELECT name FROM lockstep_locks FORCE INDEX (PRIMARY)
WHERE name >= sqlc.arg(after) AND locked_us < UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED)
  AND token < clock_us()
ORDER BY name LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: DeleteNamed :execrows
-- DeleteNamed deletes the row of a key.
-- It never runs in a caller's transaction.
DELETE FROM lockstep_locks WHERE name = sqlc.arg(name);
