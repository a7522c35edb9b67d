// Package session refuses sessions of the server on which locks would not hold: of another
// engine than MySQL and MariaDB, with autocommit = 0, for example, or with character sets that
// change names or replies.
//
// [Read] makes [Facts] of what a session says about itself, and [Ask] asks it. Package guard
// asks when it connects, and again after a statement that may have changed the session;
// txlock asks at Join on plain pools; leases ask with the server's clock. It is not for
// problems of the server or of the tables: schema.Check finds those.
package session
