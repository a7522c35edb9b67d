package tests

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-sql-driver/mysql"
	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/tests/linear"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) {
	// The defaults of rapid, which the command line overrides: -rapid.seed=0 draws a new seed.
	for name, value := range map[string]string{
		"rapid.checks": testdb.Long("8", "1000"), "rapid.seed": fmt.Sprint(testdb.Seed()), "rapid.nofailfile": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}

var count, onServers, fatal, wants = testdb.Number, testdb.OnServers, testdb.Must, testdb.Wants

// wire is what stands between a pool and its server.
type wire struct {
	rewrite func(query string) string // plants a bug; nil for none
	clock   *atomic.Int64             // what the server's clock shows, in microseconds; nil for the true one
}

// open opens a pool over the wire, which is closed at the end of the test.
func (w wire) open(t *testing.T, db *testdb.DB, guarded bool) *sql.DB {
	t.Helper()
	pool := testdb.Got(w.pool(db, guarded))(t)
	t.Cleanup(func() {
		wants(t, "close the pool", pool.Close(), nil)
	})
	return pool
}

// pool returns a pool over the wire, to be closed.
func (w wire) pool(db *testdb.DB, guarded bool) (*sql.DB, error) {
	connector, err := mysql.NewConnector(db.Config())
	if err != nil {
		return nil, err
	}
	if w.rewrite != nil {
		connector = faults.Rewriter(connector, w.rewrite)
	}
	if w.clock != nil {
		connector = testdb.Wrapped(connector, func(base testdb.Conn) driver.Conn {
			c := &clocked{clock: w.clock}
			c.Edited = testdb.Edited{Conn: base, Edit: func(query string) string {
				c.sync()
				return testdb.Unseen(query)
			}}
			return c
		})
	}
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	return sql.OpenDB(connector), nil
}

// clocked is a connection that sets the clock of its session before each statement.
type clocked struct {
	testdb.Edited
	clock *atomic.Int64
	at    int64 // what the session's clock shows
}

// sync sets the session's clock, where that has moved. It stands still then until it
// is set again (MySQL manual, "Server System Variables", timestamp).
func (c *clocked) sync() {
	at := c.clock.Load()
	if c.at == at {
		return
	}
	if _, err := c.Conn.ExecContext(context.Background(), fmt.Sprintf("SET timestamp = %d.%06d", at/1e6, at%1e6), nil); err == nil {
		c.at = at // else the statement fails, too
	}
}

func (c *clocked) ResetSession(ctx context.Context) error {
	err := c.Conn.ResetSession(ctx)
	if err == nil {
		c.sync() // for statements that are prepared
	}
	return err
}

// network is a way to a server that can be made bad.
type network struct{ *faults.Network }

// newNetwork puts a network before the server.
func newNetwork(t testing.TB, db *testdb.DB) network {
	t.Helper()
	n := testdb.Got(faults.NewNetwork(db.AdminConfig().Addr))(t)
	t.Cleanup(func() { fatal(t, n.Close()) })
	return network{n}
}

// faultPool is a pool of the application's user, whose connections go by the
// network where one is given.
func faultPool(t testing.TB, db *testdb.DB, n network, wrap func(driver.Connector) driver.Connector) *sql.DB {
	t.Helper()
	cfg := db.Config()
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	if n.Network != nil {
		cfg.DialFunc = n.Dial
	}
	connector := testdb.Got(mysql.NewConnector(cfg))(t)
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() {
		n := testdb.InUse(pool)
		testdb.ErrorIf(t, n != 0, "%d connections are in use at the end", n)
		_ = pool.Close() // which complains of connections that were cut
	})
	return pool
}

func guarded(c driver.Connector) driver.Connector { return locksqlc.Connector(c) }

// faultManager is a manager that is closed at the end, whatever has become of its
// leases.
func faultManager(t testing.TB, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m := testdb.Got(lease.NewManager(pool, options...))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = m.Close(ctx) // which complains of what it can't release over a bad network
	})
	return m
}

// linearizable tells whether the calls on a key could have come one after the other (Herlihy and Wing, "Linearizability", 1990).
func linearizable(t *testing.T, history []porcupine.Operation, most int) bool {
	t.Helper()
	for i, op := range history {
		c := op.Input.(linear.Call)
		c.Excused = slices.ContainsFunc(history, func(other porcupine.Operation) bool {
			return other.ClientId != op.ClientId && other.Input.(linear.Call).Verb != linear.Inspect && other.Call <= op.Return && op.Call <= other.Return
		})
		history[i].Input = c
	}
	result := linear.Check(history, most, 20*time.Second)
	testdb.FatalIf(t, result == porcupine.Unknown, "a history of %d calls took too long to check", len(history))
	return result == porcupine.Ok
}

// cast is who plays: the calls that each client chooses from.
type cast struct {
	most   int // so many share
	verbs  []linear.Verb
	permit bool
}

var casts = map[string]cast{
	"exclusive": {verbs: []linear.Verb{linear.Acquire, linear.Acquire, linear.Acquire, linear.Force, linear.Inspect}},
	"shared":    {most: linear.Unlimited, verbs: []linear.Verb{linear.Acquire, linear.Acquire, linear.Share, linear.Share}},
	"permits":   {most: 2, verbs: []linear.Verb{linear.Share}, permit: true},
}

// record plays a history of clients on a new key. A client has at most one lease; what
// it does with that is to release it or, for a writer among readers, to downgrade it.
func (c cast) record(t *testing.T, managers []*lease.Manager, calls int) []porcupine.Operation {
	t.Helper()
	const clients = 4
	key := txlock.Named("linear:" + rand.Text())
	begun := time.Now()
	histories := make([][]porcupine.Operation, clients)
	var playing sync.WaitGroup
	for id := range clients {
		playing.Go(func() {
			p := client{cast: c, m: managers[id%len(managers)], key: key}
			for i := range calls + 1 {
				op := porcupine.Operation{ClientId: id}
				in := p.choose(i == calls)
				if in.Verb == "" {
					break
				}
				op.Call = time.Since(begun).Nanoseconds()
				out, err := p.play(in)
				op.Return = time.Since(begun).Nanoseconds()
				if err != nil {
					t.Errorf("%s: %v", in.Verb, err)
					return
				}
				if out.Unknown {
					op.Return = linear.Forever
				}
				op.Input, op.Output = in, out
				histories[id] = append(histories[id], op)
			}
		})
	}
	playing.Wait()
	return slices.Concat(histories...)
}

// client is one of the concurrent clients.
type client struct {
	cast
	m    *lease.Manager
	key  txlock.Key
	held *lease.Lease
}

// choose chooses the next call. The last releases what is held.
func (p *client) choose(last bool) linear.Call {
	switch {
	case p.held != nil && !last && p.most > 2 && !p.held.Shared() && mathrand.IntN(2) == 0:
		return linear.Call{Verb: linear.Downgrade, Owner: p.held.Owner()}
	case p.held != nil && (last || mathrand.IntN(3) > 0):
		return linear.Call{Verb: linear.Release, Owner: p.held.Owner()}
	case last:
		return linear.Call{}
	case p.held != nil && !p.permit:
		return linear.Call{Verb: linear.Inspect}
	case p.held != nil:
		return linear.Call{Verb: linear.Release, Owner: p.held.Owner()}
	}
	return linear.Call{Verb: p.verbs[mathrand.IntN(len(p.verbs))]}
}

// play calls it.
func (p *client) play(c linear.Call) (r linear.Reply, err error) {
	ctx := context.Background()
	l := p.held
	switch c.Verb {
	case linear.Acquire:
		l, err = p.m.TryAcquire(ctx, p.key)
	case linear.Share:
		if !p.permit {
			l, err = p.m.TryAcquireShared(ctx, p.key)
			break
		}
		var s *lease.Semaphore
		if s, err = p.m.Semaphore(p.key, p.most); err == nil {
			l, err = s.TryAcquire(ctx)
		}
	case linear.Downgrade:
		l, err = l.Downgrade(ctx)
		if err != nil {
			l = p.held
		}
	case linear.Release:
		err, l = l.Release(ctx), nil
		r.Unknown = errors.Is(err, lease.ErrGuarded) || errors.Is(err, context.DeadlineExceeded) // it continues
	case linear.Force:
		err = p.m.ForceRelease(ctx, p.key)
	case linear.Inspect:
		info, err := p.m.Inspect(ctx, p.key)
		return linear.Reply{OK: info.Held, Owner: info.Owner, Token: info.Token}, err
	}
	p.held = l
	if r.OK = err == nil; r.OK && l != nil {
		r.Owner, r.Token = l.Owner(), l.Token()
	}
	if r.Unknown || errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrNotHeld) || errors.Is(err, lease.ErrGuarded) {
		err = nil
	}
	return r, err
}

// linearManagers are managers on pools of their own.
func linearManagers(t *testing.T, db *testdb.DB, w wire) (managers []*lease.Manager) {
	t.Helper()
	for i := range 3 {
		managers = append(managers, faultManager(t, w.open(t, db, i%2 == 0), lease.TTL(10*time.Minute)))
	}
	return managers
}

// TestLinearizable proves of random concurrent histories that there is an order of all calls in which one holder, or readers, or so
// many permits follow each other, with rising tokens, and everybody was told the truth.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	rounds := testdb.Long(10, 300)
	for _, engine := range testdb.Engines() {
		for name, c := range casts {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				managers := linearManagers(t, testdb.Open(t, engine), wire{})
				for range rounds {
					history := c.record(t, managers, 12)
					testdb.FatalIf(t, !linearizable(t, history, c.most), "not linearizable:\n%s", told(history))
				}
			})
		}
	}
}

// told is a history in the order of its calls.
func told(history []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range slices.SortedFunc(slices.Values(history), func(a, b porcupine.Operation) int { return int(a.Call - b.Call) }) {
		fmt.Fprintf(&b, "%d: %v-%v %+v %+v\n", op.ClientId, time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output)
	}
	return b.String()
}

// plant returns what rewrites the statements.
func plant(t *testing.T, bug string) func(string) string {
	t.Helper()
	rewrite := testdb.Got(faults.Plant(bug))(t)
	return rewrite
}

// TestLinearizableFindsBugs proves that the check finds what it is for: bugs that are
// planted in the statements on their way to the server.
func TestLinearizableFindsBugs(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, bug := range []struct{ name, cast string }{
			{"two owners", "exclusive"}, {"same token", "exclusive"}, {"lost release", "exclusive"},
			{"lost release", "shared"}, {"no room", "shared"}, {"no room", "permits"},
		} {
			t.Run(string(engine)+"/"+bug.name+"/"+bug.cast, func(t *testing.T) {
				t.Parallel()
				c := casts[bug.cast]
				managers := linearManagers(t, testdb.Open(t, engine), wire{rewrite: plant(t, bug.name)})
				for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
					if !linearizable(t, c.record(t, managers, 12), c.most) {
						return
					}
				}
				t.Error("the bug was not found")
			})
		}
	}
}

// alone is a history of two managers in memory, without a server to compare with. Leases are renewed, and expire where a process is
// cut off.
type alone struct {
	stores   [2]*memstore.Store
	managers [2]*lease.Manager
	handles  []*lease.Lease
	cut      bool // one of the stores was down: what was released then may still be there
}

// playAlone plays random histories in memory and calls check after each step.
func playAlone(t *testing.T, steps func(a *alone) map[string]func(*rapid.T), check func(a *alone, rt *rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func(*testing.T) {
			server, a := memstore.New(), new(alone)
			for i := range a.managers {
				a.stores[i] = server.Store()
				pool := a.stores[i].Pool()
				m, err := lease.NewManager(pool, lease.TTL(time.Second))
				if err != nil {
					rt.Fatal(err)
				}
				a.managers[i] = m
				defer func() {
					_ = m.Close(context.Background()) // what a store that was down has left is no error here
					_ = pool.Close()                  // it has nothing open
				}()
			}
			defer a.heal()
			all := steps(a)
			all["release"] = func(rt *rapid.T) {
				if len(a.handles) > 0 {
					_ = rapid.SampledFrom(a.handles).Draw(rt, "handle").Release(context.Background()) // it may have been lost
				}
			}
			all["time"] = func(rt *rapid.T) {
				time.Sleep(rapid.SampledFrom([]time.Duration{time.Microsecond, 50 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second}).Draw(rt, "d"))
			}
			all["cut"] = func(rt *rapid.T) {
				a.cut = true
				rapid.SampledFrom(a.stores[:]).Draw(rt, "store").Down(nil)
			}
			all["heal"] = func(*rapid.T) { a.heal() }
			all[""] = func(rt *rapid.T) { check(a, rt) }
			rt.Repeat(all)
		})
	})
}

// heal ends the faults.
func (a *alone) heal() {
	for _, s := range a.stores {
		s.Up()
	}
}

// ask draws who asks.
func (a *alone) ask(rt *rapid.T) (*lease.Manager, context.Context) {
	q := ask(rt, playKeys)
	return a.managers[q.manager], q.context()
}

// held are the handles that say they are held.
func (a *alone) held() (all []*lease.Lease) {
	for _, l := range a.handles {
		if l.Err() == nil {
			all = append(all, l)
		}
	}
	return all
}

// got keeps what was acquired.
func (a *alone) got(l *lease.Lease, err error) {
	if err == nil {
		a.handles = append(a.handles, l)
	}
}

// TestMemoryShares proves of random histories in memory, whatever is cut off: no writer believes in a lease beside another
// holder, tokens of writers rise, a writer that waits keeps new readers out, and no more permits are held than there are.
func TestMemoryShares(t *testing.T) {
	t.Parallel()
	const most = 2
	playAlone(t, func(a *alone) map[string]func(*rapid.T) {
		var last uint64
		return map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				l, err := m.TryAcquire(ctx, playKey(0))
				if a.got(l, err); err == nil {
					if l.Token() < last {
						rt.Fatalf("token %d after %d", l.Token(), last)
					}
					last = l.Token()
				}
			},
			"wait": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				a.got(m.Acquire(ctx, playKey(0)))
			},
			"share": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				a.got(m.TryAcquireShared(ctx, playKey(0)))
			},
			"share against a writer": func(rt *rapid.T) {
				m, _ := a.ask(rt)
				a.shareAgainstWriter(rt, m)
			},
			"permit": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				s, err := m.Semaphore(playKey(1), most)
				if err != nil {
					rt.Fatal(err)
				}
				a.got(s.TryAcquire(ctx))
			},
			"downgrade": func(rt *rapid.T) {
				if len(a.handles) > 0 {
					a.got(rapid.SampledFrom(a.handles).Draw(rt, "handle").Downgrade(context.Background()))
				}
			},
		}
	}, func(a *alone, rt *rapid.T) {
		permits := 0
		for _, h := range a.held() {
			if h.Key() == playKey(1) {
				permits++
				continue
			}
			for _, other := range a.held() {
				if other.Key() == h.Key() && !h.Shared() && h.Owner() != other.Owner() {
					rt.Fatalf("%s beside %s", describe(other), describe(h))
				}
			}
		}
		if permits > most {
			rt.Fatalf("%d permits of %d", permits, most)
		}
	})
}

// shareAgainstWriter asks for a reader's place while somebody else waits for readers to go.
func (a *alone) shareAgainstWriter(rt *rapid.T, m *lease.Manager) {
	time.Sleep(time.Second) // what a writer who gave up has left is released
	reading := slices.ContainsFunc(a.held(), func(l *lease.Lease) bool { return l.Shared() })
	if !reading || a.cut {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.got(a.managers[0].Acquire(ctx, playKey(0)))
	}()
	synctest.Wait()
	if l, err := m.TryAcquireShared(context.Background(), playKey(0)); err == nil {
		rt.Fatalf("%s beside a writer who waits", describe(l))
	}
	<-done
}

// inBubble calls in a bubble of testing/synctest what may end by a panic, as rapid ends a
// history.
func inBubble(t *testing.T, call func(t *testing.T)) {
	var ended any
	synctest.Test(t, func(t *testing.T) {
		defer func() { ended = recover() }()
		call(t)
	})
	// rapid tells failures apart by where they come from.
	if fmt.Sprintf("%T", ended) == "rapid.invalidData" {
		panic(ended)
	}
	if ended != nil {
		panic(ended)
	}
}
