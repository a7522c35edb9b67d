-- name: Get :one
SELECT n FROM suite_rows WHERE id = ?;

-- name: Set :exec
UPDATE suite_rows SET n = ? WHERE id = ?;

-- name: Touch :execrows
UPDATE suite_rows SET n = n + 1 WHERE id = ?;

-- name: GetForUpdate :one
SELECT n FROM suite_rows WHERE id = ? FOR UPDATE;

-- name: RangeForUpdate :many
SELECT id, n FROM suite_rows WHERE id BETWEEN ? AND ? FOR UPDATE;

-- name: FirstForUpdate :one
SELECT n FROM suite_rows WHERE id >= ? ORDER BY id LIMIT 1 FOR UPDATE;

-- name: SumForUpdate :one
SELECT CAST(SUM(n) AS SIGNED) FROM suite_rows WHERE id >= ? FOR UPDATE;

-- name: KindForUpdate :many
SELECT id FROM suite_rows WHERE kind = ? FOR UPDATE;

-- name: Fill :exec
INSERT INTO suite_rows (id, kind, n) VALUES (?, ?, ?);
