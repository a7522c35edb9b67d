package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

var orders, prices = txlock.NewFamily[int]("order"), txlock.NewFamily[int]("price")

// situations are what operators meet, with what the commands say then: docs/operations.md has the same.
var situations = []struct {
	name string
	make func(*stage)
}{
	{"a forgotten transaction", func(s *stage) {
		s.locks(orders.Key(42))
		s.shows([]string{"locks"}, "order:42", "web-1/4711")
	}},
	{"a sleeping holder", func(s *stage) {
		s.locks(orders.Key(42))
		s.waitsFor(orders.Key(42))
		s.shows([]string{"waits"}, "order:42", "└─ waits", "idle")
	}},
	{"a chain of waits", func(s *stage) {
		s.locks(orders.Key(42))
		tx2, other := s.locks(orders.Key(77))
		s.waits(tx2, func(ctx context.Context) error { return testdb.Err(other.Lock(ctx, orders.Key(42))) })
		s.waitsFor(orders.Key(77))
		s.shows([]string{"waits"}, "   └─ order:77", "      └─ waits")
	}},
	{"a holder that waits for a row of another table", func(s *stage) {
		stock := s.db.CreateTable(s, "stock", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
		s.names = append(s.names, stock, "stock")
		s.db.Exec(s, "INSERT INTO "+stock+" VALUES (7, 1)")
		tx1, _ := s.begin()
		s.must(testdb.Err(tx1.ExecContext(s.ctx, "UPDATE "+stock+" SET n = n + 1 WHERE id = 7")))
		tx2, _ := s.locks(orders.Key(42))
		s.waits(tx2, func(ctx context.Context) error {
			_, err := tx2.ExecContext(ctx, "UPDATE "+stock+" SET n = n - 1 WHERE id = 7")
			return err
		})
		s.waitsFor(orders.Key(42))
		s.shows([]string{"waits"}, "a row of stock (PRIMARY)", "   └─ order:42")
	}},
	{"readers that starve a writer", func(s *stage) {
		s.must(locksqlc.Run(s.ctx, s.pool, []txlock.Key{txlock.Shared(prices.Key(8))}, func(*sql.Tx) error { return nil })) // the first asks more
		s.must(txlock.Ensure(s.ctx, s.pool, prices.Key(7)))
		for range 2 {
			_, reader := s.begin()
			s.must(testdb.Err(reader.RLock(s.ctx, prices.Key(7))))
		}
		s.waitsFor(prices.Key(7))
		s.shows([]string{"waits"}, "price:7", "held by session 51", "held by session 52", "session 53")
	}},
	{"a new key behind a rolled back one", func(s *stage) { // with keys of its own: rows that others have deleted may still divide the gap
		s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(9)))
		tx1, first := s.begin()
		s.must(testdb.Err(first.Lock(s.ctx, orders.Key(80))))
		_, other := s.begin()
		session, granted := s.last, make(chan error, 1)
		go func() { granted <- testdb.Err(other.Lock(s.ctx, orders.Key(80))) }()
		s.db.WaitForLockWait(s, session)
		s.must(tx1.Rollback())
		s.must(<-granted)
		s.waitsFor(orders.Key(85))
		s.shows([]string{"waits"}, "the gap before order:9 in lockstep_locks", "held by session 52", "└─ waits")
	}},
	{"a prepared transaction", func(s *stage) {
		s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(42)))
		conn := testdb.Got(s.pool.Conn(s.ctx))(s)
		session := testdb.ConnID(s, conn)
		xid := "'" + s.db.Name() + "'"
		for _, statement := range []string{
			"XA START " + xid, "UPDATE lockstep_locks SET token = UNIX_TIMESTAMP() * 1000000, owner = 'importer', conn_id = CONNECTION_ID(), locked_us = UNIX_TIMESTAMP() * 1000000 WHERE name = 'order:42'",
			"XA END " + xid, "XA PREPARE " + xid,
		} {
			s.must(testdb.Err(conn.ExecContext(s.ctx, statement)))
		}
		s.db.Kill(s, session)
		s.db.WaitGone(s, session)
		_ = conn.Close() // its session has gone
		s.Cleanup(func() { s.must(testdb.Err(s.db.Admin().ExecContext(context.WithoutCancel(s.ctx), "XA ROLLBACK "+xid))) })
		s.waitsFor(orders.Key(42))
		s.shows([]string{"waits"}, "order:42", "XA ROLLBACK", "└─ waits")
		s.shows([]string{"release", "order:42", "--yes"}, "XA ROLLBACK", "exit code 1")
	}},
	{"a holder that waits for a change of a table", func(s *stage) {
		stock := s.db.CreateTable(s, "stock", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
		s.names = append(s.names, stock, "stock")
		first, _ := s.begin()
		var n int
		s.must(first.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM "+stock).Scan(&n))
		s.alter(stock)
		tx2, _ := s.locks(orders.Key(42))
		s.behind(tx2, "SELECT COUNT(*) FROM "+stock)
		s.shows([]string{"show", "order:42"}, "order:42", "held by session 51", "waiting for table metadata lock")
	}},
	{"two hashed keys in one slot", func(s *stage) {
		hashed := txlock.NewFamily[int]("order", txlock.Hashed())
		next := 43
		for hashed.Key(next).Slot() != hashed.Key(42).Slot() {
			next++
		}
		s.db.Exec(s, fmt.Sprintf("INSERT INTO lockstep_centers VALUES (%d, 0, '-', 0, 0)", hashed.Key(42).Slot()))
		_, first := s.begin()
		s.must(testdb.Err(first.Lock(s.ctx, hashed.Key(42))))
		s.waitsFor(hashed.Key(next))
		keys := s.file("keys.txt", fmt.Sprintf("order:42\norder:%d\norder:44\n", next))
		s.shows([]string{"waits", "--keys", keys}, fmt.Sprintf("order:42, order:%d", next))
	}},
	{"a pool that is used up", func(s *stage) {
		s.pool.SetMaxOpenConns(2)
		for i := range 2 {
			_, scope := s.begin()
			s.must(testdb.Err(scope.Lock(s.ctx, orders.Key(42+i))))
		}
		s.shows([]string{"locks"}, "order:42", "order:43")
	}},
	{"a fair queue of 50", func(s *stage) {
		s.pool.SetMaxOpenConns(0)
		ctx := lease.WithOwner(s.ctx, "web-1/4711")
		holder := testdb.Got(s.manager(lease.WithLabel("web-1:4711")).Acquire(ctx, txlock.Named("report"), lease.TTL(10*time.Minute)))(s)
		waiting, cancel := context.WithCancel(lease.WithOwner(s.ctx, "web-2/815"))
		ended := make(chan error, 50)
		s.Cleanup(func() {
			cancel()
			for range 50 {
				err := <-ended
				testdb.ErrorIf(s, err == nil, "a waiter was granted the lease")
			}
			_ = holder.Release(context.WithoutCancel(ctx))
		})
		for range 5 { // a manager has up to 16 places in the queue of a key
			m := s.manager(lease.Fair(), lease.WithLabel("web-2:815"))
			for range 10 {
				go func() {
					_, err := m.Acquire(lease.WithOwner(waiting, "web-2/815"), txlock.Named("report"))
					ended <- err
				}()
			}
		}
		s.shows([]string{"leases"}, "web-2/815", "  50  ", "  49  ")
	}},
	{"a lease of a dead host", func(s *stage) {
		s.acquire("web-9/3301", "web-9:3301")
		// As if its holder had renewed nothing for most of its time to live.
		s.db.Exec(s, "UPDATE lockstep_leases SET expires_us = expires_us - ttl_us * 3 DIV 4 WHERE name = 'report'")
		s.shows([]string{"leases"}, "late", "web-9:3301")
	}},
	{"a holder that is asked", func(s *stage) {
		s.acquire("web-1/4711", "nightly report")
		s.shows([]string{"ask", "report", "--reason", "maintenance at 4", "--yes"}, "Asked.")
		s.shows([]string{"leases"}, "asked: maintenance at 4")
	}},
	{"a lease that is taken away", func(s *stage) {
		s.acquire("web-1/4711", "nightly report")
		s.shows([]string{"release", "report", "--yes"}, "Released.")
		s.shows([]string{"leases"}, "exit code 1")
	}},
	{"a transaction that is ended", func(s *stage) {
		s.locks(orders.Key(42))
		s.shows([]string{"release", "order:42", "--yes"}, "is ended.\n")
		s.db.WaitGone(s, s.last)
		s.shows([]string{"locks"}, "exit code 1")
	}},
	{"a question answered by no", func(s *stage) {
		s.locks(orders.Key(42))
		s.stdin = "no\n"
		s.shows([]string{"release", "order:42"}, "exit code 4")
	}},
	{"a guarded lease", func(s *stage) {
		l := s.acquire("web-1/4711", "nightly report")
		tx, _ := s.begin()
		s.must(l.Guard(s.ctx, tx))
		s.shows([]string{"show", "report"}, "nightly report")
	}},
	{"a full semaphore", func(s *stage) {
		permits := testdb.Got(s.manager(lease.WithLabel("web-1:4711")).Semaphore(txlock.Named("imports"), 2))(s)
		for i := range 2 {
			s.must(testdb.Err(permits.Acquire(lease.WithOwner(s.ctx, fmt.Sprintf("import %d", i+1)))))
		}
		s.shows([]string{"leases"}, "import 1", "import 2")
	}},
	{"jobs that failed and died", func(s *stage) {
		jobs := testdb.Got(job.New(s.pool, s.manager(), job.InstanceName("web-1:4711")))(s)
		at := time.Now().Add(-time.Minute)
		s.must(testdb.Err(jobs.Tick(s.ctx, txlock.Named("cleanup"), at, func(context.Context, time.Time) error { return nil })))
		fails := func(context.Context, time.Time) error { return errors.New("no paper") }
		testdb.Fails(s, "the job", testdb.Err(jobs.Tick(s.ctx, txlock.Named("invoices"), at, fails)), "no paper")
		s.must(testdb.Err(jobs.Tick(s.ctx, txlock.Named("mails"), at, func(context.Context, time.Time) error { return nil })))
		s.db.Exec(s, "UPDATE lockstep_jobs SET ended_us = 0, done_us = done_us - 1 WHERE name = 'mails'") // as its process left it
		report := txlock.Named("report")
		s.must(testdb.Err(jobs.Tick(s.ctx, report, at, func(context.Context, time.Time) error { return nil })))
		s.db.Exec(s, "UPDATE lockstep_jobs SET next_us = ended_us - 7200000000, schedule = 'Every(1h0m0s)' WHERE name = 'report'")
		s.shows([]string{"jobs"}, "failed", "died", "no paper", "overdue by")
		s.shows([]string{"jobs", "show", "invoices"}, "no paper")
		s.shows([]string{"jobs", "pause", "report", "--by", "alice: the disk is full", "--yes"}, "Paused.")
		s.shows([]string{"jobs", "run", "report", "--yes"}, "Requested.")
	}},
	{"a key of Once", func(s *stage) {
		done, scope := s.begin()
		s.must(testdb.Err(scope.Once(s.ctx, txlock.Named("payment:7"))))
		s.must(done.Commit())
		_, open := s.begin()
		s.must(testdb.Err(open.Once(s.ctx, txlock.Named("payment:8"))))
		s.shows([]string{"once", "payment:"}, "payment:7", "open")
	}},
	{"an election", func(s *stage) {
		ctx, cancel := context.WithCancel(s.ctx)
		ended := make(chan error, 2)
		s.Cleanup(func() { cancel(); _, _ = <-ended, <-ended })
		leads := make(chan struct{}, 2)
		for _, name := range []string{"web-1:4711", "web-2:815"} {
			e := testdb.Got(elect.New(s.manager(lease.WithLabel(name)), txlock.Named("scheduler"), elect.InstanceName(name)))(s)
			go func() {
				ended <- e.Run(ctx, func(ctx context.Context, _ *elect.Term) error { leads <- struct{}{}; <-ctx.Done(); return nil })
			}()
			if name == "web-1:4711" {
				<-leads
			}
		}
		s.shows([]string{"leaders"}, "web-1:4711", "web-2:815")
	}},
	{"missing grants", func(s *stage) {
		s.locks(orders.Key(42))
		s.dsn = s.db.DSN()
		s.shows([]string{"locks"}, "GRANT PROCESS ON *.* TO", "order:42")
	}},
	{"no waits", func(s *stage) {
		s.shows([]string{"waits"}, "exit code 1")
	}},
	{"a clock that differs", func(s *stage) {
		cfg := s.db.AdminConfig()
		cfg.Params = map[string]string{"timestamp": fmt.Sprint(time.Now().Add(50 * time.Second).Unix())} // further away it would be refused
		s.dsn = cfg.FormatDSN()
		s.says(done, "", "install", "--yes")
		s.shows([]string{"check", "--problems"}, "clock (warn)")
	}},
	{"missing tables", func(s *stage) {
		for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
			s.db.Exec(s, "DROP TABLE lockstep_"+table)
		}
		s.shows([]string{"locks"}, "exit code 3")
		s.shows([]string{"check", "--problems"}, "lockstep install")
		s.shows([]string{"install", "--yes"}, "Installed.")
	}},
}

// alter changes a table that is used, and waits for it until the end of the test.
func (s *stage) alter(table string) {
	s.Helper()
	conn := testdb.Got(s.db.Admin().Conn(s.ctx))(s)
	s.number(testdb.ConnID(s, conn))
	changed := make(chan struct{})
	ctx, cancel := context.WithCancel(s.ctx)
	go func() {
		defer close(changed)
		_, _ = conn.ExecContext(ctx, "ALTER TABLE "+table+" COMMENT = 'changed'") // it is cancelled
	}()
	s.Cleanup(func() { cancel(); <-changed; _ = conn.Close() })
	s.waitsForTable(1)
}

// behind executes a statement that waits behind the change of a table, until the end of the test.
func (s *stage) behind(tx *sql.Tx, statement string) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = tx.ExecContext(ctx, statement) // it is cancelled
	}()
	s.Cleanup(func() { cancel(); <-ended })
	s.waitsForTable(2)
}

// waitsForTable waits until so many sessions wait for a table of the database.
func (s *stage) waitsForTable(n int) {
	s.Helper()
	s.rows("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE db = '"+s.db.Name()+"' AND state = 'Waiting for table metadata lock'", strconv.Itoa(n))
}

// acquire acquires a lease of the key report that lasts for the test.
func (s *stage) acquire(owner, note string) *lease.Lease {
	s.Helper()
	l := testdb.Got(s.manager(lease.TTL(time.Hour), lease.WithLabel(note)).Acquire(lease.WithOwner(s.ctx, owner), txlock.Named("report")))(s)
	return l
}

// TestSituations makes each situation on both servers, and compares what the commands say with docs/operations.md.
func TestSituations(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, situation := range situations {
			t.Run(situation.name, func(t *testing.T) {
				s := newStage(t, s.db)
				situation.make(s)
				page.compare(t, strings.Join(s.calls, ""))
			})
		}
	})
}

// deadlock makes a deadlock that lasts, on a server that looks for none.
func (s *stage) deadlock() {
	s.Helper()
	tx1, first := s.locks(orders.Key(42))
	ids := []int64{s.last}
	tx2, other := s.locks(orders.Key(77))
	ids = append(ids, s.last)
	s.waits(tx1, func(ctx context.Context) error { return testdb.Err(first.Lock(ctx, orders.Key(77))) })
	s.waits(tx2, func(ctx context.Context) error { return testdb.Err(other.Lock(ctx, orders.Key(42))) })
	s.shows([]string{"waits"}, "a deadlock", "   └─ order:")
	page.compare(s.T, strings.Join(s.calls, ""))
	for _, id := range ids { // else the server goes on to wait for who has gone
		s.db.Kill(s, id)
	}
}

func TestMain(m *testing.M) { testdb.Main(m) }

// stage is where a situation is made: the program's pool, and the command, which an operator calls.
type stage struct {
	*testing.T
	db   *testdb.DB
	pool *sql.DB
	ctx  context.Context // labels the locks

	dsn   string // of the operator
	stdin string
	names []string // pairs, for a strings.Replacer
	calls []string // commands that were run, with what they printed

	sessions int
	last     int64 // the session of the last transaction
}

// onServers runs a test on a stage of each server, in a database without the rows of hashed keys,
// unless it is made by another function.
func onServers(t *testing.T, test func(t *testing.T, s *stage), made ...func(testing.TB, testdb.Engine) *testdb.DB) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		if len(made) > 0 {
			test(t, newStage(t, made[0](t, engine)))
		} else {
			test(t, newStage(t, testdb.Shared(t, engine).OpenLeases(t)))
		}
	})
}

// newStage clears the database of what was done in it before.
func newStage(t *testing.T, db *testdb.DB) *stage {
	t.Helper()
	for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
		db.Exec(t, "DELETE FROM lockstep_"+table)
	}
	return stageOn(t, db)
}

// stageOn makes a stage of a database as it is.
func stageOn(t *testing.T, db *testdb.DB) *stage {
	t.Helper()
	s := &stage{T: t, db: db, dsn: db.AdminDSN()}
	s.pool = db.Connect(t, program)
	s.ctx = txlock.WithLabel(t.Context(), label)
	s.names = []string{db.Config().User, "app", db.AdminConfig().User, "operator", db.Name(), "shop", fmt.Sprintf("(pid %d)", os.Getpid()), "(pid 4711)"}
	return s
}

func program(c *mysql.Config) { c.ConnectionAttributes = "program_name:shop" }

// begin begins a transaction, whose session has the next number on the page, and which waits as
// long as the test looks at it.
func (s *stage) begin() (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx := testdb.Got(s.pool.BeginTx(s.ctx, nil))(s)
	s.Cleanup(func() { _ = tx.Rollback() })
	s.must(testdb.Err(tx.ExecContext(s.ctx, "SET innodb_lock_wait_timeout = 3600")))
	s.last = testdb.ConnID(s, tx)
	s.number(s.last)
	scope := testdb.Got(txlock.Join(s.ctx, tx))(s)
	return tx, scope
}

// number gives a session the next number on the page.
func (s *stage) number(id int64) {
	s.names = append(s.names, "session:"+strconv.FormatInt(id, 10), strconv.Itoa(51+s.sessions))
	s.sessions++
}

func (s *stage) must(err error) {
	s.Helper()
	check(s.T, err)
}

// lock locks keys, which exist before: as in a program that has run for a while.
func (s *stage) lock(scope *txlock.Scope, keys ...txlock.Key) {
	s.Helper()
	s.must(txlock.Ensure(s.ctx, s.pool, keys...))
	for _, key := range keys {
		s.must(testdb.Err(scope.Lock(s.ctx, key)))
	}
}

// locks begins a transaction that has locked keys.
func (s *stage) locks(keys ...txlock.Key) (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx, scope := s.begin()
	s.lock(scope, keys...)
	return tx, scope
}

// waitsFor begins a transaction that waits for a key, until the end of the test.
func (s *stage) waitsFor(key txlock.Key) {
	s.Helper()
	tx, scope := s.begin()
	s.waits(tx, func(ctx context.Context) error { return testdb.Err(scope.Lock(ctx, key)) })
}

// label names the owners.
const label = "web-1/4711"

// waits lets a transaction lock a key that it has to wait for, until the end of the test.
func (s *stage) waits(tx *sql.Tx, lock func(ctx context.Context) error) {
	s.Helper()
	s.db.KeepWaiting(s, tx, func(ctx context.Context) error { return lock(txlock.WithLabel(ctx, label)) })
}

func (s *stage) manager(opts ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m := testdb.Got(lease.NewManager(s.pool, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, opts...)...))(s)
	s.Cleanup(func() { _ = m.Close(context.WithoutCancel(s.ctx)) })
	return m
}

func (s *stage) getenv(name string) string { return map[string]string{"LOCKSTEP_DSN": s.dsn}[name] }

// call runs the command, and returns all that it prints, as the page has it.
func (s *stage) call(args ...string) (output string, code int) {
	s.Helper()
	output, code = called(s.T, map[string]string{"LOCKSTEP_DSN": s.dsn}, s.stdin, args...)
	return s.normal(output), code
}

// says runs a command, which must return this code and print this text.
func (s *stage) says(want int, text string, args ...string) {
	s.Helper()
	if output, code := s.call(args...); code != want || !strings.Contains(output, text) {
		s.Errorf("lockstep %q returns %d, not %d and %q, and prints:\n%s", args, code, want, text, output)
	}
}

// shows runs a command until it prints what is wanted, and notes it for the page. The
// servers refresh what they show now and then.
func (s *stage) shows(args []string, wanted ...string) {
	s.Helper()
	text, deadline := "", time.Now().Add(time.Minute)
	for same := 0; ; {
		before := text
		output, code := s.call(args...)
		text = "$ lockstep " + strings.NewReplacer(s.names...).Replace(shell(args)) + "\n" + output
		if code != 0 {
			text += fmt.Sprintf("(exit code %d)\n", code)
		}
		missing := ""
		for _, want := range wanted {
			if !strings.Contains(text, want) {
				missing = want
			}
		}
		if same++; text != before {
			same = 0
		}
		golden, once := page.block(s.Name()), slices.Contains(args, "--yes")
		if missing == "" && (golden == nil || !*update && strings.Contains(*golden, text) || *update && (once || same > 2)) {
			break
		}
		if time.Now().After(deadline) {
			if missing == "" {
				break // the comparison with the page will say it
			}
			s.Fatalf("it doesn't print %q:\n%s", missing, text)
		}
		testdb.Refresh()
	}
	s.calls = append(s.calls, text)
}

func shell(args []string) string {
	var words []string
	for _, arg := range args {
		if strings.ContainsAny(arg, " *") {
			arg = "'" + arg + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

var (
	ports     = regexp.MustCompile(`localhost(:\d+)?|127\.0\.0\.1(:\d+)?`)
	durations = regexp.MustCompile(`\b(\d+h\d+m(\d+s)?|\d+m\d+s|\d+(\.\d+)?s)\b`)
	exact     = regexp.MustCompile(`-?\d+\.\d{3} s`)
	tokens    = regexp.MustCompile(`\b1[789]\d{14}\b`)
	clocks    = regexp.MustCompile(`\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\b`)
	columns   = regexp.MustCompile(` {2,}`)
	numbers   = regexp.MustCompile(`(^|[^:\w])\d+\b`) // not order:42
	// MariaDB can't tell who has a table: transactions of other tests may have it, too.
	strangers = regexp.MustCompile(`(?m)^ +held by session \d+, app_[0-9a-f]+@.*\n`)
)

// normal replaces what differs from one run to the next.
func (s *stage) normal(text string) string {
	sessions := make(map[string]string)
	for i := 0; i < len(s.names); i += 2 {
		if id, is := strings.CutPrefix(s.names[i], "session:"); is {
			sessions[id] = cmp.Or(sessions[id], s.names[i+1]) // a pool gives one to several transactions
		} else {
			text = strings.ReplaceAll(text, s.names[i], s.names[i+1])
		}
	}
	text = numbers.ReplaceAllStringFunc(text, func(found string) string {
		id := found[strings.IndexAny(found, "0123456789"):]
		return strings.TrimSuffix(found, id) + cmp.Or(sessions[id], id)
	})
	text = ports.ReplaceAllString(text, "web-1")
	text = strangers.ReplaceAllString(text, "")
	text = exact.ReplaceAllString(text, "0.000 s")
	text = durations.ReplaceAllString(text, "12s")
	text = tokens.ReplaceAllString(text, "1795385349932725")
	text = clocks.ReplaceAllString(text, "2026-11-23 03:12:00")
	return align(text)
}

// align writes tables anew, whose cells have other widths now.
func align(text string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		cells := columns.ReplaceAllString(line[indent:], "\t")
		_, _ = fmt.Fprintln(w, line[:indent]+cells)
	}
	_ = w.Flush()
	var trimmed strings.Builder
	for line := range strings.Lines(b.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}

// file writes a file for the command, which the page knows by its name.
func (s *stage) file(name, text string) string {
	s.Helper()
	path := file(s.T, s.TempDir(), name, text)
	s.names = append(s.names, path, name)
	return path
}
