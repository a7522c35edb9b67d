package job

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The environment of a process of TestProcesses: the DSN, its name, how wrong its clock is,
// whether all code sees that, and the table that it writes.
const (
	childDSN   = "LOCKSTEP_JOB_DSN"
	childName  = "LOCKSTEP_JOB_NAME"
	childClock = "LOCKSTEP_JOB_CLOCK"
	childWhole = "LOCKSTEP_JOB_CLOCK_IS_WRONG"
	childTable = "LOCKSTEP_JOB_TABLE"
)

const (
	childEvery = 100 * time.Millisecond
	childTTL   = 5 * time.Second // on a busy machine nobody but who is killed loses its lease
)

func isChild() bool { return os.Getenv(childDSN) != "" }

// childJobs are the jobs of a process with RunTx.
var childJobs = map[string]struct {
	schedule Schedule
	every    time.Duration
	missed   Policy
}{
	"all":      {Every(childEvery), childEvery, CatchUpAll},
	"once":     {Every(2 * childEvery), 2 * childEvery, CatchUpLatest},
	"skip":     {Every(2 * childEvery), 2 * childEvery, SkipMissed},
	"cronall":  {Cron("* * * * * *"), time.Second, CatchUpAll},
	"crononce": {Cron("* * * * * *"), time.Second, CatchUpLatest},
	"cronskip": {Cron("* * * * * *"), time.Second, SkipMissed},
}

// child runs these jobs, and one with Run, until its input ends, or it is killed.
func child() {
	if err := runChild(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(childName), err)
		os.Exit(1)
	}
}

func runChild(in io.Reader) error {
	off, err := time.ParseDuration(os.Getenv(childClock))
	if err != nil {
		return err
	}
	if os.Getenv(childWhole) == "" {
		machine = func() time.Time { return time.Now().Add(off) }
	}
	db, err := locksqlc.Open(os.Getenv(childDSN))
	if err != nil {
		return err
	}
	defer db.Close()
	leases, err := lease.NewManager(db, lease.TTL(childTTL))
	if err != nil {
		return err
	}
	table := os.Getenv(childTable)
	jobs, err := New(db, leases, InstanceName(os.Getenv(childName)), Log(nil), Observe(func(_ context.Context, e Event) {
		if e.Kind == RunError || e.Kind == Failed {
			fmt.Println(e.Kind, e.Key, e.At.UnixMicro(), e.Err)
		}
		if e.Kind == Skipped {
			fmt.Println(e.Kind, e.Key, e.From.UnixMicro(), e.At.UnixMicro())
		}
	}))
	if err != nil {
		return err
	}
	now := time.Now()
	if _, at, err := jobs.ledger.look(context.Background(), table); err != nil || os.Getenv(childWhole) != "" && (now.Sub(at)-off).Abs() > time.Minute {
		return fmt.Errorf("the clock says %v, the server's %v: %w", now, at, err)
	}
	ended := make(chan error, 1+len(childJobs))
	go func() {
		ended <- jobs.Run(context.Background(), txlock.Named(table+":plain"), Every(childEvery), func(ctx context.Context, at time.Time) error {
			return alone(ctx, db, table, at)
		}, Missed(CatchUpAll))
	}()
	for name, job := range childJobs {
		go func() {
			ended <- jobs.RunTx(context.Background(), txlock.Named(table+":"+name), job.schedule, func(ctx context.Context, tx *sql.Tx, at time.Time) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (job, at_us, who) VALUES (?, ?, ?)", name, at.UnixMicro(), os.Getenv(childName))
				return err
			}, Missed(job.missed), Grace(time.Second))
		}()
	}
	_, err = io.Copy(io.Discard, bufio.NewReader(in))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = errors.Join(err, jobs.Close(ctx))
	for range cap(ended) {
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, leases.Close(ctx))
}

// alone writes a row, under a lock of the server's. Another one that has the lock, and writes
// a row after that, is at work; the server may still keep the lock for one that was killed,
// or whose connection was closed, and writes nothing any more.
func alone(ctx context.Context, db *sql.DB, table string, at time.Time) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var before, after int64
	rows := "SELECT COUNT(*) FROM " + table + " WHERE job = 'plain'"
	if err := conn.QueryRowContext(ctx, rows).Scan(&before); err != nil {
		return err
	}
	var got int
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 60)", table).Scan(&got); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, rows).Scan(&after); err != nil {
		return err
	}
	if got != 1 || after > before {
		fmt.Println("beside", at.UnixMicro())
		return errors.New("another process runs a tick")
	}
	_, err = conn.ExecContext(ctx, "INSERT INTO "+table+" (job, at_us, who) VALUES ('plain', ?, ?)", at.UnixMicro(), os.Getenv(childName))
	var released sql.NullInt64
	return errors.Join(err, conn.QueryRowContext(context.WithoutCancel(ctx), "SELECT RELEASE_LOCK(?)", table).Scan(&released))
}

// environment is that of a child.
func environment(dsn, name, table, whole string, off time.Duration) []string {
	zones := []string{"UTC", "Asia/Tokyo", "America/New_York"}
	return append(os.Environ(), childDSN+"="+dsn, childName+"="+name, childTable+"="+table, childClock+"="+off.String(),
		childWhole+"="+whole, "TZ="+zones[len(strings.Split(name, ":")[0])%len(zones)])
}
