package main

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/cmd/lockgen/testdata/shopdb/shopdb"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const accounts, money = 4, 1000

// newDatabase makes a database with lockstep's tables and those of the shop, and opens it.
func newDatabase(t *testing.T, engine testdb.Engine, mutators ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	database := testdb.Shared(t, engine).OpenNamed(t)
	mutators = append(mutators, database.Overwriting(t), func(cfg *mysql.Config) { cfg.ParseTime = true })
	db := testdb.Got(locksqlc.Open(database.AdminDSN(mutators...)))(t)
	t.Cleanup(func() { must(t, db.Close()) })
	whole := database.ConnectAdmin(t, func(cfg *mysql.Config) { cfg.MultiStatements = true })
	ddl := testdb.Got(os.ReadFile("testdata/schema.sql"))(t)
	testdb.Got(whole.ExecContext(t.Context(), string(ddl)))(t)
	return db
}

// newShop makes the tables of the shop in a database of its own, and its accounts.
func newShop(t *testing.T, engine testdb.Engine) (*sql.DB, *shopdb.Queries) {
	t.Helper()
	db := newDatabase(t, engine)
	q := shopdb.New(db)
	must(t, q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error {
		for id := range int64(accounts) {
			if err := q.AddAccount(t.Context(), shopdb.AddAccountParams{ID: id + 1, Owner: "somebody", Balance: money}); err != nil {
				return err
			}
		}
		return nil
	}))
	return db, q
}

// TestNoUpdateIsLost moves money by reading balances and writing them, from many goroutines, with no other
// locks than those that lockgen has written, at the levels at which programs lose updates.
func TestNoUpdateIsLost(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			t.Run(level.String(), func(t *testing.T) {
				t.Parallel()
				db, q := newShop(t, engine)
				var wg sync.WaitGroup
				var moved atomic.Int64
				for worker := range 6 {
					wg.Go(func() {
						random := rand.New(rand.NewPCG(uint64(worker), 1))
						for range 8 {
							from := 1 + random.Int64N(accounts)
							to := 1 + (from+random.Int64N(accounts-1))%accounts
							var keys []txlock.Key
							if random.IntN(2) == 0 { // or let each query lock for itself
								keys = shopdb.Accounts.Keys(from, to)
							}
							err := locksqlc.Run(t.Context(), db, keys, func(tx *sql.Tx) error {
								queries, err := q.WithLocks(t.Context(), tx)
								if err != nil {
									return err
								}
								return move(t.Context(), queries, from, to, random.Int64N(10))
							}, &sql.TxOptions{Isolation: level})
							switch {
							case err == nil:
								moved.Add(1)
							case !txlock.Retryable(err): // some may be refused once too often
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				testdb.ErrorIf(t, moved.Load() < 6, "of 48 transfers %d were made: this test can't tell", moved.Load())
				sum := int64(0)
				must(t, q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error { // slices lock all of their keys, empty ones nothing
					for _, skus := range [][]string{nil, {"a", "b"}} {
						testdb.Got(q.DropProducts(t.Context(), shopdb.DropProductsParams{Skus: skus}))(t)
					}
					testdb.Got(q.ListAccounts(t.Context(), nil))(t)
					testdb.Got(q.ListAccounts(t.Context(), []int64{4, 3, 2, 1}))(t)
					for _, key := range append(shopdb.Products.Keys("a", "b"), shopdb.Accounts.Keys(1, 2, 3, 4)...) {
						_, held := q.Locks().Held(key)
						testdb.ErrorIf(t, !held, "%s is not locked", key)
					}
					return nil
				}))
				for id := range int64(accounts) {
					sum += testdb.Got(q.Glance(t.Context(), id+1))(t)
				}
				testdb.Equal(t, "the money", sum, accounts*money)
			})
		}
	})
}

// move moves money as a program does that reads, decides in Go and writes.
func move(ctx context.Context, q shopdb.Querier, from, to, amount int64) error {
	for _, change := range []struct{ id, amount int64 }{{from, -amount}, {to, amount}} {
		account, err := q.GetAccount(ctx, change.id)
		if err != nil {
			return err
		}
		if err := q.SetBalance(ctx, shopdb.SetBalanceParams{ID: change.id, Balance: account.Balance + change.amount}); err != nil {
			return err
		}
	}
	return nil
}

var must, wants = testdb.Must, testdb.Wants
