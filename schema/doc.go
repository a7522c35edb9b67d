// Package schema creates and checks lockstep's tables, and on MySQL its procedures.
//
//	err := schema.Install(ctx, db) // once, or at every start of the program
//	...
//	if err := schema.Check(ctx, db); err != nil && !schema.Advisory(err) {
//		log.Fatal(err) // its text has the fix
//	}
//
// Start with:
//
//	Install                 create what is missing
//	Check, Advisory         find what is wrong, and whether a program may start
//	FS                      the DDL as files, for migration tools and sqlc
//	Statements, Procedures  the same, one statement at a time
//	InstallViews            optional views that show held locks to any SQL client
//
// # Creating the tables
//
// [Install] may be called by many processes at once, and does nothing if everything exists. It is
// not a migration tool: it changes no existing table, and refuses one that is wrong. If the
// program's user may not create tables, run the DDL of [FS] with your own migrations. Keys of
// hashed families share [Centers] rows, which the DDL inserts. [Views] returns the DDL of
// [InstallViews].
//
// # Checking
//
// [Check] inspects the tables, the privileges, the server, the session, and any proxy on the way.
// It returns all findings as one error, each with its fix, which [Fix] returns as statements and
// commands:
//
//   - [ErrTable], [ErrCenters] and [ErrProcedures] for the tables and procedures;
//   - [ErrPrivilege] for the user;
//   - [ErrEngine] for a server that is neither MySQL nor MariaDB;
//   - [ErrServer], [ErrSysdateIsNow], [ErrBinlog] and [ErrMultiPrimary] for the server;
//   - [ErrSession] for the session, including [ErrAutocommit] and [ErrCharset];
//   - [ErrProxy] for a proxy.
//
// [Advisory] separates findings with which locks still hold from those with which a program must
// not start. [CheckCluster] only detects a multi-primary cluster.
//
// The locks themselves are in package txlock.
package schema
