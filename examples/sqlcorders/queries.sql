-- name: AddAccount :exec
-- AddAccount opens an account.
INSERT INTO accounts (id, owner, balance) VALUES (?, ?, ?);

-- name: Balance :one
-- Balance reads the balance of an account.
SELECT balance FROM accounts WHERE id = ?;

-- name: SetBalance :exec
-- SetBalance writes the balance of an account.
UPDATE accounts SET balance = ? WHERE id = ?;

-- name: AddOrder :execlastid
-- AddOrder writes an open order and returns its identifier.
INSERT INTO orders (account_id, amount, status) VALUES (?, ?, 'open');

-- name: Order :one
-- Order reads an order.
SELECT id, account_id, amount, status FROM orders WHERE id = ?;

-- name: SetStatus :exec
-- SetStatus writes what has become of an order.
UPDATE orders SET status = ? WHERE id = ?;

-- name: PaidOrders :many
-- PaidOrders reads the orders that are paid and not settled yet.
SELECT id, account_id, amount, status FROM orders WHERE status = 'paid' ORDER BY id;
