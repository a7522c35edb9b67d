package main

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/cmd/lockgen/testdata/shopdb/shopdb"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const accounts, money = 4, 1000

// newShop makes the tables of the shop in a database of its own, and its accounts.
func newShop(t *testing.T, engine testdb.Engine) (*sql.DB, *shopdb.Queries) {
	t.Helper()
	database := testdb.Fresh(t, engine)
	db, err := locksqlc.Open(database.AdminDSN())
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	must(t, schema.Install(t.Context(), db))
	ddl, err := os.ReadFile("testdata/schema.sql")
	must(t, err)
	for statement := range strings.SplitSeq(strings.TrimSpace(string(ddl)), ";\n") {
		database.Exec(t, strings.TrimSuffix(statement, ";"))
	}
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

// isolations are those at which programs lose updates.
var isolations = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead}

// TestNoUpdateIsLost moves money by reading balances and writing them, from many
// goroutines, with no other locks than those that lockgen has written.
func TestNoUpdateIsLost(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, isolation := range isolations {
			t.Run(string(engine)+"/"+isolation.String(), func(t *testing.T) {
				t.Parallel()
				db, q := newShop(t, engine)
				var wg sync.WaitGroup
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
							err := locksqlc.RunTx(t.Context(), db, &sql.TxOptions{Isolation: isolation}, keys, func(tx *sql.Tx) error {
								locked, err := q.WithLocks(t.Context(), tx)
								if err != nil {
									return err
								}
								return move(t.Context(), locked, min(from, to), max(from, to), random.Int64N(10))
							})
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				var sum int64
				for id := range int64(accounts) {
					balance, err := q.Glance(t.Context(), id+1)
					must(t, err)
					sum += balance
				}
				if sum != accounts*money {
					t.Errorf("the accounts have %d, want %d", sum, accounts*money)
				}
			})
		}
	}
}

// move moves money as a program does that reads, decides in Go and writes.
func move(ctx context.Context, q *shopdb.Locked, from, to, amount int64) error {
	for id, change := range map[int64]int64{from: -amount, to: amount} {
		account, err := q.GetAccount(ctx, id)
		if err != nil {
			return err
		}
		if err := q.SetBalance(ctx, shopdb.SetBalanceParams{ID: id, Balance: account.Balance + change}); err != nil {
			return err
		}
	}
	return nil
}

// TestUnlockedReadLosesUpdates shows what the annotations are for: the same with the read
// that takes no lock loses one of two updates, at READ COMMITTED. At REPEATABLE READ the
// lock that comes after it is refused.
func TestUnlockedReadLosesUpdates(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, isolation := range isolations {
			t.Run(string(engine)+"/"+isolation.String(), func(t *testing.T) {
				t.Parallel()
				db, q := newShop(t, engine)
				begin := func() (*sql.Tx, *shopdb.Locked, int64) {
					tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: isolation})
					must(t, err)
					t.Cleanup(func() { _ = tx.Rollback() })
					locked, err := q.WithLocks(t.Context(), tx)
					must(t, err)
					balance, err := locked.Glance(t.Context(), 1)
					must(t, err)
					return tx, locked, balance
				}
				tx1, locked1, balance1 := begin()
				tx2, locked2, balance2 := begin()
				must(t, locked1.SetBalance(t.Context(), shopdb.SetBalanceParams{ID: 1, Balance: balance1 + 1}))
				must(t, tx1.Commit())
				err := locked2.SetBalance(t.Context(), shopdb.SetBalanceParams{ID: 1, Balance: balance2 + 1})
				if isolation == sql.LevelRepeatableRead {
					if !errors.Is(err, txlock.ErrStaleSnapshot) {
						t.Errorf("SetBalance after an old read: %v", err)
					}
					return
				}
				must(t, err)
				must(t, tx2.Commit())
				balance, err := q.Glance(t.Context(), 1)
				must(t, err)
				if balance != money+1 {
					t.Errorf("the balance is %d: no update was lost", balance)
				}
			})
		}
	}
}

// TestSlices proves that empty slices lock nothing, and that others lock all of their keys.
func TestSlices(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db, q := newShop(t, engine)
			must(t, q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error {
				if _, err := q.DropProducts(t.Context(), shopdb.DropProductsParams{}); err != nil {
					return err
				}
				if _, err := q.DropProducts(t.Context(), shopdb.DropProductsParams{Skus: []string{"a", "b"}}); err != nil {
					return err
				}
				if _, err := q.ListAccounts(t.Context(), []int64{2, 1}); err != nil {
					return err
				}
				if _, err := q.ListAccounts(t.Context(), nil); err != nil {
					return err
				}
				for _, key := range append(shopdb.Products.Keys("a", "b"), shopdb.Accounts.Keys(1, 2)...) {
					if _, held := q.Locks().Held(key); !held {
						t.Errorf("%s is not locked", key)
					}
				}
				return nil
			}))
		})
	}
}
