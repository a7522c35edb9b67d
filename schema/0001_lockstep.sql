-- The tables of lockstep. Names are compared byte by byte (VARBINARY). Times are
-- microseconds since 1970 by the server's clock. What a lock statement writes has one size:
-- where a row changes its size, InnoDB makes a new lock for each session that waits for it,
-- and with hundreds of them each hand-over takes seconds.

-- One row for every named key that was ever locked. The row of a granted key keeps its
-- token, so that the token of a key never goes back.
CREATE TABLE IF NOT EXISTS lockstep_locks (
  name      VARBINARY(255)  NOT NULL,
  token     BIGINT UNSIGNED NOT NULL,
  owner     BINARY(80)      NOT NULL,
  conn_id   BIGINT UNSIGNED NOT NULL,
  locked_us BIGINT          NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB;

-- The center locks: 65,536 rows that hashed keys share.
CREATE TABLE IF NOT EXISTS lockstep_centers (
  slot      INT UNSIGNED    NOT NULL,
  token     BIGINT UNSIGNED NOT NULL,
  owner     BINARY(80)      NOT NULL,
  conn_id   BIGINT UNSIGNED NOT NULL,
  locked_us BIGINT          NOT NULL,
  PRIMARY KEY (slot)
) ENGINE = InnoDB;

-- Leases. Slot -1 is the queue row, slot 0 the lease, or the entry row of a shared one, and
-- slots above 0 are readers and permits. conn_id is the session of the transaction that
-- has last guarded or acquired the lease. label is that of the owner (WithLabel). Another
-- process has asked the owner at asked_us to give the lease up, if that isn't 0, for the
-- release_reason. version rises with each change of a row: what was decided by what a row said
-- is written only if that says the same still.
CREATE TABLE IF NOT EXISTS lockstep_leases (
  name           VARBINARY(255)  NOT NULL,
  slot           BIGINT          NOT NULL,
  owner          VARBINARY(255)  NOT NULL,
  holders        VARCHAR(8192)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  token          BIGINT UNSIGNED NOT NULL,
  ttl_us         BIGINT          NOT NULL,
  expires_us     BIGINT          NOT NULL,
  used_for       BIGINT          NOT NULL,
  guards         BIGINT UNSIGNED NOT NULL,
  conn_id        BIGINT UNSIGNED NOT NULL DEFAULT 0,
  label          VARBINARY(255)  NOT NULL DEFAULT X'',
  asked_us       BIGINT          NOT NULL DEFAULT 0,
  release_reason VARBINARY(255)  NOT NULL DEFAULT X'',
  version        BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (name, slot)
) ENGINE = InnoDB;
