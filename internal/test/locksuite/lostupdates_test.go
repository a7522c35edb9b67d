package locksuite_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// The counters that several processes raise by read, add one, write.
var counters = txlock.NewFamily[int64]("counter")

const (
	jobVariable = "LOCKSTEP_TEST_JOB"
	processes   = 3
	workers     = 8
	keys        = 2
	rounds      = 8 // commits of each worker
)

// job is what one process does.
type job struct {
	DSN     string
	Guarded bool
	Table   string
	Locked  bool // take the lock
	Seed    uint64
}

// TestLostUpdates raises counters from three processes at once, by every verb,
// early and late in the transaction: each counter is the number of commits that
// succeeded. Without the locks some are lost, so the test can tell. TestLostUpdatesOfEveryWay
// has all isolation levels.
func TestLostUpdates(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for _, locked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/locked=%t", engine, locked), func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				table := db.CreateTable(t, "counters", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
				for id := 1; id <= keys; id++ {
					db.Exec(t, fmt.Sprintf("INSERT INTO %s VALUES (%d, 0)", table, id))
				}
				dsn := db.DSN()
				if !locked {
					dsn = db.DSN(db.Overwriting(t))
				}
				committed := raise(t, job{DSN: dsn, Table: table, Locked: locked})
				var counted int64
				if err := db.Admin().QueryRowContext(t.Context(), "SELECT SUM(n) FROM "+table).Scan(&counted); err != nil {
					t.Fatal(err)
				}
				t.Logf("%d commits, the counters show %d", committed, counted)
				if committed != processes*workers*rounds {
					t.Errorf("%d commits, want %d", committed, processes*workers*rounds)
				}
				switch {
				case locked && counted != committed:
					t.Errorf("%d updates were lost under the lock", committed-counted)
				case !locked && counted == committed:
					t.Error("no update was lost without the lock: this test can't tell")
				}
			})
		}
	}
}

// raise runs the job in all processes and returns the number of their commits.
func raise(t *testing.T, j job) int64 {
	t.Helper()
	var total int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for p := range processes {
		j := j
		j.Guarded, j.Seed = p != 1, uint64(p)
		wg.Go(func() {
			text, err := json.Marshal(j)
			if err != nil {
				t.Error(err)
				return
			}
			var out, errOut bytes.Buffer
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil {
				t.Errorf("process %d: %v\n%s", p, err, errOut.String())
				return
			}
			var n int64
			if _, err := fmt.Sscan(out.String(), &n); err != nil {
				t.Errorf("process %d answered %q", p, out.String())
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	return total
}

// runJob is one of the processes.
func runJob(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	open := func(dsn string) (*sql.DB, error) { return sql.Open("mysql", dsn) }
	if j.Guarded {
		open = func(dsn string) (*sql.DB, error) { return locksqlc.Open(dsn) }
	}
	db, err := open(j.DSN)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() { errs[w] = j.work(ctx, db, rand.New(rand.NewPCG(j.Seed, uint64(w)))) })
	}
	wg.Wait()
	if err := errors.Join(append(errs, db.Close())...); err != nil {
		return err
	}
	fmt.Println(workers * rounds)
	return nil
}

// work raises counters until it has committed often enough.
func (j job) work(ctx context.Context, db *sql.DB, random *rand.Rand) error {
	for done := 0; done < rounds; {
		switch err := j.once(ctx, db, random); {
		case err == nil:
			done++
		case ctx.Err() != nil:
			return err
		case txlock.Retryable(err), errors.Is(err, txlock.ErrBusy), errors.Is(err, txlock.ErrWaitTimeout):
		default:
			return err
		}
	}
	return nil
}

// once is one transaction that raises one counter.
func (j job) once(ctx context.Context, db *sql.DB, random *rand.Rand) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit, or on the way out with an error that says more
	id := random.Int64N(keys) + 1
	if random.IntN(4) == 0 { // an early read fixes the snapshot
		if _, err := j.read(ctx, tx, id); err != nil {
			return err
		}
	}
	if j.Locked {
		if err := j.lock(ctx, tx, id, random); err != nil {
			return err
		}
	}
	n, err := j.read(ctx, tx, id)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+j.Table+" SET n = ? WHERE id = ?", n+1, id); err != nil {
		return err
	}
	return tx.Commit()
}

func (j job) read(ctx context.Context, tx *sql.Tx, id int64) (n int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT n FROM "+j.Table+" WHERE id = ?", id).Scan(&n)
	return n, err
}

// lock takes the lock of a counter by one of the verbs.
func (j job) lock(ctx context.Context, tx *sql.Tx, id int64, random *rand.Rand) error {
	scope, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	key := counters.Key(id)
	switch random.IntN(7) {
	case 0:
		_, err = scope.TryLock(ctx, key)
	case 1:
		_, err = scope.WaitAtMost(50*time.Millisecond).Lock(ctx, key)
	case 2:
		_, err = scope.LockAll(ctx, counters.Keys(2, 1)...)
	case 3:
		_, err = scope.LockAny(ctx, key)
	case 4:
		_, err = scope.WaitAtMost(50*time.Millisecond).LockAll(ctx, counters.Keys(1, 2)...)
	case 5:
		_, err = scope.LockAll(ctx, key, txlock.Shared(counters.Key(3-id)))
	default:
		_, err = scope.Lock(ctx, key)
	}
	return err
}
