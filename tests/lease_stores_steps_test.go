package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// asked is who asks for what.
type asked struct {
	manager, key int
	owner        string
	ttl          time.Duration
	fair         bool
	atLeast      time.Duration
}

func (p *play) ask(rt *rapid.T) asked { return ask(rt, p.keys) }

func ask(rt *rapid.T, keys int) asked {
	return asked{
		rapid.IntRange(0, 1).Draw(rt, "manager"), rapid.IntRange(0, keys-1).Draw(rt, "key"),
		rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(rt, "owner"),
		rapid.SampledFrom([]time.Duration{15 * time.Minute, 40 * time.Minute}).Draw(rt, "ttl"),
		rapid.IntRange(0, 3).Draw(rt, "fair") == 3,
		rapid.SampledFrom([]time.Duration{0, 0, 0, 5 * time.Minute, time.Hour}).Draw(rt, "at least"),
	}
}

func (a asked) context() context.Context {
	if a.owner == "" {
		return context.Background()
	}
	return lease.WithOwner(context.Background(), a.owner)
}

func (a asked) options() []lease.AcquireOption {
	if a.fair {
		return append(a.terms(), lease.Fair())
	}
	return a.terms()
}

func (a asked) terms() []lease.AcquireOption {
	terms := []lease.AcquireOption{lease.TTL(a.ttl), lease.WithLabel("of " + a.owner)}
	if a.atLeast > 0 {
		terms = append(terms, lease.HoldAtLeast(a.atLeast))
	}
	return terms
}

// try makes a call that doesn't wait on both sides, and compares.
func (p *play) try(a asked, call func(i int, s *side) (*lease.Lease, error)) error {
	var got [2]outcome
	for i, s := range p.sides {
		got[i].lease, got[i].err = call(i, s)
	}
	p.acquired(a, got)
	return got[0].err
}

// acquire is TryAcquire.
func (p *play) acquire(rt *rapid.T) {
	if a := p.ask(rt); p.step("TryAcquire %+v", a) {
		_ = p.try(a, func(_ int, s *side) (*lease.Lease, error) {
			return s.managers[a.manager].TryAcquire(a.context(), playKey(a.key), a.options()...)
		})
	}
}

// acquireTx takes a lease in the open transaction.
func (p *play) acquireTx(rt *rapid.T) {
	a := p.ask(rt)
	p.begin(rt)
	if !p.step("AcquireTx %+v", a) {
		return
	}
	err := p.try(a, func(_ int, s *side) (*lease.Lease, error) {
		return s.managers[a.manager].AcquireTx(a.context(), s.tx, playKey(a.key), a.terms()...)
	})
	if err != nil {
		p.finish(false)
	}
}

// guard guards the open transaction.
func (p *play) guard(rt *rapid.T) {
	h := p.handle(rt)
	p.begin(rt)
	if h == nil || !p.step("Guard %s", h) {
		return
	}
	if err := p.both("Guard", func(i int, s *side) error { return h.leases[i].Guard(context.Background(), s.tx) }); err != nil {
		p.finish(false)
	}
}

// handle draws one of the handles, or none where there are none.
func (p *play) handle(rt *rapid.T) *handle {
	if len(p.handles) == 0 {
		return nil
	}
	return rapid.SampledFrom(p.handles).Draw(rt, "handle")
}

// begin opens the transaction, if none is open.
func (p *play) begin(rt *rapid.T) {
	repeatable := rapid.Bool().Draw(rt, "repeatable")
	if p.open || !p.step("Begin, REPEATABLE READ %v", repeatable) {
		return
	}
	level := sql.LevelReadCommitted
	if repeatable {
		level = sql.LevelRepeatableRead
	}
	p.open = p.both("Begin", func(_ int, s *side) (err error) {
		s.tx, err = s.begin(level)
		return err
	}) == nil
}

// read reads something in the open transaction.
func (p *play) read(rt *rapid.T) {
	if p.begin(rt); p.step("SELECT") {
		_ = p.both("SELECT", func(_ int, s *side) error { return s.read(s.tx) })
	}
}

// finish ends the transaction.
func (p *play) finish(commit bool) {
	if !p.open {
		return
	}
	p.step("end of the transaction, commit %v", commit)
	_ = p.both("end of the transaction", func(_ int, s *side) error {
		tx := s.tx
		s.tx = nil
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	})
	if p.open = false; !p.owes {
		return
	}
	// What was released under the transaction is free later: that it isn't there is final after a second, by a
	// clock that the bubble doesn't have.
	if _, err := p.admin.ExecContext(context.Background(), "DO SLEEP(1.1)"); err != nil {
		p.differ("SLEEP: %v", err)
	}
	time.Sleep(settlingRow)
	p.owes = false
}

func (p *play) release(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || p.lockedFor(h) && p.waiting != nil || !p.step("Release %s", h) {
		return // a waiter may ask for it before it is released, some time after the transaction
	}
	locked := p.lockedFor(h)
	_ = p.both("Release", func(i int, _ *side) error { return h.leases[i].Release(context.Background()) })
	p.owes = p.owes || locked
}

func (p *play) renew(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || h.leases[0].Err() == nil && p.lockedFor(h) || !p.step("Renew %s", h) {
		return // where it is locked it would wait
	}
	_ = p.both("Renew", func(i int, _ *side) error { return h.leases[i].Renew(context.Background()) })
	var why [2]string
	var asked [2]bool
	for i, l := range h.leases {
		why[i], asked[i] = l.ReleaseReason()
	}
	if why[0] != why[1] || asked[0] != asked[1] {
		p.differ("%s is asked %t %q on the server, %t %q in memory", h, asked[0], why[0], asked[1], why[1])
	}
}

// revoke asks who holds a key to give it up. They are told with their next renewal.
func (p *play) revoke(rt *rapid.T) {
	key, why := rapid.IntRange(0, p.keys-1).Draw(rt, "key"), rapid.SampledFrom([]string{"", "deploy", "shift"}).Draw(rt, "why")
	if p.locked(key, "") || !p.step("Ask %d %q", key, why) {
		return // where a row is locked it would wait
	}
	_ = p.both("Ask", func(_ int, s *side) error {
		return s.managers[0].RequestRelease(context.Background(), playKey(key), why)
	})
}

func (p *play) force(rt *rapid.T) {
	key := rapid.IntRange(0, p.keys-1).Draw(rt, "key")
	if p.locked(key, "") || !p.step("ForceRelease %d", key) {
		return // where a row is locked it would wait
	}
	_ = p.both("ForceRelease", func(_ int, s *side) error {
		return s.managers[0].ForceRelease(context.Background(), playKey(key))
	})
}

// tick sets the clock of both, forward or back.
func (p *play) tick(rt *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, 15 * time.Minute, 25 * time.Minute, 2 * time.Hour, -time.Second, -time.Hour,
	}).Draw(rt, "d")
	moment := p.clock.Load() + d.Microseconds()
	if p.outlives(moment) || p.owes || !p.step("the clock moves by %v", d) {
		return // what is released in the background may have been asked for before
	}
	p.clock.Store(moment)
}

func (p *play) clean(*rapid.T) {
	if !p.step("Purge") {
		return
	}
	var n [2]int
	_ = p.both("Purge", func(i int, s *side) (err error) {
		n[i], err = s.managers[0].Purge(context.Background())
		return err
	})
	if n[0] != n[1] {
		p.differ("Purge: %d rows on the server, %d in memory", n[0], n[1])
	}
}

// fill fills the list with holds of this process, which begin alike.
func (p *play) fill(rt *rapid.T) {
	key := rapid.IntRange(0, p.keys-1).Draw(rt, "key")
	rows, locked := p.memory.Rows()
	entry := rows[entryOf(key)]
	if _, ok := locked[entryOf(key)]; ok || entry.Holders == "" || entry.Expires <= p.clock.Load() || !p.step("fill %d", key) {
		return
	}
	hold := entry.Holders[:9] + "filled-filled-"
	n := (8192 - len(entry.Holders)) / holdLength
	_, err := p.admin.ExecContext(context.Background(),
		"UPDATE lockstep_leases SET holders = CONCAT(holders, REPEAT(?, ?)), conn_id = 1 WHERE name = ? AND slot = 0", hold, n, playKey(key).String())
	for b := p.memory.Store(); n > 0 && err == nil; n-- {
		_, err = b.Take(context.Background(), store.Ask{Row: entryOf(key), Owner: entry.Owner, Hold: hold, NotAfter: 1<<63 - 1})
	}
	if err != nil {
		p.differ("fill: %v", err)
	}
}

// leave ends a manager, with or without releasing what it holds.
func (p *play) leave(rt *rapid.T) {
	i, dies := rapid.IntRange(0, 1).Draw(rt, "manager"), rapid.Bool().Draw(rt, "dies")
	waits := p.waiting != nil && p.waiting.manager == i
	if !dies && p.open || waits && (dies || p.waiting.size) || !p.step("manager %d leaves, dies %v", i, dies) {
		return // it would wait for the transaction, not be dead, or see its own permits released
	}
	_ = p.both("Close", func(_ int, s *side) error {
		if dies {
			s.dead = append(s.dead, s.managers[i])
			return nil
		}
		return s.managers[i].Close(context.Background())
	})
	p.handles = slices.DeleteFunc(p.handles, func(h *handle) bool { return h.manager == i })
	if err := p.revive(i); err != nil {
		p.differ("NewManager: %v", err)
	}
}

// waiting is the call that waits, on both sides. There is one at a time, so that it is
// known who is the next.
type waiting struct {
	asked
	size   bool // it is Resize
	cancel context.CancelFunc
	done   [2]chan outcome
}

// wait makes a call that may wait, unless there is one. It may re-enter before what its owner owes
// is released, or get the next.
func (p *play) wait(a asked, call func(ctx context.Context, m *lease.Manager) (*lease.Lease, error), format string, args ...any) {
	if p.waiting != nil || p.owes || !p.step(format, args...) {
		return
	}
	ctx, cancel := context.WithCancel(a.context())
	p.waiting = &waiting{asked: a, cancel: cancel}
	for i, s := range p.sides {
		done, m := make(chan outcome, 1), s.managers[a.manager]
		p.waiting.done[i] = done
		go func() {
			l, err := call(ctx, m)
			done <- outcome{l, err}
		}()
	}
}

// compareWaiting compares what has become of the call that waits.
func (p *play) compareWaiting() error {
	w := p.waiting
	if w == nil {
		return nil
	}
	if over := [2]bool{len(w.done[0]) > 0, len(w.done[1]) > 0}; over[0] != over[1] {
		return fmt.Errorf("the call that waits has returned: %v on the server, %v in memory", over[0], over[1])
	} else if !over[0] {
		return nil
	}
	w.cancel()
	p.waiting = nil
	p.acquired(w.asked, [2]outcome{<-w.done[0], <-w.done[1]})
	return nil
}

// giveUp ends the call that waits, and its last statement, which may wait for the row
// without it: on the server no time of the bubble passes then.
func (p *play) giveUp(*rapid.T) {
	if p.waiting != nil && p.step("the call that waits is given up") {
		p.waiting.cancel()
		time.Sleep(settlingRow)
	}
}

// acquireWaiting is Acquire.
func (p *play) acquireWaiting(rt *rapid.T) {
	a := p.ask(rt)
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		return m.Acquire(ctx, playKey(a.key), lease.TTL(a.ttl)) // in the queue of all it would wait for the server
	}, "Acquire %+v", a)
}

// share is TryAcquireShared.
func (p *play) share(rt *rapid.T) {
	if a := p.ask(rt); p.step("TryAcquireShared %+v", a) {
		_ = p.try(a, func(_ int, s *side) (*lease.Lease, error) {
			return s.managers[a.manager].TryAcquireShared(a.context(), playKey(a.key), lease.TTL(a.ttl))
		})
	}
}

// shareWaiting is AcquireShared.
func (p *play) shareWaiting(rt *rapid.T) {
	a := p.ask(rt)
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		return m.AcquireShared(ctx, playKey(a.key), lease.TTL(a.ttl))
	}, "AcquireShared %+v", a)
}

// downgrade is Downgrade.
func (p *play) downgrade(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || p.lockedFor(h) || !p.step("Downgrade %s", h) {
		return // it would wait for the end of a transaction that guards it
	}
	_ = p.try(h.asked, func(i int, _ *side) (*lease.Lease, error) { return h.leases[i].Downgrade(context.Background()) })
}

// misuseShared asks for a permit of a key that was shared.
func (p *play) misuseShared(rt *rapid.T) {
	a := p.ask(rt)
	if use := p.use(a.key); use == int64(store.Shared) && !p.entryLocked(a.key) && p.step("permit of a shared key %+v", a) {
		p.tryPermit(a, 2) // where it is locked it would wait
	}
}

// misusePermits asks for the lease of a key that is a semaphore, in all ways.
func (p *play) misusePermits(rt *rapid.T) {
	a := p.ask(rt)
	if use := p.use(a.key); use >= 0 || p.waiting != nil || !p.step("lease of a semaphore's key %+v", a) {
		return // behind another call it would wait
	}
	for i, s := range p.sides {
		m, key := s.managers[a.manager], playKey(a.key)
		for what, call := range map[string]func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
			"Acquire": m.Acquire, "TryAcquire": m.TryAcquire, "AcquireShared": m.AcquireShared, "TryAcquireShared": m.TryAcquireShared,
		} {
			if _, err := call(a.context(), key); !errors.Is(err, txlock.ErrInvalidKey) {
				p.differ("%s on side %d: %v, want ErrInvalidKey", what, i, err)
			}
		}
	}
}

// permits draws how many permits a semaphore is said to have: in most cases as many as
// it has.
func (p *play) permits(rt *rapid.T, key int) int {
	n := rapid.IntRange(1, 3).Draw(rt, "permits")
	if use := p.use(key); use < 0 && rapid.IntRange(0, 3).Draw(rt, "wrong number") > 0 {
		n = int(-use)
	}
	return n
}

// permit is TryAcquire of a semaphore.
func (p *play) permit(rt *rapid.T) {
	a := p.ask(rt)
	if n := p.permits(rt, a.key); p.step("TryAcquire one of %d permits %+v", n, a) {
		p.tryPermit(a, n)
	}
}

func (p *play) tryPermit(a asked, n int) {
	_ = p.try(a, func(_ int, s *side) (*lease.Lease, error) {
		sem, err := s.managers[a.manager].Semaphore(playKey(a.key), n)
		if err != nil {
			return nil, err
		}
		return sem.TryAcquire(a.context(), a.terms()...)
	})
}

// permitWaiting is Acquire of a semaphore.
func (p *play) permitWaiting(rt *rapid.T) {
	a := p.ask(rt)
	n := p.permits(rt, a.key)
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		s, err := m.Semaphore(playKey(a.key), n)
		if err != nil {
			return nil, err
		}
		return s.Acquire(ctx, lease.TTL(a.ttl))
	}, "Acquire one of %d permits %+v", n, a)
}

// resize is Resize of a semaphore, which waits for the permits that it takes away.
func (p *play) resize(rt *rapid.T) {
	a := p.ask(rt)
	n := rapid.IntRange(1, 3).Draw(rt, "permits")
	before := p.waiting
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		s, err := m.Semaphore(playKey(a.key), 1)
		if err == nil {
			_, err = s.Resize(ctx, n)
		}
		return nil, err
	}, "Resize to %d %+v", n, a)
	if p.waiting != before {
		p.waiting.size = true
	}
}
