CREATE TABLE suite_rows (
  id BIGINT NOT NULL,
  kind BIGINT NOT NULL,
  n BIGINT NOT NULL,
  PRIMARY KEY (id),
  KEY by_kind (kind)
);
