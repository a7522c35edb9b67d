-- Jobs, one row for each: package txlock/job. tick_us is the instant that was begun last,
-- done_us the last one that was done; both are -1 before the first. token is that of the
-- lease under which it was begun, and ended_us is 0 while it runs. No error is '-'.
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
  PRIMARY KEY (name)
) ENGINE = InnoDB;
