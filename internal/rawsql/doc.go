// Package rawsql holds the SQL that can't be compiled from queries/: sqlc drops SET,
// doesn't parse CALL, KILL, SET STATEMENT and RETURNING, leaves @@variables untyped and has no
// VALUES list of variable length. All other statements are in queries/ and compiled into
// package gen.
//
// # In order of reading
//
//   - rawsql.go: questions to the server ([Probe], [Facts]), settings of a session, and
//     functions that add a limit or a hint to the text of a query.
//   - statement.go: [Statement], a statement before it is rendered, and [Engine], which renders
//     what shares a text: BEGIN and a lock statement, or a statement of the program and COMMIT.
//   - replies.go: [Replies], what an engine answers.
//   - mariadb.go, mysql.go and tidb.go: the engines, each with its replies.
//   - text.go: [Text], which renders statements on their way to the server.
//   - many.go: the statements that lock several rows of a [Table] at once.
//   - renew.go: the statements that renew many leases at once.
//   - batch.go: the statements that take or free many leases at once.
//
// # What it is not
//
// It sends nothing: its functions only return texts. What a reply means, its callers know.
package rawsql
