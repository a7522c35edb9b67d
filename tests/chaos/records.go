package main

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/chaos/generated"
	"github.com/dca00107/lockstep/txlock"
)

// The keys. Locks and versions exclude each other on the same ones; a key of leases has
// one use, which is the part of its name before the colon.
var (
	lockKeys   = []string{"lock:a", "lock:b", "lock:c", "hashed:a", "hashed:b"}
	leaseKeys  = []string{"lease:1", "lease:2"}
	sharedKeys = []string{"shared:1"}
	permitKeys = []string{"permit:1"}

	// So many that transactions with careless statements meet at what is no lock's.
	carelessKeys = []string{"care:0", "care:1", "care:2", "care:3", "care:4", "care:5", "care:6", "care:7", "care:8", "care:9", "hashed:c", "hashed:d"}

	// Leases under whose context others are taken, and these.
	outerKeys = []string{"outer:1", "outer:2"}
	innerKeys = []string{"inner:1"}

	// A record with a version of its own, and such that no lock is for.
	versionKeys = []string{"version:a"}
	spots       = []string{"x", "y"}

	hashed = txlock.NewFamily[string]("hashed", txlock.Hashed(), txlock.Exact())
)

// permits is how many of a permit's key there are.
const permits = 2

func keyOf(name string) txlock.Key {
	if id, ok := strings.CutPrefix(name, "hashed:"); ok {
		return hashed.Key(id)
	}
	return txlock.Named(name)
}

func keysOf(names []string) (keys []txlock.Key) {
	for _, name := range names {
		keys = append(keys, keyOf(name))
	}
	return keys
}

// tables are the records that the locks protect: a counter for each key of a lock, and
// one for each key of a lease, which has the token of its last writer. Nothing but the
// locks keeps their writers apart: a writer reads the value and writes one that is
// higher by one. The table commits has a row for each that it has committed.
var tables = []string{
	"CREATE TABLE counters (name VARBINARY(64) PRIMARY KEY, value BIGINT NOT NULL, token BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
	"CREATE TABLE commits (id VARBINARY(96) NOT NULL, name VARBINARY(64) NOT NULL, value BIGINT NOT NULL, token BIGINT UNSIGNED NOT NULL, PRIMARY KEY (id, name)) ENGINE=InnoDB",
	"CREATE TABLE articles (name VARBINARY(64) PRIMARY KEY, value BIGINT NOT NULL, version BIGINT UNSIGNED NOT NULL DEFAULT 1) ENGINE=InnoDB",
	"CREATE TABLE spots (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL) ENGINE=InnoDB",
	"CREATE TABLE ddl (id INT) ENGINE=InnoDB",
	generated.Schema,
	"CREATE TABLE ballast (id INT AUTO_INCREMENT PRIMARY KEY, text VARBINARY(4000) NOT NULL) ENGINE=InnoDB",
}

// programs are what is stored on the server, which TiDB can't.
var programs = []string{
	"CREATE PROCEDURE chaos_nothing() DO 1",
	"CREATE PROCEDURE chaos_touch(IN spot VARCHAR(64)) DO (SELECT s.value FROM spots s WHERE s.name = spot FOR UPDATE)",
	"CREATE PROCEDURE chaos_swallow(IN spot VARCHAR(64)) BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; UPDATE spots SET value = value + 1 WHERE name = spot; END",
	"CREATE FUNCTION chaos_function(spot VARCHAR(64)) RETURNS BIGINT MODIFIES SQL DATA BEGIN UPDATE spots SET value = value + 1 WHERE name = spot; RETURN 1; END",
	"CREATE PROCEDURE chaos_commit() COMMIT",
	"CREATE PROCEDURE chaos_commit_and_start() BEGIN COMMIT; START TRANSACTION; END",
	"CREATE PROCEDURE chaos_rollback_and_start() BEGIN ROLLBACK; START TRANSACTION; END",
}

// install makes the records.
func install(ctx context.Context, db *sql.DB, engine testdb.Engine) error {
	made := slices.Clone(tables)
	if engine != testdb.TiDB {
		made = append(made, programs...)
	}
	for _, statement := range made {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	for insert, names := range map[string][]string{
		"INSERT INTO counters VALUES (?, 0, 0)":            slices.Concat(lockKeys, saleKeys, carelessKeys, leaseKeys, sharedKeys, innerKeys, electionKeys, allKeys, askedLeases),
		"INSERT INTO articles (name, value) VALUES (?, 0)": versionKeys,
		"INSERT INTO spots VALUES (?, 0)":                  spots,
	} {
		for _, name := range names {
			if _, err := db.ExecContext(ctx, insert, name); err != nil {
				return err
			}
		}
	}
	for id := range generatedRecords {
		if _, err := db.ExecContext(ctx, "INSERT INTO numbers VALUES (?, 0)", id+1); err != nil {
			return err
		}
	}
	return nil
}

// data are the records at the end.
type data struct {
	counters map[string]int64
	commits  []commit
}

// commit is a record's row in the table commits.
type commit struct {
	op    string // of the operation
	try   string // which of its transactions
	name  string
	value int64
	token uint64 // 0 where it was not known
}

// id is what a try of an operation is called in the table commits.
func tryID(op, try string) string { return op + "#" + try }

func readData(ctx context.Context, db *sql.DB) (d data, err error) {
	d.counters = make(map[string]int64)
	err = eachRow(ctx, db, "SELECT name, value FROM counters UNION ALL SELECT name, value FROM articles UNION ALL SELECT CONCAT('"+ofGenerated+"', id), value FROM numbers", func(rows *sql.Rows) error {
		var name string
		var value int64
		err := rows.Scan(&name, &value)
		d.counters[name] = value
		return err
	})
	if err != nil {
		return d, err
	}
	err = eachRow(ctx, db, "SELECT id, name, value, token FROM commits", func(rows *sql.Rows) error {
		var c commit
		var id string
		err := rows.Scan(&id, &c.name, &c.value, &c.token)
		c.op, c.try, _ = strings.Cut(id, "#")
		d.commits = append(d.commits, c)
		return err
	})
	return d, err
}

// querier is a pool or a session.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func eachRow(ctx context.Context, db querier, query string, scan func(*sql.Rows) error) (err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
