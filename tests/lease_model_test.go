package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/tests/model"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	modelStart     = int64(1_900_000_000_000_000)
	modelRetention = 30 * time.Minute
	modelKeys      = 2
)

// play is one random history: the same steps on a server and in the model. The
// server's clock stands still but for the steps of time, and no time to live ends
// by the clock of this machine.
type play struct {
	db       *testdb.DB
	pool     *sql.DB
	clock    *atomic.Int64
	world    *model.World
	managers [2]*lease.Manager
	leases   map[*model.Handle]*lease.Lease
	owners   map[string]string // the model's anonymous owners as they are called
	tx       *sql.Tx
	tokens   map[int]uint64 // of the rows, which only rise
	dead     []*lease.Manager
	wrong    error // the first difference
	steps    []string
}

// newPlay begins a history without a row.
func newPlay(db *testdb.DB, pool *sql.DB, clock *atomic.Int64, guarded bool) (*play, error) {
	p := &play{
		db: db, pool: pool, clock: clock, world: model.New(modelStart, guarded),
		leases: make(map[*model.Handle]*lease.Lease), owners: make(map[string]string), tokens: make(map[int]uint64),
	}
	clock.Store(modelStart)
	_, err := db.Admin().ExecContext(context.Background(), "DELETE FROM lockstep_leases")
	for i := range p.managers {
		err = errors.Join(err, p.revive(i))
	}
	return p, err
}

// revive starts a manager in the place of one that has ended.
func (p *play) revive(i int) (err error) {
	p.managers[i], err = lease.NewManager(p.pool, lease.Janitor(0, modelRetention))
	return err
}

// end ends all that is open.
func (p *play) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var err error
	if p.tx != nil {
		err = p.tx.Rollback()
	}
	for _, m := range append(p.dead, p.managers[:]...) {
		err = errors.Join(err, m.Close(ctx))
	}
	return err
}

// step notes what is done and goes on, unless there was a difference before.
func (p *play) step(format string, args ...any) bool {
	if p.wrong == nil {
		p.steps = append(p.steps, fmt.Sprintf(format, args...))
	}
	return p.wrong == nil
}

// differ notes the first difference.
func (p *play) differ(format string, args ...any) {
	if p.wrong == nil {
		p.wrong = fmt.Errorf("%s\nafter:\n%s", fmt.Sprintf(format, args...), strings.Join(p.steps, "\n"))
	}
}

// same compares what the library has returned with what the model has.
func (p *play) same(what string, got, want error) {
	if want == nil && got != nil || !errors.Is(got, want) {
		p.differ("%s: %v, the model says %v", what, got, want)
	}
}

// granted compares what was acquired.
func (p *play) granted(l *lease.Lease, err error, h *model.Handle, want error) {
	p.same("acquire", err, want)
	if p.wrong != nil || h == nil {
		return
	}
	p.leases[h], p.owners[h.Owner] = l, l.Owner()
	if l.Token() != h.Token {
		p.differ("token %d, the model says %d", l.Token(), h.Token)
	}
}

// compare compares the rows, and what the handles say. What goes on behind the calls
// may take a while.
func (p *play) compare() {
	if p.wrong != nil {
		return
	}
	for h, l := range p.leases {
		p.same(fmt.Sprintf("Err of token %d", h.Token), l.Err(), h.Err())
	}
	var difference error
	if !await(10*time.Second, func() bool { difference = p.compareRows(); return difference == nil }) {
		p.differ("%v", difference)
	}
}

func (p *play) compareRows() error {
	rows, err := p.db.Admin().QueryContext(context.Background(),
		"SELECT name, owner, CHAR_LENGTH(holds) DIV 23, token, ttl_us, expires_us, guards FROM lockstep_leases")
	if err != nil {
		return err
	}
	defer rows.Close()
	found := 0
	for ; rows.Next(); found++ {
		var name, owner string
		var got model.Row
		var holds int
		if err := rows.Scan(&name, &owner, &holds, &got.Token, &got.TTL, &got.Expires, &got.Guards); err != nil {
			return err
		}
		key := 0
		for key < modelKeys && modelKey(key).String() != name {
			key++
		}
		if got.Token < p.tokens[key] {
			return fmt.Errorf("the token of %q is %d after %d", name, got.Token, p.tokens[key])
		}
		p.tokens[key] = got.Token
		want := p.world.Rows[key]
		if want == nil {
			return fmt.Errorf("there is a row %q, and none in the model", name)
		}
		if called, ok := p.owners[want.Owner]; ok && called == owner || owner == want.Owner {
			got.Owner = want.Owner
		}
		if got.Expires == want.Either {
			want.Expires = want.Either
		}
		if got.Owner != want.Owner || holds != len(want.Holds) || got.Token != want.Token || got.TTL != want.TTL ||
			got.Expires != want.Expires || got.Guards != want.Guards {
			return fmt.Errorf("the row %q is %q %d %+v, the model has %+v, now %d", name, owner, holds, got, *want, p.world.Now)
		}
	}
	if found != len(p.world.Rows) {
		return fmt.Errorf("%d rows, the model has %d", found, len(p.world.Rows))
	}
	for _, want := range p.world.Rows {
		want.Either = 0 // settled
	}
	return rows.Err()
}

func modelKey(key int) txlock.Key { return txlock.Named(fmt.Sprintf("model:%d", key)) }

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
	h, want := p.world.TryAcquire(a.manager, a.key, a.owner, a.ttl.Microseconds())
	var l *lease.Lease
	var err error
	await(10*time.Second, func() bool { // what is given back behind the calls locks the row for moments
		l, err = p.managers[a.manager].TryAcquire(a.context(), modelKey(a.key), lease.TTL(a.ttl))
		return want != nil || !errors.Is(err, txlock.ErrBusy)
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
	if h == nil || !p.step("Release %s", h) {
		return
	}
	p.same("Release", p.leases[h].Release(context.Background()), p.world.Release(h))
}

func (p *play) renew(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || h.Err() == nil && p.world.Locked(h.Key) || !p.step("Renew %s", h) {
		return // where it is locked it would wait
	}
	p.same("Renew", p.leases[h].Renew(context.Background()), p.world.Renew(h))
}

func (p *play) force(rt *rapid.T) {
	key := rapid.IntRange(0, modelKeys-1).Draw(rt, "key")
	if p.world.Locked(key) || !p.step("ForceRelease %d", key) {
		return // where it is locked it would wait
	}
	p.same("ForceRelease", p.managers[0].ForceRelease(context.Background(), modelKey(key)), p.world.ForceRelease(key))
}

// tick sets the server's clock, forward or back.
func (p *play) tick(rt *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, 15 * time.Minute, 25 * time.Minute, 2 * time.Hour, -time.Second, -time.Hour,
	}).Draw(rt, "d")
	if !p.step("the clock moves by %v", d) {
		return
	}
	p.world.Now += d.Microseconds()
	p.clock.Store(p.world.Now)
}

func (p *play) clean(*rapid.T) {
	if !p.step("CleanNow") {
		return
	}
	n, err := p.managers[0].CleanNow(context.Background())
	p.same("CleanNow", err, nil)
	if want := p.world.Clean(modelRetention.Microseconds()); n != want {
		p.differ("CleanNow: %d rows, the model says %d", n, want)
	}
	maps.DeleteFunc(p.tokens, func(key int, _ uint64) bool { return p.world.Rows[key] == nil })
}

// fill fills the list of holds.
func (p *play) fill(rt *rapid.T) {
	key := rapid.IntRange(0, modelKeys-1).Draw(rt, "key")
	if !p.step("fill %d", key) {
		return
	}
	if n := p.world.Fill(key); n > 0 {
		_, err := p.db.Admin().ExecContext(context.Background(),
			"UPDATE lockstep_leases SET holds = CONCAT(holds, REPEAT(';filled-filled-filled-f', ?)) WHERE name = ?", n, modelKey(key).String())
		p.same("fill", err, nil)
	}
}

// leave ends a manager, with or without giving back what it holds.
func (p *play) leave(rt *rapid.T) {
	i, dies := rapid.IntRange(0, 1).Draw(rt, "manager"), rapid.Bool().Draw(rt, "dies")
	if !dies && p.tx != nil || !p.step("manager %d leaves, dies %v", i, dies) {
		return // it would wait for the transaction
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

// run plays a random history and returns the first difference.
func (p *play) run(rt *rapid.T, failed func(error)) {
	rt.Repeat(map[string]func(*rapid.T){
		"acquire": p.acquire, "acquire again": p.acquire, "acquireTx": p.acquireTx, "guard": p.guard, "read": p.read,
		"commit":   func(*rapid.T) { p.finish(true) },
		"rollback": func(*rapid.T) { p.finish(false) },
		"release":  p.release, "renew": p.renew, "force": p.force, "tick": p.tick, "clean": p.clean, "fill": p.fill, "leave": p.leave,
		"": func(*rapid.T) {
			if p.compare(); p.wrong != nil {
				failed(p.wrong)
			}
		},
	})
}

// onModel runs random histories on both servers over both kinds of pools.
func onModel(t *testing.T, rewrite func(string) string, failed func(t *testing.T, rt *rapid.T, err error)) {
	for _, engine := range testdb.Engines() {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).Open(t)
				clock := new(atomic.Int64)
				clock.Store(modelStart)
				pool := wire{rewrite: rewrite, clock: clock}.open(t, db, guarded)
				over := false
				check := func(rt *rapid.T) {
					if over {
						return
					}
					p, err := newPlay(db, pool, clock, guarded)
					if err != nil {
						rt.Fatal(err)
					}
					defer func() {
						if err := p.end(); err != nil && p.wrong == nil {
							rt.Errorf("end: %v", err)
						}
					}()
					p.run(rt, func(err error) {
						over = true
						failed(t, rt, err)
					})
				}
				rapid.Check(t, check)
				for tries := 1; rewrite != nil && !over && tries < 8; tries++ {
					rapid.Check(t, check)
				}
			})
		}
	}
}

// TestLeasesAsTheModel proves of random histories of all operations that leases do
// what package model says: errors, tokens, rows, and what each handle is told.
func TestLeasesAsTheModel(t *testing.T) {
	t.Parallel()
	onModel(t, nil, func(_ *testing.T, rt *rapid.T, err error) { rt.Fatal(err) })
}

// TestModelFindsBugs proves that random histories find what they are for: bugs that
// are planted in the statements on their way to the server.
func TestModelFindsBugs(t *testing.T) {
	t.Parallel()
	for _, bug := range []string{"two owners", "lost release", "guard past the time to live"} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			found := make(map[string]bool)
			var mu sync.Mutex
			t.Run("histories", func(t *testing.T) {
				onModel(t, plant(t, bug), func(t *testing.T, _ *rapid.T, _ error) {
					mu.Lock()
					defer mu.Unlock()
					found[t.Name()] = true
				})
			})
			if want := 2 * len(testdb.Engines()); len(found) != want {
				t.Errorf("found on %v, want %d", found, want)
			}
		})
	}
}
