-- Two views for people at any SQL client, for MariaDB; optional, lockstep doesn't use them.
-- They show what the user who asks may see: that needs PROCESS. Times are seconds.
-- A row that is locked, but whose page is not in the server's memory, has no name. The names of tables have the
-- quotes of the session's sql_mode.

-- lockstep_held: the locks that open transactions hold, and the leases. MariaDB lists a
-- lock only while somebody waits for it: then contended is 1. The others, and held_s and the
-- owner of all, are read from their rows, which need SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED first;
-- if the session has committed a transaction in the second in which its present one
-- began, the locks of both are shown.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW lockstep_held AS
SELECT h.kind, h.name, 'exclusive' AS mode, h.session, CONCAT(p.user, '@', p.host) AS user, h.owner, CAST(NULL AS CHAR(255)) AS label,
  CAST(UNIX_TIMESTAMP() - h.locked_us DIV 1000000 AS SIGNED) AS held_s,
  TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS transaction_s,
  CAST(NULL AS SIGNED) AS left_s, x.trx_query AS statement, c.id IS NOT NULL AS contended
FROM (
  SELECT 'lock' AS kind, name AS id, CONVERT(name USING utf8mb4) AS name, conn_id AS session, CONVERT(REPLACE(owner, X'00', LEFT('-', 0)) USING utf8mb4) AS owner, locked_us FROM lockstep_locks
  UNION ALL
  SELECT 'slot', CAST(slot AS BINARY), CONCAT('slot ', slot), conn_id, CONVERT(REPLACE(owner, X'00', LEFT('-', 0)) USING utf8mb4), locked_us FROM lockstep_centers WHERE conn_id > 0
) h
JOIN information_schema.INNODB_TRX x ON x.trx_mysql_thread_id = h.session
JOIN information_schema.PROCESSLIST p ON p.id = h.session
LEFT JOIN (
  SELECT DISTINCT 'lock' AS kind, UNHEX(SUBSTRING(lock_data, 3)) AS id FROM information_schema.INNODB_LOCKS WHERE REPLACE(lock_table, '"', '`') = CONCAT('`', DATABASE(), '`.`lockstep_locks`')
  UNION ALL
  SELECT DISTINCT 'slot', CAST(lock_data AS BINARY) FROM information_schema.INNODB_LOCKS WHERE REPLACE(lock_table, '"', '`') = CONCAT('`', DATABASE(), '`.`lockstep_centers`')
) c ON c.kind = h.kind AND c.id = h.id
WHERE h.locked_us >= (UNIX_TIMESTAMP() - TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'))) * 1000000
UNION ALL
SELECT
  CASE WHEN d.lock_table LIKE '%`lockstep_locks`' THEN 'lock' WHEN d.lock_table LIKE '%`lockstep_centers`' THEN 'slot' WHEN d.lock_table LIKE '%`lockstep_once`' THEN 'once' WHEN d.lock_table LIKE '%`lockstep_jobs`' THEN 'job' ELSE 'guarded lease' END,
  IF(d.lock_table LIKE '%`lockstep_centers`', CONVERT(CONCAT('slot ', d.lock_data) USING utf8mb4), CONVERT(UNHEX(SUBSTRING_INDEX(SUBSTRING(d.lock_data, 3), ',', 1)) USING utf8mb4)) COLLATE utf8mb4_bin,
  IF(d.lock_mode LIKE 'S%', 'shared', 'exclusive'), x.trx_mysql_thread_id, CONCAT(p.user, '@', p.host), NULL, NULL,
  NULL, TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')), NULL, x.trx_query, 1
FROM (SELECT lock_id, lock_trx_id, lock_mode, lock_data, REPLACE(lock_table, '"', '`') AS lock_table FROM information_schema.INNODB_LOCKS) d
JOIN information_schema.INNODB_TRX x ON x.trx_id = d.lock_trx_id AND x.trx_id > 0 AND (x.trx_requested_lock_id IS NULL OR x.trx_requested_lock_id <> d.lock_id)
JOIN information_schema.PROCESSLIST p ON p.id = x.trx_mysql_thread_id
WHERE LOCATE(CONCAT('`', DATABASE(), '`.`lockstep_'), d.lock_table) = 1 AND COALESCE(d.lock_data, '') NOT LIKE '%, -1'
  AND NOT (d.lock_table LIKE '%`lockstep_locks`' AND EXISTS (SELECT 1 FROM lockstep_locks k WHERE k.name = UNHEX(SUBSTRING(d.lock_data, 3)) AND k.conn_id = x.trx_mysql_thread_id
    AND k.locked_us >= (UNIX_TIMESTAMP() - TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'))) * 1000000))
  AND NOT (d.lock_table LIKE '%`lockstep_centers`' AND EXISTS (SELECT 1 FROM lockstep_centers k WHERE k.slot = d.lock_data AND k.conn_id = x.trx_mysql_thread_id
    AND k.locked_us >= (UNIX_TIMESTAMP() - TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'))) * 1000000))
UNION ALL
SELECT
  CASE WHEN l.slot = 0 THEN 'lease' WHEN l.slot <= 1000 THEN 'permit' ELSE 'reader' END,
  CONVERT(l.name USING utf8mb4) COLLATE utf8mb4_bin, IF(l.slot = 0, 'exclusive', 'shared'), NULL, NULL,
  CONVERT(l.owner USING utf8mb4), CONVERT(l.label USING utf8mb4),
  CAST(UNIX_TIMESTAMP() - l.token DIV 1000000 AS SIGNED), NULL, CAST(l.expires_us DIV 1000000 - UNIX_TIMESTAMP() AS SIGNED), NULL, 0
FROM lockstep_leases l
WHERE l.slot >= 0 AND CHAR_LENGTH(l.holders) > 0 AND l.expires_us > UNIX_TIMESTAMP() * 1000000
  AND NOT (l.slot = 0 AND l.owner NOT LIKE 'released: %' AND EXISTS (SELECT 1 FROM lockstep_leases r -- a writer that waits for readers
    WHERE r.name = l.name AND r.slot > 1000 AND CHAR_LENGTH(r.holders) > 0 AND r.expires_us > UNIX_TIMESTAMP() * 1000000 AND r.owner <> l.owner));

-- lockstep_waits: who waits for a row of lockstep, and who is in the way. Those who have
-- written nothing have no number by which MariaDB could tell them apart: a shared lock's
-- holder may be missing in blocked_by.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW lockstep_waits AS
SELECT
  CASE WHEN d.lock_table LIKE '%`lockstep_locks`' THEN 'lock' WHEN d.lock_table LIKE '%`lockstep_centers`' THEN 'slot' WHEN d.lock_table LIKE '%`lockstep_once`' THEN 'once' WHEN d.lock_table LIKE '%`lockstep_jobs`' THEN 'job' ELSE IF(d.lock_data LIKE '%, -1', 'queue', 'lease') END AS kind,
  IF(d.lock_table LIKE '%`lockstep_centers`', CONVERT(CONCAT('slot ', d.lock_data) USING utf8mb4), CONVERT(UNHEX(SUBSTRING_INDEX(SUBSTRING(d.lock_data, 3), ',', 1)) USING utf8mb4)) COLLATE utf8mb4_bin AS name,
  IF(d.lock_mode LIKE 'S%', 'shared', 'exclusive') AS mode,
  x.trx_mysql_thread_id AS session,
  CONCAT(p.user, '@', p.host) AS user,
  ROUND(p.time_ms / 1000, 1) AS waits_s,
  x.trx_query AS statement,
  b.trx_mysql_thread_id AS blocked_by,
  CONCAT(bp.user, '@', bp.host) AS blocked_by_user,
  TIMESTAMPDIFF(SECOND, b.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS blocked_by_transaction_s,
  b.trx_query AS blocked_by_statement
FROM information_schema.INNODB_TRX x
JOIN (SELECT lock_id, lock_mode, lock_data, lock_index, lock_space, lock_page, lock_rec, REPLACE(lock_table, '"', '`') AS lock_table FROM information_schema.INNODB_LOCKS) d ON d.lock_id = x.trx_requested_lock_id
JOIN information_schema.PROCESSLIST p ON p.id = x.trx_mysql_thread_id
LEFT JOIN information_schema.INNODB_LOCKS g ON g.lock_index = d.lock_index AND g.lock_space = d.lock_space AND g.lock_page = d.lock_page AND g.lock_rec = d.lock_rec
  AND g.lock_id <> d.lock_id AND g.lock_id NOT IN (SELECT w.trx_requested_lock_id FROM information_schema.INNODB_TRX w WHERE w.trx_requested_lock_id IS NOT NULL)
LEFT JOIN information_schema.INNODB_TRX b ON b.trx_id = g.lock_trx_id AND b.trx_id > 0
LEFT JOIN information_schema.PROCESSLIST bp ON bp.id = b.trx_mysql_thread_id
WHERE LOCATE(CONCAT('`', DATABASE(), '`.`lockstep_'), d.lock_table) = 1;
