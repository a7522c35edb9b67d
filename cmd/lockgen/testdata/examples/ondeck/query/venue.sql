-- name: ListVenues :many
-- lock: none, because it is shown to people only
SELECT *
FROM venue
WHERE city = ?
ORDER BY name;

-- name: DeleteVenue :exec
-- lock: Venues(slug)
DELETE FROM venue
WHERE slug = ? AND slug = ?;

-- name: GetVenue :one
-- rlock: Venues(slug), Cities(city)
SELECT *
FROM venue
WHERE slug = ? AND city = ?;

-- name: CreateVenue :execresult
-- lock: Venues(slug)
INSERT INTO venue (
    slug,
    name,
    city,
    created_at,
    spotify_playlist,
    status,
    statuses,
    tags
) VALUES (
    ?,
    ?,
    ?,
    NOW(),
    ?,
    ?,
    ?,
    ?
);

-- name: UpdateVenueName :exec
-- lock: Venues(slug)
UPDATE venue
SET name = ?
WHERE slug = ?;

-- name: VenueCountByCity :many
-- lock: none, because it is shown to people only
SELECT
    city,
    count(*)
FROM venue
GROUP BY 1
ORDER BY 1;
