// Package load is what clients do while servers fail, and the judge of what they have done:
// transactions under locks and versions, leases, fair ones, permits, guarded writes and
// jobs.
package load

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Load is the work of all clients on one database.
type Load struct {
	locked, optimistic, form, guarded *Ledger
	polled, fair, semaphore           *History
	shared                            bool // the server has shared locks, which fair and semaphore need

	ticks struct {
		*Ledger
		begun    time.Time
		answered int // under the mutex of the Ledger
	}
}

// New makes the tables of the load.
func New(t *testing.T, db *testdb.DB) *Load {
	t.Helper()
	in := Tables(t, db)
	db.Exec(t, "CREATE TABLE effects (id INT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL)")
	db.Grant(t, "effects")
	MayAskTheGroup(t, db)
	l := &Load{
		locked: AddLedger(t, db, "locked", in), optimistic: AddLedger(t, db, "optimistic", in), form: AddLedger(t, db, "form", in), guarded: AddLedger(t, db, "guarded", in),
		polled: NewHistory("polled", 1), fair: NewHistory("fair", 1), semaphore: NewHistory("semaphore", permits),
	}
	l.shared = db.Engine() != testdb.TiDB
	l.ticks.Ledger, l.ticks.begun = NewLedger("ticks", in), time.Now().Add(-24*time.Hour)
	return l
}

// Tables makes the tables of ledgers, and returns what Inside does.
func Tables(t *testing.T, db *testdb.DB) (inside string) {
	t.Helper()
	db.Exec(t, "CREATE TABLE numbers (kind VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL, token BIGINT UNSIGNED NOT NULL, falls BIGINT NOT NULL)")
	db.Exec(t, "CREATE TABLE marks (id VARCHAR(40) PRIMARY KEY, kind VARCHAR(20) NOT NULL, inside BOOL NOT NULL)")
	db.Grant(t, "numbers", "marks")
	return Inside(t, db)
}

// AddLedger adds a ledger to the tables, with its number.
func AddLedger(t *testing.T, db *testdb.DB, kind, inside string) *Ledger {
	t.Helper()
	db.Exec(t, "INSERT INTO numbers VALUES ('"+kind+"', 0, 0, 0)")
	return NewLedger(kind, inside)
}

func (l *Load) ledgers() []*Ledger { return []*Ledger{l.locked, l.optimistic, l.form, l.guarded} }

// Run has the clients work while faults are made, and until they have ended what they were
// at. Afterwards all is to be had again, by each of them.
func (l *Load) Run(t *testing.T, clients []*Client, faults func()) {
	t.Helper()
	acquires := [][]lease.AcquireOption{nil}
	if l.shared {
		acquires = append(acquires, []lease.AcquireOption{lease.Fair()})
	}
	var works []func(ctx context.Context)
	for _, c := range clients {
		works = append(works, l.works(c)...)
	}
	Beside(len(works), func(i int) {
		limited, cancel := context.WithTimeout(t.Context(), CallLimit)
		defer cancel()
		works[i](limited)
		time.Sleep(rand.N(20 * time.Millisecond))
	}, faults)
	for _, c := range clients {
		for _, opts := range acquires {
			acquired, cancel := context.WithTimeout(t.Context(), time.Minute)
			held, err := c.Leases.Acquire(acquired, txlock.Named("polled"), opts...)
			cancel()
			if err != nil {
				t.Fatalf("client %d: Acquire at the end: %v", c.Number, err)
			}
			if err := held.Release(t.Context()); err != nil {
				t.Errorf("client %d: Release at the end: %v", c.Number, err)
			}
		}
	}
	for _, one := range append(l.ledgers(), l.ticks.Ledger) {
		t.Logf("%s: errors %v", one.Kind, one.Errors())
	}
}

// Beside has goroutines work again and again while something else is done, and until they have
// ended what they were at.
func Beside(n int, work func(i int), meanwhile func()) {
	var working sync.WaitGroup
	var ended atomic.Bool
	for i := range n {
		working.Go(func() {
			for !ended.Load() {
				work(i)
			}
		})
	}
	defer working.Wait()
	defer ended.Store(true) // also where the test ends in the middle
	meanwhile()
}

// works are what a client does, again and again.
func (l *Load) works(c *Client) []func(ctx context.Context) {
	next := 0
	works := []func(ctx context.Context){
		func(ctx context.Context) { l.locked.Locked(ctx, c.DB) },
		func(ctx context.Context) { l.optimistic.Optimistic(ctx, c.DB) },
		func(ctx context.Context) { l.form.Form(ctx, c.DB) },
		func(ctx context.Context) {
			c.hold(ctx, l.polled, c.polled, func(held *lease.Lease) error { return c.guarded(ctx, l.guarded, held) })
		},
		func(ctx context.Context) { next = l.tick(ctx, c, next) },
	}
	if l.shared {
		works = append(works,
			func(ctx context.Context) { c.hold(ctx, l.fair, c.fair, nothing) },
			func(ctx context.Context) { c.hold(ctx, l.semaphore, c.permit, nothing) })
	}
	return works
}

// tick does the next tick of a job, and returns the number of the one after it.
func (l *Load) tick(ctx context.Context, c *Client, n int) int {
	_, err := c.Jobs.TickTx(ctx, txlock.Named("ticks"), l.ticks.begun.Add(time.Duration(n)*time.Second), func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effects (n) VALUES (?)", n)
		return err
	})
	switch {
	case err == nil:
		l.ticks.mu.Lock()
		defer l.ticks.mu.Unlock()
		l.ticks.answered = max(l.ticks.answered, n+1)
		return n + 1
	case errors.Is(err, job.ErrPast): // who began the later one was told that this was done
		return n + 1
	}
	l.ticks.Failed(err)
	return n
}

// Check compares the data of a server with what the clients know.
func (l *Load) Check(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, one := range l.ledgers() {
		one.Check(t, db)
	}
	var falls, rows, different, last int
	check(t, db.QueryRow("SELECT falls FROM numbers WHERE kind = 'guarded'").Scan(&falls))
	if falls != 0 {
		t.Errorf("guarded: the token in the data has fallen %d times", falls)
	}
	check(t, db.QueryRow("SELECT COUNT(*), COUNT(DISTINCT n), COALESCE(MAX(n), -1) FROM effects").Scan(&rows, &different, &last))
	if rows != different || different != last+1 || rows < l.ticks.answered || rows == 0 {
		t.Errorf("ticks: %d effects of %d numbers up to %d, and %d were answered, want one effect of each", rows, different, last, l.ticks.answered)
	}
	t.Logf("ticks: %d", rows)
}

// CheckHolds says that no lease was held by two, and that tokens rise.
func (l *Load) CheckHolds(t *testing.T) {
	t.Helper()
	l.polled.Check(t)
	if l.shared {
		l.fair.Check(t)
		l.semaphore.Check(t)
	}
}

// Inside is an expression that tells whether it is in a transaction. The application's
// user may ask for it.
func Inside(t *testing.T, db *testdb.DB) string {
	t.Helper()
	switch db.Engine() {
	case testdb.MariaDB:
		return "@@in_transaction"
	case testdb.TiDB:
		return "@@tidb_current_ts > 0"
	}
	db.Exec(t, "GRANT SELECT ON performance_schema.events_transactions_current TO '"+db.Config().User+"'@'%'")
	return "(SELECT COUNT(*) FROM performance_schema.events_transactions_current WHERE THREAD_ID = PS_CURRENT_THREAD_ID() AND STATE = 'ACTIVE' AND AUTOCOMMIT = 'NO')"
}

// MayAskTheGroup lets the application's user ask, after a COMMIT that a Group Replication has
// refused, in which view the member is.
func MayAskTheGroup(t *testing.T, db *testdb.DB) {
	t.Helper()
	if db.Engine() != testdb.MySQL {
		return
	}
	for _, table := range []string{"replication_group_members", "replication_group_member_stats"} {
		db.Exec(t, "GRANT SELECT ON performance_schema."+table+" TO '"+db.Config().User+"'@'%'")
	}
}

// FaultsLast is for how long faults are made: what a variable of the environment says, or 30 s.
func FaultsLast(t *testing.T, variable string) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return 30 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return d
}
