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

	"github.com/dca00107/lockstep/internal/test/testdb"
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
	tokens   map[rowName]uint64 // of the rows, which only rise
	waiting  *waiting
	patience time.Duration // for what goes on behind the calls
	dead     []*lease.Manager
	wrong    error // the first difference
	steps    []string
}

// newPlay begins a history without a row.
func newPlay(db *testdb.DB, pool *sql.DB, clock *atomic.Int64, guarded bool) (*play, error) {
	p := &play{
		db: db, pool: pool, clock: clock, world: model.New(modelStart, guarded),
		leases: make(map[*model.Handle]*lease.Lease), owners: make(map[string]string), tokens: make(map[rowName]uint64),
		patience: 10 * time.Second,
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
	p.managers[i], err = lease.NewManager(p.pool, lease.Janitor(0, modelRetention), lease.Poll(time.Millisecond, 10*time.Millisecond))
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
	if p.waiting != nil {
		p.waiting.cancel()
		<-p.waiting.done
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
	if called, known := p.owners[h.Owner]; known && called != l.Owner() || l.Token() != h.Token || l.Shared() != h.Shared() {
		p.differ("token %d of %q, shared %v; the model says %s", l.Token(), l.Owner(), l.Shared(), h)
	}
	p.leases[h], p.owners[h.Owner] = l, l.Owner()
}

// compare compares the rows, what the handles say, and what has become of the call that
// waits. What goes on behind the calls may take a while.
func (p *play) compare() {
	if p.wrong != nil {
		return
	}
	p.world.Settle()
	p.awaited()
	var difference error
	if !await(p.patience, func() bool {
		difference = errors.Join(p.compareRows(), p.compareHandles())
		return difference == nil
	}) {
		p.differ("%v", difference)
	}
}

func (p *play) compareHandles() error {
	for h, l := range p.leases {
		if err := l.Err(); h.Err() == nil && err != nil || !errors.Is(err, h.Err()) {
			return fmt.Errorf("%s says %q, in the model %q", h, fmt.Sprint(err), fmt.Sprint(h.Err()))
		}
	}
	return nil
}

func (p *play) compareRows() error {
	rows, err := p.db.Admin().QueryContext(context.Background(),
		"SELECT name, slot, owner, CHAR_LENGTH(holds) DIV 23, token, ttl_us, expires_us, guards, used_for FROM lockstep_leases")
	if err != nil {
		return err
	}
	defer rows.Close()
	left := maps.Clone(p.world.Rows)
	tokens := make(map[rowName]uint64)
	for rows.Next() {
		var at rowName
		var got model.Row
		var holds int
		if err := rows.Scan(&at.name, &at.slot, &got.Owner, &holds, &got.Token, &got.TTL, &got.Expires, &got.Guards, &got.Use); err != nil {
			return err
		}
		got.Holds = make([]model.Hold, holds)
		tokens[at] = got.Token
		if got.Token < p.tokens[at] {
			return fmt.Errorf("the token of %v is %d after %d", at, got.Token, p.tokens[at])
		}
		found := false
		for where, want := range left {
			if modelKey(where.Key).String() == at.name && min(at.slot, model.FirstReader) == min(where.Slot, model.FirstReader) && p.sameRow(got, want) {
				delete(left, where)
				found = true
				break
			}
		}
		if !found {
			return fmt.Errorf("the row %v is %+v\nThe model has at %d:\n%s", at, got, p.world.Now, rowsOf(left))
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("missing at %d:\n%s", p.world.Now, rowsOf(left))
	}
	p.tokens = tokens
	for _, want := range p.world.Rows {
		want.Either = 0 // settled
	}
	return nil
}

// sameRow tells whether the row is as the model has it. What an owner without a name
// is called is seen then.
func (p *play) sameRow(got model.Row, want *model.Row) bool {
	if len(got.Holds) != len(want.Holds) || got.Token != want.Token || got.TTL != want.TTL ||
		got.Expires != want.Expires && got.Expires != want.Either || got.Guards != want.Guards || got.Use != want.Use {
		return false
	}
	called, known := p.owners[want.Owner]
	if !known && strings.HasPrefix(want.Owner, model.Anonymous) {
		called, p.owners[want.Owner] = got.Owner, got.Owner
	} else if !known {
		called = want.Owner
	}
	if called == got.Owner {
		want.Expires = got.Expires
	}
	return called == got.Owner
}

func rowsOf(rows map[model.At]*model.Row) string {
	var b strings.Builder
	for at, row := range rows {
		fmt.Fprintf(&b, "%d: %+v\n", at, *row)
	}
	return b.String()
}

func modelKey(key int) txlock.Key { return txlock.Named(fmt.Sprintf("model:%d", key)) }

// plays are the steps of each kind of history.
var plays = map[string]func(*play) map[string]func(*rapid.T){
	"exclusive": func(p *play) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"acquire": p.acquire, "acquire again": p.acquire, "acquireTx": p.acquireTx, "force": p.force, "fill": p.fill, "clean": p.clean,
		}
	},
	"shared": func(p *play) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"acquire": p.acquire, "acquire waiting": p.acquireWaiting, "share": p.share, "share again": p.share, "share waiting": p.shareWaiting,
			"downgrade": p.downgrade, "downgrade again": p.downgrade, "give up": p.giveUp, "force": p.force, "misuse": p.misuseShared, "clean": p.clean,
		}
	},
	"permits": func(p *play) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"permit": p.permit, "permit again": p.permit, "permit waiting": p.permitWaiting,
			"resize": p.resize, "give up": p.giveUp, "misuse": p.misusePermits,
		}
	},
}

// run plays a random history and returns the first difference.
func (p *play) run(rt *rapid.T, cast string, failed func(error)) {
	steps := map[string]func(*rapid.T){
		"guard": p.guard, "read": p.read,
		"commit":   func(*rapid.T) { p.finish(true) },
		"rollback": func(*rapid.T) { p.finish(false) },
		"release":  p.release, "renew": p.renew, "tick": p.tick, "leave": p.leave,
		"": func(*rapid.T) {
			if p.compare(); p.wrong != nil {
				failed(p.wrong)
			}
		},
	}
	maps.Copy(steps, plays[cast](p))
	rt.Repeat(steps)
}

// onModel runs random histories on both servers over both kinds of pools; with a bug
// planted, until it is found, over one of them.
func onModel(t *testing.T, cast string, rewrite func(string) string, failed func(t *testing.T, rt *rapid.T, err error)) {
	for _, engine := range testdb.Engines() {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			if rewrite != nil && !guarded {
				continue
			}
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
					if rewrite != nil {
						p.patience = 500 * time.Millisecond // it is expected to differ
					}
					defer func() {
						if err := p.end(); err != nil && p.wrong == nil && rewrite == nil {
							rt.Errorf("end: %v", err)
						}
					}()
					p.run(rt, cast, func(err error) {
						over = rewrite != nil // what was looked for is found
						failed(t, rt, err)
					})
				}
				rapid.Check(t, check)
				for end := time.Now().Add(2 * time.Minute); rewrite != nil && !over && time.Now().Before(end); {
					rapid.Check(t, check)
				}
			})
		}
	}
}

// TestLeasesAsTheModel proves of random histories of all operations that leases, shared
// leases and semaphores do what package model says: errors, tokens, rows, who waits and
// for how long, and what each handle is told.
func TestLeasesAsTheModel(t *testing.T) {
	t.Parallel()
	for cast := range plays {
		t.Run(cast, func(t *testing.T) {
			t.Parallel()
			onModel(t, cast, nil, func(_ *testing.T, rt *rapid.T, err error) { rt.Fatal(err) })
		})
	}
}

// TestModelFindsBugs proves that random histories find what they are for: bugs that
// are planted in the statements on their way to the server.
func TestModelFindsBugs(t *testing.T) {
	t.Parallel()
	testdb.NeedsServer(t)
	for _, bug := range []struct{ cast, name string }{
		{"exclusive", "two owners"}, {"exclusive", "lost release"}, {"exclusive", "guard past the time to live"},
		{"shared", "reader beside a writer"}, {"shared", "writer beside readers"}, {"shared", "intent forgotten"},
		{"shared", "intent without end"}, {"shared", "downgrade with a gap"},
		{"permits", "one permit more"}, {"permits", "any number"}, {"permits", "dead permit"},
	} {
		t.Run(bug.cast+"/"+bug.name, func(t *testing.T) {
			t.Parallel()
			found := make(map[string]bool)
			var mu sync.Mutex
			t.Run("histories", func(t *testing.T) {
				onModel(t, bug.cast, plant(t, bug.name), func(t *testing.T, _ *rapid.T, _ error) {
					mu.Lock()
					defer mu.Unlock()
					found[t.Name()] = true
				})
			})
			if want := len(testdb.Engines()); len(found) != want {
				t.Errorf("found on %v, want %d", found, want)
			}
		})
	}
}
