package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// pairs runs two ways of doing the same in turn, and reports the medians and their ratio:
// a busy machine slows down both alike.
func pairs(b *testing.B, bare, ours func(i int) time.Duration) {
	b.Helper()
	var bareTimes, ourTimes []time.Duration
	for i := range 20 { // warm up
		bare(i)
		ours(i)
	}
	i := 0
	for b.Loop() {
		if i%2 == 0 {
			bareTimes, ourTimes = append(bareTimes, bare(i)), append(ourTimes, ours(i))
		} else {
			ourTimes, bareTimes = append(ourTimes, ours(i)), append(bareTimes, bare(i))
		}
		i++
	}
	slices.Sort(bareTimes)
	slices.Sort(ourTimes)
	bareMedian, ourMedian := bareTimes[len(bareTimes)/2], ourTimes[len(ourTimes)/2]
	b.ReportMetric(float64(bareMedian.Microseconds()), "bare-us")
	b.ReportMetric(float64(ourMedian.Microseconds()), "lockstep-us")
	b.ReportMetric(float64(ourMedian)/float64(bareMedian), "ratio")
}

// benchPool opens a pool for a benchmark that needs one round trip for a statement.
func benchPool(b *testing.B, db *testdb.DB, guarded bool, mutators ...func(*mysql.Config)) *sql.DB {
	b.Helper()
	return locksuite.OpenSQL(guarded, locksuite.BeginTx)(b, db.Config(append(mutators, func(c *mysql.Config) { c.InterpolateParams = true })...)).DB()
}

// BenchmarkLockInTransaction compares a business transaction that locks, writes and
// commits with one that sends the bare upsert on a plain pool.
func BenchmarkLockInTransaction(b *testing.B) {
	family := txlock.NewFamily[int64]("bench")
	for _, engine := range testdb.Engines() {
		b.Run(string(engine), func(b *testing.B) {
			db := testdb.Open(b, engine)
			table := db.CreateTable(b, "stock", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
			db.Exec(b, "INSERT INTO "+table+" VALUES (1, 0)")
			plain, guarded := benchPool(b, db, false), benchPool(b, db, true)
			business := func(pool *sql.DB, lock func(tx *sql.Tx) error) time.Duration {
				began := time.Now()
				tx, err := pool.BeginTx(b.Context(), nil)
				check(b, err)
				check(b, lock(tx))
				_, err = tx.ExecContext(b.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
				check(b, err)
				check(b, tx.Commit())
				return time.Since(began)
			}
			pairs(b, func(i int) time.Duration {
				return business(plain, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(b.Context(), gen.LockNamed, []byte(family.Key(int64(i%100+1)).String()), []byte("bare"), 1)
					return err
				})
			}, func(i int) time.Duration {
				return business(guarded, func(tx *sql.Tx) error {
					scope, err := locksqlc.Join(b.Context(), tx)
					if err != nil {
						return err
					}
					_, err = scope.Lock(b.Context(), family.Key(int64(i%100+1)))
					return err
				})
			})
		})
	}
}

// BenchmarkOnceInTransaction compares a business transaction that asks Once for a new
// key, writes and commits with one that sends the bare INSERT on a plain pool.
func BenchmarkOnceInTransaction(b *testing.B) {
	for _, engine := range testdb.Engines() {
		b.Run(string(engine), func(b *testing.B) {
			db := testdb.Open(b, engine)
			table := db.CreateTable(b, "stock", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
			db.Exec(b, "INSERT INTO "+table+" VALUES (1, 0)")
			plain, guarded := benchPool(b, db, false), benchPool(b, db, true)
			run := rand.Text()
			family := txlock.NewFamily[string]("bench-once", txlock.Exact())
			business := func(pool *sql.DB, once func(tx *sql.Tx) error) time.Duration {
				began := time.Now()
				tx, err := pool.BeginTx(b.Context(), nil)
				check(b, err)
				check(b, once(tx))
				_, err = tx.ExecContext(b.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
				check(b, err)
				check(b, tx.Commit())
				return time.Since(began)
			}
			n := 0
			pairs(b, func(int) time.Duration {
				n++
				key := family.Key(fmt.Sprintf("%s-a-%d", run, n))
				return business(plain, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(b.Context(), gen.Once, []byte(key.String()), []byte("-"), int64(86400000000))
					return err
				})
			}, func(int) time.Duration {
				n++
				key := family.Key(fmt.Sprintf("%s-b-%d", run, n))
				return business(guarded, func(tx *sql.Tx) error {
					scope, err := locksqlc.Join(b.Context(), tx)
					if err != nil {
						return err
					}
					_, err = scope.Once(b.Context(), key)
					return err
				})
			})
		})
	}
}

// BenchmarkHandOver measures from the COMMIT of a holder to the grant of the
// transaction that waits, against bare row locks: by the same statement, by an
// UPDATE of one number and by SELECT FOR UPDATE. The holder writes, as a business
// transaction does.
func BenchmarkHandOver(b *testing.B) {
	named := txlock.Named("hand-over")
	for _, engine := range testdb.Engines() {
		db := testdb.Open(b, engine)
		table := db.CreateTable(b, "bare", "id BIGINT PRIMARY KEY, n BIGINT NOT NULL")
		db.Exec(b, "INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
		for _, c := range []struct {
			name string
			key  txlock.Key
			bare string
			args []any
		}{
			{"named-upsert", named, gen.LockNamed, []any{[]byte("hand-over-bare"), []byte("bare"), 1}},
			{"named-UPDATE", named, "UPDATE " + table + " SET n = n + 1 WHERE id = 1", nil},
			{"named-SELECT", named, "SELECT n FROM " + table + " WHERE id = 1 FOR UPDATE", nil},
			{"hashed-UPDATE", txlock.NewFamily[int64]("hand-over", txlock.Hashed()).Key(1), "UPDATE " + table + " SET n = n + 1 WHERE id = 1", nil},
		} {
			b.Run(fmt.Sprintf("%s/%s", engine, c.name), func(b *testing.B) {
				work := "UPDATE " + table + " SET n = n + 1 WHERE id = 2"
				bare := newHandOver(b, db, work, benchPool(b, db, false), func(ctx context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, c.bare, c.args...)
					return err
				})
				ours := newHandOver(b, db, work, benchPool(b, db, true), func(ctx context.Context, tx *sql.Tx) error {
					scope, err := locksqlc.Join(ctx, tx)
					if err == nil {
						_, err = scope.Lock(ctx, c.key)
					}
					return err
				})
				pairs(b, func(int) time.Duration { return bare.once() }, func(int) time.Duration { return ours.once() })
			})
		}
	}
}

// handOver has two connections that take a lock one after the other.
type handOver struct {
	b              *testing.B
	db             *testdb.DB
	work           string // what the holder writes
	holder, waiter *sql.Conn
	waiterID       int64
	take           func(ctx context.Context, tx *sql.Tx) error
}

func newHandOver(b *testing.B, db *testdb.DB, work string, pool *sql.DB, take func(context.Context, *sql.Tx) error) *handOver {
	b.Helper()
	h := &handOver{b: b, db: db, work: work, take: take}
	for _, conn := range []**sql.Conn{&h.holder, &h.waiter} {
		var err error
		*conn, err = pool.Conn(b.Context())
		check(b, err)
		b.Cleanup(func() { check(b, (*conn).Close()) })
	}
	h.waiterID = testdb.ConnID(b, h.waiter)
	return h
}

// once hands the lock over once.
func (h *handOver) once() time.Duration {
	begin := func(conn *sql.Conn) *sql.Tx {
		tx, err := conn.BeginTx(h.b.Context(), nil)
		check(h.b, err)
		return tx
	}
	holding := begin(h.holder)
	check(h.b, h.take(h.b.Context(), holding))
	_, err := holding.ExecContext(h.b.Context(), h.work)
	check(h.b, err)
	waiting := begin(h.waiter)
	granted := make(chan time.Time, 1)
	failed := make(chan error, 1)
	go func() {
		err := h.take(h.b.Context(), waiting)
		granted <- time.Now()
		failed <- err
	}()
	h.db.WaitForLockWait(h.b, h.waiterID)
	began := time.Now()
	check(h.b, holding.Commit())
	took := (<-granted).Sub(began)
	check(h.b, <-failed)
	check(h.b, waiting.Commit())
	return took
}
