-- name: Stock :one
-- Stock reads how many items of a product are left.
SELECT stock FROM products WHERE id = ?;

-- name: SetStock :exec
-- SetStock writes how many items of a product are left.
UPDATE products SET stock = ? WHERE id = ?;

-- name: AddOrder :exec
-- AddOrder writes the order of one item.
INSERT INTO orders (product_id, buyer_id) VALUES (?, ?);

-- name: AddProduct :exec
-- AddProduct puts a product on sale.
INSERT INTO products (id, stock) VALUES (?, ?);

-- name: Restock :exec
-- Restock fills up all products.
UPDATE products SET stock = ?;

-- name: ForgetOrders :exec
-- ForgetOrders removes all orders.
DELETE FROM orders;

-- name: Tally :many
-- Tally reads what is left of each product and how often it was ordered.
SELECT products.id, products.stock, COUNT(orders.id) AS ordered
FROM products
LEFT JOIN orders ON orders.product_id = products.id
GROUP BY products.id, products.stock
ORDER BY products.id;
