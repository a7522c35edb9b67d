package contender

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// NoLock is the name of the transaction that the others are compared with.
const NoLock = "no lock"

func noLock() Maker {
	return Maker{
		Name: NoLock, About: "the business transaction alone, on a plain pool",
		Unlocked: true, Many: true,
		Transactor: plain(func(ctx context.Context, db *sql.DB, _ []int64, work func(tx Tx) error) error {
			return Transact(ctx, db, nil, func(tx *sql.Tx) error { return work(sqlTx{tx}) })
		}),
	}
}

// BareUpsert is the name of the floor of transaction locks.
const BareUpsert = "bare upsert"

// bareUpsert is the least that raises a number under a row lock.
func bareUpsert() Maker {
	return Maker{
		Name: BareUpsert, About: "one upsert of a row of name, number and owner in the transaction: the least that a lock can cost",
		Many: true, Table: "bench_bare", Column: "name",
		DDL: []string{`CREATE TABLE bench_bare (name VARBINARY(255) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL,
			owner VARBINARY(255) NOT NULL, conn_id BIGINT UNSIGNED NOT NULL, locked_us BIGINT NOT NULL) ENGINE = InnoDB`},
		Transactor: plain(func(ctx context.Context, db *sql.DB, keys []int64, work func(tx Tx) error) error {
			return Transact(ctx, db, nil, func(tx *sql.Tx) error {
				for _, key := range keys {
					const upsert = `INSERT INTO bench_bare (name, token, owner, conn_id, locked_us) VALUES (?, 1, 'bench', CONNECTION_ID(), 0)
						ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1), owner = VALUES(owner), conn_id = CONNECTION_ID()`
					if _, err := tx.ExecContext(ctx, upsert, KeyName(key)); err != nil {
						return err
					}
				}
				return work(sqlTx{tx})
			})
		}),
	}
}

// bareLeaseDDL is a table of leases with nothing but a holder and an end.
const bareLeaseDDL = ` (name VARBINARY(255) PRIMARY KEY, owner VARBINARY(255) NOT NULL, token BIGINT UNSIGNED NOT NULL,
	expires_us BIGINT NOT NULL) ENGINE = InnoDB`

// BareUpserts is the name of the floor of leases.
const BareUpserts = "two bare upserts"

func bareUpserts() Maker {
	const upsert = `INSERT INTO bench_bare_upserts (name, owner, token, expires_us) VALUES (?, ?, 1, ?)
		ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1), owner = VALUES(owner), expires_us = VALUES(expires_us)`
	return Maker{
		Name: BareUpserts, About: "one upsert to acquire and one to release, each committed; excludes no one: the least that a lease can cost",
		DDL: []string{"CREATE TABLE bench_bare_upserts" + bareLeaseDDL}, Table: "bench_bare_upserts", Column: "name",
		Unlocked: true, Impatient: true, Renews: true,
		Leaser: bareLeaser(bareStatements{acquire: upsert, renew: upsert, release: upsert}),
	}
}

func bareUpdates() Maker {
	const update = `UPDATE bench_bare_updates SET token = token + 1, owner = ?, expires_us = ? WHERE name = ?`
	return Maker{
		Name: "two bare UPDATEs", About: "one UPDATE of an existing row to acquire and one to release, each committed; excludes no one",
		DDL: []string{"CREATE TABLE bench_bare_updates" + bareLeaseDDL}, Table: "bench_bare_updates", Column: "name",
		Unlocked: true, Impatient: true,
		Leaser: bareLeaser(bareStatements{
			ensure:  "INSERT IGNORE INTO bench_bare_updates (name, owner, token, expires_us) VALUES (?, '', 1, 0)",
			acquire: update, renew: update, release: update, nameLast: true,
		}),
	}
}

type bareStatements struct {
	ensure                  string
	acquire, renew, release string
	nameLast                bool
}

func bareLeaser(s bareStatements) func(context.Context, Place) (Leaser, error) {
	return func(ctx context.Context, at Place) (Leaser, error) {
		db, err := OpenPlain(ctx, at)
		if err != nil {
			return nil, err
		}
		for key := int64(1); key <= at.Keys && s.ensure != ""; key++ {
			if _, err := db.ExecContext(ctx, s.ensure, KeyName(key)); err != nil {
				return nil, errors.Join(err, db.Close())
			}
		}
		return &bareLeases{DB: db, s: s}, nil
	}
}

type bareLeases struct {
	*sql.DB
	s bareStatements
}

func (b *bareLeases) Acquire(ctx context.Context, key int64) (Lease, error) {
	l := &bareLease{b: b, name: KeyName(key)}
	return l, l.send(ctx, b.s.acquire, time.Now().Add(TTL))
}

type bareLease struct {
	b    *bareLeases
	name string
}

func (l *bareLease) Renew(ctx context.Context) error {
	return l.send(ctx, l.b.s.renew, time.Now().Add(TTL))
}

func (l *bareLease) Release(ctx context.Context) error {
	return l.send(ctx, l.b.s.release, time.Now())
}

func (l *bareLease) send(ctx context.Context, statement string, until time.Time) error {
	args := []any{l.name, "bench", until.UnixMicro()}
	if l.b.s.nameLast {
		args = []any{"bench", until.UnixMicro(), l.name}
	}
	_, err := l.b.ExecContext(ctx, statement, args...)
	return err
}
