package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/shards"
)

// TestShardIsDown has three databases, of which one can't be reached for a while: its keys
// are refused, all others go on, and no key is locked in another database.
func TestShardIsDown(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			dbs, networks := make(map[string]*testdb.DB), make(map[string]network)
			for _, name := range []string{"a", "b", "c"} {
				db := testdb.Shared(t, engine).OpenLeases(t)
				dbs[name], networks[name] = db, newNetwork(t, db)
			}
			process := func() *shards.Shards {
				pools := make(map[string]*sql.DB)
				for name, db := range dbs {
					pools[name] = faultPool(t, db, networks[name], func(c driver.Connector) driver.Connector { return locksqlc.Connector(c) })
				}
				s, err := shards.New(pools)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			s := process()
			if err := s.Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			const keys = 30
			orders := txlock.NewFamily[int]("order")
			var granted, held [keys + 1]atomic.Int64
			lock := func(s *shards.Shards, id int) error {
				db, err := s.For(t.Context(), orders.Key(id))
				if err != nil {
					return err
				}
				return locksqlc.Run(t.Context(), db, orders.Keys(id), func(*sql.Tx) error {
					if held[id].Add(1) > 1 {
						t.Errorf("order:%d is held twice", id)
					}
					granted[id].Add(1)
					held[id].Add(-1)
					return nil
				})
			}
			ctx, stop := context.WithCancel(t.Context())
			var workers sync.WaitGroup
			for range 3 {
				own := process()
				workers.Go(func() {
					for ctx.Err() == nil {
						for id := 1; id <= keys; id++ {
							if err := lock(own, id); err != nil && own.Name(orders.Key(id)) != "b" {
								t.Errorf("order:%d in %s: %v", id, own.Name(orders.Key(id)), err)
							}
						}
					}
				})
			}
			all := func(of func(id int) bool) bool { // have been granted since
				var before [keys + 1]int64
				for id := range before {
					before[id] = granted[id].Load()
				}
				return testdb.Await(30*time.Second, func() bool {
					for id := 1; id <= keys; id++ {
						if of(id) && granted[id].Load() == before[id] {
							return false
						}
					}
					return true
				})
			}
			down := func(id int) bool { return s.Name(orders.Key(id)) == "b" }
			if !all(func(int) bool { return true }) {
				t.Error("not all keys are granted at the beginning")
			}
			networks["b"].down(t)
			if !all(func(id int) bool { return !down(id) }) {
				t.Error("not all keys of the other shards are granted while one is down")
			}
			fresh := process()
			if err := fresh.Install(t.Context()); err == nil || !strings.Contains(err.Error(), "shard b: ") {
				t.Errorf("Install while one is down: %v", err)
			}
			for id := 1; id <= keys; id++ { // a process that was started meanwhile
				if err := lock(fresh, id); (err != nil) != down(id) {
					t.Errorf("order:%d in %s: %v", id, s.Name(orders.Key(id)), err)
				}
			}
			if err := networks["b"].Up(); err != nil {
				t.Fatal(err)
			}
			if !all(func(int) bool { return true }) {
				t.Error("not all keys are granted at the end")
			}
			stop()
			workers.Wait()
			for name, db := range dbs {
				for id := 1; id <= keys; id++ {
					var n int
					if err := db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lockstep_locks WHERE name = ?", orders.Key(id).String()).Scan(&n); err != nil {
						t.Fatal(err)
					}
					if (n == 1) != (s.Name(orders.Key(id)) == name) {
						t.Errorf("order:%d has %d rows in %s, and is of %s", id, n, name, s.Name(orders.Key(id)))
					}
				}
			}
		})
	}
}

// TestShardsOfGORM has a *gorm.DB for each shard.
func TestShardsOfGORM(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			dbs, pools := make(map[string]*testdb.DB), make(map[string]*sql.DB)
			for _, name := range []string{"a", "b", "c"} {
				dbs[name] = testdb.Shared(t, engine).OpenLeases(t)
				pools[name] = dbs[name].Connect(t)
			}
			s, err := shards.New(pools)
			if err == nil {
				err = s.Install(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			each, err := shards.Of(s, func(_ string, db *sql.DB) (*gorm.DB, error) {
				return gorm.Open(mysql.New(mysql.Config{Conn: db}), &gorm.Config{Logger: logger.Discard})
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range txlock.NewFamily[int]("order").Keys(1, 2, 3, 4, 5, 6) {
				db, err := each.For(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				err = lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
					holders, err := txlock.Holders(t.Context(), dbs[s.Name(key)].Admin(), key)
					if err != nil || len(holders) != 1 {
						t.Errorf("%s is held by %v, %v", key, holders, err)
					}
					scope, err := lockgorm.Join(tx)
					if err != nil {
						return err
					}
					return s.Guard(t.Context(), scope, key)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
