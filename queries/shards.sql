-- name: ShardRecord :one
-- ShardRecord reads the record of a shard, without a lock: a row of lockstep_once with a
-- reserved name, which never expires. done_us rises with each change.
-- It never runs in a caller's transaction.
SELECT result, done_us FROM lockstep_once WHERE name = sqlc.arg(name);

-- name: MakeShardRecord :exec
-- MakeShardRecord makes the record of a shard, unless it is there. The fingerprint is that
-- of no other.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_once (name, fingerprint, result, done_us, keep_us)
VALUES (sqlc.arg(name), sqlc.arg(fingerprint), sqlc.arg(record), clock_us(), 4611686018427387904);

-- name: ChangeShardRecord :execrows
-- ChangeShardRecord replaces the record of a shard, if nobody has changed it since it
-- was read. It waits for the transactions that have locked it by OnceResult.
-- It never runs in a caller's transaction.
UPDATE lockstep_once SET result = sqlc.arg(record), done_us = GREATEST(done_us + 1, clock_us())
WHERE name = sqlc.arg(name) AND done_us = sqlc.arg(done_us);

-- name: ShardRecords :many
-- ShardRecords reads the records of all shards in the database, whatever set they are of.
-- It never runs in a caller's transaction.
SELECT name, fingerprint, result FROM lockstep_once
WHERE name >= 'lockstep:shard:' AND name < 'lockstep:shard;' LIMIT 9223372036854775807;
