package job

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestTrips counts the round trips of ticks and of Once on a guarded pool, BEGIN and COMMIT
// and one INSERT of the function in a transaction included.
func TestTrips(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "trips", "id BIGINT PRIMARY KEY AUTO_INCREMENT, n INT")
		trips, counted := testdb.CountTrips(t)
		pool := newPool(t, db, true, counted)
		leases, err := lease.NewManager(pool, lease.TTL(time.Minute), lease.PurgeEvery(0, time.Hour))
		must(t, err)
		defer func() { must(t, leases.Close(context.Background())) }()
		j, err := New(pool, leases)
		must(t, err)
		key, keyTx, last := newKey(), newKey(), newKey()
		at := serverNow(t, j).Add(-time.Hour)
		ticks := 0
		write := func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (n) VALUES (1)")
			return err
		}
		next := func() time.Time { ticks++; return at.Add(time.Duration(ticks) * time.Second) }
		same := func() time.Time { return at.Add(time.Duration(ticks) * time.Second) }
		for _, call := range []struct {
			what string
			want int
			run  func() (bool, error)
		}{
			{"Tick", 5, func() (bool, error) { return j.Tick(t.Context(), key, next(), nothing) }},
			{"Tick that was done", 2, func() (bool, error) { return j.Tick(t.Context(), key, same(), nothing) }},
			{"TickTx", 10, func() (bool, error) { return j.TickTx(t.Context(), keyTx, next(), write) }},
			{"TickTx that was done", 2, func() (bool, error) { return j.TickTx(t.Context(), keyTx, same(), write) }},
			{"Once", 3, func() (bool, error) {
				last = newKey()
				return locksqlc.Once(t.Context(), pool, last, func(tx *sql.Tx) error { return write(t.Context(), tx, at) })
			}},
			{"Once again", 4, func() (bool, error) {
				return locksqlc.Once(t.Context(), pool, last, func(*sql.Tx) error { return nil })
			}},
			{"OnceValue", 4, func() (bool, error) {
				last = newKey()
				_, first, err := locksqlc.OnceValue(t.Context(), pool, last, func(tx *sql.Tx) (int, error) { return 1, write(t.Context(), tx, at) })
				return first, err
			}},
			{"OnceValue again", 5, func() (bool, error) {
				_, first, err := locksqlc.OnceValue(t.Context(), pool, last, func(*sql.Tx) (int, error) { return 1, nil })
				return first, err
			}},
		} {
			least := 1000
			for range 5 { // the first asks what a process asks once; others may be at work, too
				before := trips.Count()
				_, err := call.run()
				must(t, err)
				least = min(least, trips.Count()-before)
			}
			if least != call.want {
				t.Errorf("%s: %d round trips, want %d", call.what, least, call.want)
			}
		}
	})
}
