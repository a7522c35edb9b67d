package locksqlc_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// BenchmarkOptimistic compares Optimistic with Run: each of 16 workers reads and writes a
// record in a transaction. Conflicts are the share of function runs that were in vain.
func BenchmarkOptimistic(b *testing.B) {
	const workers = 16
	for _, engine := range testdb.Engines() {
		for _, keys := range []int64{1, 1000} {
			db := testdb.Open(b, engine)
			table := db.CreateTable(b, "records", "id BIGINT PRIMARY KEY, v BIGINT NOT NULL")
			family := txlock.NewFamily[int64](table)
			for id := int64(1); id <= keys; id++ {
				db.Exec(b, fmt.Sprintf("INSERT INTO %s VALUES (%d, 0)", table, id))
			}
			pool := locksuite.OpenSQL(true, locksuite.BeginTx)(b, db.Config(interpolating)).DB()
			pool.SetMaxIdleConns(workers)
			warm := make([]*sql.Conn, workers)
			for i := range warm {
				conn, err := pool.Conn(b.Context())
				check(b, err)
				warm[i] = conn
			}
			for _, conn := range warm {
				check(b, conn.Close())
			}
			ids := make([]int64, keys)
			for i := range ids {
				ids[i] = int64(i) + 1
			}
			check(b, txlock.Ensure(b.Context(), pool, family.Keys(ids...)...))
			for name, write := range running {
				b.Run(fmt.Sprintf("%s/keys=%d/%s", engine, keys, name), func(b *testing.B) {
					var begun, runs, givenUp atomic.Int64
					var wg sync.WaitGroup
					for range workers {
						wg.Go(func() {
							for begun.Add(1) <= int64(b.N) {
								id := rand.Int64N(keys) + 1
								err := write(b.Context(), pool, family.Key(id), func(tx *sql.Tx) error {
									runs.Add(1)
									var v int64
									if err := tx.QueryRowContext(b.Context(), fmt.Sprintf("SELECT v FROM %s WHERE id = %d", table, id)).Scan(&v); err != nil {
										return err
									}
									_, err := tx.ExecContext(b.Context(), fmt.Sprintf("UPDATE %s SET v = %d WHERE id = %d", table, v+1, id))
									return err
								})
								switch {
								case errors.Is(err, txlock.ErrConflict), errors.Is(err, txlock.ErrDeadlock):
									givenUp.Add(1)
								case err != nil:
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					committed := int64(b.N) - givenUp.Load()
					b.ReportMetric(float64(committed)/b.Elapsed().Seconds(), "tx/s")
					b.ReportMetric(100*float64(runs.Load()-committed)/float64(runs.Load()), "%conflicts")
					b.ReportMetric(100*float64(givenUp.Load())/float64(b.N), "%given-up")
				})
			}
		}
	}
}
