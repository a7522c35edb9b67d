package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ddl is what the job keeps: how far it was planned, the plan, and what was done. Nothing
// in it would stop an item from being planned or done twice.
const ddl = `
CREATE TABLE job (
  id       INT    NOT NULL PRIMARY KEY,
  position BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT INTO job VALUES (1, 0);
CREATE TABLE plan (
  id     BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
  item   BIGINT          NOT NULL,
  worker VARCHAR(100)    NOT NULL,
  token  BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
CREATE TABLE results (
  id     BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
  item   BIGINT          NOT NULL,
  result BIGINT          NOT NULL,
  worker VARCHAR(100)    NOT NULL
) ENGINE = InnoDB;
`

// itemKeys are the keys of the items.
var itemKeys = txlock.NewFamily[int64]("singleton-item")

// worker is one of the processes: it works, and stands by to lead.
type worker struct {
	name   string
	db     *sql.DB
	leases *lease.Manager
	items  int64
	takes  time.Duration
	ttl    time.Duration
	say    func(what string, token uint64, item int64) error
}

// run leads while it may, until all is planned, and works until all is done. One that has
// lost the lead, since it was stopped or cut off for too long, stands for election again.
func (w *worker) run(ctx context.Context) error {
	election, err := elect.New(w.leases, job, elect.InstanceName(w.name), elect.TTL(w.ttl), elect.Observe(func(_ context.Context, e elect.Event) {
		if e.Kind == elect.Ending && errors.Is(e.Err, txlock.ErrLost) {
			_ = w.say(loses, 0, 0) // its next report fails as well
		}
	}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := func(err error) error {
		if err != nil {
			cancel(err) // the other one ends, too
		}
		return err
	}
	var working sync.WaitGroup
	var workErr error
	working.Go(func() { workErr = failed(w.work(ctx)) })
	leadErr := failed(election.Run(ctx, w.lead))
	working.Wait()
	return errors.Join(leadErr, workErr)
}

// work does items that are planned and not done, until all are done. Another process may
// choose the same item: whoever gets its lease does it.
func (w *worker) work(ctx context.Context) error {
	for {
		items, left, err := w.open(ctx)
		if err != nil || left == 0 {
			return err
		}
		for _, item := range items {
			err := w.leases.Do(ctx, itemKeys.Key(item), func(ctx context.Context, l *lease.Lease) error {
				return w.do(ctx, l, item)
			}, lease.WaitAtMost(time.Millisecond))
			if err != nil && !errors.Is(err, txlock.ErrWaitTimeout) && !errors.Is(err, txlock.ErrLost) {
				return fmt.Errorf("item %d: %w", item, err)
			}
		}
		if err := takes(ctx, w.takes); err != nil {
			return err
		}
	}
}

// open returns the items that are planned and not done, and how many are not done in all.
func (w *worker) open(ctx context.Context) (items []int64, left int64, err error) {
	var done int64
	if err := w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM results").Scan(&done); err != nil {
		return nil, 0, err
	}
	rows, err := w.db.QueryContext(ctx, "SELECT item FROM plan WHERE item NOT IN (SELECT item FROM results) ORDER BY item")
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var item int64
		if err := rows.Scan(&item); err != nil {
			return nil, 0, err
		}
		items = append(items, item)
	}
	return items, w.items - done, rows.Err()
}

// do does one item, unless somebody has done it before this process got its lease. The
// result can be committed only while the lease is held.
func (w *worker) do(ctx context.Context, l *lease.Lease, item int64) error {
	var done int
	if err := w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM results WHERE item = ?", item).Scan(&done); err != nil || done > 0 {
		return err
	}
	if err := takes(ctx, w.takes); err != nil {
		return err
	}
	return locksqlc.Run(ctx, w.db, nil, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO results (item, result, worker) VALUES (?, ?, ?)", item, item*item, w.name); err != nil {
			return err
		}
		return l.Guard(ctx, tx)
	})
}

// How a process is started as a worker: singleton work NAME ITEMS TAKES TTL, with
// the data source name in the environment, where ps doesn't show it.
const (
	asWorker    = "work"
	dsnVariable = "SINGLETON_DSN"
)

// work is the whole life of such a process. It ends when all is done, and when its input
// ends, since then the program that has started it is gone.
func work(ctx context.Context, args []string, dsn string, in io.Reader, out io.Writer) (err error) {
	w, err := parse(args)
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
	var saying sync.Mutex
	reports := json.NewEncoder(out)
	w.say = func(what string, token uint64, item int64) error {
		saying.Lock()
		defer saying.Unlock()
		return reports.Encode(report{Worker: w.name, What: what, Token: token, Item: item})
	}
	if w.leases, err = lease.NewManager(w.db, lease.TTL(w.ttl)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.leases.Close(context.WithoutCancel(ctx))) }()
	err = w.run(ctx)
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

func parse(args []string) (*worker, error) {
	if len(args) != 4 {
		return nil, fmt.Errorf("%s needs a name, a number of items and two durations, got %q", asWorker, args)
	}
	items, itemsErr := strconv.ParseInt(args[1], 10, 64)
	takes, takesErr := time.ParseDuration(args[2])
	ttl, ttlErr := time.ParseDuration(args[3])
	return &worker{name: args[0], items: items, takes: takes, ttl: ttl}, errors.Join(itemsErr, takesErr, ttlErr)
}
