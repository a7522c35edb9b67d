package contender

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// errTaken is what those say who don't wait.
var errTaken = errors.New("somebody else has the lock")

// shedLock sends what ShedLock sends to MySQL by the server's time: the first use of a
// name by a process inserts, each later one updates, and to unlock is to end the time.
// See https://github.com/lukas-krecan/ShedLock, MySqlServerTimeStatementsSource and
// StorageBasedLockProvider; the table is that of its README.
func shedLock() Maker {
	return Maker{
		Name: "ShedLock", About: "the statements of ShedLock's provider for MySQL with the server's time; it never waits",
		Impatient: true, Renews: true, Table: "bench_shedlock", Column: "name",
		DDL: []string{`CREATE TABLE bench_shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL,
			locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name)) ENGINE = InnoDB`},
		Leaser: func(ctx context.Context, at Place) (Leaser, error) {
			db, err := OpenPlain(ctx, at)
			if err != nil {
				return nil, err
			}
			return &shedLocks{DB: db}, nil
		},
	}
}

const (
	shedNow   = "UTC_TIMESTAMP(3)"
	shedUntil = "TIMESTAMPADD(MICROSECOND, ?, " + shedNow + ")"
	shedOwner = "bench"
)

type shedLocks struct {
	*sql.DB
	known sync.Map // names that have a row
}

func (s *shedLocks) Acquire(ctx context.Context, key int64) (Lease, error) {
	l := &shedLease{db: s.DB, name: KeyName(key)}
	if _, known := s.known.LoadOrStore(l.name, true); !known {
		inserted, err := affects(ctx, s.DB, "INSERT IGNORE INTO bench_shedlock (name, lock_until, locked_at, locked_by) VALUES (?, "+
			shedUntil+", "+shedNow+", ?)", l.name, TTL.Microseconds(), shedOwner)
		if err != nil || inserted {
			return l, err
		}
	}
	updated, err := affects(ctx, s.DB, "UPDATE bench_shedlock SET lock_until = "+shedUntil+", locked_at = "+shedNow+
		", locked_by = ? WHERE name = ? AND lock_until <= "+shedNow, TTL.Microseconds(), shedOwner, l.name)
	if err == nil && !updated {
		err = errTaken
	}
	return l, err
}

type shedLease struct {
	db   *sql.DB
	name string
}

func (l *shedLease) Renew(ctx context.Context) error {
	_, err := l.db.ExecContext(ctx, "UPDATE bench_shedlock SET lock_until = "+shedUntil+
		" WHERE name = ? AND locked_by = ? AND lock_until > "+shedNow, TTL.Microseconds(), l.name, shedOwner)
	return err
}

func (l *shedLease) Release(ctx context.Context) error {
	const least = "TIMESTAMPADD(MICROSECOND, ?, locked_at)"
	_, err := l.db.ExecContext(ctx, "UPDATE bench_shedlock SET lock_until = IF("+least+" > "+shedNow+", "+least+", "+shedNow+
		") WHERE name = ? AND locked_by = ?", 0, 0, l.name, shedOwner)
	return err
}

// affects tells whether a statement has changed a row.
func affects(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string, args ...any) (bool, error) {
	result, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
