package locktest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/memstore"
)

// Memory stands in for the server: it has the locks and the leases that the
// transactions and managers of one test share. Begin returns a transaction's Scope, and
// DB the pool for managers of leases. Its methods may be called from any goroutine.
//
// Its transaction locks are compared with those of MariaDB and MySQL by random programs. It
// is MariaDB, unless it is made with OnMySQL. As on the servers, a key that was never
// committed has no row yet, unless its lock began the transaction: even RLock makes one then,
// and excludes until the end, and when its transaction rolls back, all who wait for it but
// one get txlock.ErrDeadlock. Ensure makes rows beforehand.
//
// Which transaction of a deadlock is rolled back can't be foretold: a server compares how
// much each has written and locked, as its storage engine counts that, and of equals takes
// any. Memory takes the one with the fewest locks, unless Victim says otherwise. It sees a
// deadlock at once. A server takes who waits for several readers to wait for one of them, and
// may see a deadlock with another only when that one has ended; and on MySQL a limit of some
// milliseconds may end a wait before a deadlock is seen.
//
// What it doesn't know is the data: what the program writes, a server also waits for, counts
// and compares. Nor does it have the limit of innodb_lock_wait_timeout, which ends all waits.
//
// Its clock is that of package time. In a test under testing/synctest, make it in the
// bubble.
type Memory struct {
	leases *memstore.Store

	mu     sync.Mutex
	rows   map[rowID]*memoryRow
	onces  map[rowID]onceRow // that were committed
	queued map[string]int    // how many calls wait, by the key's name
	news   chan struct{}     // closed when that changes

	mysql  bool
	victim func(circle []*Scope) *Scope // of Victim, or nil
}

// NewMemory returns a memory in which nothing is held.
func NewMemory(options ...MemoryOption) *Memory {
	m := &Memory{
		leases: memstore.New().Store(), rows: make(map[rowID]*memoryRow), onces: make(map[rowID]onceRow),
		queued: make(map[string]int), news: make(chan struct{}),
	}
	for _, option := range options {
		option(m)
	}
	return m
}

// ReadVersion stands in for txlock.ReadVersion.
func (m *Memory) ReadVersion(ctx context.Context, key txlock.Key) (uint64, error) {
	if err := key.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("read the version of %q: %w", key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.row(key).committed, nil
}

// Holders stands in for txlock.Holders. There is no connection to be named.
func (m *Memory) Holders(ctx context.Context, keys ...txlock.Key) (holders []txlock.Holder, err error) {
	if err := checkKeys(keys); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("holders: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		r := m.row(key)
		for t := range r.holders {
			if token, raised := t.raised[r.id]; raised {
				holders = append(holders, txlock.Holder{Key: key, Token: token, Owner: r.owner, Locked: r.locked})
			}
		}
	}
	return holders, nil
}

// AwaitWaiting returns when that many calls wait for the lock of a key, or with the error
// of the context: for tests that need a waiter. It doesn't count those that wait for a
// lease: for them use synctest.Wait.
func (m *Memory) AwaitWaiting(ctx context.Context, key txlock.Key, n int) error {
	return m.await(ctx, func() bool { return m.queued[key.String()] >= n })
}

// await returns when a condition holds, which is asked under Memory.mu.
func (m *Memory) await(ctx context.Context, holds func() bool) error {
	for {
		m.mu.Lock()
		done, news := holds(), m.news
		m.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wait counts who waits, under Memory.mu.
func (m *Memory) wait(key txlock.Key, n int) {
	m.queued[key.String()] += n
	m.changed()
}

// changed wakes await, under Memory.mu.
func (m *Memory) changed() {
	close(m.news)
	m.news = make(chan struct{})
}

// nextToken is the token of a grant that follows another, under Memory.mu.
func (m *Memory) nextToken(last uint64) uint64 {
	return max(last+1, uint64(time.Now().UnixMicro()))
}
