-- One row for every key of Once whose first transaction is open or was committed. The
-- result is what the first has answered, and '-' if it has stored nothing. Kept until
-- done_us + keep_us.
CREATE TABLE IF NOT EXISTS lockstep_once (
  name        VARBINARY(255) NOT NULL,
  fingerprint VARBINARY(32)  NOT NULL,
  result      LONGBLOB       NOT NULL,
  done_us     BIGINT         NOT NULL,
  keep_us     BIGINT         NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB;
