package contender

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// gocronGORM sends what gocron-gorm-lock sends: GORM inserts a row for the job and the
// instant at which it is due, in a transaction, and writes at the end that it is done. A
// second one for the same instant meets the unique key: nobody waits. See
// https://github.com/go-co-op/gocron-gorm-lock, GormLocker and CronJobLock.
func gocronGORM() Maker {
	return Maker{
		Name: "gocron-gorm-lock", About: "the statements of gocron-gorm-lock, which inserts a row for each acquisition and never waits",
		Impatient: true,
		DDL: []string{`CREATE TABLE bench_cron_job_locks (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, created_at DATETIME(3), updated_at DATETIME(3),
			job_name VARCHAR(191), job_identifier VARCHAR(191), worker LONGTEXT NOT NULL, status LONGTEXT NOT NULL,
			UNIQUE INDEX idx_name (job_name, job_identifier)) ENGINE = InnoDB`},
		Leaser: func(ctx context.Context, at Place) (Leaser, error) {
			db, err := OpenPlain(ctx, at)
			if err != nil {
				return nil, err
			}
			return &gocronLocks{DB: db}, nil
		},
	}
}

type gocronLocks struct{ *sql.DB }

func (g *gocronLocks) Acquire(ctx context.Context, key int64) (Lease, error) {
	l := &gocronLease{db: g.DB}
	now := time.Now().UTC()
	instant := now.Format("2006-01-02 15:04:05.000 ") + KeyName(unique.Add(1)) // each is due at another instant
	err := transactOnce(ctx, g.DB, nil, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, "INSERT INTO bench_cron_job_locks (created_at, updated_at, job_name, job_identifier, worker, status) VALUES (?, ?, ?, ?, ?, ?)",
			now, now, KeyName(key), instant, "bench", "RUNNING")
		if err != nil {
			return err
		}
		l.id, err = result.LastInsertId()
		return err
	})
	return l, err
}

type gocronLease struct {
	db *sql.DB
	id int64
}

// Renew has nothing to do: the row is for good.
func (*gocronLease) Renew(context.Context) error { return errors.ErrUnsupported }

func (l *gocronLease) Release(ctx context.Context) error {
	return Transact(ctx, l.db, nil, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE bench_cron_job_locks SET updated_at = ?, status = ? WHERE id = ?", time.Now().UTC(), "FINISHED", l.id)
		return err
	})
}
