-- The statements of jobs. Who sends BeginJob holds the lease of the job. Its token fences
-- off those who have lost the lease: what they send changes nothing. No expression reads a
-- column that the same statement has set, which SIMULTANEOUS_ASSIGNMENT would change.

-- name: LookJob :one
-- LookJob reads the row of a job, without a lock, the server's clock, and the words of the
-- session; see internal/rawsql.
-- It never runs in a caller's transaction.
SELECT tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us, limit_us, schedule, paused_us, paused_by, run_us,
  CAST(clock_us() AS SIGNED) AS now_us, session_words() AS words
FROM lockstep_jobs WHERE name = sqlc.arg(name);

-- name: MakeJob :exec
-- MakeJob makes the row of a job, unless it is there. Nothing up to from_us is due.
-- It never runs in a caller's transaction.
INSERT IGNORE INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us, schedule)
VALUES (sqlc.arg(name), sqlc.arg(from_us), sqlc.arg(from_us), 0, '-', 0, 0, 0, 0, '-', sqlc.arg(next_us), sqlc.arg(schedule));

-- name: PlanJob :execrows
-- PlanJob writes when the next tick is due, by a schedule that was changed.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET next_us = sqlc.arg(next_us), schedule = sqlc.arg(schedule)
WHERE name = sqlc.arg(name) AND tick_us = sqlc.arg(tick_us);

-- name: NoteSchedule :execrows
-- NoteSchedule notes the schedule of a process whose job runs by another one.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET differs = sqlc.arg(schedule), differs_us = clock_us()
WHERE name = sqlc.arg(name) AND schedule <> sqlc.arg(schedule);

-- name: BeginJob :execrows
-- BeginJob begins a tick that was not done, if no later one was begun, none under the
-- same lease or a newer one, and the job isn't paused, unless the tick was requested. It
-- keeps the run under the token died, which has no end. It changes no row if the job has
-- none yet. Before the first tick nothing was done, whatever MakeJob has written.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET
  runs = IF(token > 0 AND token = sqlc.arg(died), LEFT(SUBSTRING_INDEX(CONCAT(CAST(sqlc.arg(run) AS BINARY), CHAR(10), runs), CHAR(10), sqlc.arg(keep)), 8192), runs),
  failures = IF(tick_us = sqlc.arg(at_us), failures, 0), done_us = IF(token = 0, -1, done_us),
  tick_us = sqlc.arg(at_us), owner = sqlc.arg(owner), next_us = sqlc.arg(next_us), ended_us = 0,
  started_us = clock_us(), limit_us = sqlc.arg(limit_us), schedule = sqlc.arg(schedule),
  token = sqlc.arg(token)
WHERE name = sqlc.arg(name) AND done_us < sqlc.arg(at_us) AND tick_us <= sqlc.arg(at_us)
  AND token < sqlc.arg(token) AND (paused_us = 0 OR run_us = sqlc.arg(at_us));

-- name: JobDone :execrows
-- JobDone marks the tick that was begun under this token as done, and keeps the run.
-- It runs in callers' transactions.
UPDATE lockstep_jobs SET
  runs = LEFT(SUBSTRING_INDEX(CONCAT(CAST(sqlc.arg(run) AS BINARY), CHAR(10), runs), CHAR(10), sqlc.arg(keep)), 8192),
  done_us = tick_us, failures = 0, error = '-',
  took_us = GREATEST(0, CAST(clock_us() AS SIGNED) - started_us),
  ended_us = clock_us()
WHERE name = sqlc.arg(name) AND tick_us = sqlc.arg(at_us) AND token = sqlc.arg(token) AND ended_us = 0;

-- name: JobFailed :execrows
-- JobFailed marks the tick that was begun under this token as failed, and keeps the run.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET
  runs = LEFT(SUBSTRING_INDEX(CONCAT(CAST(sqlc.arg(run) AS BINARY), CHAR(10), runs), CHAR(10), sqlc.arg(keep)), 8192),
  failures = failures + 1, error = sqlc.arg(error),
  took_us = GREATEST(0, CAST(clock_us() AS SIGNED) - started_us),
  ended_us = clock_us()
WHERE name = sqlc.arg(name) AND tick_us = sqlc.arg(at_us) AND token = sqlc.arg(token) AND ended_us = 0;

-- name: PauseJob :execrows
-- PauseJob pauses a job that isn't paused.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET paused_us = clock_us(), paused_by = sqlc.arg(paused_by)
WHERE name = sqlc.arg(name) AND paused_us = 0;

-- name: ResumeJob :execrows
-- ResumeJob ends the pause of a job.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET paused_us = 0, paused_by = '' WHERE name = sqlc.arg(name) AND paused_us <> 0;

-- name: RequestJob :execrows
-- RequestJob requests a run of a job for now, unless one is requested already.
-- It never runs in a caller's transaction.
UPDATE lockstep_jobs SET run_us = GREATEST(CAST(clock_us() AS SIGNED), tick_us + 1)
WHERE name = sqlc.arg(name) AND run_us <= GREATEST(tick_us, 0);

-- name: JobRuns :one
-- JobRuns reads the last runs of a job, and the server's clock.
-- It never runs in a caller's transaction.
SELECT runs, CAST(clock_us() AS SIGNED) AS now_us FROM lockstep_jobs WHERE name = sqlc.arg(name);

-- name: PurgeJob :execrows
-- PurgeJob deletes the row of a job that was not used since it was read.
-- It never runs in a caller's transaction.
DELETE FROM lockstep_jobs
WHERE name = sqlc.arg(name) AND token = sqlc.arg(token) AND tick_us = sqlc.arg(tick_us) AND next_us = sqlc.arg(next_us)
  AND run_us = sqlc.arg(run_us) AND paused_us = 0;

-- name: ListJobs :many
-- ListJobs reads the rows of all jobs, the server's clock, and whether the lease of a job is
-- held. It reads the last runs only where the tick that was begun last was not done.
-- It never runs in a caller's transaction.
SELECT name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us, limit_us, schedule, paused_us, paused_by, run_us,
  differs, differs_us, LEFT(runs, IF(tick_us > done_us, 8192, 0)) AS runs,
  EXISTS (SELECT 1 FROM lockstep_leases WHERE lockstep_leases.name = lockstep_jobs.name AND slot = 0 AND CHAR_LENGTH(holders) > 0 AND expires_us > clock_us()) AS held,
  CAST(clock_us() AS SIGNED) AS now_us
FROM lockstep_jobs ORDER BY name LIMIT 9223372036854775807;
