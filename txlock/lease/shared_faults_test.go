package lease_test

// Faults that once let two in, kept readers out or lost them.

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
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

// faulty breaks a connection before a statement is sent, a number of times, and
// counts statements.
type faulty struct {
	statement string
	breaks    atomic.Int32
	sent      atomic.Int32
}

func (f *faulty) install(c *mysql.Config) {
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &faultyConn{Conn: conn, f: f, texts: map[uint32]string{}}, err
	}
}

type faultyConn struct {
	net.Conn
	f         *faulty
	preparing string
	texts     map[uint32]string
}

func (c *faultyConn) Write(b []byte) (int, error) {
	if len(b) > 5 && b[3] == 0 {
		text := string(b[5:])
		switch b[4] {
		case commandPrepare:
			c.preparing = text
		case commandExecute:
			text = c.texts[binary.LittleEndian.Uint32(b[5:])]
			fallthrough
		case 3:
			c.f.sent.Add(1)
			if c.f.statement != "" && strings.Contains(text, c.f.statement) && c.f.breaks.Add(-1) >= 0 {
				return 0, errors.Join(errors.New("the network fails"), c.Close())
			}
		}
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.preparing != "" && n >= 9 {
		if b[4] == 0 {
			c.texts[binary.LittleEndian.Uint32(b[5:])] = c.preparing
		}
		c.preparing = ""
	}
	return n, err
}

// TestRetryAfterUnknownOutcome proves that what gives back the grant of an attempt
// without an answer doesn't give back that of the next attempt.
func TestRetryAfterUnknownOutcome(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, shared := range []bool{false, true} {
			network := &faulty{statement: "name: AcquireLease "}
			if shared {
				network.statement = "name: ShareLease "
			}
			m, other := newManager(t, newPool(t, db, true, network.install)), newManager(t, newPool(t, db, true))
			key := named()
			release(t, share(t, m, key))
			l := acquire(t, other, key)
			got := make(chan *lease.Lease)
			network.breaks.Store(-1000)
			go func() {
				take := m.Acquire
				if shared {
					take = m.AcquireShared
				}
				w, err := take(t.Context(), key, lease.TTL(3*time.Second))
				if err != nil {
					t.Error(err)
				}
				got <- w
			}()
			time.Sleep(300 * time.Millisecond)
			network.breaks.Store(3) // database/sql sends it three times: that is one attempt
			release(t, l)
			w := <-got
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				o, err := other.TryAcquire(t.Context(), key)
				if err != nil {
					continue
				}
				if w.Err() == nil {
					t.Errorf("shared %t: two holders at once", shared)
				}
				_ = o.Release(t.Context())
				break
			}
			_ = w.Release(t.Context())
		}
	})
}

// TestDrainDoesNotSpin proves that a writer that waits for a reader's guarded
// transaction sends no more than its looks.
func TestDrainDoesNotSpin(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		network := new(faulty)
		pool := newPool(t, db, true)
		m, other := newManager(t, newPool(t, db, true, network.install)), newManager(t, pool)
		key := named()
		r := share(t, other, key, lease.TTL(3*time.Second))
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Guard(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		<-r.Done()
		before := network.sent.Load()
		_, err = m.Acquire(t.Context(), key, lease.WaitAtMost(time.Second))
		wants(t, "Acquire", err, txlock.ErrWaitTimeout)
		if n := network.sent.Load() - before; n > 250 {
			t.Errorf("%d statements in a second", n)
		}
		_ = tx.Rollback()
		_ = r.Release(t.Context())
	})
}

// TestReadersOfOneOwnerAtOnce proves that goroutines of one owner that become readers
// at the same time don't lose each other's lease.
func TestReadersOfOneOwnerAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true))
		lost, granted := 0, 0
		for range 20 {
			key := named()
			release(t, share(t, m, key))
			ctx := lease.WithOwner(t.Context(), "owner of "+key.String())
			leases := make([]*lease.Lease, 4)
			var calls sync.WaitGroup
			for i := range leases {
				calls.Go(func() { leases[i], _ = m.TryAcquireShared(ctx, key) })
			}
			calls.Wait()
			for _, l := range leases {
				if l == nil {
					continue
				}
				granted++
				if l.Err() != nil {
					lost++
				}
			}
			for _, l := range leases {
				if l != nil {
					_ = l.Release(t.Context())
				}
			}
		}
		if lost != 0 {
			t.Errorf("%d of %d readers are lost", lost, granted)
		}
	})
}

// TestDowngradeUnderTries proves that Downgrade of a lease that is held succeeds,
// although others try to take it.
func TestDowngradeUnderTries(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m, other := newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, true))
		failed := 0
		for i := range 60 {
			key := named()
			if i%2 == 0 {
				release(t, share(t, m, key))
			}
			w := acquire(t, m, key)
			ctx, cancel := context.WithCancel(t.Context())
			var tries sync.WaitGroup
			for range 3 {
				tries.Go(func() {
					for ctx.Err() == nil {
						if l, err := other.TryAcquire(ctx, key); err == nil {
							_ = l.Release(context.Background())
						}
					}
				})
			}
			time.Sleep(2 * time.Millisecond)
			if r, err := w.Downgrade(t.Context()); err != nil {
				failed++
				_ = w.Release(t.Context())
			} else {
				_ = r.Release(t.Context())
			}
			cancel()
			tries.Wait()
		}
		if failed > 0 {
			t.Errorf("%d of 60 failed", failed)
		}
	})
}

// TestRefusedAcquireTxLeavesReadersAlone proves that readers are renewed and released
// while a transaction is open whose AcquireTx was refused because of them.
func TestRefusedAcquireTxLeavesReadersAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, other := newManager(t, newPool(t, db, true)), newManager(t, pool)
		key := named()
		r := share(t, m, key, lease.TTL(5*time.Second))
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = other.AcquireTx(t.Context(), tx, key)
		wants(t, "AcquireTx", err, txlock.ErrBusy)
		if l, err := m.TryAcquireShared(t.Context(), key); err != nil {
			t.Errorf("another reader: %v", err)
		} else {
			_ = l.Release(t.Context())
		}
		time.Sleep(6 * time.Second) // past its TTL
		if err := r.Err(); err != nil {
			t.Errorf("the reader: %v", err)
		}
		if err := r.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		_ = tx.Rollback()
	})
}

// TestAcquireTxAfterReadersCommit proves that a transaction that has read before a
// reader committed under its guard is refused the lease.
func TestAcquireTxAfterReadersCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, other := newManager(t, pool), newManager(t, newPool(t, db, true))
		key := named()
		release(t, share(t, m, key))
		table := db.CreateTable(t, "stale", "id INT PRIMARY KEY, n INT")
		exec(t, db, "INSERT INTO "+table+" VALUES (1, 0)")
		old, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := old.QueryRow("SELECT n FROM " + table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		r := share(t, other, key)
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("UPDATE " + table + " SET n = 1"); err != nil {
			t.Fatal(err)
		}
		if err := r.Guard(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		release(t, r)
		l, err := m.AcquireTx(t.Context(), old, key)
		wants(t, "AcquireTx", err, txlock.ErrStaleSnapshot)
		_ = old.Rollback()
		if l != nil {
			_ = l.Release(t.Context())
		}
	})
}

// TestFreePermitsAreTakenAtOnce proves that goroutines of one manager don't wait for
// each other where all of them can be granted.
func TestFreePermitsAreTakenAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		pool.SetMaxIdleConns(40)
		m := newManager(t, pool)
		s := semaphore(t, m, named(), 32)
		release(t, permit(t, s))
		key := named()
		release(t, share(t, m, key))
		for name, take := range map[string]func() (*lease.Lease, error){
			"permits": func() (*lease.Lease, error) { return s.Acquire(t.Context()) },
			"readers": func() (*lease.Lease, error) { return m.AcquireShared(t.Context(), key) },
		} {
			for range 2 {
				start := time.Now()
				var calls sync.WaitGroup
				held := make([]*lease.Lease, 32)
				for i := range held {
					calls.Go(func() { held[i], _ = take() })
				}
				calls.Wait()
				took := time.Since(start)
				start = time.Now()
				for _, l := range held {
					release(t, l)
				}
				t.Logf("32 %s took %v; given back one by one in %v", name, took, time.Since(start))
				if took > max(3*time.Second, 50*time.Since(start)) { // 32 pauses of a Poll are 8 seconds
					t.Errorf("32 free %s took %v", name, took)
				}
			}
		}
	})
}

// TestPermitsBesideAcquireTx proves that a transaction whose AcquireTx of a semaphore's
// key was refused keeps nobody from a permit.
func TestPermitsBesideAcquireTx(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m := newManager(t, pool)
		key := named()
		s := semaphore(t, m, key, 2)
		release(t, permit(t, s))
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.AcquireTx(t.Context(), tx, key)
		wants(t, "AcquireTx of a semaphore", err, txlock.ErrInvalidKey)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		start := time.Now()
		l, err := s.TryAcquire(ctx)
		t.Logf("TryAcquire: %v after %v", err, time.Since(start))
		if err != nil {
			t.Errorf("TryAcquire: %v", err)
		} else {
			release(t, l)
		}
		_ = tx.Rollback()
	})
}

var _ *sql.DB

// TestReadersAfterWritersTTL proves that a reader that never leaves, and a writer that
// waits for it, keep other readers out for a bounded time only.
func TestReadersAfterWritersTTL(t *testing.T) {
	for _, same := range []bool{false, true} {
		t.Run(fmt.Sprintf("same manager=%t", same), func(t *testing.T) {
			onServers(t, func(t *testing.T, db *testdb.DB) {
				const ttl = 2 * time.Second
				m, writing := newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, true))
				reading := newManager(t, newPool(t, db, true))
				if same {
					reading = writing
				}
				key := named()
				stays := share(t, m, key)
				granted := make(chan *lease.Lease, 1)
				go func() {
					l, err := writing.Acquire(t.Context(), key, lease.TTL(ttl))
					if err != nil {
						t.Errorf("Acquire of the writer: %v", err)
					}
					granted <- l
				}()
				becomes(t, "the writer waits for the reader", func() bool { gate, _ := heldRows(t, db, key); return gate == 1 })
				begun := time.Now()
				reader, err := reading.AcquireShared(t.Context(), key, lease.WaitAtMost(40*time.Second))
				if err != nil {
					t.Errorf("AcquireShared beside a reader and a writer that waits with a TTL of %v: %v", ttl, err)
				} else {
					t.Logf("a new reader was granted after %v, the writer's TTL is %v", time.Since(begun), ttl)
					release(t, reader)
				}
				release(t, stays)
				if writer := <-granted; writer != nil {
					release(t, writer)
				}
			})
		})
	}
}
