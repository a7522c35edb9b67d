-- Jobs, one row for each: package txlock/job. tick_us is the instant that was begun last,
-- done_us the last one that was done; both are -1 before the first. token is that of the
-- lease under which it was begun, and ended_us is 0 while it runs. No error is '-'. next_us
-- is when the next tick is due, and limit_us how long one should take at most, 0 for what
-- isn't known. A job is paused if paused_us isn't 0, and a run of run_us was requested if
-- that is later than tick_us. runs has a line for each of the last runs: internal/jobrow.
-- differs is the schedule of a process that, at differs_us, ran the job by another one.
CREATE TABLE IF NOT EXISTS lockstep_jobs (
  name       VARBINARY(255)  NOT NULL,
  tick_us    BIGINT          NOT NULL,
  done_us    BIGINT          NOT NULL,
  token      BIGINT UNSIGNED NOT NULL,
  owner      VARBINARY(255)  NOT NULL,
  started_us BIGINT          NOT NULL,
  ended_us   BIGINT          NOT NULL,
  took_us    BIGINT          NOT NULL,
  failures   BIGINT          NOT NULL,
  error      VARBINARY(1024) NOT NULL,
  next_us    BIGINT          NOT NULL,
  limit_us   BIGINT          NOT NULL DEFAULT 0,
  schedule   VARBINARY(255)  NOT NULL DEFAULT X'',
  paused_us  BIGINT          NOT NULL DEFAULT 0,
  paused_by  VARBINARY(255)  NOT NULL DEFAULT X'',
  run_us     BIGINT          NOT NULL DEFAULT 0,
  runs       VARBINARY(8192) NOT NULL DEFAULT X'',
  differs    VARBINARY(255)  NOT NULL DEFAULT X'',
  differs_us BIGINT          NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
) ENGINE = InnoDB;
