-- name: Once :execlastid
-- Once makes the row of a key, and waits for a transaction that has it locked. The reply
-- is 1 if this transaction is the first: there was no row, or its time is over. It is 2
-- if another was first, and 3 if that one had another fingerprint; '-' is none, and
-- matches all. VALUES(done_us) is the server's clock before the wait, so that a row whose
-- time was not over when it was asked for is one that is there.
INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us)
VALUES (sqlc.arg(name), sqlc.arg(fingerprint), '-', UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + 0 * LAST_INSERT_ID(1), sqlc.arg(keep_us))
ON DUPLICATE KEY UPDATE
  done_us = IF(LAST_INSERT_ID(IF(lockstep_once.done_us + lockstep_once.keep_us <= VALUES(done_us), 1,
    IF(lockstep_once.fingerprint = VALUES(fingerprint) OR lockstep_once.fingerprint = '-' OR VALUES(fingerprint) = '-', 2, 3))) = 1, VALUES(done_us), lockstep_once.done_us),
  keep_us = IF(LAST_INSERT_ID() = 1, VALUES(keep_us), lockstep_once.keep_us),
  fingerprint = IF(LAST_INSERT_ID() = 1, VALUES(fingerprint), lockstep_once.fingerprint),
  result = IF(LAST_INSERT_ID() = 1, VALUES(result), lockstep_once.result);

-- name: AnswerOnce :execrows
-- AnswerOnce stores the result of a key whose row this transaction has locked, and lets
-- its time begin now.
UPDATE lockstep_once SET result = sqlc.arg(result), done_us = GREATEST(done_us + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))
WHERE name = sqlc.arg(name);

-- name: ProlongOnce :exec
-- ProlongOnce lets the time of a key begin now.
UPDATE lockstep_once SET done_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) WHERE name = sqlc.arg(name);

-- name: OnceResult :one
-- OnceResult reads the result of a key whose row this transaction has locked, whatever
-- its snapshot shows.
SELECT result FROM lockstep_once WHERE name = sqlc.arg(name) FOR UPDATE;

-- name: ExpiredOnce :many
-- ExpiredOnce locks a batch of rows whose time is over, in the order of their names
-- from after on, except those that somebody has locked.
SELECT name FROM lockstep_once FORCE INDEX (PRIMARY)
WHERE name >= sqlc.arg(after) AND done_us + keep_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))
ORDER BY name LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: DeleteOnce :exec
-- DeleteOnce deletes the row of a key.
DELETE FROM lockstep_once WHERE name = sqlc.arg(name);
