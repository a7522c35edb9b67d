-- name: AddProduct :exec
-- AddProduct puts a product on the shelf.
INSERT INTO products (id, quantity) VALUES (?, ?);

-- name: Quantity :one
-- Quantity reads how much of a product there is.
SELECT quantity FROM products WHERE id = ?;

-- name: SetQuantity :exec
-- SetQuantity writes how much of a product there is.
UPDATE products SET quantity = ? WHERE id = ?;
