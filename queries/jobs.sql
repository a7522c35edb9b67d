-- The statements of jobs. Who sends BeginJob holds the lease of the job. Its token fences
-- off those who have lost the lease: what they send changes nothing.

-- name: LookJob :one
-- LookJob reads the row of a job, without a lock, the server's clock, and the words of the
-- session; see internal/rawsql.
-- It never runs in a caller's transaction.
SELECT tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us,
  CAST(clock_us() AS SIGNED) AS now_us, session_words() AS words
FROM lockstep_jobs WHERE name = sqlc.arg(name);

-- name: MakeJob :exec
-- MakeJob makes the row of a job, unless it is there. Nothing up to from_us is due.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us)
VALUES (sqlc.arg(name), sqlc.arg(from_us), sqlc.arg(from_us), 0, '-', 0, 0, 0, 0, '-', 0);

-- name: BeginJob :execrows
-- BeginJob begins a tick that was not done, if no later one was begun, and none under the
-- same lease or a newer one. It changes no row if the job has none yet.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET
  failures = IF(tick_us = sqlc.arg(at_us), failures, 0),
  tick_us = sqlc.arg(at_us), owner = sqlc.arg(owner), next_us = sqlc.arg(next_us), ended_us = 0,
  started_us = clock_us(),
  token = sqlc.arg(token)
WHERE name = sqlc.arg(name) AND done_us < sqlc.arg(at_us) AND tick_us <= sqlc.arg(at_us)
  AND token < sqlc.arg(token);

-- name: JobDone :execrows
-- JobDone marks the tick that was begun under this token as done.
-- It runs in callers' transactions.
UPDATE lockstep_jobs SET done_us = tick_us, failures = 0, error = '-',
  took_us = GREATEST(0, CAST(clock_us() AS SIGNED) - started_us),
  ended_us = clock_us()
WHERE name = sqlc.arg(name) AND tick_us = sqlc.arg(at_us) AND token = sqlc.arg(token) AND ended_us = 0;

-- name: JobFailed :execrows
-- JobFailed marks the tick that was begun under this token as failed.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET failures = failures + 1, error = sqlc.arg(error),
  took_us = GREATEST(0, CAST(clock_us() AS SIGNED) - started_us),
  ended_us = clock_us()
WHERE name = sqlc.arg(name) AND tick_us = sqlc.arg(at_us) AND token = sqlc.arg(token) AND ended_us = 0;

-- name: ListJobs :many
-- ListJobs reads the rows of all jobs.
-- It never runs in a caller's transaction.
SELECT name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us
FROM lockstep_jobs ORDER BY name LIMIT 9223372036854775807;
