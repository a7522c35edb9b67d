-- name: GetAuthor :one
-- lock: Authors(id)
SELECT * FROM authors
WHERE id = ? LIMIT 1;

-- name: ListAuthors :many
-- lock: none, because it is shown to people only
SELECT * FROM authors
ORDER BY name;

-- name: CreateAuthor :execresult
INSERT INTO authors (
  name, bio
) VALUES (
  ?, ? 
);

-- name: DeleteAuthor :exec
-- lock: Authors(id)
DELETE FROM authors
WHERE id = ?;
