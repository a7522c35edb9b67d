package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ddl is what the reports are. Nothing in it would stop a report from being there twice.
const ddl = `
CREATE TABLE reports (
  id     BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  day    DATETIME     NOT NULL,
  worker VARCHAR(100) NOT NULL
) ENGINE = InnoDB;
`

// nightly is the key of the job, and line says when it is due. A second of this example is
// a day; in a program the line would be "0 2 * * *".
var nightly = txlock.Named("nightly-report")

const (
	line = "* * * * * *"
	day  = time.Second
)

// write writes the report of a day. The transaction is that in which the tick is marked, so
// the report and the mark are there, or neither.
func write(ctx context.Context, tx *sql.Tx, name string, at time.Time) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO reports (day, worker) VALUES (?, ?)", at.UTC().Format(time.DateTime), name)
	if err != nil {
		return err
	}
	select {
	case <-time.After(day / 4): // the work takes a while, and many a process is killed in it
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// work is the whole life of a process: it offers itself for the job until its input ends,
// since then the program that has started it is gone.
func work(ctx context.Context, name, dsn string, in io.Reader, out io.Writer) (err error) {
	db, err := locksqlc.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	leases, err := lease.NewManager(db, lease.TTL(2*day)) // after that time another takes over
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leases.Close(context.WithoutCancel(ctx))) }()
	jobs, err := job.New(db, leases, job.InstanceName(name), job.Observe(func(_ context.Context, e job.Event) {
		_, _ = fmt.Fprintf(out, "%s: %s %s %v\n", name, e.Kind, e.At.UTC().Format(time.TimeOnly), e.Err)
	}))
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- jobs.RunTx(ctx, nightly, job.Cron(line), func(ctx context.Context, tx *sql.Tx, at time.Time) error {
			return write(ctx, tx, name, at)
		}, job.Missed(job.CatchUpAll)) // the days in which nobody could work come later
	}()
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, jobs.Close(ctx), <-ended) // what is under way is finished
}
