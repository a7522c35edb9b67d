// Package schema has the tables of lockstep: the DDL as files, for sqlc and migration
// tools, and functions for programs that make and check the tables themselves.
//
// # Making the tables
//
// [Install] makes the tables that are missing, and on MySQL the procedures. [FS],
// [Statements] and [Procedures] give the same DDL to a migration tool. [Centers] is the
// number of rows that keys of hashed families share. [InstallViews] makes two optional
// views for people at any SQL client, and [Views] returns their DDL.
//
// # Checking them
//
// [Check] checks the tables, the privileges, the server, the session and what is between them,
// and returns all that is wrong as one error, with the fix for each finding:
//
//   - [ErrTable], [ErrCenters] and [ErrProcedures] of the tables and procedures;
//   - [ErrPrivilege] of the user;
//   - [ErrEngine] of what is neither MySQL nor MariaDB;
//   - [ErrServer], [ErrSysdateIsNow], [ErrBinlog] and [ErrMultiPrimary] of the server;
//   - [ErrSession] of the session, [ErrAutocommit] and [ErrCharset] among them;
//   - [ErrProxy] of a proxy.
//
// [Advisory] distinguishes findings with which locks hold from those with which a program must
// not start.
//
// [CheckCluster] looks only for a multi-primary cluster.
//
// # What it is not
//
// It is no migration tool: Install changes no table that exists, and refuses one that is wrong. It takes no locks; see
// package txlock.
package schema
