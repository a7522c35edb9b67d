//go:build !race

package locksqlc_test

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// What one goroutine does with tens of thousands of statements, or with megabytes: the race
// detector would make it five times as dear, and has nothing to find. make test runs what
// is in files without it.

// TestVerbsWithEditedTexts proves that whatever a wrapper does to the texts of the lock
// statements, each verb runs its function once, commits it, and gives rising tokens.
func TestVerbsWithEditedTexts(t *testing.T) {
	onEdited(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		table, want := numbers(t, db), 0
		all := waysCounted
		for _, name := range []string{"Lock", "TryLock", "WaitAtMost", "RLock", "TryRLock", "RLock in time"} {
			all = append(all, counted{name: name, run: inTx(verbs[name], false)})
		}
		for _, v := range all {
			key, last := uniqueKey(t, v.name), uint64(0)
			check(t, txlock.Ensure(t.Context(), db.Admin(), key))
			for range 2 {
				err := v.run(t.Context(), pool, key, func(tx *sql.Tx) error {
					want++
					return second(tx.ExecContext(t.Context(), "UPDATE "+table+" SET v = v + 1"))
				})
				if number(err) == 1295 {
					continue // BEGIN of Do, which the wrapper has prepared and the server doesn't prepare
				}
				if n := valueOf(t, db, table); err != nil || n != want {
					t.Fatalf("%s: %d of %d were committed: %v", v.name, n, want, err)
				}
				token, err := txlock.ReadVersion(t.Context(), db.Admin(), key)
				check(t, err)
				raises := !strings.Contains(v.name, "RLock") && !strings.Contains(v.name, "new key")
				if raises != (token > last) {
					t.Errorf("%s: token %d after %d", v.name, token, last)
				}
				last = token
			}
			wantFree(t, db, key)
		}
		key, runs := uniqueKey(t, "conflict"), 0
		err := locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
			if runs++; runs == 1 {
				check(t, locksqlc.Run(t.Context(), db.Admin(), []txlock.Key{key}, func(*sql.Tx) error { return nil }))
			}
			return raise(t.Context(), tx, table)
		})
		if n := valueOf(t, db, table); err != nil || runs != 2 || n != want+1 {
			t.Errorf("after a conflict: %d runs, %d of %d were committed: %v", runs, n, want+1, err)
		}
		if n := pool.Stats().MaxIdleClosed + pool.Stats().MaxLifetimeClosed; n != 0 {
			t.Errorf("%d connections were closed", n)
		}
	})
}

// TestOnceValueThatCantBeStored stores nothing, and the next call is the first.
func TestOnceValueThatCantBeStored(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "once")
		add := func(tx *sql.Tx) { exec(t, tx, "UPDATE "+table+" SET v = v + 1") }
		_, first, err := locksqlc.OnceValue(t.Context(), pool, key, func(tx *sql.Tx) (func(), error) { add(tx); return nil, nil })
		wantOnce(t, "a function", first, err, false, txlock.ErrResult)
		sizes := []int{16 << 20, 2 << 20, 2 << 20}
		if most := count(t, pool, "SELECT @@max_allowed_packet"); most <= 16<<20 {
			sizes = slices.Insert(sizes, 1, most-1000)
		}
		for i, size := range sizes {
			value, fits := strings.Repeat("x", size), size == 2<<20
			got, first, err := locksqlc.OnceValue(t.Context(), pool, key, func(tx *sql.Tx) (string, error) { add(tx); return value, nil })
			wantOnce(t, fmt.Sprintf("%d bytes", size), first, err, fits && i < len(sizes)-1, map[bool]error{false: txlock.ErrResult}[fits])
			if fits && got != value {
				t.Errorf("%d bytes came back", len(got))
			}
		}
		wantCount(t, pool, 1, "SELECT v FROM "+table)
		idle(t, pool)
	})
}

func TestTransparency(t *testing.T) {
	onServers(t, func(t *testing.T, server *testdb.DB) {
		for i, setting := range slices.Sorted(maps.Keys(settings)) {
			for j, name := range slices.Sorted(maps.Keys(scenarios)) {
				set, scenario := settings[setting], scenarios[name]
				if setting != "default" && setting != "interpolate" && !testdb.Meet(i, j) {
					continue
				}
				t.Run(setting+"/"+name, func(t *testing.T) {
					t.Parallel()
					var records [2][]string
					for i, guarded := range []bool{false, true} {
						cfg := server.AdminConfig(func(cfg *mysql.Config) {
							cfg.MultiStatements, cfg.Collation, cfg.MaxAllowedPacket = true, "utf8mb4_bin", 8<<20
							set(server, cfg)
						})
						s := &side{TB: t, ctx: t.Context(), server: server, db: newPool(t, cfg, guarded)}
						if err := s.db.PingContext(s.ctx); setting == "TLS" && !guarded && errors.Is(err, mysql.ErrNoTLS) {
							t.Skipf("the server answers that it has no TLS, which its administrator may have switched off: %v", err)
						} else if err != nil {
							t.Fatalf("guarded %t: %v", guarded, err)
						}
						s.table = server.CreateTable(t, "transparent", counters)
						scenario(s)
						s.note("in use %d", testdb.InUse(s.db))
						records[i] = s.record
					}
					compare(t, records[0], records[1])
				})
			}
		}
	})
}

// TestSuitePreparing is TestSuite with a driver that prepares each statement: the race
// detector watches each behaviour with each adapter and kind of key in TestSuite.
func TestSuitePreparing(t *testing.T) { locksuite.RunPreparing(t, adapters...) }
