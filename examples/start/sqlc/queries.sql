-- name: IsPaid :one
SELECT paid FROM orders WHERE id = ?;

-- name: PutOrder :exec
REPLACE INTO orders (id, paid) VALUES (?, ?);
