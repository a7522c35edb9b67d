CREATE TABLE accounts (
  id      BIGINT       NOT NULL PRIMARY KEY,
  owner   VARCHAR(100) NOT NULL,
  balance BIGINT       NOT NULL
);

CREATE TABLE products (
  sku   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
  stock INT NOT NULL
);

CREATE TABLE orders (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  account_id BIGINT          NOT NULL,
  parent_id  BIGINT UNSIGNED,
  status     VARCHAR(10)     NOT NULL,
  amount     BIGINT          NOT NULL
);

CREATE TABLE order_lines (
  order_id BIGINT UNSIGNED NOT NULL,
  line     INT             NOT NULL,
  sku      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (order_id, line)
);

CREATE TABLE carts (
  id         BINARY(16) NOT NULL PRIMARY KEY,
  account_id BIGINT     NOT NULL
);

CREATE TABLE audit (
  id   BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  what VARCHAR(100) NOT NULL
);
