// Nightly writes a report each night, by three processes that are killed at random.
//
// The program starts three processes of itself, each of which offers itself for the job by
// the same crontab line. At each tick one of them writes the report. Every now and then one
// of the three is killed by SIGKILL, often in the middle of its work, and started again. At
// the end the program counts: each day has its report, and has it once.
//
// The job is worker.go. A day takes a second here.
//
// It takes the DSN of a user who may create databases from LOCKSTEP_MARIADB_DSN or
// LOCKSTEP_MYSQL_DSN, and drops the database that it makes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
)

// A process of the example is started as: nightly work NAME, with the data source name in
// the environment, where ps doesn't show it.
const (
	asWorker    = "work"
	dsnVariable = "NIGHTLY_DSN"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// run is one process: the program, or one of those that it starts.
func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == asWorker {
		return work(ctx, args[1], os.Getenv(dsnVariable), os.Stdin, os.Stdout)
	}
	err := errors.New("set LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN to the DSN of a user who may create databases")
	for _, variable := range []string{"LOCKSTEP_MARIADB_DSN", "LOCKSTEP_MYSQL_DSN"} {
		dsn := os.Getenv(variable)
		if dsn == "" {
			continue
		}
		if _, err = onServer(ctx, whole, dsn, os.Stdout); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	return err
}

// config is the size of the example.
type config struct {
	workers, days, kills int
	most                 time.Duration // for all of it
}

var whole = config{workers: 3, days: 15, kills: 8, most: 5 * time.Minute}

// report is a row of the table.
type report struct {
	day    time.Time
	worker string
}

// onServer lets the processes work in a database of their own, and returns the reports.
func onServer(ctx context.Context, c config, dsn string, out io.Writer) (_ []report, err error) {
	database, err := scratch.New(ctx, dsn, ddl)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, database.Drop()) }()
	ctx, cancel := context.WithTimeout(ctx, c.most)
	defer cancel() // kills those that still run after an error
	kills, err := torment(ctx, c, database, out)
	if err != nil {
		return nil, err
	}
	reports, err := read(ctx, database)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(out, "%d days, %d processes killed, %d reports\n", days(reports), kills, len(reports))
	return reports, errors.Join(err, check(reports))
}

// torment runs the processes, and kills and starts one now and then, until there are enough
// reports. Then it ends them all, which finish what they are at.
func torment(ctx context.Context, c config, database *scratch.Database, out io.Writer) (kills int, err error) {
	workers := make([]*worker, c.workers)
	for i := range workers {
		if workers[i], err = start(ctx, fmt.Sprintf("worker-%d", i+1), database.DSN(), out); err != nil {
			return 0, err
		}
	}
	for {
		reports, err := read(ctx, database)
		if err != nil {
			return kills, err
		}
		if days(reports) >= c.days && kills >= c.kills {
			break
		}
		select {
		case <-time.After(day/2 + rand.N(2*day)):
		case <-ctx.Done():
			return kills, fmt.Errorf("after %d reports: %w", len(reports), ctx.Err())
		}
		i := rand.IntN(len(workers))
		if err := workers[i].kill(); err != nil {
			return kills, err
		}
		kills++
		if workers[i], err = start(ctx, workers[i].name, database.DSN(), out); err != nil {
			return kills, err
		}
	}
	for _, w := range workers {
		err = errors.Join(err, w.end())
	}
	return kills, err
}

// worker is a process that was started.
type worker struct {
	name    string
	command *exec.Cmd
	in      io.Closer
}

// start starts this program as a worker. The end of the context kills it.
func start(ctx context.Context, name, dsn string, out io.Writer) (*worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{name: name, command: exec.CommandContext(ctx, program, asWorker, name)}
	w.command.Env = append(os.Environ(), dsnVariable+"="+dsn)
	w.command.Stdout, w.command.Stderr = out, os.Stderr
	if w.in, err = w.command.StdinPipe(); err != nil {
		return nil, err
	}
	return w, w.command.Start()
}

// kill ends the process by SIGKILL: it runs no deferred function any more.
func (w *worker) kill() error {
	if err := w.command.Process.Kill(); err != nil {
		return err
	}
	_ = w.command.Wait() // it says that it was killed
	return nil
}

// end ends the process when it has finished what it is at.
func (w *worker) end() error {
	return errors.Join(w.in.Close(), w.command.Wait())
}

// read returns the reports in the order of their days.
func read(ctx context.Context, database *scratch.Database) (reports []report, err error) {
	rows, err := database.Pool().QueryContext(ctx, "SELECT UNIX_TIMESTAMP(CONVERT_TZ(day, '+00:00', @@time_zone)), worker FROM reports ORDER BY day, id")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var seconds int64
		var r report
		if err := rows.Scan(&seconds, &r.worker); err != nil {
			return nil, err
		}
		r.day = time.Unix(seconds, 0).UTC()
		reports = append(reports, r)
	}
	return reports, rows.Err()
}

// days returns how many days have a report.
func days(reports []report) int {
	seen := make(map[time.Time]bool)
	for _, r := range reports {
		seen[r.day] = true
	}
	return len(seen)
}

// check returns what is wrong with the reports: a day without one, or with two.
func check(reports []report) (err error) {
	for i := 1; i < len(reports); i++ {
		if got, want := reports[i].day, reports[i-1].day.Add(day); !got.Equal(want) {
			err = errors.Join(err, fmt.Errorf("the report of %v follows that of %v", got, reports[i-1].day))
		}
	}
	return err
}
