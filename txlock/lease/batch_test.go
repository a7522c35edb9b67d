package lease_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// gathering is how many calls meet: more than are sent by a statement for each.
const gathering = 48

// gather makes keys with their rows.
func gather(t *testing.T, db *testdb.DB) []txlock.Key {
	t.Helper()
	keys := make([]txlock.Key, gathering)
	for i := range keys {
		keys[i] = named()
	}
	makeRows(t, db, keys)
	return keys
}

// atOnce calls f for each key, all at once.
func atOnce(keys []txlock.Key, f func(i int, key txlock.Key)) {
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { f(i, key) })
	}
	all.Wait()
}

// acquireAtOnce acquires all keys at once, each in its own way.
func acquireAtOnce(keys []txlock.Key, f func(i int, key txlock.Key) (*lease.Lease, error)) ([]*lease.Lease, []error) {
	held, errs := make([]*lease.Lease, len(keys)), make([]error, len(keys))
	atOnce(keys, func(i int, key txlock.Key) { held[i], errs[i] = f(i, key) })
	return held, errs
}

// cutWire is the network of a pool that counts the statements which acquire or release several
// leases, and breaks some after their answer, which the pool never hears.
type cutWire struct {
	name  string       // of the statements that are broken
	cuts  atomic.Int32 // how many are left to be broken
	count atomic.Int32 // of all
	mu    sync.Mutex
	cut   []string // those that were broken
}

func (w *cutWire) install(c *mysql.Config) {
	testdb.Losing(func(packet string) (lost, arrives bool) {
		if strings.Contains(packet, "name: AcquireMany ") || strings.Contains(packet, "name: ReleaseMany ") {
			w.count.Add(1)
		}
		if w.name == "" || !strings.Contains(packet, w.name) || w.cuts.Add(-1) < 0 {
			return false, true
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cut = append(w.cut, packet)
		return true, true
	})(c)
}

// has reports whether a broken statement was about the key.
func (w *cutWire) has(key txlock.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, statement := range w.cut {
		if strings.Contains(statement, hex.EncodeToString([]byte(key.String()))) {
			return true
		}
	}
	return false
}

// TestBatch proves that where many calls meet, each has the answer that it would have
// alone, whatever the others ask for: of its own TTL, of a key that somebody else has or
// whose row is locked, of one that is asked for twice, of a lease that is entered again, and
// of one that stays held for a while.
func TestBatch(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		wire := new(cutWire)
		pool := newPool(t, db, true, wire.install)
		pool.SetMaxIdleConns(gathering)
		m, other := newManager(t, pool), newManager(t, newPool(t, db, false))
		const busy, locked, twice, again, least = 0, 10, 20, 30, 40 // the one after twice is the same key
		for round := 0; round < 2 || wire.count.Load() < 4 && round < 100; round++ {
			keys := gather(t, db)
			keys[twice+1] = keys[twice]
			theirs := acquire(t, other, keys[busy])
			entered, err := other.Acquire(lease.WithOwner(t.Context(), "again"), keys[again])
			must(t, err)
			blocker := begin(t, db.Admin(), sql.LevelDefault)
			if _, err := blocker.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", keys[locked].String()); err != nil {
				t.Error(err)
			}
			held, errs := acquireAtOnce(keys, func(i int, key txlock.Key) (*lease.Lease, error) {
				ctx, options := t.Context(), []lease.AcquireOption{lease.TTL(time.Duration(i+60) * time.Second)}
				switch i {
				case again:
					ctx = lease.WithOwner(ctx, "again")
				case least:
					options = append(options, lease.HoldAtLeast(time.Hour))
				}
				return m.TryAcquire(ctx, key, options...)
			})
			wantsNone(t, "Rollback", blocker.Rollback())
			for i, err := range errs {
				refused := i == busy || i == locked || (i == twice || i == twice+1) && errs[twice+twice+1-i] == nil
				if refused != errors.Is(err, txlock.ErrBusy) || !refused && err != nil {
					t.Errorf("call %d: %v", i, err)
				}
				if err == nil && i != again {
					if ttl := number(t, db, "SELECT ttl_us FROM lockstep_leases WHERE name = ?", keys[i].String()); ttl != int64(i+60)*1e6 {
						t.Errorf("call %d: a TTL of %d us", i, ttl)
					}
				}
			}
			if l := held[again]; l != nil && l.Token() != entered.Token() {
				t.Errorf("entered again with token %d, not %d", l.Token(), entered.Token())
			}
			atOnce(keys, func(i int, _ txlock.Key) {
				if held[i] == nil {
					return
				}
				wantsNone(t, fmt.Sprintf("release %d", i), held[i].Release(t.Context()))
			})
			release(t, theirs)
			release(t, entered)
			for i, key := range keys {
				l, err := other.TryAcquire(t.Context(), key)
				if (i == least) != errors.Is(err, txlock.ErrBusy) || i != least && err != nil {
					t.Errorf("afterwards %d: %v", i, err)
				}
				if err == nil {
					release(t, l)
				}
			}
		}
		if n := wire.count.Load(); n < 4 {
			t.Errorf("%d statements for several are too few to prove anything", n)
		}
	})
}

// TestBatchCut proves that if the answer to a statement for several leases is lost, those
// that it acquires fail as one alone does, and are free again soon, and that those which it
// releases are released without an error.
func TestBatchCut(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for _, name := range []string{"AcquireMany", "ReleaseMany"} {
			run(name, func(t *testing.T) {
				wire := &cutWire{name: "name: " + name + " "}
				wire.cuts.Store(2)
				pool := newPool(t, db, true, wire.install)
				pool.SetMaxIdleConns(gathering)
				m, other := newManager(t, pool, lease.TTL(time.Hour)), newManager(t, newPool(t, db, false))
				for round := 0; wire.cuts.Load() > 0 && round < 100; round++ {
					keys := gather(t, db)
					held, errs := acquireAtOnce(keys, func(_ int, key txlock.Key) (*lease.Lease, error) { return m.TryAcquire(t.Context(), key) })
					for i, err := range errs {
						if lost := name == "AcquireMany" && wire.has(keys[i]); lost != (err != nil) {
							t.Errorf("acquire %d: %v, the answer is lost: %v", i, err, lost)
						}
					}
					atOnce(keys, func(i int, _ txlock.Key) {
						if held[i] == nil {
							return
						}
						wantsNone(t, fmt.Sprintf("release %d", i), held[i].Release(t.Context()))
					})
					for _, key := range keys {
						free(t, other, key)
					}
				}
				if len(wire.cut) == 0 {
					t.Error("no answer was lost")
				}
			})
		}
	})
}

// TestBatchAtRandom proves that many calls at once of several processes, some of which
// give up, while connections are killed, never make two holders nor a token that falls, and
// that all is free in the end.
func TestBatchAtRandom(t *testing.T) {
	lasting := testdb.Long(2*time.Second, 30*time.Second)
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		keys, holders, tokens := gather(t, db), make([]atomic.Int32, gathering), make([]atomic.Uint64, gathering)
		var managers []*lease.Manager
		var pools []*sql.DB
		wire := new(cutWire)
		for range 2 {
			pools = append(pools, newPool(t, db, true, wire.install))
			pools[len(pools)-1].SetMaxOpenConns(25)
			managers = append(managers, newManager(t, pools[len(pools)-1], lease.TTL(time.Hour)))
		}
		var over atomic.Bool
		var kills, grants atomic.Int64
		var work sync.WaitGroup
		for i := range 60 {
			work.Go(func() {
				for !over.Load() {
					at := rand.IntN(len(keys))
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(2000))*time.Millisecond)
					l, err := managers[i%2].TryAcquire(ctx, keys[at])
					cancel()
					if err != nil {
						continue
					}
					if n := holders[at].Add(1); n != 1 {
						t.Errorf("%d holders", n)
					}
					if last := tokens[at].Swap(l.Token()); last >= l.Token() {
						t.Errorf("token %d after %d", l.Token(), last)
					}
					grants.Add(1)
					holders[at].Add(-1)
					if err := l.Release(context.Background()); err != nil && !errors.Is(err, lease.ErrGuarded) && !errors.Is(err, context.DeadlineExceeded) { // it goes on
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		work.Go(func() {
			for !over.Load() {
				time.Sleep(rand.N(200 * time.Millisecond))
				kills.Add(killOne(t, db))
			}
		})
		enough := func() bool { return kills.Load() >= 10 && grants.Load() >= 50 && wire.count.Load() >= 4 }
		lasts(lasting, enough)
		over.Store(true)
		work.Wait()
		said := fmt.Sprintf("%d kills, %d grants, %d statements for several", kills.Load(), grants.Load(), wire.count.Load())
		if t.Log(said); !enough() {
			t.Errorf("too few to prove anything: %s", said)
		}
		pools = append(pools, newPool(t, db, false)) // without connections that are being killed
		managers = append(managers, newManager(t, pools[2]))
		for _, key := range keys {
			free(t, managers[2], key)
		}
		leaveNothing(t, db, managers, pools)
	})
}
