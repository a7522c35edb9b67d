package contender

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"
)

// springJDBC sends what Spring Integration's JdbcLockRegistry sends: in a transaction an
// UPDATE, which takes over what has expired, then an INSERT, whose duplicate key says that
// somebody else has the lock; a waiter tries again after 100 ms; to unlock is a DELETE in
// a transaction. See https://github.com/spring-projects/spring-integration,
// DefaultLockRepository and JdbcLockRegistry of spring-integration-jdbc.
//
// The transactions are READ COMMITTED here, which is kinder than SERIALIZABLE, the level
// of the versions before 6.
func springJDBC() Maker {
	return Maker{
		Name: "Spring JdbcLockRegistry", About: "the statements of Spring Integration's JdbcLockRegistry; waiters try every 100 ms",
		Renews: true,
		DDL: []string{`CREATE TABLE bench_int_lock (LOCK_KEY CHAR(36) NOT NULL, REGION VARCHAR(100) NOT NULL, CLIENT_ID CHAR(36),
			CREATED_DATE DATETIME(6) NOT NULL, PRIMARY KEY (LOCK_KEY, REGION)) ENGINE = InnoDB`},
		Leaser: func(ctx context.Context, at Place) (Leaser, error) {
			db, err := OpenPlain(ctx, at)
			if err != nil {
				return nil, err
			}
			return &springLocks{DB: db}, nil
		},
	}
}

const (
	springRegion = "DEFAULT"
	springIdle   = 100 * time.Millisecond
)

var springOptions = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

type springLocks struct{ *sql.DB }

// Acquire tries until it has the lock. In Java the goroutines of one process wait for
// each other without asking; here each stands for a process.
func (s *springLocks) Acquire(ctx context.Context, key int64) (Lease, error) {
	l := &springLease{db: s.DB, key: KeyName(key), client: KeyName(unique.Add(1))}
	for {
		err := l.try(ctx)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, errTaken) && !again(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(springIdle):
		}
	}
}

type springLease struct {
	db          *sql.DB
	key, client string
}

func (l *springLease) try(ctx context.Context) error {
	return transactOnce(ctx, l.db, springOptions, func(tx *sql.Tx) error {
		now := time.Now().UTC()
		taken, err := affects(ctx, tx, "UPDATE bench_int_lock SET CLIENT_ID = ?, CREATED_DATE = ? WHERE REGION = ? AND LOCK_KEY = ? AND (CLIENT_ID = ? OR CREATED_DATE < ?)",
			l.client, now, springRegion, l.key, l.client, now.Add(-TTL))
		if err != nil || taken {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO bench_int_lock (REGION, LOCK_KEY, CLIENT_ID, CREATED_DATE) VALUES (?, ?, ?, ?)",
			springRegion, l.key, l.client, now)
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == 1062 {
			return errTaken
		}
		return err
	})
}

func (l *springLease) Renew(ctx context.Context) error {
	return Transact(ctx, l.db, springOptions, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE bench_int_lock SET CREATED_DATE = ? WHERE REGION = ? AND LOCK_KEY = ? AND CLIENT_ID = ?",
			time.Now().UTC(), springRegion, l.key, l.client)
		return err
	})
}

func (l *springLease) Release(ctx context.Context) error {
	return Transact(ctx, l.db, springOptions, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM bench_int_lock WHERE REGION = ? AND LOCK_KEY = ? AND CLIENT_ID = ?",
			springRegion, l.key, l.client)
		return err
	})
}
