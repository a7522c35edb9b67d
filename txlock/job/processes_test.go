package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"slices"
	"strings"
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

// process is a child of TestProcesses.
type process struct {
	*testdb.Child
	stop io.Closer
	said *testdb.Output
}

// startProcess starts this program as a process that runs jobs.
func startProcess(t *testing.T, db *testdb.DB, name, table string, off time.Duration) *process {
	t.Helper()
	cmd, said := exec.Command(testdb.Got(os.Executable())(t)), new(testdb.Output)
	cmd.Env = environment(db.DSN(), name, table, off)
	cmd.Stdout, cmd.Stderr = said, said
	stop := testdb.Got(cmd.StdinPipe())(t)
	return &process{testdb.Got(testdb.StartChild(cmd))(t), stop, said}
}

// end ends a process, and returns what it has said.
func (p *process) end(t *testing.T, kill bool) []string {
	t.Helper()
	if kill {
		p.Kill()
	}
	_ = p.stop.Close() // one that was killed has perhaps closed it
	state := p.Wait()
	testdb.ErrorIf(t, !kill && !state.Success(), "a process has ended with %v", state)
	return strings.FieldsFunc(p.said.String(), func(r rune) bool { return r == '\n' })
}

// TestProcesses proves, on five processes with clocks up to an hour wrong that are killed at random, that jobs lose
// no tick but those that the policy leaves out, which it tells; that TickTx does each exactly once, and Tick at
// least once and never beside itself. What is wrong of the clock is the stopwatch: see TestMachineClock.
func TestProcesses(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) { playProcesses(t, func() {}, db, db) })
}

// playProcesses is TestProcesses. The processes go to servers of the database by turns, and what else is
// to fail is called between the ends of two.
func playProcesses(t *testing.T, fail func(), db *testdb.DB, servers ...*testdb.DB) {
	t.Helper()
	ticks, between := testdb.Long[int64](80, 300), testdb.Long(1250*time.Millisecond, 2500*time.Millisecond)
	table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, job VARCHAR(10), at_us BIGINT, who VARCHAR(40)")
	offsets := []time.Duration{-time.Hour, -100 * time.Millisecond, 0, 30 * time.Minute, time.Hour}
	processes := make([]*process, len(offsets))
	var said []string
	start := func(i, generation int) {
		processes[i] = startProcess(t, servers[i%len(servers)], fmt.Sprintf("%d%s:%d", i, strings.Repeat("x", i), generation), table, offsets[i])
	}
	for i := range processes {
		start(i, 0)
	}
	enough := func() bool {
		return db.Number(t, "SELECT LEAST(COUNT(DISTINCT IF(job = 'all', at_us, NULL)), COUNT(DISTINCT IF(job = 'plain', at_us, NULL))) FROM "+table) >= ticks
	}
	kills := 0
	for end := time.Now().Add(10 * time.Minute); !enough() || kills < 4; kills++ {
		if time.Now().After(end) {
			t.Fatalf("%d ticks, of which %d were to be done", db.Number(t, "SELECT COUNT(*) FROM "+table), ticks)
		}
		time.Sleep(between)
		fail()
		n := testdb.Got(rand.Int(rand.Reader, big.NewInt(int64(len(processes)))))(t)
		i := int(n.Int64())
		said = append(said, processes[i].end(t, true)...)
		start(i, kills+1)
	}
	for _, p := range processes {
		said = append(said, p.end(t, false)...)
	}
	left := make(map[string][][2]int64)            // what each job has left out: from, and the next that was begun
	failed, faults := make(map[string]bool), kills // by job and time
	for _, line := range said {
		switch words := strings.Fields(line); words[0] {
		case "beside":
			t.Errorf("two worked at once: %s", line)
		case string(Skipped):
			var l [2]int64
			must(t, testdb.Err(fmt.Sscan(words[2]+" "+words[3], &l[0], &l[1])))
			left[jobOf(words[1])] = append(left[jobOf(words[1])], l)
		case string(Failed): // by a server that was killed: until the next time it may be called again
			failed[jobOf(words[1])+" "+words[2]] = true
			faults++
		default:
			faults++
		}
	}
	checkInstants(t, db, table, "plain", childEvery, left["plain"], failed, faults)
	for name, job := range childJobs {
		n := len(left[name])
		testdb.ErrorIf(t, n > 0 && job.missed == CatchUpAll, "%s: %d times ticks were left out", name, n)
		checkInstants(t, db, table, name, job.every, left[name], failed, faults)
	}
	if t.Failed() {
		t.Log(strings.Join(said, "\n"))
	}
}

// jobOf is the name of a job in childJobs, or plain, by its key.
func jobOf(key string) string { return key[strings.LastIndex(key, ":")+1:] }

// checkInstants checks that each instant was done, once by TickTx, or was told as left out or failed. Who is killed
// before it could tell explains the instants before one, and no others.
func checkInstants(t *testing.T, db *testdb.DB, table, job string, every time.Duration, left [][2]int64, failed map[string]bool, faults int) {
	t.Helper()
	times := make(map[int64]int)
	rows := testdb.Got(db.Admin().QueryContext(t.Context(), "SELECT at_us, COUNT(*) FROM "+table+" WHERE job = ? GROUP BY at_us", job))(t)
	for rows.Next() {
		var at int64
		var n int
		must(t, rows.Scan(&at, &n))
		times[at] = n
	}
	must(t, errors.Join(rows.Err(), rows.Close()))
	twice, told, untold, gaps := 0, 0, 0, 0
	instants := slices.Sorted(maps.Keys(times))
	within := false // instants that nobody has told of
	for at := instants[0]; at <= instants[len(instants)-1]; at += every.Microseconds() {
		was := slices.ContainsFunc(left, func(l [2]int64) bool { return l[0] <= at && at < l[1] })
		n, explained := times[at], was || failed[fmt.Sprint(job, " ", at)]
		switch {
		case n == 0 && explained:
			told++
		case n == 0:
			untold++
			if !within {
				gaps++
			}
		case was:
			t.Errorf("%s: %d was done, and left out", job, at)
		default:
			twice += n - 1
		}
		within = n == 0 && !explained
	}
	t.Logf("%s: %d ticks, %d left out, %d more of which nobody could tell, %d more runs, %d kills and errors", job, len(times), told, untold, twice, faults)
	testdb.ErrorIf(t, gaps > 0 && (childJobs[job].missed == CatchUpAll || job == "plain" || gaps > faults), "%s: %d ticks were lost at %d times", job, untold, gaps)
	testdb.ErrorIf(t, twice > 0 && (job != "plain" || twice > faults), "%s: ticks were done %d times too often", job, twice)
}

// TestKilledConnection proves that an instant whose transaction was lost with its connection is done nevertheless,
// and once, although CatchUpAll gives up a tick that has failed at the next instant.
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
						err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id)
						killed.Add(1)
						return errors.Join(err, testdb.Err(db.Admin().ExecContext(ctx, fmt.Sprint("KILL ", id))))
					}, Missed(CatchUpAll), RetryAfter(time.Hour))
				}()
				testdb.ErrorIf(t, !testdb.Await(2*time.Minute, func() bool { return killed.Load() >= 3 && db.Number(t, "SELECT COUNT(*) FROM "+table) >= 7 }),
					"%d killed, %d effects", killed.Load(), db.Number(t, "SELECT COUNT(*) FROM "+table))
				stop()
				wants(t, "RunTx", <-ended, context.Canceled)
				testdb.Equal(t, "missing", db.Number(t, "SELECT (MAX(at_us) - MIN(at_us)) DIV 500000 + 1 - COUNT(*) FROM "+table), 0)
				testdb.Equal(t, "done twice", db.Number(t, "SELECT COUNT(*) - COUNT(DISTINCT at_us) FROM "+table), 0)
				runs := testdb.Got(j.Runs(t.Context(), key))(t)
				outcomes := make(map[Kind]int)
				for _, r := range runs {
					outcomes[r.Kind]++
				}
				testdb.ErrorIf(t, !guarded && outcomes[Interrupted] < 3 || outcomes[Done] < 7 || outcomes[Failed] != 0, "the runs were %v", outcomes)
			})
		})
	}
}

// TestDiedInTick proves which instants are done and which are told as left out where a process is cut off in
// one: between the two there is none, and none is both. Another one begins within the TTL and a look.
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
				died := time.Now()
				var j journal
				var took time.Duration
				b.runs(Every(time.Second), func(ctx context.Context, at time.Time) error {
					took = cmp.Or(took, time.Since(died))
					return j.work(time.Millisecond)(ctx, at)
				}, Missed(policy), Grace(time.Second))
				time.Sleep(10 * time.Second)
				closeAll(t, a, b)
				if took > ttl+mostPause+time.Second || len(a.events.of(RunError)) == 0 || len(a.events.of(Interrupted)) != 1 {
					t.Errorf("taken over after %v; the process that was cut off has told %v", took, a.events.all)
				}
				left := make(map[time.Time]bool)
				for _, e := range b.events.of(Skipped) {
					for at := e.From; at.Before(e.At); at = at.Add(time.Second) {
						left[at.UTC()] = true
					}
				}
				for at, last := first, j.done[len(j.done)-1]; !at.After(last); at = at.Add(time.Second) {
					done := slices.Contains(j.done, at)
					testdb.ErrorIf(t, done == left[at], "%v was done: %t, and left out: %t", at, done, left[at])
				}
				testdb.ErrorIf(t, len(left) == 0 != (policy == CatchUpAll) || len(j.done) < 5, "%d done, %d left out", len(j.done), len(left))
			})
		})
	}
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
		n.Jobs.ledger = &unanswered{memLedger: n.ledger}
		ticks(t, true, nil)(n.Tick(t.Context(), nightly, c.now(), nothing))
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
				return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" (what) VALUES ('done')"))
			})
		}
		losing := func(arrives bool) *Jobs {
			return testdb.Got(New(newPool(t, db, false, testdb.LosingCommits(arrives)), j.leases))(t)
		}
		ticks(t, true, txlock.ErrUnknownOutcome, mysql.ErrInvalidConn)(tick(losing(false))) // not executed
		ticks(t, true, nil)(tick(losing(true)))
		ticks(t, false, nil)(tick(j))
		testdb.Equal(t, "rows", db.Number(t, "SELECT COUNT(*) FROM "+table), 1)
		s := statusOf(t, j, key)
		testdb.ErrorIf(t, !s.Done.Equal(at) || s.Err != "", "the table says %+v", s)
	})
}

// The environment of a process of TestProcesses: the DSN, its name, how wrong its clock is, and the table
// that it writes.
const (
	childDSN   = "LOCKSTEP_JOB_DSN"
	childName  = "LOCKSTEP_JOB_NAME"
	childClock = "LOCKSTEP_JOB_CLOCK"
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
	name, table := os.Getenv(childName), os.Getenv(childTable)
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, name, err)
			os.Exit(1)
		}
	}
	off, err := time.ParseDuration(os.Getenv(childClock))
	check(err)
	machine = func() time.Time { return time.Now().Add(off) }
	db, err := locksqlc.Open(os.Getenv(childDSN))
	check(err)
	leases, err := lease.NewManager(db, lease.TTL(childTTL))
	check(err)
	jobs, err := New(db, leases, InstanceName(name), Log(nil), Observe(func(_ context.Context, e Event) {
		if e.Kind == RunError || e.Kind == Failed {
			fmt.Println(e.Kind, e.Key, e.At.UnixMicro(), e.Err)
		}
		if e.Kind == Skipped {
			fmt.Println(e.Kind, e.Key, e.From.UnixMicro(), e.At.UnixMicro())
		}
	}))
	check(err)
	ended := make(chan error, 1+len(childJobs))
	go func() {
		ended <- jobs.Run(context.Background(), txlock.Named(table+":plain"), Every(childEvery), func(ctx context.Context, at time.Time) error {
			return alone(ctx, db, table, at)
		}, Missed(CatchUpAll))
	}()
	for of, job := range childJobs {
		go func() {
			ended <- jobs.RunTx(context.Background(), txlock.Named(table+":"+of), job.schedule, func(ctx context.Context, tx *sql.Tx, at time.Time) error {
				return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" (job, at_us, who) VALUES (?, ?, ?)", of, at.UnixMicro(), name))
			}, Missed(job.missed), Grace(time.Second))
		}()
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = errors.Join(err, jobs.Close(ctx))
	for range cap(ended) {
		err = errors.Join(err, <-ended)
	}
	check(errors.Join(err, leases.Close(ctx), db.Close()))
}

// alone writes a row, under a lock of the server's. Another one that has the lock, and writes a row after that, is
// at work; one that was killed may still have the lock, and writes nothing.
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
func environment(dsn, name, table string, off time.Duration) []string {
	zones := []string{"UTC", "Asia/Tokyo", "America/New_York"}
	return append(os.Environ(), childDSN+"="+dsn, childName+"="+name, childTable+"="+table, childClock+"="+off.String(),
		"TZ="+zones[len(strings.Split(name, ":")[0])%len(zones)])
}
