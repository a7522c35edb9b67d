package lease_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// slowly makes every answer of the server come later by a time that can be changed.
func slowly(delay *atomic.Int64) func(*mysql.Config) {
	return func(cfg *mysql.Config) {
		cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &slowConn{Conn: conn, delay: delay, closed: make(chan struct{})}, err
		}
	}
}

type slowConn struct {
	net.Conn
	delay  *atomic.Int64
	once   sync.Once
	closed chan struct{}
}

func (c *slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for begun := time.Now(); ; {
		left := time.Duration(c.delay.Load()) - time.Since(begun) // which may be made shorter meanwhile
		if left <= 0 {
			return n, err
		}
		timer := time.NewTimer(min(left, 20*time.Millisecond))
		select {
		case <-timer.C:
		case <-c.closed:
			timer.Stop()
			return 0, net.ErrClosed
		}
	}
}

func (c *slowConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestDeadlineThroughASlowNetwork proves that no acquire outlasts its context, wherever
// that ends, and that what the server has granted is released in the background.
func TestDeadlineThroughASlowNetwork(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const latency = 3 * time.Second // of one answer
		other := newManager(t, newPool(t, db, true))
		run, wait := sideBySide(t)
		defer wait()
		for name, acquire := range map[string]func(ctx context.Context, m *lease.Manager, key txlock.Key) (*lease.Lease, error){
			"free": func(ctx context.Context, m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return m.Acquire(ctx, key)
			},
			"tried": func(ctx context.Context, m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return m.TryAcquire(ctx, key)
			},
			"beside readers": func(ctx context.Context, m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return m.Acquire(ctx, key)
			},
		} {
			for _, answers := range []time.Duration{latency / 2, latency * 3 / 2} { // within the first, and the second
				run(name+" for "+answers.String(), func(t *testing.T) {
					var delay atomic.Int64
					m, key := newManager(t, newPool(t, db, true, slowly(&delay))), named()
					release(t, acquireFor(t, m, key)) // statements are prepared, and the row is there
					var reader *lease.Lease
					if name == "beside readers" {
						reader = share(t, other, key)
					}
					delay.Store(int64(latency))
					ctx := limited(t, answers)
					began, delays := time.Now(), testdb.Delays(t)
					l, err := acquire(ctx, m, key)
					if late := time.Since(began) - answers; late > latency/2+delays() {
						t.Errorf("it has returned %v past the end of its context", late)
					}
					delay.Store(0)
					if reader != nil {
						release(t, reader)
					}
					if err == nil {
						release(t, l)
						return
					}
					wants(t, "acquire", err, context.DeadlineExceeded)
					lasts(0, func() bool {
						return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND CHAR_LENGTH(holders) > 0", key.String()) == 0
					})
					release(t, acquireFor(t, other, key))
				})
			}
		}
	})
}

// acquireFor acquires what is free, or soon is.
func acquireFor(t *testing.T, m *lease.Manager, key txlock.Key) *lease.Lease {
	t.Helper()
	return acquire(t, m, key, lease.WaitAtMost(time.Minute))
}
