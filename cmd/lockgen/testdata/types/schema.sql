-- A column of every type that sqlc reads.
CREATE TABLE everything (
  id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  a_bool       BOOLEAN NOT NULL,
  a_bit        BIT(1) NOT NULL,
  a_tiny       TINYINT,
  a_small      SMALLINT UNSIGNED,
  a_medium     MEDIUMINT,
  an_int       INT UNSIGNED,
  a_big        BIGINT,
  a_decimal    DECIMAL(10, 2) NOT NULL,
  a_numeric    NUMERIC(10, 2),
  a_float      FLOAT NOT NULL,
  a_double     DOUBLE,
  a_date       DATE NOT NULL,
  a_datetime   DATETIME(6),
  a_timestamp  TIMESTAMP NULL,
  a_time       TIME,
  a_year       YEAR,
  a_char       CHAR(3) NOT NULL,
  a_varchar    VARCHAR(30),
  a_nvarchar   NVARCHAR(30),
  a_binary     BINARY(3) NOT NULL,
  a_varbinary  VARBINARY(30),
  a_tinytext   TINYTEXT,
  a_text       TEXT NOT NULL,
  a_mediumtext MEDIUMTEXT,
  a_longtext   LONGTEXT,
  a_tinyblob   TINYBLOB,
  a_blob       BLOB,
  a_mediumblob MEDIUMBLOB,
  a_longblob   LONGBLOB,
  an_enum      ENUM ('small', 'large') NOT NULL,
  a_set        SET ('red', 'green'),
  a_json       JSON NOT NULL
);

CREATE TABLE tinyints (k TINYINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE utinyints (k TINYINT UNSIGNED NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE smallints (k SMALLINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE usmallints (k SMALLINT UNSIGNED NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE mediumints (k MEDIUMINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE ints (k INT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE uints (k INT UNSIGNED NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE bigints (k BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE ubigints (k BIGINT UNSIGNED NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE chars (k CHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE varchars (k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE enums (k ENUM ('a', 'b') CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE varbinaries (k VARBINARY(20) NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE uuids (k CHAR(36) CHARACTER SET ascii NOT NULL PRIMARY KEY, n BIGINT NOT NULL);

CREATE TABLE buuids (k BINARY(16) NOT NULL PRIMARY KEY, n BIGINT NOT NULL);
