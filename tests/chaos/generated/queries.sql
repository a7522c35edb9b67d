-- name: Value :one
-- lock: Records(id)
SELECT value FROM numbers WHERE id = ?;

-- name: SetValue :exec
-- lock: Records(id)
UPDATE numbers SET value = ? WHERE id = ?;
