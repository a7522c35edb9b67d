package tests

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/tests/model"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// rowName is where a row is on the server. Readers have any slot.
type rowName struct {
	name string
	slot int
}

// asked is who asks for what.
type asked struct {
	manager, key int
	owner        string
	ttl          time.Duration
}

func ask(rt *rapid.T) asked {
	return asked{
		rapid.IntRange(0, 1).Draw(rt, "manager"), rapid.IntRange(0, modelKeys-1).Draw(rt, "key"),
		rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(rt, "owner"),
		rapid.SampledFrom([]time.Duration{15 * time.Minute, 40 * time.Minute}).Draw(rt, "ttl"),
	}
}

// same tells whether it is the same owner, of the same key in the same manager.
func (a asked) same(b asked) bool {
	a.ttl, b.ttl = 0, 0
	return a == b
}

func (a asked) context() context.Context {
	if a.owner == "" {
		return context.Background()
	}
	return lease.WithOwner(context.Background(), a.owner)
}

// acquire is TryAcquire.
func (p *play) acquire(rt *rapid.T) {
	a := ask(rt)
	if !p.step("TryAcquire %+v", a) {
		return
	}
	if p.waiting != nil && p.waiting.who.same(a) {
		p.asks(attempted) // it has read its first answer, and so this manager knows what it has
	}
	h, want := p.world.TryAcquire(a.manager, a.key, a.owner, a.ttl.Microseconds())
	p.try(h, want, func() (*lease.Lease, error) {
		return p.managers[a.manager].TryAcquire(a.context(), modelKey(a.key), lease.TTL(a.ttl))
	})
}

// try tries until the answer is not that the row was locked for a moment: by what is
// given back behind the calls, or asked for by a call that waits.
func (p *play) try(h *model.Handle, want error, call func() (*lease.Lease, error)) {
	var l *lease.Lease
	var err error
	await(p.patience, func() bool {
		l, err = call()
		return errors.Is(want, txlock.ErrBusy) || !errors.Is(err, txlock.ErrBusy)
	})
	p.granted(l, err, h, want)
}

// acquireTx takes a lease in the open transaction.
func (p *play) acquireTx(rt *rapid.T) {
	a := ask(rt)
	p.begin(rt)
	if !p.step("AcquireTx %+v", a) {
		return
	}
	l, err := p.managers[a.manager].AcquireTx(a.context(), p.tx, modelKey(a.key), lease.TTL(a.ttl))
	h, want := p.world.AcquireTx(a.manager, a.key, a.owner, a.ttl.Microseconds())
	p.granted(l, err, h, want)
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
	err := p.leases[h].Guard(context.Background(), p.tx)
	p.same("Guard", err, p.world.Guard(h))
	if err != nil {
		p.finish(false)
	}
}

// handle draws one of the handles, or none where there are none.
func (p *play) handle(rt *rapid.T) *model.Handle {
	if len(p.world.Handles) == 0 {
		return nil
	}
	return rapid.SampledFrom(p.world.Handles).Draw(rt, "handle")
}

// begin opens the transaction, if none is open.
func (p *play) begin(rt *rapid.T) {
	repeatable := rapid.Bool().Draw(rt, "repeatable")
	if p.tx != nil || !p.step("Begin, REPEATABLE READ %v", repeatable) {
		return
	}
	level := sql.LevelReadCommitted
	if repeatable {
		level = sql.LevelRepeatableRead
	}
	var err error
	if p.tx, err = p.pool.BeginTx(context.Background(), &sql.TxOptions{Isolation: level}); err != nil {
		p.differ("Begin: %v", err)
		return
	}
	p.world.Begin(repeatable)
}

// read reads something in the open transaction.
func (p *play) read(rt *rapid.T) {
	p.begin(rt)
	if !p.step("SELECT") {
		return
	}
	var n int
	if err := p.tx.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM lockstep_locks").Scan(&n); err != nil {
		p.differ("SELECT: %v", err)
	}
	p.world.Read()
}

// finish ends the transaction.
func (p *play) finish(commit bool) {
	if p.tx == nil || !p.step("end of the transaction, commit %v", commit) {
		return
	}
	end := p.tx.Rollback
	if commit {
		end = p.tx.Commit
	}
	p.same("end of the transaction", end(), nil)
	p.tx = nil
	p.world.End(commit)
}

func (p *play) release(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || p.world.Locked(h.At()) && (h.Shared() || p.waiting != nil) || !p.step("Release %s", h) {
		return // it would be given back, and a reader's place free, some time after the transaction
	}
	p.same("Release", p.leases[h].Release(context.Background()), p.world.Release(h))
}

func (p *play) renew(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || h.Err() == nil && p.world.Locked(h.At()) || !p.step("Renew %s", h) {
		return // where it is locked it would wait
	}
	p.same("Renew", p.leases[h].Renew(context.Background()), p.world.Renew(h))
}

func (p *play) force(rt *rapid.T) {
	key := rapid.IntRange(0, modelKeys-1).Draw(rt, "key")
	if p.world.KeyLocked(key) || !p.step("ForceRelease %d", key) {
		return // where a row is locked it would wait
	}
	p.same("ForceRelease", p.managers[0].ForceRelease(context.Background(), modelKey(key)), p.world.ForceRelease(key))
}

// tick sets the server's clock, forward or back.
func (p *play) tick(rt *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, 15 * time.Minute, 25 * time.Minute, 2 * time.Hour, -time.Second, -time.Hour,
	}).Draw(rt, "d")
	if p.world.Outlives(p.world.Now + d.Microseconds()) {
		return // who wants a row of the transaction would end that, sooner or later
	}
	if p.world.Owes() || !p.step("the clock moves by %v", d) {
		return // what is given back behind the calls may have been asked for before
	}
	p.world.Now += d.Microseconds()
	p.setClock()
}

func (p *play) clean(*rapid.T) {
	if !p.step("CleanNow") {
		return
	}
	n, want := 0, p.world.Clean(modelRetention.Microseconds())
	await(p.patience, func() bool { // what is given back behind the calls locks the row for moments
		more, err := p.managers[0].CleanNow(context.Background())
		p.same("CleanNow", err, nil)
		n += more
		return n >= want
	})
	if n != want {
		p.differ("CleanNow: %d rows, the model says %d", n, want)
	}
}

// fill fills the list with holds of this process, which begin alike.
func (p *play) fill(rt *rapid.T) {
	key := rapid.IntRange(0, modelKeys-1).Draw(rt, "key")
	if !p.step("fill %d", key) {
		return
	}
	if n := p.world.Fill(key); n > 0 {
		_, err := p.db.Admin().ExecContext(context.Background(),
			"UPDATE lockstep_leases SET holds = CONCAT(holds, REPEAT(CONCAT(LEFT(holds, 9), 'filled-filled-'), ?)) WHERE name = ? AND slot = 0", n, modelKey(key).String())
		p.same("fill", err, nil)
	}
}

// leave ends a manager, with or without giving back what it holds.
func (p *play) leave(rt *rapid.T) {
	i, dies := rapid.IntRange(0, 1).Draw(rt, "manager"), rapid.Bool().Draw(rt, "dies")
	if !dies && (p.tx != nil || p.gives(i) > 1) || p.waits(i) && (dies || p.waiting.size) || !p.step("manager %d leaves, dies %v", i, dies) {
		return // it would wait for the transaction, leave the choice to who waits, not be dead, or see its own permits given back
	}
	if dies {
		p.dead = append(p.dead, p.managers[i])
		p.world.Die(i)
	} else {
		p.same("Close", p.managers[i].Close(context.Background()), nil)
		p.world.Close(i)
	}
	for h := range p.leases {
		if h.Manager == i {
			delete(p.leases, h)
		}
	}
	p.same("NewManager", p.revive(i), nil)
}

// gives counts the permits that a manager would give back to the call that waits.
func (p *play) gives(manager int) (n int) {
	if p.waiting == nil {
		return 0
	}
	for _, h := range p.world.Handles {
		if h.Manager == manager && h.Key == p.waiting.who.key && h.At().Slot > 0 && h.At().Slot < model.FirstReader {
			n++
		}
	}
	return n
}
