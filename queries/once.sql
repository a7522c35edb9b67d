-- name: Once :execrows
-- Once makes the row of a key. It waits for a transaction that has made it, and fails as
-- a duplicate if that commits. So a new key costs no more than its row does. The other
-- statements are for a key that has one: the transaction holds it shared then, by the
-- INSERT that was refused, so that many who repeat don't wait for each other.
-- It runs in callers' transactions.
INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us)
VALUES (sqlc.arg(name), sqlc.arg(fingerprint), '-', clock_us(), sqlc.arg(keep_us));

-- name: OnceAgain :one
-- OnceAgain reads the row of a key, whatever the snapshot shows, and whether its time was
-- over the given number of microseconds ago: before the wait for the row.
-- It runs in callers' transactions.
SELECT CAST(done_us + keep_us <= clock_us() - CAST(sqlc.arg(waited_us) AS SIGNED) AS SIGNED) AS expired, fingerprint, done_us
FROM lockstep_once WHERE name = sqlc.arg(name) LOCK IN SHARE MODE;

-- name: SealOnce :exec
-- SealOnce writes something, so that the COMMIT flushes the log: a server without a binary
-- log shows a transaction to others before its COMMIT is flushed, and only who writes as
-- well waits for that. The rows are behind all keys, and several, so that few wait for each
-- other.
-- It runs in callers' transactions.
INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us)
SELECT CONCAT(X'FF', 'lockstep:seal:', MOD(CONNECTION_ID(), 64)), '-', '-', 1, 4611686018427387904 FROM DUAL WHERE @@log_bin = 0
ON DUPLICATE KEY UPDATE done_us = done_us + 1;

-- name: OnceAnew :execrows
-- OnceAnew makes a row whose time was over new.
-- It runs in callers' transactions.
UPDATE lockstep_once SET fingerprint = sqlc.arg(fingerprint), result = '-', keep_us = sqlc.arg(keep_us),
  done_us = GREATEST(done_us + 1, clock_us())
WHERE name = sqlc.arg(name) AND done_us = sqlc.arg(done_us);

-- name: AnswerOnce :execrows
-- AnswerOnce stores the result of a key whose row this transaction has locked, and lets
-- its time begin now.
-- It runs in callers' transactions.
UPDATE lockstep_once SET result = sqlc.arg(result), done_us = GREATEST(done_us + 1, clock_us())
WHERE name = sqlc.arg(name);

-- name: ProlongOnce :execrows
-- ProlongOnce lets the time of a key begin now.
-- It runs in callers' transactions.
UPDATE lockstep_once SET done_us = clock_us() WHERE name = sqlc.arg(name);

-- name: OnceResult :one
-- OnceResult reads the result of a key whose row this transaction has locked, whatever
-- its snapshot shows.
-- It runs in callers' transactions.
SELECT result FROM lockstep_once WHERE name = sqlc.arg(name) LOCK IN SHARE MODE;

-- name: ExpiredOnce :many
-- ExpiredOnce locks a batch of rows whose time is over, in the order of their names
-- from after on, except those that somebody has locked.
-- It never runs in a caller's transaction.
SELECT name FROM lockstep_once FORCE INDEX (PRIMARY)
WHERE name >= sqlc.arg(after) AND done_us + keep_us <= clock_us()
ORDER BY name LIMIT ? FOR UPDATE SKIP LOCKED;

-- name: DeleteOnce :execrows
-- DeleteOnce deletes the row of a key.
-- It never runs in a caller's transaction.
DELETE FROM lockstep_once WHERE name = sqlc.arg(name);
