-- The tables of the shop, as its migrations have them. Those of lockstep are
-- beside them in the database: sqlc needs to know nothing of them.

-- Money is in cents.
CREATE TABLE accounts (
  id      BIGINT       NOT NULL PRIMARY KEY,
  owner   VARCHAR(100) NOT NULL,
  balance BIGINT       NOT NULL
);

CREATE TABLE orders (
  id         BIGINT                            NOT NULL AUTO_INCREMENT PRIMARY KEY,
  account_id BIGINT                            NOT NULL,
  amount     BIGINT                            NOT NULL,
  status     ENUM ('open', 'paid', 'settled') NOT NULL,
  KEY (status)
);
