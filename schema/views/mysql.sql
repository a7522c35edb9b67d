-- Two views for people at any SQL client, for MySQL; optional, lockstep doesn't use them.
-- They show what the user who asks may see: that needs SELECT on performance_schema.* and
-- PROCESS. Times are seconds.
-- Where the server runs with performance_schema=OFF, they show no locks, whoever holds some.
-- MySQL refuses them with error 3854 while a session executes a statement with an emoji, or other
-- bytes that utf8mb3 lacks.
-- A row that is locked, but whose page is not in the server's memory, has no name.

-- lockstep_held: the locks that open transactions hold, and the leases. For how long a lock is
-- held isn't known, transaction_s at most.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW lockstep_held AS
SELECT
  CASE d.object_name WHEN 'lockstep_locks' THEN 'lock' WHEN 'lockstep_centers' THEN 'slot' WHEN 'lockstep_once' THEN 'once' WHEN 'lockstep_jobs' THEN 'job' ELSE 'guarded lease' END AS kind,
  IF(d.object_name = 'lockstep_centers', CONVERT(CONCAT('slot ', d.lock_data) USING utf8mb4), CONVERT(UNHEX(SUBSTRING_INDEX(SUBSTRING(d.lock_data, 3), ',', 1)) USING utf8mb4)) COLLATE utf8mb4_bin AS name,
  IF(d.lock_mode LIKE 'S%', 'shared', 'exclusive') AS mode,
  t.processlist_id AS session,
  CONCAT(t.processlist_user, '@', t.processlist_host) AS user,
  CONVERT(NULL USING utf8mb4) COLLATE utf8mb4_bin AS owner,
  CONVERT(NULL USING utf8mb4) COLLATE utf8mb4_bin AS label,
  CAST(NULL AS SIGNED) AS held_s,
  TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS transaction_s,
  CAST(NULL AS SIGNED) AS left_s,
  s.sql_text AS statement
FROM performance_schema.data_locks d
JOIN information_schema.INNODB_TRX x ON x.trx_id = d.engine_transaction_id
JOIN performance_schema.threads t ON t.processlist_id = x.trx_mysql_thread_id
LEFT JOIN performance_schema.events_statements_current s ON s.thread_id = t.thread_id AND s.nesting_event_level = 0
WHERE d.object_schema = DATABASE() AND d.object_name LIKE 'lockstep|_%' ESCAPE '|' AND d.lock_type = 'RECORD' AND d.lock_status = 'GRANTED'
  AND d.lock_mode NOT LIKE '%,GAP%' AND d.lock_mode NOT LIKE '%INSERT_INTENTION%' AND COALESCE(d.lock_data, '') <> 'supremum pseudo-record' AND COALESCE(d.lock_data, '') NOT LIKE '%, -1'
UNION ALL
SELECT
  CASE WHEN l.slot = 0 THEN 'lease' WHEN l.slot <= 1000 THEN 'permit' ELSE 'reader' END,
  CONVERT(l.name USING utf8mb4) COLLATE utf8mb4_bin, IF(l.slot = 0, 'exclusive', 'shared'), NULL, NULL,
  CONVERT(l.owner USING utf8mb4) COLLATE utf8mb4_bin, CONVERT(l.label USING utf8mb4) COLLATE utf8mb4_bin,
  CAST(UNIX_TIMESTAMP() - l.token DIV 1000000 AS SIGNED), NULL, CAST(l.expires_us DIV 1000000 - UNIX_TIMESTAMP() AS SIGNED), NULL
FROM lockstep_leases l
WHERE l.slot >= 0 AND CHAR_LENGTH(l.holders) > 0 AND l.expires_us > UNIX_TIMESTAMP() * 1000000
  AND NOT (l.slot = 0 AND l.owner NOT LIKE 'released: %' AND EXISTS (SELECT 1 FROM lockstep_leases r -- a writer that waits for readers
    WHERE r.name = l.name AND r.slot > 1000 AND CHAR_LENGTH(r.holders) > 0 AND r.expires_us > UNIX_TIMESTAMP() * 1000000 AND r.owner <> l.owner));

-- lockstep_waits: who waits for a row of lockstep, and who is in the way.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW lockstep_waits AS
SELECT
  CASE d.object_name WHEN 'lockstep_locks' THEN 'lock' WHEN 'lockstep_centers' THEN 'slot' WHEN 'lockstep_once' THEN 'once' WHEN 'lockstep_jobs' THEN 'job' ELSE IF(d.lock_data LIKE '%, -1', 'queue', 'lease') END AS kind,
  IF(d.object_name = 'lockstep_centers', CONVERT(CONCAT('slot ', d.lock_data) USING utf8mb4), CONVERT(UNHEX(SUBSTRING_INDEX(SUBSTRING(d.lock_data, 3), ',', 1)) USING utf8mb4)) COLLATE utf8mb4_bin AS name,
  IF(d.lock_mode LIKE 'S%', 'shared', 'exclusive') AS mode,
  t.processlist_id AS session,
  CONCAT(t.processlist_user, '@', t.processlist_host) AS user,
  ROUND(s.timer_wait / 1000000000000, 1) AS waits_s,
  s.sql_text AS statement,
  b.processlist_id AS blocked_by,
  CONCAT(b.processlist_user, '@', b.processlist_host) AS blocked_by_user,
  TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS blocked_by_transaction_s,
  bs.sql_text AS blocked_by_statement
FROM performance_schema.data_locks d
JOIN performance_schema.threads t ON t.thread_id = d.thread_id
LEFT JOIN performance_schema.events_statements_current s ON s.thread_id = d.thread_id AND s.nesting_event_level = 0
JOIN performance_schema.data_lock_waits w ON w.requesting_engine_lock_id = d.engine_lock_id
JOIN performance_schema.data_locks g ON g.engine_lock_id = w.blocking_engine_lock_id AND g.lock_status = 'GRANTED'
JOIN information_schema.INNODB_TRX x ON x.trx_id = g.engine_transaction_id
JOIN performance_schema.threads b ON b.processlist_id = x.trx_mysql_thread_id
LEFT JOIN performance_schema.events_statements_current bs ON bs.thread_id = b.thread_id AND bs.nesting_event_level = 0
WHERE d.object_schema = DATABASE() AND d.object_name LIKE 'lockstep|_%' ESCAPE '|' AND d.lock_status = 'WAITING';
