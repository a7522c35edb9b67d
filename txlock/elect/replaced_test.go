package elect_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// mortal is a process of an election on a server, which can stand still.
type mortal struct {
	*elect.Election
	pool  *sql.DB
	still sync.RWMutex // who stands still holds it: nothing is sent
}

// wire is a connection of a mortal.
type wire struct {
	net.Conn
	of *mortal
}

func (w wire) Write(b []byte) (int, error) {
	w.of.still.RLock()
	defer w.of.still.RUnlock()
	return w.Conn.Write(b)
}

func (m *mortal) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return wire{c, m}, nil
}

// newMortal starts a process, which stands for election until the end of the test.
func newMortal(t *testing.T, db *testdb.DB, key txlock.Key, name string, guarded bool, ttl time.Duration, fn func(m *mortal) elect.Func) *mortal {
	t.Helper()
	m := new(mortal)
	cfg := db.Config()
	cfg.Logger, cfg.DialFunc = &mysql.NopLogger{}, m.dial // connections are broken on purpose
	var connector driver.Connector
	connector, err := mysql.NewConnector(cfg)
	must(t, err)
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	m.pool = sql.OpenDB(connector)
	leases, err := lease.NewManager(m.pool)
	must(t, err)
	m.Election, err = elect.New(leases, key, elect.InstanceName(name), elect.TTL(ttl))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, fn(m)) }()
	t.Cleanup(func() {
		cancel()
		wants(t, "Run", <-ended, context.Canceled)
		closing, end := context.WithTimeout(context.Background(), time.Second)
		defer end()
		_ = leases.Close(closing) // of one that is dead
		_ = m.pool.Close()
	})
	return m
}

// TestStoppedBeforeCommit proves that a leader which is stopped between Guard and COMMIT is
// replaced when its TTL is over, and not later, and that it commits nothing when it goes on.
func TestStoppedBeforeCommit(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				stopBeforeCommit(t, testdb.Open(t, engine), guarded)
			})
		}
	}
}

func stopBeforeCommit(t *testing.T, db *testdb.DB, guarded bool) {
	const ttl = 3 * time.Second
	key := txlock.Named("test:" + rand.Text())
	table := db.CreateTable(t, "written", "id BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED")
	var again atomic.Bool // it may lead once more at the end of the test
	guards, goOn, committed := make(chan uint64), make(chan struct{}), make(chan error, 1)
	stopped := newMortal(t, db, key, "stopped", guarded, ttl, func(m *mortal) elect.Func {
		return func(ctx context.Context, term *elect.Term) error {
			if again.Swap(true) {
				return follow(ctx, term)
			}
			tx, err := m.pool.BeginTx(context.Background(), nil)
			must(t, err)
			_, err = tx.Exec("INSERT INTO "+table+" (token) VALUES (?)", term.Token())
			must(t, err)
			must(t, term.Guard(context.Background(), tx))
			m.still.Lock()
			guards <- term.Token()
			<-goOn
			committed <- tx.Commit()
			return follow(ctx, term)
		}
	})
	token := <-guards
	at, delays := time.Now(), testdb.Delays(t)
	leads := make(chan uint64, 1)
	newMortal(t, db, key, "next", guarded, ttl, func(*mortal) elect.Func {
		return func(ctx context.Context, term *elect.Term) error {
			leads <- term.Token()
			return follow(ctx, term)
		}
	})
	next := <-leads
	took := time.Since(at)
	stopped.still.Unlock()
	close(goOn)
	if err := <-committed; err == nil {
		t.Error("its COMMIT has succeeded after its term")
	}
	is(t, "replaced", took, ttl/2, ttl+3500*time.Millisecond+delays())
	t.Logf("replaced after %v", took)
	if next <= token {
		t.Errorf("term %d after %d", next, token)
	}
	var rows int
	must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&rows))
	if rows != 0 {
		t.Errorf("%d rows were written", rows)
	}
}

// TestAllHang proves that leaders which hang, one after the other, are replaced as long as
// one process is left: they don't keep the standby slots.
func TestAllHang(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		const processes = 8
		hang := make(chan struct{})
		var all []*process
		for i := range processes {
			p := c.process(fmt.Sprint(i), elect.Watchdog(time.Second))
			all = append(all, p)
			p.run(func(context.Context, *elect.Term) error { <-hang; return nil })
		}
		goOn := sync.OnceFunc(func() { close(hang) })
		t.Cleanup(goOn)
		token := uint64(0)
		for range processes {
			_, e := c.successor(all, token)
			token = e.Token
		}
		goOn()
		c.successor(all, token) // they stand by again
	})
}

// TestObserverPanics proves that a panic of the observer goes on, and leaves neither the
// lease nor the standby slot behind.
func TestObserverPanics(t *testing.T) {
	for _, kind := range []elect.Kind{elect.Elected, elect.Ending, elect.Ended, elect.RunError} {
		t.Run(string(kind), func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				p := c.process("a", elect.Observe(func(_ context.Context, e elect.Event) {
					if e.Kind == kind {
						panic(kind)
					}
				}))
				if kind == elect.RunError {
					p.store.Down(nil)
				}
				func() {
					defer func() {
						if got := recover(); got != kind {
							t.Errorf("recovered %v", got)
						}
					}()
					_ = p.Run(t.Context(), func(_ context.Context, term *elect.Term) error {
						term.Resign()
						return nil
					})
				}()
				p.up(c)
				list, err := p.leases.List(t.Context())
				must(t, err)
				if len(list) > 0 {
					t.Errorf("%v is held", list)
				}
				wants(t, "Run again under an ended manager", errors.Join(p.leases.Close(t.Context()), p.Run(t.Context(), follow)), lease.ErrClosed)
			})
		})
	}
}

// TestObserverBlocks proves that an observer which doesn't return keeps nobody from the
// lead for longer than the grace.
func TestObserverBlocks(t *testing.T) {
	for _, kind := range []elect.Kind{elect.Elected, elect.Ending, elect.Overdue, elect.Ended} {
		t.Run(string(kind), func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *cluster) {
				block, begun := make(chan struct{}), make(chan struct{}, 1)
				p := c.process("a", elect.Observe(func(_ context.Context, e elect.Event) {
					if e.Kind == elect.Elected {
						begun <- struct{}{}
					}
					if e.Kind == kind {
						<-block
					}
				}))
				p.run(func(context.Context, *elect.Term) error { <-block; return nil })
				<-begun
				other := c.process("b")
				t.Cleanup(func() { close(block) })
				other.run(follow)
				time.Sleep(time.Second)
				p.end()
				at := time.Now()
				is(t, "replaced", other.await(elect.Elected, 1).at.Sub(at), grace, grace+50*time.Millisecond)
			})
		})
	}
}

// TestHungServer proves that the server, or a network, which hangs up without a word is
// given up: Run and Observe say so, and go on when they get answers.
func TestHungServer(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("a")
		p.store.SetFault(func(ctx context.Context, _ string, _ store.Row, _ func() error) error {
			<-ctx.Done() // of a connection whose other end is gone
			return ctx.Err()
		})
		p.run(follow)
		at := time.Now()
		for _, err := range p.Observe(t.Context()) {
			wants(t, "Observe", err, context.DeadlineExceeded)
			break
		}
		wants(t, "Run", p.await(elect.RunError, 1).Err, context.DeadlineExceeded)
		is(t, "told", time.Since(at), time.Second, ttl)
		p.up(c)
		at = time.Now()
		is(t, "leads", p.await(elect.Elected, 1).at.Sub(at), 0, 2*ttl)
	})
}
