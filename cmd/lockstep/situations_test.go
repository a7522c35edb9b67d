package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

var orders, prices = txlock.NewFamily[int]("order"), txlock.NewFamily[int]("price")

// situations are what operators meet, with what the commands say then: docs/operations.md
// has the same.
var situations = []struct {
	name string
	make func(*stage)
}{
	{"a forgotten transaction", func(s *stage) {
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		s.shows([]string{"locks"}, "order:42", "web-1/4711")
	}},
	{"a sleeping holder", func(s *stage) {
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		tx, waiter := s.begin()
		s.waits(tx, func(ctx context.Context) error { return second(waiter.Lock(ctx, orders.Key(42))) })
		s.shows([]string{"waits"}, "order:42", "└─ waits", "idle")
	}},
	{"a chain of waits", func(s *stage) {
		_, first := s.begin()
		s.lock(first, orders.Key(42))
		tx2, other := s.begin()
		s.lock(other, orders.Key(77))
		s.waits(tx2, func(ctx context.Context) error { return second(other.Lock(ctx, orders.Key(42))) })
		tx3, third := s.begin()
		s.waits(tx3, func(ctx context.Context) error { return second(third.Lock(ctx, orders.Key(77))) })
		s.shows([]string{"waits"}, "   └─ order:77", "      └─ waits")
	}},
	{"a holder that waits for a row of another table", func(s *stage) {
		stock := s.db.CreateTable(s, "stock", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
		s.names = append(s.names, stock, "stock")
		s.db.Exec(s, "INSERT INTO "+stock+" VALUES (7, 1)")
		tx1, _ := s.begin()
		s.must(second(tx1.ExecContext(s.ctx, "UPDATE "+stock+" SET n = n + 1 WHERE id = 7")))
		tx2, other := s.begin()
		s.lock(other, orders.Key(42))
		s.waits(tx2, func(ctx context.Context) error {
			_, err := tx2.ExecContext(ctx, "UPDATE "+stock+" SET n = n - 1 WHERE id = 7")
			return err
		})
		tx3, third := s.begin()
		s.waits(tx3, func(ctx context.Context) error { return second(third.Lock(ctx, orders.Key(42))) })
		s.shows([]string{"waits"}, "a row of stock (PRIMARY)", "   └─ order:42")
	}},
	{"readers that starve a writer", func(s *stage) {
		s.must(locksqlc.Run(s.ctx, s.pool, []txlock.Key{txlock.Shared(prices.Key(8))}, func(*sql.Tx) error { return nil })) // the first asks more
		s.must(txlock.Ensure(s.ctx, s.pool, prices.Key(7)))
		for range 2 {
			_, reader := s.begin()
			s.must(second(reader.RLock(s.ctx, prices.Key(7))))
		}
		tx, writer := s.begin()
		s.waits(tx, func(ctx context.Context) error { return second(writer.Lock(ctx, prices.Key(7))) })
		s.shows([]string{"waits"}, "price:7", "held by session 51", "held by session 52", "session 53")
	}},
	{"a new key behind a rolled back one", func(s *stage) { // with keys of its own: rows that others have deleted may still divide the gap
		s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(9)))
		tx1, first := s.begin()
		s.must(second(first.Lock(s.ctx, orders.Key(80))))
		_, other := s.begin()
		session, granted := s.last, make(chan error, 1)
		go func() { granted <- second(other.Lock(s.ctx, orders.Key(80))) }()
		s.db.WaitForLockWait(s, session)
		s.must(tx1.Rollback())
		s.must(<-granted)
		tx3, third := s.begin()
		s.waits(tx3, func(ctx context.Context) error { return second(third.Lock(ctx, orders.Key(85))) })
		s.shows([]string{"waits"}, "the gap before order:9 in lockstep_locks", "held by session 52", "└─ waits")
	}},
	{"a prepared transaction", func(s *stage) {
		s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(42)))
		conn, err := s.pool.Conn(s.ctx)
		s.must(err)
		session := testdb.ConnID(s, conn)
		xid := "'" + s.db.Name() + "'"
		for _, statement := range []string{
			"XA START " + xid, "UPDATE lockstep_locks SET token = UNIX_TIMESTAMP() * 1000000, owner = 'importer', conn_id = CONNECTION_ID(), locked_us = UNIX_TIMESTAMP() * 1000000 WHERE name = 'order:42'",
			"XA END " + xid, "XA PREPARE " + xid,
		} {
			s.must(second(conn.ExecContext(s.ctx, statement)))
		}
		s.db.Kill(s, session)
		s.db.WaitGone(s, session)
		_ = conn.Close() // its session has gone
		s.Cleanup(func() {
			s.must(second(s.db.Admin().ExecContext(context.WithoutCancel(s.ctx), "XA ROLLBACK "+xid)))
		})
		tx, waiter := s.begin()
		s.waits(tx, func(ctx context.Context) error { return second(waiter.Lock(ctx, orders.Key(42))) })
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
		tx2, other := s.begin()
		s.lock(other, orders.Key(42))
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
		s.must(second(first.Lock(s.ctx, hashed.Key(42))))
		tx, scope := s.begin()
		s.waits(tx, func(ctx context.Context) error { return second(scope.Lock(ctx, hashed.Key(next))) })
		keys := s.file("keys.txt", fmt.Sprintf("order:42\norder:%d\norder:44\n", next))
		s.shows([]string{"waits", "--keys", keys}, fmt.Sprintf("order:42, order:%d", next))
	}},
	{"a pool that is used up", func(s *stage) {
		s.pool.SetMaxOpenConns(2)
		for i := range 2 {
			_, scope := s.begin()
			s.must(second(scope.Lock(s.ctx, orders.Key(42+i))))
		}
		s.shows([]string{"locks"}, "order:42", "order:43")
	}},
	{"a fair queue of 50", func(s *stage) {
		s.pool.SetMaxOpenConns(0)
		ctx := lease.WithOwner(s.ctx, "web-1/4711")
		holder, err := s.manager(lease.WithLabel("web-1:4711")).Acquire(ctx, txlock.Named("report"), lease.TTL(10*time.Minute))
		s.must(err)
		waiting, cancel := context.WithCancel(lease.WithOwner(s.ctx, "web-2/815"))
		ended := make(chan error, 50)
		s.Cleanup(func() {
			cancel()
			for range 50 {
				if err := <-ended; err == nil {
					s.Error("a waiter was granted the lease")
				}
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
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		s.shows([]string{"release", "order:42", "--yes"}, "is ended.\n")
		s.db.WaitGone(s, s.last)
		s.shows([]string{"locks"}, "exit code 1")
	}},
	{"a question answered by no", func(s *stage) {
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
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
		permits, err := s.manager(lease.WithLabel("web-1:4711")).Semaphore(txlock.Named("imports"), 2)
		s.must(err)
		for i := range 2 {
			s.must(second(permits.Acquire(lease.WithOwner(s.ctx, fmt.Sprintf("import %d", i+1)))))
		}
		s.shows([]string{"leases"}, "import 1", "import 2")
	}},
	{"jobs that failed and died", func(s *stage) {
		jobs, err := job.New(s.pool, s.manager(), job.InstanceName("web-1:4711"))
		s.must(err)
		at := time.Now().Add(-time.Minute)
		s.must(second(jobs.Tick(s.ctx, txlock.Named("cleanup"), at, func(context.Context, time.Time) error { return nil })))
		if _, err := jobs.Tick(s.ctx, txlock.Named("invoices"), at, func(context.Context, time.Time) error { return errors.New("no paper") }); err == nil {
			s.Fatal("the job has not failed")
		}
		s.must(second(jobs.Tick(s.ctx, txlock.Named("mails"), at, func(context.Context, time.Time) error { return nil })))
		s.db.Exec(s, "UPDATE lockstep_jobs SET ended_us = 0, done_us = done_us - 1 WHERE name = 'mails'") // as its process left it
		report := txlock.Named("report")
		s.must(second(jobs.Tick(s.ctx, report, at, func(context.Context, time.Time) error { return nil })))
		s.db.Exec(s, "UPDATE lockstep_jobs SET next_us = ended_us - 7200000000, schedule = 'Every(1h0m0s)' WHERE name = 'report'")
		s.shows([]string{"jobs"}, "failed", "died", "no paper", "overdue by")
		s.shows([]string{"jobs", "show", "invoices"}, "no paper")
		s.shows([]string{"jobs", "pause", "report", "--by", "alice: the disk is full", "--yes"}, "Paused.")
		s.shows([]string{"jobs", "run", "report", "--yes"}, "Requested.")
	}},
	{"a key of Once", func(s *stage) {
		done, scope := s.begin()
		s.must(second(scope.Once(s.ctx, txlock.Named("payment:7"))))
		s.must(done.Commit())
		_, open := s.begin()
		s.must(second(open.Once(s.ctx, txlock.Named("payment:8"))))
		s.shows([]string{"once", "payment:"}, "payment:7", "open")
	}},
	{"an election", func(s *stage) {
		ctx, cancel := context.WithCancel(s.ctx)
		ended := make(chan error, 2)
		s.Cleanup(func() { cancel(); _, _ = <-ended, <-ended })
		leads := make(chan struct{}, 2)
		for _, name := range []string{"web-1:4711", "web-2:815"} {
			e, err := elect.New(s.manager(lease.WithLabel(name)), txlock.Named("scheduler"), elect.InstanceName(name))
			s.must(err)
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
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
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
	conn, err := s.db.Admin().Conn(s.ctx)
	s.must(err)
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
	l, err := s.manager(lease.TTL(time.Hour), lease.WithLabel(note)).Acquire(lease.WithOwner(s.ctx, owner), txlock.Named("report"))
	s.must(err)
	return l
}

// TestSituations makes each situation on both servers, and compares what the commands say
// with docs/operations.md.
func TestSituations(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, situation := range situations {
			t.Run(situation.name, func(t *testing.T) {
				s := newStage(t, s.db)
				situation.make(s)
				page.compare(t, strings.Join(s.calls, ""))
				s.beside(t)
			})
		}
	})
}

// deadlock makes a deadlock that lasts, on a server that looks for none.
func (s *stage) deadlock() {
	s.Helper()
	tx1, first := s.begin()
	s.lock(first, orders.Key(42))
	ids := []int64{s.last}
	tx2, other := s.begin()
	s.lock(other, orders.Key(77))
	ids = append(ids, s.last)
	s.waits(tx1, func(ctx context.Context) error { return second(first.Lock(ctx, orders.Key(77))) })
	s.waits(tx2, func(ctx context.Context) error { return second(other.Lock(ctx, orders.Key(42))) })
	s.shows([]string{"waits"}, "a deadlock", "   └─ order:")
	page.compare(s.T, strings.Join(s.calls, ""))
	for _, id := range ids { // else the server goes on to wait for who has gone
		s.db.Kill(s, id)
	}
}
