-- name: GetAuthor :one
SELECT * FROM authors
WHERE author_id = ?;

-- name: GetBook :one
-- lock: Books(book_id)
SELECT * FROM books
WHERE book_id = ?;

-- name: DeleteBook :exec
-- lock: Books(book_id)
DELETE FROM books
WHERE book_id = ?;

-- name: BooksByTitleYear :many
-- lock: none, because it is shown to people only
SELECT * FROM books
WHERE title = ? AND yr = ?;

-- name: BooksByTags :many
-- lock: none, because it is shown to people only
SELECT
  book_id,
  title,
  name,
  isbn,
  tags
FROM books
LEFT JOIN authors ON books.author_id = authors.author_id
WHERE tags = ?;

-- name: CreateAuthor :execresult
INSERT INTO authors (name) VALUES (?);

-- name: CreateBook :execresult
INSERT INTO books (
    author_id,
    isbn,
    book_type,
    title,
    yr,
    available,
    tags
) VALUES (
    ?,
    ?,
    ?,
    ?,
    ?,
    ?,
    ?
);

-- name: UpdateBook :exec
-- lock: Books(book_id)
UPDATE books
SET title = ?, tags = ?
WHERE book_id = ?;

-- name: UpdateBookISBN :exec
-- lock: Books(book_id)
UPDATE books
SET title = ?, tags = ?, isbn = ?
WHERE book_id = ?;

-- name: DeleteAuthorBeforeYear :exec
-- lock: none, because nobody writes old books any more
DELETE FROM books
WHERE yr < ? AND author_id = ?;
-- WHERE yr < sqlc.arg(min_publish_year) AND author_id = ?;
