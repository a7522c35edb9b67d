// Package gen has the statements of lockstep as Go methods, which sqlc makes from the
// files in queries/ (make generate). It is the library's own: programs should not import
// it. Its names and statements may change in any release, and a statement by itself gives
// no lock: txlock and txlock/lease decide what to send, and what the reply means.
//
// # In order of reading
//
//   - locks.sql.go and centers.sql.go: the row locks of a transaction, of named keys and
//     of hashed keys.
//   - leases.sql.go: leases, their queue row, guards and the cleanup.
//   - shared.sql.go: readers and permits.
//
// Statements that sqlc can't compile are in internal/rawsql.
package gen
