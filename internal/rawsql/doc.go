// Package rawsql holds the SQL that can't be compiled from queries/: sqlc drops SET,
// doesn't parse CALL, KILL, SET STATEMENT and RETURNING, leaves @@variables untyped and has no
// VALUES list of variable length. All other statements are in queries/ and compiled into
// package gen.
//
// # In order of reading
//
//   - rawsql.go: questions to the server ([Probe], [Facts]), settings of a session, and
//     functions that add a limit or a hint to the text of a query.
//   - merged.go: BEGIN and a lock statement in one text ([Begin]), or CompareAndBump and
//     COMMIT.
//   - many.go: the statements that lock several rows of a [Table] at once.
//   - renew.go: the statements that renew many leases at once.
//   - together.go: the statements that take or free many leases at once.
//   - call.go: [Call], which calls a procedure of package schema.
//   - inline.go: [Inline], which writes arguments into the text of a statement.
//
// # What it is not
//
// It sends nothing: its functions only return texts. What a reply means, its callers know.
package rawsql
