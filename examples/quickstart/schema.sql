-- The tables of the shop. Those of lockstep stand beside them and need no
-- mention here.
CREATE TABLE products (
  id    BIGINT NOT NULL PRIMARY KEY,
  stock BIGINT NOT NULL
);

CREATE TABLE orders (
  id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  product_id BIGINT NOT NULL,
  buyer_id   BIGINT NOT NULL,
  KEY (product_id)
);
