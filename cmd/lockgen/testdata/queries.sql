-- name: AddAccount :exec
-- lock: Accounts(id)
INSERT INTO accounts (id, owner, balance) VALUES (?, ?, ?);

-- name: GetAccount :one
-- lock: Accounts(id)
-- GetAccount reads an account under its lock.
SELECT * FROM accounts WHERE id = ?;

-- name: Glance :one
-- lock: none, because it is shown to people only
SELECT balance FROM accounts WHERE id = ?;

-- name: ListAccounts :many
/* rlock: Accounts(ids) */
SELECT id, owner FROM accounts WHERE id IN (sqlc.slice('ids'));

-- name: SetBalance :exec
# lock: Accounts(id)
UPDATE accounts SET balance = ? WHERE id = ?;

-- name: Transfer :execrows
-- lock: Accounts(from_id), Accounts(to_id)
UPDATE accounts AS f, accounts AS t
SET f.balance = f.balance - sqlc.arg(amount), t.balance = t.balance + sqlc.arg(amount)
WHERE f.id = sqlc.arg(from_id) AND t.id = sqlc.arg(to_id);

-- name: AddOrder :execlastid
INSERT INTO orders (account_id, status, amount) VALUES (?, 'open', ?);

-- name: OrderOf :one
-- rlock: Orders(id), Accounts(account_id)
SELECT sqlc.embed(orders), sqlc.embed(accounts) FROM orders JOIN accounts ON accounts.id = orders.account_id
WHERE orders.id = ? AND accounts.id = sqlc.arg(account_id);

-- name: PayOrder :exec
-- lock: Orders(order_id), Accounts(account_id)
UPDATE orders o JOIN accounts a ON a.id = o.account_id SET o.status = 'paid', a.balance = a.balance - o.amount
WHERE o.id = sqlc.arg(order_id) AND o.account_id = sqlc.arg(account_id);

-- name: CopyOrders :execresult
-- lock: none, because copies get new keys and the originals stay as they are
INSERT INTO orders (account_id, status, amount) SELECT account_id, 'open', amount FROM orders AS src WHERE src.account_id = ?;

-- name: Reparent :execrows
-- lock: Orders(id)
UPDATE orders SET parent_id = sqlc.narg('parent_id') WHERE id = sqlc.arg('id');

-- name: UpsertProduct :exec
-- lock: Products(sku)
INSERT INTO products (sku, stock) VALUES (?, ?) ON DUPLICATE KEY UPDATE stock = stock + VALUES(stock);

-- name: DropProducts :execrows
-- lock: Products(skus)
DELETE FROM products WHERE sku IN (sqlc.slice('skus')) AND stock = ?;

-- name: ReplaceLine :exec
-- lock: Lines(order_id, line)
REPLACE INTO order_lines (order_id, line, sku) VALUES (?, ?, ?);

-- name: Line :one
-- lock: Lines(order_id, line)
-- rlock: Products(sku)
SELECT order_lines.sku, products.stock FROM order_lines JOIN products ON products.sku = order_lines.sku
WHERE order_id = ? AND line = ? AND products.sku = sqlc.arg(sku);

-- name: TouchCart :exec
-- lock: Carts(id)
UPDATE carts SET account_id = ? WHERE id = ?;

-- name: DropCarts :exec
-- lock: Carts(ids), Carts(id)
DELETE FROM carts WHERE id IN (sqlc.slice('ids')) OR id = sqlc.arg(id);

-- name: CartsOf :many
-- lock: none, because it is shown to people only
WITH mine AS (SELECT c.id FROM carts AS c WHERE c.account_id = ?)
SELECT carts.* FROM carts JOIN mine ON mine.id = carts.id;

-- name: AddAudit :exec
INSERT INTO audit (what) VALUES (?);

-- name: Audited :many
SELECT what FROM audit ORDER BY id;
