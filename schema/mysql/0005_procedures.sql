-- The procedures of lockstep, for MySQL only. Locks work without them; with them, on a
-- guarded pool, a lock is one round trip, which begins the transaction, too. They run with
-- the privileges of their caller, and do what the statements in queries/ do one by one,
-- whose comments say why.
--
-- p_opening is NULL in an open transaction. Otherwise the procedure begins one; see
-- lockstep_begin_1. A key is the name of a row of lockstep_locks or the slot of a row of
-- lockstep_centers, and the other one is NULL. p_held is the token of the row if the caller
-- holds it already, and 1, which is no token, if not.
--
-- The reply to a lock is one row: the token of the row, the outcome, and the token that it
-- was compared with or had before, which is NULL if that isn't known. The outcomes are
-- 'granted'; 'made', which is granted, of a row that was missing; 'busy'; 'missing'; and
-- 'other', if it was compared with another token.
--
-- After a release a procedure is not changed any more: its next version has another number.
-- The lines StatementBegin and StatementEnd are goose's, and schema.Procedures reads them.
-- The mysql client needs lines with DELIMITER: lockstep sql install --mariadb=false prints
-- all statements with them.

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_begin_1;
-- +goose StatementEnd

-- lockstep_begin_1 begins a transaction. '' is START TRANSACTION; an isolation level, READ
-- ONLY, or one behind the other, are what they say. MAKE at the end makes the row of p_name
-- before, in autocommit, if it is missing. If somebody has the row, or is making it (3572,
-- 1213; 3101 on another primary of a cluster), it is left to the lock statement, which waits.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_begin_1(p_opening VARCHAR(64), p_name VARBINARY(255))
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  DECLARE v_rows INT;
  DECLARE CONTINUE HANDLER FOR 3572, 1213, 3101 BEGIN END;
  IF p_opening LIKE '%MAKE' THEN
    SELECT COUNT(*) INTO v_rows FROM lockstep_locks WHERE name = p_name FOR SHARE NOWAIT;
    IF v_rows = 0 THEN
      INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us)
      VALUES (p_name, 0, '-', 0, UNIX_TIMESTAMP() * 1000000);
    END IF;
  END IF;
  IF p_opening LIKE 'READ UNCOMMITTED%' THEN
    SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
  ELSEIF p_opening LIKE 'READ COMMITTED%' THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  ELSEIF p_opening LIKE 'REPEATABLE READ%' THEN
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
  ELSEIF p_opening LIKE 'SERIALIZABLE%' THEN
    SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
  END IF;
  IF p_opening LIKE '%READ ONLY' THEN
    START TRANSACTION READ ONLY;
  ELSE
    START TRANSACTION;
  END IF;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_raise_1;
-- +goose StatementEnd

-- lockstep_raise_1 raises the token of a row, for the procedures below. LAST_INSERT_ID() is
-- the token then.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_raise_1(p_name VARBINARY(255), p_slot INT UNSIGNED, p_owner VARBINARY(255), p_held BIGINT UNSIGNED)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  IF p_slot IS NULL THEN
    UPDATE lockstep_locks SET
      token = LAST_INSERT_ID(IF(token = p_held, token, GREATEST(token + 1,
        UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))))),
      owner = p_owner,
      conn_id = CONNECTION_ID(),
      locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))
    WHERE name = p_name;
  ELSE
    UPDATE lockstep_centers SET
      token = LAST_INSERT_ID(IF(token = p_held, token, GREATEST(token + 1,
        UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))))),
      owner = p_owner,
      conn_id = CONNECTION_ID(),
      locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))
    WHERE slot = p_slot;
  END IF;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_lock_1;
-- +goose StatementEnd

-- lockstep_lock_1 locks a row, waiting for it, and raises its token.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_lock_1(p_opening VARCHAR(64), p_name VARBINARY(255), p_slot INT UNSIGNED, p_owner VARBINARY(255), p_held BIGINT UNSIGNED)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  DECLARE v_outcome VARCHAR(8) DEFAULT 'granted';
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, p_name);
  END IF;
  IF p_slot IS NULL THEN
    INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
    VALUES (p_name, 0 * LAST_INSERT_ID(1), p_owner, CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000)
    ON DUPLICATE KEY UPDATE
      token = LAST_INSERT_ID(IF(token = p_held, token, GREATEST(token + 1,
        UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))))),
      owner = p_owner,
      conn_id = CONNECTION_ID(),
      locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)));
    IF LAST_INSERT_ID() = 1 THEN
      SET v_outcome = 'made';
      CALL lockstep_raise_1(p_name, p_slot, p_owner, p_held);
    END IF;
  ELSE
    UPDATE lockstep_centers SET
      token = LAST_INSERT_ID(IF(token = p_held, token, GREATEST(token + 1,
        UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))))),
      owner = p_owner,
      conn_id = CONNECTION_ID(),
      locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))
    WHERE slot = p_slot;
    IF ROW_COUNT() = 0 THEN
      SET v_outcome = 'missing';
    END IF;
  END IF;
  SELECT LAST_INSERT_ID(), v_outcome, NULL;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_compare_1;
-- +goose StatementEnd

-- lockstep_compare_1 locks a row, waiting for it, and raises its token if that is
-- p_version, or p_held. If p_version is NULL, the token must be the one that the
-- transaction's snapshot shows; SELECT ... INTO reads that, and SET would not. A row that is
-- missing has token 0. With p_commit it commits what it has raised, and the reply has no token
-- but 0 if it hasn't. The reply comes before the COMMIT: an error without it, or with 0, is
-- that of a transaction which wasn't committed.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_compare_1(p_opening VARCHAR(64), p_name VARBINARY(255), p_slot INT UNSIGNED, p_version BIGINT UNSIGNED, p_owner VARBINARY(255), p_held BIGINT UNSIGNED, p_commit BOOL)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  DECLARE v_token, v_old BIGINT UNSIGNED;
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, p_name);
  END IF;
  IF p_slot IS NULL THEN
    INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
    VALUES (p_name, LAST_INSERT_ID(0), '-', 0, UNIX_TIMESTAMP() * 1000000)
    ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token);
    SET v_token = LAST_INSERT_ID();
  ELSE
    SELECT token INTO v_token FROM lockstep_centers WHERE slot = p_slot FOR UPDATE;
  END IF;
  IF p_version IS NOT NULL THEN
    SET v_old = p_version;
  ELSEIF p_slot IS NULL THEN
    SELECT token INTO v_old FROM lockstep_locks WHERE name = p_name;
  ELSE
    SELECT token INTO v_old FROM lockstep_centers WHERE slot = p_slot;
  END IF;
  SET v_old = COALESCE(v_old, 0);
  IF v_token IS NULL THEN
    SELECT 0, 'missing', v_old;
  ELSEIF v_token NOT IN (v_old, p_held) THEN
    SELECT IF(p_commit, 0, v_token), 'other', v_old;
  ELSE
    CALL lockstep_raise_1(p_name, p_slot, p_owner, p_held);
    SELECT LAST_INSERT_ID(), 'granted', v_old;
    IF p_commit THEN
      COMMIT;
    END IF;
  END IF;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_try_1;
-- +goose StatementEnd

-- lockstep_try_1 locks a row if it needn't wait for it (otherwise ER_LOCK_NOWAIT, 3572), and
-- raises its token, unless p_shared locks it shared; with p_compare only if that is the one
-- that the transaction's snapshot shows.
--
-- To look for a row that is missing, by a locking read, closes its gap to others until the
-- end of the transaction. A transaction that was begun here is then begun anew. In an open
-- one the row must be known to exist, unless p_look says otherwise: 1, that the snapshot is
-- asked first, which fixes it, as the last column of the reply tells; 2, that nothing is done.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_try_1(p_opening VARCHAR(64), p_name VARBINARY(255), p_slot INT UNSIGNED, p_owner VARBINARY(255), p_held BIGINT UNSIGNED, p_shared BOOL, p_compare BOOL, p_look INT)
SQL SECURITY INVOKER
MODIFIES SQL DATA
try: BEGIN
  DECLARE v_token, v_old BIGINT UNSIGNED;
  DECLARE EXIT HANDLER FOR 3572 SELECT 0, 'busy', v_old;
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, p_name);
  ELSEIF p_look > 0 THEN
    IF p_look = 1 THEN
      SELECT token INTO v_old FROM lockstep_locks WHERE name = p_name;
      SET p_compare = TRUE;
    END IF;
    IF v_old IS NULL THEN
      SELECT 0, 'missing', IF(p_look = 1, 0, NULL);
      LEAVE try;
    END IF;
  END IF;
  IF p_shared AND p_slot IS NULL THEN
    SELECT token INTO v_token FROM lockstep_locks WHERE name = p_name FOR SHARE NOWAIT;
  ELSEIF p_shared THEN
    SELECT token INTO v_token FROM lockstep_centers WHERE slot = p_slot FOR SHARE NOWAIT;
  ELSEIF p_slot IS NULL THEN
    SELECT token INTO v_token FROM lockstep_locks WHERE name = p_name FOR UPDATE NOWAIT;
  ELSE
    SELECT token INTO v_token FROM lockstep_centers WHERE slot = p_slot FOR UPDATE NOWAIT;
  END IF;
  IF v_token IS NULL THEN
    IF p_opening IS NOT NULL THEN
      ROLLBACK;
      CALL lockstep_begin_1(p_opening, p_name);
    END IF;
    SELECT 0, 'missing', v_old;
    LEAVE try;
  END IF;
  IF p_compare THEN
    IF p_slot IS NULL THEN
      SELECT token INTO v_old FROM lockstep_locks WHERE name = p_name;
    ELSE
      SELECT token INTO v_old FROM lockstep_centers WHERE slot = p_slot;
    END IF;
    SET v_old = COALESCE(v_old, 0);
    IF v_token <> v_old THEN
      SELECT v_token, 'other', v_old;
      LEAVE try;
    END IF;
  END IF;
  IF NOT p_shared THEN
    CALL lockstep_raise_1(p_name, p_slot, p_owner, p_held);
    SET v_token = LAST_INSERT_ID();
  END IF;
  SELECT v_token, 'granted', v_old;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_share_1;
-- +goose StatementEnd

-- lockstep_share_1 locks a row shared, waiting for it. With p_make it makes a missing row
-- first. With p_compare the reply has the token that the transaction's snapshot shows. The
-- outcome is always 'granted', and a row that is missing has no reply.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_share_1(p_opening VARCHAR(64), p_name VARBINARY(255), p_slot INT UNSIGNED, p_make BOOL, p_compare BOOL)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, p_name);
  END IF;
  IF p_make THEN
    INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us)
    VALUES (p_name, 0, '-', 0, UNIX_TIMESTAMP() * 1000000);
  END IF;
  IF p_compare AND p_slot IS NULL THEN
    SELECT cur.token, 'granted', COALESCE((SELECT old.token FROM lockstep_locks old WHERE old.name = cur.name), 0)
    FROM lockstep_locks cur WHERE cur.name = p_name FOR SHARE OF cur;
  ELSEIF p_compare THEN
    SELECT cur.token, 'granted', COALESCE((SELECT old.token FROM lockstep_centers old WHERE old.slot = cur.slot), 0)
    FROM lockstep_centers cur WHERE cur.slot = p_slot FOR SHARE OF cur;
  ELSEIF p_slot IS NULL THEN
    SELECT token, 'granted', NULL FROM lockstep_locks WHERE name = p_name FOR SHARE;
  ELSE
    SELECT token, 'granted', NULL FROM lockstep_centers WHERE slot = p_slot FOR SHARE;
  END IF;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_lock_all_1;
-- +goose StatementEnd

-- lockstep_lock_all_1 locks the rows of p_names, a JSON array of names in hexadecimal
-- digits, or of p_slots, a JSON array of numbers, one by one in the order of the array, and
-- raises their tokens. The reply has the key and the token of each, and NULL. With p_compare
-- each token must be the one that the transaction's snapshot shows. Otherwise the reply is
-- the row of one that isn't, with the snapshot's token in place of NULL. Rows that it has to
-- make have no token yet, and are counted once: all are raised once more then.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_lock_all_1(p_opening VARCHAR(64), p_names LONGTEXT CHARACTER SET utf8mb4, p_slots LONGTEXT CHARACTER SET utf8mb4, p_owner VARBINARY(255), p_compare BOOL)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  DECLARE v_name VARBINARY(255);
  DECLARE v_slot INT UNSIGNED;
  DECLARE v_token, v_old, v_changed BIGINT UNSIGNED;
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, NULL);
  END IF;
  IF p_compare AND p_slots IS NULL THEN
    INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
    SELECT UNHEX(j.name), 0, '-', 0, UNIX_TIMESTAMP() * 1000000
    FROM JSON_TABLE(p_names, '$[*]' COLUMNS (name VARCHAR(510) PATH '$')) j
    ON DUPLICATE KEY UPDATE token = lockstep_locks.token;
    SELECT cur.name, cur.token, COALESCE((SELECT old.token FROM lockstep_locks old WHERE old.name = cur.name), 0) AS shown INTO v_name, v_token, v_old
    FROM JSON_TABLE(p_names, '$[*]' COLUMNS (name VARCHAR(510) PATH '$')) j
    STRAIGHT_JOIN lockstep_locks cur FORCE INDEX (PRIMARY) ON cur.name = UNHEX(j.name)
    HAVING cur.token <> shown LIMIT 1 FOR UPDATE OF cur;
  ELSEIF p_compare THEN
    INSERT INTO lockstep_centers (slot, token, owner, conn_id, locked_us)
    SELECT j.slot, 0, '-', 0, UNIX_TIMESTAMP() * 1000000
    FROM JSON_TABLE(p_slots, '$[*]' COLUMNS (slot INT UNSIGNED PATH '$')) j
    ON DUPLICATE KEY UPDATE token = lockstep_centers.token;
    SELECT cur.slot, cur.token, COALESCE((SELECT old.token FROM lockstep_centers old WHERE old.slot = cur.slot), 0) AS shown INTO v_slot, v_token, v_old
    FROM JSON_TABLE(p_slots, '$[*]' COLUMNS (slot INT UNSIGNED PATH '$')) j
    STRAIGHT_JOIN lockstep_centers cur FORCE INDEX (PRIMARY) ON cur.slot = j.slot
    HAVING cur.token <> shown LIMIT 1 FOR UPDATE OF cur;
  END IF;
  IF v_old IS NOT NULL THEN
    SELECT COALESCE(v_name, v_slot), v_token, v_old;
  ELSEIF p_slots IS NULL THEN
    REPEAT
      INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us)
      SELECT UNHEX(j.name), 0, p_owner, CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000
      FROM JSON_TABLE(p_names, '$[*]' COLUMNS (name VARCHAR(510) PATH '$')) j
      ON DUPLICATE KEY UPDATE
        token = GREATEST(lockstep_locks.token + 1,
          UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))),
        owner = p_owner,
        conn_id = CONNECTION_ID(),
        locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)));
      SET v_changed = COALESCE(v_changed, 0) + ROW_COUNT();
    UNTIL v_changed >= 2 * JSON_LENGTH(p_names) END REPEAT;
    SELECT cur.name, cur.token, NULL
    FROM JSON_TABLE(p_names, '$[*]' COLUMNS (name VARCHAR(510) PATH '$')) j
    STRAIGHT_JOIN lockstep_locks cur FORCE INDEX (PRIMARY) ON cur.name = UNHEX(j.name) FOR UPDATE OF cur;
  ELSE
    REPEAT
      INSERT INTO lockstep_centers (slot, token, owner, conn_id, locked_us)
      SELECT j.slot, 0, p_owner, CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000
      FROM JSON_TABLE(p_slots, '$[*]' COLUMNS (slot INT UNSIGNED PATH '$')) j
      ON DUPLICATE KEY UPDATE
        token = GREATEST(lockstep_centers.token + 1,
          UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))),
        owner = p_owner,
        conn_id = CONNECTION_ID(),
        locked_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)));
      SET v_changed = COALESCE(v_changed, 0) + ROW_COUNT();
    UNTIL v_changed >= 2 * JSON_LENGTH(p_slots) END REPEAT;
    SELECT cur.slot, cur.token, NULL
    FROM JSON_TABLE(p_slots, '$[*]' COLUMNS (slot INT UNSIGNED PATH '$')) j
    STRAIGHT_JOIN lockstep_centers cur FORCE INDEX (PRIMARY) ON cur.slot = j.slot FOR UPDATE OF cur;
  END IF;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_version_1;
-- +goose StatementEnd

-- lockstep_version_1 reads the token of a row as the transaction's snapshot shows it, 0 if
-- it shows no row.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_version_1(p_opening VARCHAR(64), p_name VARBINARY(255), p_slot INT UNSIGNED)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  DECLARE v_token BIGINT UNSIGNED;
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, p_name);
  END IF;
  IF p_slot IS NULL THEN
    SELECT token INTO v_token FROM lockstep_locks WHERE name = p_name;
  ELSE
    SELECT token INTO v_token FROM lockstep_centers WHERE slot = p_slot;
  END IF;
  SELECT COALESCE(v_token, 0);
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_once_1;
-- +goose StatementEnd

-- lockstep_once_1 makes the row of a key of Once. The reply is 1, or 0 if there is one, which
-- the transaction has locked shared then.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_once_1(p_opening VARCHAR(64), p_name VARBINARY(255), p_fingerprint VARBINARY(32), p_keep BIGINT)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  DECLARE v_made BOOL DEFAULT TRUE;
  DECLARE CONTINUE HANDLER FOR 1062 SET v_made = FALSE;
  IF p_opening = '' THEN
    START TRANSACTION;
  ELSEIF p_opening IS NOT NULL THEN
    CALL lockstep_begin_1(p_opening, NULL);
  END IF;
  INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us)
  VALUES (p_name, p_fingerprint, '-', UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)), p_keep);
  SELECT v_made;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_program_2;
-- +goose StatementEnd

-- lockstep_program_2 executes a statement of the program. The expression for p_set sets the
-- variables of its p_args arguments, @lockstep_1 to @lockstep_16. The text is read under the settings
-- of the session, which are handed in; at the end the server puts back those of the procedure's
-- creator.
--
-- After an error, @lockstep_rows is NULL if the statement has not begun, so that it can be sent alone;
-- 0 if it has failed; and else the number of its rows. With sql_auto_is_null it does not begin: IS NULL
-- asks for the insert id, which is reset.
--
-- Unless p_rows is NULL, it commits the transaction if the statement has changed so many rows, or
-- any number if p_rows is negative. The reply, before the COMMIT, is the insert id and the number of
-- rows.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_program_2(p_rows BIGINT, p_text LONGTEXT CHARACTER SET utf8mb4, p_args INT, p_set BIGINT, p_mode TEXT CHARACTER SET utf8mb4, p_client TEXT CHARACTER SET utf8mb4, p_collation TEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  SET @lockstep_text = p_text, @lockstep_rows = NULL;
  IF @@sql_auto_is_null THEN
    SIGNAL SQLSTATE '0A000' SET MESSAGE_TEXT = 'lockstep: sql_auto_is_null';
  END IF;
  IF p_mode <> @@sql_mode OR p_client <> @@character_set_client OR p_collation <> @@collation_connection THEN
    SET sql_mode = p_mode, character_set_client = p_client, collation_connection = p_collation;
  END IF;
  PREPARE lockstep_program FROM @lockstep_text;
  SET @lockstep_rows = LAST_INSERT_ID(0);
  CASE p_args
    WHEN 0 THEN EXECUTE lockstep_program;
    WHEN 1 THEN EXECUTE lockstep_program USING @lockstep_1;
    WHEN 2 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2;
    WHEN 3 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3;
    WHEN 4 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4;
    WHEN 5 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5;
    WHEN 6 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6;
    WHEN 7 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7;
    WHEN 8 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8;
    WHEN 9 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9;
    WHEN 10 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10;
    WHEN 11 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10, @lockstep_11;
    WHEN 12 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10, @lockstep_11, @lockstep_12;
    WHEN 13 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10, @lockstep_11, @lockstep_12, @lockstep_13;
    WHEN 14 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10, @lockstep_11, @lockstep_12, @lockstep_13, @lockstep_14;
    WHEN 15 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10, @lockstep_11, @lockstep_12, @lockstep_13, @lockstep_14, @lockstep_15;
    WHEN 16 THEN EXECUTE lockstep_program USING @lockstep_1, @lockstep_2, @lockstep_3, @lockstep_4, @lockstep_5, @lockstep_6, @lockstep_7, @lockstep_8, @lockstep_9, @lockstep_10, @lockstep_11, @lockstep_12, @lockstep_13, @lockstep_14, @lockstep_15, @lockstep_16;
  END CASE;
  SET @lockstep_rows = ROW_COUNT();
  IF p_rows IS NOT NULL THEN
    SELECT LAST_INSERT_ID(), @lockstep_rows;
    IF p_rows < 0 OR @lockstep_rows = p_rows THEN
      COMMIT;
    END IF;
  END IF;
END;
-- +goose StatementEnd

-- +goose StatementBegin
DROP PROCEDURE IF EXISTS lockstep_lock_read_2;
-- +goose StatementEnd

-- lockstep_lock_read_2 does what lockstep_lock_1 does, and then executes a read of the program,
-- whose rows are the second reply.
-- +goose StatementBegin
CREATE PROCEDURE lockstep_lock_read_2(p_opening VARCHAR(64), p_name VARBINARY(255), p_slot INT UNSIGNED, p_owner VARBINARY(255), p_held BIGINT UNSIGNED, p_text LONGTEXT CHARACTER SET utf8mb4, p_args INT, p_set BIGINT, p_mode TEXT CHARACTER SET utf8mb4, p_client TEXT CHARACTER SET utf8mb4, p_collation TEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  CALL lockstep_lock_1(p_opening, p_name, p_slot, p_owner, p_held);
  CALL lockstep_program_2(NULL, p_text, p_args, p_set, p_mode, p_client, p_collation);
END;
-- +goose StatementEnd
