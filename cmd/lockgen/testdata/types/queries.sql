-- name: AddEverything :execlastid
INSERT INTO everything (a_bool, a_bit, a_tiny, a_small, a_medium, an_int, a_big, a_decimal, a_numeric, a_float, a_double,
  a_date, a_datetime, a_timestamp, a_time, a_year, a_char, a_varchar, a_nvarchar, a_binary, a_varbinary,
  a_tinytext, a_text, a_mediumtext, a_longtext, a_tinyblob, a_blob, a_mediumblob, a_longblob, an_enum, a_set, a_json)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: GetEverything :one
-- lock: EverythingKeys(id)
SELECT * FROM everything WHERE id = ?;

-- name: SetEverything :execrows
-- lock: EverythingKeys(id)
UPDATE everything SET a_bool = ?, a_bit = ?, a_decimal = ?, a_float = ?, a_date = ?, a_char = ?, a_binary = ?, a_text = ?,
  an_enum = ?, a_json = ?, a_varchar = sqlc.narg('a_varchar') WHERE id = ?;

-- name: DropEverything :execresult
-- lock: EverythingKeys(id)
DELETE FROM everything WHERE id = ?;

-- name: AddTinyints :exec
-- lock: TinyintsKeys(k)
INSERT INTO tinyints (k, n) VALUES (?, ?);

-- name: GetTinyints :one
-- lock: TinyintsKeys(k)
SELECT n FROM tinyints WHERE k = ?;

-- name: SetTinyints :exec
-- lock: TinyintsKeys(k)
UPDATE tinyints SET n = ? WHERE k = ?;

-- name: AddUtinyints :exec
-- lock: UtinyintsKeys(k)
INSERT INTO utinyints (k, n) VALUES (?, ?);

-- name: GetUtinyints :one
-- lock: UtinyintsKeys(k)
SELECT n FROM utinyints WHERE k = ?;

-- name: SetUtinyints :exec
-- lock: UtinyintsKeys(k)
UPDATE utinyints SET n = ? WHERE k = ?;

-- name: AddSmallints :exec
-- lock: SmallintsKeys(k)
INSERT INTO smallints (k, n) VALUES (?, ?);

-- name: GetSmallints :one
-- lock: SmallintsKeys(k)
SELECT n FROM smallints WHERE k = ?;

-- name: SetSmallints :exec
-- lock: SmallintsKeys(k)
UPDATE smallints SET n = ? WHERE k = ?;

-- name: AddUsmallints :exec
-- lock: UsmallintsKeys(k)
INSERT INTO usmallints (k, n) VALUES (?, ?);

-- name: GetUsmallints :one
-- lock: UsmallintsKeys(k)
SELECT n FROM usmallints WHERE k = ?;

-- name: SetUsmallints :exec
-- lock: UsmallintsKeys(k)
UPDATE usmallints SET n = ? WHERE k = ?;

-- name: AddMediumints :exec
-- lock: MediumintsKeys(k)
INSERT INTO mediumints (k, n) VALUES (?, ?);

-- name: GetMediumints :one
-- lock: MediumintsKeys(k)
SELECT n FROM mediumints WHERE k = ?;

-- name: SetMediumints :exec
-- lock: MediumintsKeys(k)
UPDATE mediumints SET n = ? WHERE k = ?;

-- name: AddInts :exec
-- lock: IntsKeys(k)
INSERT INTO ints (k, n) VALUES (?, ?);

-- name: GetInts :one
-- lock: IntsKeys(k)
SELECT n FROM ints WHERE k = ?;

-- name: SetInts :exec
-- lock: IntsKeys(k)
UPDATE ints SET n = ? WHERE k = ?;

-- name: AddUints :exec
-- lock: UintsKeys(k)
INSERT INTO uints (k, n) VALUES (?, ?);

-- name: GetUints :one
-- lock: UintsKeys(k)
SELECT n FROM uints WHERE k = ?;

-- name: SetUints :exec
-- lock: UintsKeys(k)
UPDATE uints SET n = ? WHERE k = ?;

-- name: AddBigints :exec
-- lock: BigintsKeys(k)
INSERT INTO bigints (k, n) VALUES (?, ?);

-- name: GetBigints :one
-- lock: BigintsKeys(k)
SELECT n FROM bigints WHERE k = ?;

-- name: SetBigints :exec
-- lock: BigintsKeys(k)
UPDATE bigints SET n = ? WHERE k = ?;

-- name: AddUbigints :exec
-- lock: UbigintsKeys(k)
INSERT INTO ubigints (k, n) VALUES (?, ?);

-- name: GetUbigints :one
-- lock: UbigintsKeys(k)
SELECT n FROM ubigints WHERE k = ?;

-- name: SetUbigints :exec
-- lock: UbigintsKeys(k)
UPDATE ubigints SET n = ? WHERE k = ?;

-- name: AddChars :exec
-- lock: CharsKeys(k)
INSERT INTO chars (k, n) VALUES (?, ?);

-- name: GetChars :one
-- lock: CharsKeys(k)
SELECT n FROM chars WHERE k = ?;

-- name: SetChars :exec
-- lock: CharsKeys(k)
UPDATE chars SET n = ? WHERE k = ?;

-- name: AddVarchars :exec
-- lock: VarcharsKeys(k)
INSERT INTO varchars (k, n) VALUES (?, ?);

-- name: GetVarchars :one
-- lock: VarcharsKeys(k)
SELECT n FROM varchars WHERE k = ?;

-- name: SetVarchars :exec
-- lock: VarcharsKeys(k)
UPDATE varchars SET n = ? WHERE k = ?;

-- name: AddEnums :exec
-- lock: EnumsKeys(k), because a and b are no numbers
INSERT INTO enums (k, n) VALUES (?, ?);

-- name: GetEnums :one
-- lock: EnumsKeys(k)
SELECT n FROM enums WHERE k = ?;

-- name: SetEnums :exec
-- lock: EnumsKeys(k)
UPDATE enums SET n = ? WHERE k = ?;

-- name: AddVarbinaries :exec
-- lock: VarbinariesKeys(k)
INSERT INTO varbinaries (k, n) VALUES (?, ?);

-- name: GetVarbinaries :one
-- lock: VarbinariesKeys(k)
SELECT n FROM varbinaries WHERE k = ?;

-- name: SetVarbinaries :exec
-- lock: VarbinariesKeys(k)
UPDATE varbinaries SET n = ? WHERE k = ?;

-- name: AddUuids :exec
-- lock: UuidsKeys(k)
INSERT INTO uuids (k, n) VALUES (?, ?);

-- name: GetUuids :one
-- lock: UuidsKeys(k)
SELECT n FROM uuids WHERE k = ?;

-- name: SetUuids :exec
-- lock: UuidsKeys(k)
UPDATE uuids SET n = ? WHERE k = ?;

-- name: AddBuuids :exec
-- lock: BuuidsKeys(k)
INSERT INTO buuids (k, n) VALUES (?, ?);

-- name: GetBuuids :one
-- lock: BuuidsKeys(k)
SELECT n FROM buuids WHERE k = ?;

-- name: SetBuuids :exec
-- lock: BuuidsKeys(k)
UPDATE buuids SET n = ? WHERE k = ?;
