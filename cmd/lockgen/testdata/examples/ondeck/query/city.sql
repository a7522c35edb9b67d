-- name: ListCities :many
-- lock: none, because it is shown to people only
SELECT *
FROM city
ORDER BY name;

-- name: GetCity :one
-- lock: Cities(slug)
SELECT *
FROM city
WHERE slug = ?;

-- name: CreateCity :exec
-- lock: Cities(slug)
INSERT INTO city (
    name,
    slug
) VALUES (
    ?,
    ? 
); 

-- name: UpdateCityName :exec
-- lock: Cities(slug)
UPDATE city
SET name = ?
WHERE slug = ?;
