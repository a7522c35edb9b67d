package locktest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Memory stands in for the server: it has the locks and the leases that the
// transactions and managers of one test share. Begin gives a transaction's Scope, and
// Manager a manager of leases. Its methods may be called from any goroutine.
//
// Its transaction locks are compared with those of MariaDB and MySQL by random programs. It
// is MariaDB, unless it is made with OnMySQL. As on the servers, a key that was never
// committed has no row yet: even RLock makes one then, and excludes until the end, and when
// its transaction rolls back, all who wait for it but one get txlock.ErrDeadlock. Ensure
// makes rows beforehand.
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
// It has a clock of its own, which stands still until Advance moves it: with it end the
// waits of WaitAtMost and the leases that are not renewed.
type Memory struct {
	clock clock

	mu     sync.Mutex
	rows   map[rowID]*memoryRow
	leases map[string]*memoryLease
	queued map[string]int // how many calls wait, by the key's name
	news   chan struct{}  // closed when that changes, or a lease ends

	mysql  bool
	victim func(circle []*Scope) *Scope // of Victim, or nil
}

// NewMemory returns a memory in which nothing is held. Its clock begins at the present.
func NewMemory(options ...MemoryOption) *Memory {
	return newMemory(&movedClock{at: time.Now()}, options)
}

// NewRealTimeMemory is NewMemory with the clock of package time, and so with that of
// the bubble in a test under testing/synctest.
func NewRealTimeMemory(options ...MemoryOption) *Memory { return newMemory(realClock{}, options) }

func newMemory(c clock, options []MemoryOption) *Memory {
	m := &Memory{
		clock: c, rows: make(map[rowID]*memoryRow), leases: make(map[string]*memoryLease),
		queued: make(map[string]int), news: make(chan struct{}),
	}
	for _, option := range options {
		option(m)
	}
	return m
}

// Now returns what the clock shows.
func (m *Memory) Now() time.Time { return m.clock.now() }

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

// Advance moves the clock. When it returns, all that ends by then has ended, in the
// order of time: leases are lost and given to who waits, and waits are over. It panics
// on a Memory in real time.
func (m *Memory) Advance(d time.Duration) {
	moved, ok := m.clock.(*movedClock)
	if !ok {
		panic("locktest: Advance of a Memory in real time: make it by NewMemory")
	}
	moved.advance(d)
}

// AwaitWaiting returns when that many calls wait for the lock or the lease of a key, or
// with the error of the context: for tests that need somebody who waits.
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
	return max(last+1, uint64(m.clock.now().UnixMicro()))
}

// clock tells the time and calls when it has come.
type clock interface {
	now() time.Time
	// after calls f when the time is over, unless it is stopped before.
	after(d time.Duration, f func()) (stop func())
}

type realClock struct{}

func (realClock) now() time.Time { return time.Now() }
func (realClock) after(d time.Duration, f func()) func() {
	timer := time.AfterFunc(d, f)
	return func() { timer.Stop() }
}

// movedClock is moved by the test.
type movedClock struct {
	mu     sync.Mutex
	at     time.Time
	alarms []*alarm
}

type alarm struct {
	at time.Time
	f  func()
}

func (c *movedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *movedClock) after(d time.Duration, f func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &alarm{at: c.at.Add(d), f: f}
	c.alarms = append(c.alarms, a)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(a)
	}
}

func (c *movedClock) remove(a *alarm) {
	for i, other := range c.alarms {
		if other == a {
			c.alarms = append(c.alarms[:i], c.alarms[i+1:]...)
			return
		}
	}
}

// advance moves the clock from alarm to alarm.
func (c *movedClock) advance(d time.Duration) {
	c.mu.Lock()
	end := c.at.Add(d)
	for {
		var next *alarm
		for _, a := range c.alarms {
			if !a.at.After(end) && (next == nil || a.at.Before(next.at)) {
				next = a
			}
		}
		if next == nil {
			break
		}
		c.remove(next)
		if next.at.After(c.at) {
			c.at = next.at
		}
		c.mu.Unlock()
		next.f()
		c.mu.Lock()
	}
	if end.After(c.at) {
		c.at = end
	}
	c.mu.Unlock()
}
