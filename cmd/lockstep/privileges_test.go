package main

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

// need is a privilege on something: a table of lockstep by the end of its name, the whole
// database, or what has a dot.
type need struct{ privilege, on string }

const all = "database"

// on are privileges on one thing.
func on(what string, privileges ...string) (needs []need) {
	for _, privilege := range privileges {
		needs = append(needs, need{privilege, what})
	}
	return needs
}

// looks are the needs of who looks at what is held, and sees those who wait.
func looks(engine testdb.Engine) []need {
	needs := append(rows(), on("*.*", "PROCESS")...)
	if engine == testdb.MySQL {
		needs = append(needs, on("performance_schema.*", "SELECT")...)
	}
	return needs
}

func rows() []need {
	return slices.Concat(on("locks", "SELECT"), on("centers", "SELECT"), on("leases", "SELECT"))
}

// programs are the needs of the programs.
func programs(engine testdb.Engine) []need {
	needs := on("centers", "SELECT", "INSERT", "UPDATE")
	for _, table := range []string{"locks", "leases", "once", "jobs"} {
		needs = append(needs, on(table, "SELECT", "INSERT", "UPDATE", "DELETE")...)
	}
	if engine == testdb.MySQL {
		needs = append(needs, on(all, "EXECUTE")...)
	}
	return needs
}

// TestPrivileges proves that each command works with the privileges that docs/operations.md names, and that without
// any one of them it names the GRANT in a sentence, and changes nothing.
func TestPrivileges(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		engine := s.db.Engine()
		op := s.operator()
		s.everything()
		end := map[testdb.Engine]string{testdb.MariaDB: "CONNECTION ADMIN", testdb.MySQL: "CONNECTION_ADMIN"}[engine]
		changes := on("leases", "INSERT", "UPDATE")
		op.tries(nil, looks(engine), "locks")
		if testdb.Long(false, true) { // they look as locks does
			op.tries(nil, looks(engine), "waits")
			op.tries(nil, rows(), "leases")
			op.tries(nil, rows(), "leaders")
		}
		op.tries(nil, slices.Concat(looks(engine), on("once", "SELECT"), on("jobs", "SELECT")), "show", "order:42")
		op.tries(nil, slices.Concat(on("jobs", "SELECT"), on("leases", "SELECT")), "jobs")
		op.tries(func() { s.db.Exec(s, "UPDATE lockstep_jobs SET paused_us = 0") }, slices.Concat(on("jobs", "SELECT", "UPDATE"), on("leases", "SELECT")), "jobs", "pause", "mails", "--yes")
		op.tries(nil, on("once", "SELECT"), "once")
		op.tries(s.unused, slices.Concat(on("locks", "SELECT", "DELETE"), on("leases", "SELECT", "DELETE"), on("once", "SELECT", "DELETE"), on("jobs", "SELECT", "DELETE")), "purge", "--older-than", "1h", "--yes")
		op.tries(func() {
			for _, key := range []string{"lockstep-bench:1", "lockstep-bench:64"} {
				s.db.Exec(s, "DELETE FROM lockstep_locks WHERE name = '"+key+"'")
				s.db.Exec(s, "DELETE FROM lockstep_leases WHERE name = '"+key+"'")
			}
		}, slices.Concat(on("locks", "SELECT", "INSERT", "UPDATE"), on("leases", "SELECT", "INSERT", "UPDATE")), "bench", "--lasts", "4ms", "--workers", "1", "--yes")
		op.tries(nil, slices.Concat(rows(), changes), "ask", "report", "--yes")
		op.tries(nil, slices.Concat(rows(), changes), "release", "report", "--yes")
		var holder *sql.Tx
		op.tries(func() {
			if holder != nil {
				_ = holder.Rollback() // its session may be ended
			}
			tx, _ := s.locks(orders.Key(77))
			s.listed()
			holder = tx
		}, slices.Concat(rows(), on("*.*", "PROCESS", end)), "release", "order:77", "--yes")

		fresh := stageOn(t, testdb.Fresh(t, engine))
		op = fresh.operator()
		install, views := on(all, "CREATE", "INSERT"), on(all, "CREATE VIEW", "DROP", "SELECT")
		if engine == testdb.MySQL {
			install, views = append(install, on(all, "CREATE ROUTINE")...), append(views, on("performance_schema.*", "SELECT")...)
		}
		op.tries(fresh.nothing, install, "install", "--yes")
		op.tries(nil, views, "install", "--views", "--yes")
		fresh.nothing()
		s.must(schema.Install(t.Context(), fresh.db.Admin()))
		op.may(programs(engine)) // schema.TestCheckFindsMissingPrivileges has each that is missing
		op.says(done, "", "check")
	})
}

// operator is an account that other accounts hold locks against.
type operator struct {
	*stage
	name, password string
	has            []need
}

// operator makes an account without privileges, by which the commands are called.
func (s *stage) operator() *operator {
	s.Helper()
	o := &operator{stage: s, name: strings.Replace(s.db.Config().User, "app", "op", 1), password: "s3cret-" + s.db.Config().Passwd}
	o.at(s.db)
	s.dsn = s.db.DSN(func(c *mysql.Config) { c.User, c.Passwd = o.name, o.password })
	return o
}

// at makes the account on a server.
func (o *operator) at(db *testdb.DB) {
	o.Helper()
	for _, account := range o.accounts() {
		db.Exec(o, fmt.Sprintf("CREATE USER %s IDENTIFIED BY '%s'", account, o.password))
		o.Cleanup(func() {
			_, err := db.Admin().ExecContext(context.WithoutCancel(o.ctx), "DROP USER "+account)
			testdb.ErrorIf(o, err != nil, "%v", err)
		})
	}
}

func (o *operator) accounts() []string {
	return []string{"'" + o.name + "'@'%'", "'" + o.name + "'@'localhost'"}
}

// change sends GRANT %s TO, or REVOKE %s FROM.
func (o *operator) change(form string, n need) {
	o.Helper()
	on := n.on
	switch {
	case on == all:
		on = "`" + o.db.Name() + "`.*"
	case !strings.Contains(on, "."):
		on = "`" + o.db.Name() + "`.lockstep_" + on
	}
	for _, account := range o.accounts() {
		o.db.Exec(o, fmt.Sprintf(form, n.privilege+" ON "+on)+" "+account)
	}
}

const grant, revoke = "GRANT %s TO", "REVOKE %s FROM"

// may gives the account these privileges, and no others.
func (o *operator) may(needs []need) {
	o.Helper()
	for _, n := range o.has {
		if !slices.Contains(needs, n) {
			o.change(revoke, n)
		}
	}
	for _, n := range needs {
		if !slices.Contains(o.has, n) {
			o.change(grant, n)
		}
	}
	o.has = needs
}

// tries calls a command without any one of its privileges, and with all of them.
func (o *operator) tries(before func(), needs []need, args ...string) {
	o.Helper()
	o.may(needs)
	call := func() (string, int) {
		if before != nil {
			before()
		}
		return o.call(args...)
	}
	for _, n := range needs {
		o.change(revoke, n)
		output, code := call()
		o.change(grant, n)
		on := ".*"
		if strings.Contains(n.on, ".") {
			on = regexp.QuoteMeta(n.on)
		}
		want := regexp.MustCompile(`GRANT [A-Z_, ]*\b` + n.privilege + `\b[A-Z_, ]* ON ` + on + ` TO '`)
		if len(needs) == 1 { // and none is left in the database
			want = regexp.MustCompile(`has this user a privilege in it\?`)
		}
		tells := !strings.Contains(output, "lockstep: ") || code == declined || strings.Contains(output, "Not seen: ") || len(needs) == 1
		testdb.ErrorIf(o, !want.MatchString(output) || strings.Contains(output, "Error 1") || !tells,
			"lockstep %v without %s on %s returns %d, and prints:\n%s", args, n.privilege, n.on, code, output)
	}
	output, code := call()
	testdb.ErrorIf(o, code != done, "lockstep %v with its privileges returns %d, and prints:\n%s", args, code, output)
}

// everything makes one of each thing that there is.
func (s *stage) everything() {
	s.Helper()
	s.locks(orders.Key(42))
	_, hashed := s.begin()
	s.lockHashed(hashed)
	s.waitsFor(orders.Key(42))
	s.listed()
	s.acquire("web-1/4711", "nightly report")
	seats := testdb.Got(s.manager().Semaphore(txlock.Named("report:standby"), 1))(s)
	s.must(testdb.Err(seats.Acquire(s.ctx)))
	jobs := testdb.Got(job.New(s.pool, s.manager()))(s)
	s.must(testdb.Err(jobs.Tick(s.ctx, txlock.Named("mails"), time.Now().Add(-time.Minute), func(context.Context, time.Time) error { return nil })))
	s.unused()
}

// nothing drops what install makes, but for the views.
func (s *stage) nothing() {
	s.Helper()
	for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
		s.db.Exec(s, "DROP TABLE IF EXISTS lockstep_"+table)
	}
	if s.db.Engine() == testdb.MySQL {
		s.db.DropProcedures(s)
	}
}

// unused makes rows that purge removes.
func (s *stage) unused() {
	s.Helper()
	s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(1)))
	s.db.Exec(s, "UPDATE lockstep_locks SET locked_us = 1 WHERE name = 'order:1'")
	l := testdb.Got(s.manager().Acquire(s.ctx, txlock.Named("unused")))(s)
	s.must(l.Release(s.ctx))
	s.db.Exec(s, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = 'unused'")
	tx := testdb.Got(s.pool.BeginTx(s.ctx, nil))(s)
	scope := testdb.Got(txlock.Join(s.ctx, tx))(s)
	s.must(testdb.Err(scope.Once(s.ctx, txlock.Named("payment:7"))))
	s.must(tx.Commit())
	s.db.Exec(s, "UPDATE lockstep_once SET done_us = 1 WHERE name = 'payment:7'")
	s.db.Exec(s, "REPLACE INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) VALUES ('unused', 1, 1, 1, '', 1, 1, 1, 0, '-', 1)")
}

// listed waits until the server lists the lock of the last transaction, or that it waits:
// MariaDB's list may be a moment old.
func (s *stage) listed() {
	s.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); testdb.Refresh() {
		p := testdb.Got(ops.New(s.db.Admin()).Look(s.ctx))(s)
		holds := slices.ContainsFunc(p.Locks, func(l ops.Lock) bool { return l.Session == uint64(s.last) })
		if holds || slices.ContainsFunc(p.Waits, func(w ops.Wait) bool { return w.Session == uint64(s.last) }) {
			return
		}
	}
	s.Fatal("the lock is not listed")
}

// lockHashed locks the hashed key cart:42, whose row newStage has deleted.
func (s *stage) lockHashed(scope *txlock.Scope) {
	s.Helper()
	key := txlock.NewFamily[int]("cart", txlock.Hashed()).Key(42)
	s.db.Exec(s, fmt.Sprintf("INSERT IGNORE INTO lockstep_centers VALUES (%d, 0, '-', 0, 0)", key.Slot()))
	s.must(testdb.Err(scope.Lock(s.ctx, key)))
}
