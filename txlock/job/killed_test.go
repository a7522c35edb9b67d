package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestKilledConnection proves that an instant whose transaction was lost with its connection is
// done nevertheless, and once, on a plain pool and on a guarded one, although CatchUpAll gives up
// a tick that has failed at the next instant.
func TestKilledConnection(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded ", guarded), func(t *testing.T) {
			onServers(t, func(t *testing.T, db *testdb.DB) {
				table := db.CreateTable(t, "effects", "at_us BIGINT NOT NULL")
				j := open(t, newPool(t, db, guarded), Log(nil))
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var calls, killed atomic.Int64
				ended := make(chan error)
				key := newKey()
				go func() {
					ended <- j.RunTx(ctx, key, Every(500*time.Millisecond), func(ctx context.Context, tx *sql.Tx, at time.Time) error {
						if _, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES (?)", at.UnixMicro()); err != nil {
							return err
						}
						if calls.Add(1)%3 != 2 {
							return nil
						}
						var id int64
						if err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
							return err
						}
						if _, err := db.Admin().ExecContext(ctx, fmt.Sprint("KILL ", id)); err != nil {
							return err
						}
						killed.Add(1)
						return nil
					}, Missed(CatchUpAll), RetryAfter(time.Hour))
				}()
				if !testdb.Await(2*time.Minute, func() bool { return killed.Load() >= 3 && count(t, db, "SELECT COUNT(*) FROM "+table) >= 7 }) {
					t.Errorf("%d killed, %d effects", killed.Load(), count(t, db, "SELECT COUNT(*) FROM "+table))
				}
				stop()
				wants(t, "RunTx", <-ended, context.Canceled)
				if n := count(t, db, "SELECT (MAX(at_us) - MIN(at_us)) DIV 500000 + 1 - COUNT(*) FROM "+table); n != 0 {
					t.Errorf("%d instants are missing", n)
				}
				if n := count(t, db, "SELECT COUNT(*) - COUNT(DISTINCT at_us) FROM "+table); n != 0 {
					t.Errorf("%d instants were done twice", n)
				}
				runs, err := j.Runs(t.Context(), key)
				must(t, err)
				outcomes := make(map[Kind]int)
				for _, r := range runs {
					outcomes[r.Kind]++
				}
				if !guarded && outcomes[Interrupted] < 3 || outcomes[Done] < 7 || outcomes[Failed] != 0 {
					t.Errorf("the runs were %v", outcomes)
				}
			})
		})
	}
}

// TestDiedInTick proves which instants are done and which are told as left out where a
// process dies in one: between the two there is none, and none is both. Under CatchUpAll, none is
// left out.
func TestDiedInTick(t *testing.T) {
	for name, policy := range map[string]Policy{"Once": CatchUpLatest, "Skip": SkipMissed, "All": CatchUpAll} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				a, b, begun := c.node(), c.node(), make(chan time.Time, 1)
				a.runs(Every(time.Second), func(ctx context.Context, at time.Time) error {
					begun <- at
					<-ctx.Done()
					return ctx.Err()
				}, Missed(policy))
				first := <-begun
				a.die()
				var j journal
				b.runs(Every(time.Second), j.work(time.Millisecond), Missed(policy), Grace(time.Second))
				time.Sleep(10 * time.Second)
				closeAll(t, a, b)
				left := make(map[time.Time]bool)
				for _, e := range b.events.of(Skipped) {
					for at := e.From; at.Before(e.At); at = at.Add(time.Second) {
						left[at.UTC()] = true
					}
				}
				for at, last := first, j.done[len(j.done)-1]; !at.After(last); at = at.Add(time.Second) {
					if done := slices.Contains(j.done, at); done == left[at] {
						t.Errorf("%v was done: %t, and left out: %t", at, done, left[at])
					}
				}
				if len(left) == 0 != (policy == CatchUpAll) || len(j.done) < 5 {
					t.Errorf("%d done, %d left out", len(j.done), len(left))
				}
			})
		})
	}
}

// TestLateMark proves that who has lost a tick is told so, also when another one has done the
// tick by then.
func TestLateMark(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		a, b := c.node(), c.node()
		at := c.now()
		old, err := a.Claim(t.Context(), nightly, at)
		must(t, err)
		a.store.Down(nil) // its lease is lost
		time.Sleep(2 * ttl)
		claim, err := b.Claim(t.Context(), nightly, at)
		must(t, err)
		must(t, claim.Finish(t.Context(), nil))
		wants(t, "who comes late", old.Finish(t.Context(), nil), txlock.ErrLost)
	})
}

// unanswered is a ledger that doesn't answer the first mark.
type unanswered struct {
	*memLedger
	first sync.Once
}

func (u *unanswered) done(ctx context.Context, b beginning, run jobrow.Run) (marked bool, err error) {
	marked, err = u.memLedger.done(ctx, b, run)
	u.first.Do(func() { marked, err = false, errors.New("no answer") })
	return marked, err
}

// TestUnansweredMark proves that a mark that was written, and not answered, is found.
func TestUnansweredMark(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		n := c.node()
		pool := n.store.Pool()
		leases, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
		must(t, err)
		jobs, err := newJobs(pool, leases, &unanswered{memLedger: n.ledger})
		must(t, err)
		if ran, err := jobs.Tick(t.Context(), nightly, c.now(), nothing); !ran || err != nil {
			t.Errorf("%t, %v", ran, err)
		}
		must(t, jobs.Close(t.Context()))
		must(t, leases.Close(t.Context()))
		must(t, pool.Close())
	})
}

// TestUnansweredCommit proves that TickTx finds out whether a COMMIT that was not answered
// was executed: fn is not called again then, and else it may be.
func TestUnansweredCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(20)")
		j := open(t, newPool(t, db, true))
		key, at := newKey(), serverNow(t, j)
		tick := func(j *Jobs) (bool, error) {
			return j.TickTx(t.Context(), key, at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (what) VALUES ('done')")
				return err
			})
		}
		losing := func(arrives bool) *Jobs {
			jobs, err := New(newPool(t, db, false, testdb.LosingCommits(arrives)), j.leases)
			must(t, err)
			return jobs
		}
		if ran, err := tick(losing(false)); !ran || !errors.Is(err, txlock.ErrUnknownOutcome) || !errors.Is(err, mysql.ErrInvalidConn) {
			t.Errorf("not executed: %v, %v", ran, err)
		}
		if ran, err := tick(losing(true)); !ran || err != nil {
			t.Errorf("executed: %v, %v", ran, err)
		}
		if ran, err := tick(j); ran || err != nil {
			t.Errorf("again: %v, %v", ran, err)
		}
		if n := count(t, db, "SELECT COUNT(*) FROM "+table); n != 1 {
			t.Errorf("%d rows", n)
		}
		s, err := j.Status(t.Context(), key)
		if err != nil || !s.Done.Equal(at) || s.Err != "" {
			t.Errorf("the table says %+v, %v", s, err)
		}
	})
}

// TestAfterCommitOfATick proves that TickTx calls functions when its transaction is committed,
// before it returns.
func TestAfterCommitOfATick(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, err := locksqlc.Open(db.DSN())
		must(t, err)
		t.Cleanup(func() { must(t, pool.Close()) })
		j, key, calls := open(t, pool), newKey(), 0
		ran, err := j.TickTx(t.Context(), key, serverNow(t, j), func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
			scope, err := txlock.Join(ctx, tx)
			if err != nil {
				return err
			}
			return scope.AfterCommit(func() { calls++ })
		})
		if !ran || err != nil || calls != 1 {
			t.Errorf("ran %t, %v, and %d functions were called", ran, err, calls)
		}
	})
}
