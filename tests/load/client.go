package load

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	// TTL is that of the leases of clients.
	TTL = 3 * time.Second
	// CallLimit bounds a call of a client, on a node that may hang.
	CallLimit = 10 * time.Second
	// permits is the room of the semaphore.
	permits = 2
)

// Client is a process that goes to one server.
type Client struct {
	Number int
	DB     *sql.DB
	Leases *lease.Manager
	Jobs   *job.Jobs
}

// Pools are those of clients.
func Pools(clients []*Client) (pools []*sql.DB) {
	for _, c := range clients {
		pools = append(pools, c.DB)
	}
	return pools
}

// NewClients opens so many, which lead takes to the server of the database.
func NewClients(t *testing.T, n int, db *testdb.DB, lead func(*mysql.Config)) (clients []*Client) {
	t.Helper()
	for i := range n {
		cfg := db.Config()
		lead(cfg)
		clients = append(clients, NewClient(t, i, cfg))
	}
	return clients
}

// NewClient opens one, which is closed at the end of the test.
func NewClient(t *testing.T, number int, cfg *mysql.Config) *Client {
	t.Helper()
	cfg.Timeout, cfg.ReadTimeout, cfg.Logger = 2*time.Second, 2*CallLimit, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	check(t, err)
	c := &Client{Number: number, DB: sql.OpenDB(locksqlc.Connector(connector))}
	c.DB.SetMaxOpenConns(30)
	if c.Leases, err = lease.NewManager(c.DB, lease.TTL(TTL)); err != nil {
		t.Fatal(err)
	}
	if c.Jobs, err = job.New(c.DB, c.Leases); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Jobs.Close(ctx); err != nil {
			t.Errorf("client %d: close the jobs: %v", number, err)
		}
		if err := c.Leases.Close(ctx); err != nil {
			t.Errorf("client %d: close the manager: %v", number, err)
		}
		_ = c.DB.Close() // connections to servers that are gone are broken
	})
	return c
}

// Connected returns when clients reach a server again: what is between them may find out later
// than the server that it is back.
func Connected(t *testing.T, clients ...*sql.DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, db := range clients {
		for err := db.PingContext(ctx); err != nil; err = db.PingContext(ctx) {
			if ctx.Err() != nil {
				t.Fatalf("client %d reaches no server: %v", i, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// polled acquires a lease by looking again and again, fair by the queue of its node, and
// permit is one of a semaphore.
func (c *Client) polled(ctx context.Context, key txlock.Key) (*lease.Lease, error) {
	return c.Leases.Acquire(ctx, key)
}

func (c *Client) fair(ctx context.Context, key txlock.Key) (*lease.Lease, error) {
	return c.Leases.Acquire(ctx, key, lease.Fair())
}

func (c *Client) permit(ctx context.Context, key txlock.Key) (*lease.Lease, error) {
	s, err := c.Leases.Semaphore(key, permits)
	if err != nil {
		return nil, err
	}
	return s.Acquire(ctx)
}

// hold acquires the lease, works under it and releases it.
func (c *Client) hold(ctx context.Context, h *History, acquire func(context.Context, txlock.Key) (*lease.Lease, error), work func(l *lease.Lease) error) {
	l, err := acquire(ctx, txlock.Named(h.Kind))
	if err != nil {
		h.Failed(err)
		return
	}
	one := Hold{Client: c.Number, Token: l.Token(), Begun: time.Since(h.Began)}
	held := false
	look := func() bool {
		asked := time.Since(h.Began)
		if l.Err() == nil {
			one.End, held = asked, true
			return true
		}
		return false
	}
	for end := time.Now().Add(rand.N(50 * time.Millisecond)); look() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := work(l); err != nil {
		h.Failed(err)
	}
	look()
	if held {
		h.Add(one)
	}
	if err := l.Release(ctx); err != nil {
		h.Failed(err)
	}
}

// guarded writes the token of the lease into a row, and counts where it falls.
func (c *Client) guarded(ctx context.Context, g *Ledger, l *lease.Lease) error {
	a := g.Begin()
	err := locksqlc.Run(ctx, c.DB, nil, func(tx *sql.Tx) error {
		return a.Mark(ctx, tx, func() error {
			if _, err := tx.ExecContext(ctx, "UPDATE numbers SET falls = falls + (token > ?), token = ?, n = n + 1 WHERE kind = ?", l.Token(), l.Token(), g.Kind); err != nil {
				return err
			}
			return l.Guard(ctx, tx)
		})
	})
	a.Settle(err)
	return err
}

func nothing(*lease.Lease) error { return nil }
