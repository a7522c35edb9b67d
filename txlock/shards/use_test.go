package shards_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/shards"
)

// TestTogether locks keys of a customer together, of several families and namespaces.
func TestTogether(t *testing.T) {
	const shop = txlock.Namespace("shop")
	customers := txlock.NewFamily[string]("customer", txlock.In(shop), txlock.Exact())
	invoices := txlock.NewFamily[string]("invoice", txlock.Exact())
	// "@shop/customer:7" and "invoice:7-2024" are of customer 7.
	customer := shards.RouteBy("customer", func(key txlock.Key) string {
		_, id, _ := strings.Cut(key.String(), ":")
		id, _, _ = strings.Cut(id, "-")
		return id
	})
	onServers(t, func(t *testing.T, on site) {
		s := newSet(t, on.pools(t, "a", "b", "c"), customer)
		must(t, s.Install(t.Context()))
		used := make(map[string]int)
		for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
			keys := []txlock.Key{customers.Key(id), txlock.Shared(invoices.Key(id + "-2024")), txlock.ParseKey("@shop/customer:" + id), shop.Named("cart:" + id)}
			db, err := s.For(t.Context(), keys...)
			must(t, err)
			must(t, locksqlc.Run(t.Context(), db, keys, func(tx *sql.Tx) error {
				scope, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					return err
				}
				return s.Guard(t.Context(), scope, keys...)
			}))
			used[s.Name(keys[0])]++
		}
		if len(used) < 2 {
			t.Errorf("the customers are in %v", used)
		}
		if whole := txlock.Named("without-a-colon"); s.Name(whole) == "" || second(s.For(t.Context(), whole)) != nil {
			t.Error("a key that RouteBy has no part of goes nowhere")
		}
	})
}

// TestLeases has a manager for each shard.
func TestLeases(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		s := on.process(t, "a", "b", "c")
		must(t, s.Install(t.Context()))
		process := func() *shards.Each[*lease.Manager] {
			managers, err := shards.Of(s, func(_ string, db *sql.DB) (*lease.Manager, error) { return lease.NewManager(db) })
			must(t, err)
			t.Cleanup(func() {
				for _, m := range managers.All() {
					must(t, m.Close(context.Background()))
				}
			})
			return managers
		}
		one, two := process(), process()
		for _, key := range orders.Keys(1, 2, 3, 4, 5, 6) {
			mine, err := one.For(t.Context(), key)
			must(t, err)
			l, err := mine.TryAcquire(t.Context(), key)
			must(t, err)
			must(t, s.Confirm(t.Context(), key))
			theirs, err := two.For(t.Context(), key)
			must(t, err)
			wants(t, "TryAcquire by another process", second(theirs.TryAcquire(t.Context(), key)), txlock.ErrBusy)
			must(t, l.Release(t.Context()))
		}
		_, err := one.For(t.Context(), orders.Keys(1, 2, 3, 4)...)
		wants(t, "a manager for two shards", err, shards.ErrSplit)
		failed := second(shards.Of(s, func(name string, _ *sql.DB) (int, error) {
			if name == "b" {
				return 0, sql.ErrConnDone
			}
			return 1, nil
		}))
		wants(t, "Of", failed, sql.ErrConnDone)
	})
}
