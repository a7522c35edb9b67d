-- name: LockCenter :execlastid
-- LockCenter locks a center row, one of the fixed set that hashed keys share,
-- exclusively, waiting for it, and raises the token as LockNamed does. The reply is the
-- token, or 0 if the row is missing.
-- It runs in callers' transactions.
UPDATE lockstep_centers
SET
  token = LAST_INSERT_ID(IF(token = sqlc.arg(held), token, GREATEST(token + 1,
    clock_after_wait_us()))),
  owner = sqlc.arg(owner),
  conn_id = CONNECTION_ID(),
  locked_us = clock_after_wait_us()
WHERE slot = sqlc.arg(slot);

-- name: CompareAndBumpCenter :execlastid
-- CompareAndBumpCenter does for a center row what CompareAndBumpNamed does for a named
-- one. The reply is the token, or 0 if the row has another version or is missing.
-- It runs in callers' transactions.
UPDATE lockstep_centers
SET
  token = GREATEST(token, LAST_INSERT_ID(IF(token = sqlc.arg(held), token, IF(token = sqlc.arg(version), GREATEST(token + 1,
    clock_after_wait_us()), 0)))),
  owner = IF(LAST_INSERT_ID() = 0, owner, sqlc.arg(owner)),
  conn_id = IF(LAST_INSERT_ID() = 0, conn_id, CONNECTION_ID()),
  locked_us = IF(LAST_INSERT_ID() = 0, locked_us, clock_after_wait_us())
WHERE slot = sqlc.arg(slot);

-- name: CenterForUpdate :one
-- CenterForUpdate locks a center row exclusively and reads its token.
-- It runs in callers' transactions.
SELECT token FROM lockstep_centers WHERE slot = sqlc.arg(slot) FOR UPDATE;

-- name: CenterForShare :one
-- CenterForShare locks a center row shared and reads its token.
-- It runs in callers' transactions.
SELECT token FROM lockstep_centers WHERE slot = sqlc.arg(slot) LOCK IN SHARE MODE;

-- name: CenterToken :one
-- CenterToken reads the token of a center row as the transaction's snapshot shows it.
-- It runs in callers' transactions.
SELECT token FROM lockstep_centers WHERE slot = sqlc.arg(slot);

-- name: CenterVersion :one
-- CenterVersion does what NamedVersion does for a center row.
-- It never runs in a caller's transaction.
SELECT token, session_level() AS level FROM lockstep_centers WHERE slot = sqlc.arg(slot);

-- name: CenterHolders :many
-- CenterHolders reads the center rows: at READ UNCOMMITTED with their present holders,
-- otherwise with the last holders that have committed.
-- It never runs in a caller's transaction.
SELECT slot, token, REPLACE(owner, X'00', LEFT('-', 0)) AS owner, conn_id, locked_us FROM lockstep_centers WHERE slot IN (sqlc.slice(slots)) LIMIT 900;
