-- name: Stock :one
-- lock: Products(id)
SELECT stock FROM products WHERE id = ?;

-- name: PutStock :exec
-- lock: Products(id)
INSERT INTO products (id, stock) VALUES (?, ?) ON DUPLICATE KEY UPDATE stock = VALUES(stock);

-- name: AddOrder :exec
INSERT INTO orders (product_id) VALUES (?);

-- name: CountOrders :one
SELECT COUNT(*) FROM orders WHERE product_id = ?;
