// Package session refuses sessions of the server on which locks would not hold: of another
// engine than MySQL and MariaDB, with autocommit = 0, or with a connection character set that
// changes the names of keys.
//
// [Fit] reads what the session says about itself; packages txlock and lease ask for that
// with the facts about the server. [Version] is the server's part of that. It is not for
// problems of the server or of the tables: schema.Check finds those.
package session
