package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ddl is what the job keeps: how far it has come, and what it has done. Nothing in it
// would stop an item from being done twice.
const ddl = `
CREATE TABLE job (
  id       INT    NOT NULL PRIMARY KEY,
  position BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT INTO job VALUES (1, 0);
CREATE TABLE results (
  id     BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
  item   BIGINT          NOT NULL,
  result BIGINT          NOT NULL,
  worker VARCHAR(100)    NOT NULL,
  token  BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
`

// job is the key of the job. There is only one.
var job = txlock.Named("singleton-job")

// worker is one of the processes that offer themselves for the job.
type worker struct {
	name  string
	db    *sql.DB
	items int64
	takes time.Duration
	say   func(what string, l *lease.Lease, item int64) error
}

// run offers the process for the job until the job is done. One that has lost the
// lease, since it was stopped or cut off for too long, is as good as any other.
func (w *worker) run(ctx context.Context, m *lease.Manager) error {
	for {
		err := w.turn(ctx, m)
		if !errors.Is(err, txlock.ErrLost) || ctx.Err() != nil {
			return err
		}
		if err := w.say(loses, nil, 0); err != nil {
			return err
		}
	}
}

// turn does what is left of the job, when it is this process's turn.
//
// Do waits for the lease and renews it while the function runs. The context of the
// function ends when the lease is lost. A process that was stopped for longer than
// the time to live may see that too late: then Guard refuses its transaction.
func (w *worker) turn(ctx context.Context, m *lease.Manager) error {
	return m.Do(ctx, job, func(ctx context.Context, l *lease.Lease) error {
		// What the holder before has committed: read under the lease.
		var position int64
		if err := w.db.QueryRowContext(ctx, "SELECT position FROM job WHERE id = 1").Scan(&position); err != nil {
			return err
		}
		if err := w.say(holds, l, position+1); err != nil {
			return err
		}
		for item := position + 1; item <= w.items; item++ {
			if err := w.do(ctx, l, item); err != nil {
				return fmt.Errorf("item %d: %w", item, err)
			}
		}
		return w.say(ends, l, w.items)
	})
}

// do does one item: its result and the new position are one transaction, which can be
// committed only while the lease is held. So the item is done, and counted as done, or
// neither; and nobody else has done it meanwhile.
func (w *worker) do(ctx context.Context, l *lease.Lease, item int64) error {
	return locksqlc.Run(ctx, w.db, nil, func(tx *sql.Tx) error {
		if err := w.say(doing, l, item); err != nil {
			return err
		}
		result, err := square(ctx, item, w.takes)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO results (item, result, worker, token) VALUES (?, ?, ?, ?)", item, result, w.name, l.Token())
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE job SET position = ? WHERE id = 1", item); err != nil {
			return err
		}
		return l.Guard(ctx, tx) // last, so that the row of the lease is locked shortly
	})
}

// square is the work: it takes a while.
func square(ctx context.Context, item int64, takes time.Duration) (int64, error) {
	select {
	case <-time.After(takes):
		return item * item, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// How a process is started as a worker: singleton work NAME ITEMS TAKES TTL, with
// the data source name in the environment, where ps doesn't show it.
const (
	asWorker    = "work"
	dsnVariable = "SINGLETON_DSN"
)

// work is the whole life of such a process. It ends when its work is done, and when
// its input ends, since then the program that has started it is gone.
func work(ctx context.Context, args []string, dsn string, in io.Reader, out io.Writer) (err error) {
	w, ttl, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, err := io.Copy(io.Discard, in)
		cancel(errors.Join(errOrphan, err))
	}()
	if w.db, err = locksqlc.Open(dsn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.db.Close()) }()
	reports := json.NewEncoder(out)
	w.say = func(what string, l *lease.Lease, item int64) error {
		r := report{Worker: w.name, What: what, Item: item}
		if l != nil {
			r.Token = l.Token()
		}
		return reports.Encode(r)
	}
	m, err := lease.NewManager(w.db, lease.TTL(ttl))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.WithoutCancel(ctx))) }()
	err = w.run(ctx, m)
	if err != nil {
		err = errors.Join(err, context.Cause(ctx)) // why the context has ended, if it has
	}
	return err
}

var errOrphan = errors.New("the program that has started it is gone")

// arguments are what parse reads.
func (c config) arguments(name string) []string {
	return []string{asWorker, name, strconv.FormatInt(c.items, 10), c.takes.String(), c.ttl.String()}
}

func parse(args []string) (*worker, time.Duration, error) {
	if len(args) != 4 {
		return nil, 0, fmt.Errorf("%s needs a name, a number of items and two durations, got %q", asWorker, args)
	}
	items, itemsErr := strconv.ParseInt(args[1], 10, 64)
	takes, takesErr := time.ParseDuration(args[2])
	ttl, ttlErr := time.ParseDuration(args[3])
	return &worker{name: args[0], items: items, takes: takes}, ttl, errors.Join(itemsErr, takesErr, ttlErr)
}
