package quorum_test

import (
	"cmp"
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// The explorer decides what happens next at the seam between the managers and the stores of their nodes: which call
// reaches its node, which answer is late or lost, when time passes, and which node loses its data or has its clock
// set. The first decision that is possible is always the oldest call, and any other is a deviation: TestExplorer
// takes all runs with a few deviations, and others at random.

const (
	exploredTTL  = 10 * time.Second
	exploredSkew = time.Second
)

// passes are how long time may pass: a little, until a renewal is due, and until a lease is
// over that was granted a little before the next.
var passes = []time.Duration{exploredTTL / 20, exploredTTL/3 + time.Millisecond, exploredTTL * 19 / 20}

// kind is what a decision does.
type kind int

const (
	deliver kind = iota // a call reaches its node, and its answer comes
	delay               // a call reaches its node, and the answer comes by another decision
	lost                // a call gets lost, or its answer if it has reached its node
	pass                // time passes, in which nothing gets through
	stop                // the clients are stopped while time passes: no timer of theirs fires
	empty               // a node loses its data
	set                 // the clock of a node is set
	kinds
)

// decision is what may happen next.
type decision struct {
	kind kind
	call *call         // of deliver, delay and lose
	node int           // of empty and set
	d    time.Duration // of pass and stop
}

// call is a call of a client to a node, or, with node -1, the client's next step.
type call struct {
	client, node int
	op           string
	reached      bool // the node, and the answer waits
	decided      chan kind
}

// exploration is what is explored.
type exploration struct {
	name   string
	rounds []int         // of each client: how often it tries
	budget [kinds]int    // how often each kind may be decided
	clock  time.Duration // by how much it is set

	breaks     bool // a lease is expected to break
	deviations int  // of the runs that are all taken
	grants     int  // in all runs

	countsAtOnce bool // an empty node, which is wrong
}

// world is one run.
type world struct {
	*exploration
	nodes []*memstore.Server
	left  [kinds]int // of the budget

	mu      sync.Mutex
	trying  int     // clients that have not come to their end
	open    bool    // nothing is decided any more
	calls   []*call // that wait, those first that have come first
	fresh   []*call // that have come since the last decision
	holders map[int]*quorum.Lease
	highest uint64 // token of a grant
	wrong   string // the first violation
}

// run lets choose take each decision, and returns what was wrong.
func (x *exploration) run(t *testing.T, choose func(all []decision) int) (wrong string) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{exploration: x, left: x.budget, open: true, holders: make(map[int]*quorum.Lease)}
		for range 3 {
			w.nodes = append(w.nodes, memstore.New())
		}
		w.nodes[0].SetClock(exploredSkew) // the clocks are apart
		var starts, closes []func()
		var managers []*quorum.Manager
		var clients sync.WaitGroup
		for c, rounds := range x.rounds {
			var leases []*lease.Manager
			for n, node := range w.nodes {
				s := node.Store()
				m := testdb.Got(lease.NewManager(s.Pool(), lease.TTL(exploredTTL), lease.PurgeEvery(0, time.Hour)))(t)
				must(t, s.ReadClock(t.Context()))
				s.SetFault(w.decides(c, n))
				leases = append(leases, m)
				closes = append(closes, func() { closeIt(t, m); must(t, s.Pool().Close()) })
			}
			m := testdb.Got(quorum.New(leases, quorum.MaxTTL(exploredTTL), quorum.ClockSkew(exploredSkew), quorum.NodeTimeout(exploredTTL/2)))(t)
			must(t, m.Install(t.Context()))
			managers = append(managers, m)
			starts = append(starts, func() { w.client(t.Context(), c, m, rounds) })
		}
		w.open, w.trying = false, len(starts)
		for _, start := range starts {
			clients.Go(start)
		}
		w.decide(choose)
		clients.Wait()
		for _, m := range managers {
			closeIt(t, m)
		}
		if x.budget[set] == 0 { // a clock that is set back leaves more
			w.checkFree(t)
		}
		for _, end := range closes {
			end()
		}
		wrong = w.wrong
	})
	return wrong
}

// checkFree checks that no node's manager renews a lease that nobody has.
func (w *world) checkFree(t *testing.T) {
	time.Sleep(2 * exploredTTL)
	for _, node := range w.nodes {
		seen := testdb.Got(node.Store().Look(t.Context(), store.Row{Key: job.String()}))(t)
		if seen.Left > 0 {
			w.wrong = cmp.Or(w.wrong, "a node that is held for nobody")
		}
	}
}

// all takes every run with so many deviations at most, and returns how many these are, and the first violation.
func (x *exploration) all(t *testing.T, deviations int) (runs int, wrong string) {
	var from func(script []int, left int)
	from = func(script []int, left int) {
		var widths []int
		wrong = x.run(t, func(all []decision) int {
			at := len(widths)
			widths = append(widths, len(all))
			if at < len(script) {
				return min(script[at], len(all)-1)
			}
			return 0
		})
		runs++
		for at := len(script); at < len(widths) && left > 0; at++ {
			for other := 1; other < widths[at] && wrong == ""; other++ {
				from(append(append(slices.Clone(script), make([]int, at-len(script))...), other), left-1)
			}
		}
	}
	from(nil, deviations)
	return runs, wrong
}

// wander takes a run at random. Each way of a client to a node has a priority, which
// changes now and then, so that some are left behind for long.
func (x *exploration) wander(t *testing.T, seed uint64) (wrong string) {
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	priorities := make(map[[2]int]float64)
	return x.run(t, func(all []decision) int {
		first, calls := 0, 0
		for i, d := range all {
			if d.kind != deliver {
				break
			}
			calls++
			if at := way(d); priorities[at] == 0 {
				priorities[at] = random.Float64()
			}
			if priorities[way(d)] > priorities[way(all[first])] {
				first = i
			}
		}
		switch random.IntN(8) {
		case 0:
			if calls < len(all) {
				return calls + random.IntN(len(all)-calls)
			}
		case 1:
			priorities[way(all[first])] = random.Float64()
		}
		return first
	})
}

func way(d decision) [2]int { return [2]int{d.call.client, d.call.node} }

// TestExplorer proves that of several clients one holds the lease at a time, that tokens rise, that a grant is held
// when it is returned, and that no node is kept for nobody, whatever the explorer decides; and that it finds what
// breaks this. Under the race detector, which is to see the managers beside each other, it takes few of the runs;
// make quick takes all.
func TestExplorer(t *testing.T) {
	t.Parallel()
	for _, x := range []*exploration{
		{name: "calls in any order", rounds: []int{2, 2}, budget: [kinds]int{delay: 9}, deviations: 1},
		{name: "three clients", rounds: []int{2, 2, 2}, budget: [kinds]int{delay: 3, lost: 1, pass: 1}},
		{name: "messages are lost", rounds: []int{2, 2}, budget: [kinds]int{delay: 1, lost: 3}, deviations: 1},
		{name: "time passes", rounds: []int{2, 2}, budget: [kinds]int{lost: 2, pass: 4}},
		{name: "a client is stopped", rounds: []int{1}, budget: [kinds]int{stop: 2}, deviations: 2},
		{name: "clients are stopped", rounds: []int{2, 2}, budget: [kinds]int{lost: 1, stop: 3}},
		{name: "a node is emptied", rounds: []int{1, 3}, budget: [kinds]int{lost: 1, empty: 1, pass: 2}},
		{name: "a clock is set back", rounds: []int{2, 2}, budget: [kinds]int{set: 1, lost: 2, pass: 1}, clock: -time.Hour},
		{name: "a clock is set forward, which breaks it", rounds: []int{1, 3}, budget: [kinds]int{set: 1, lost: 2}, clock: time.Hour, breaks: true},
		{name: "an empty node counts at once, which breaks it", rounds: []int{2, 2}, budget: [kinds]int{lost: 2, empty: 1}, countsAtOnce: true, breaks: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			began, runs, wrong := time.Now(), 0, ""
			deviations, seeds := testdb.Long(x.deviations, 2), testdb.Long[uint64](300, 50_000)
			if underRace && !x.breaks { // what breaks it is found by then
				deviations, seeds = testdb.Long(0, 2), testdb.Long[uint64](20, 50_000)
			}
			if !x.breaks {
				runs, wrong = x.all(t, deviations)
			}
			for seed := range seeds {
				if wrong != "" {
					break
				}
				runs++
				wrong = x.wander(t, seed)
			}
			t.Logf("%d runs, %d grants in %v: %q", runs, x.grants, time.Since(began), wrong)
			testdb.ErrorIf(t, (wrong != "") != x.breaks || x.grants == 0, "found %q in %d grants", wrong, x.grants)
		})
	}
}

// client tries to get the lease, holds it, and releases it.
func (w *world) client(ctx context.Context, c int, m *quorum.Manager, rounds int) {
	for range rounds {
		w.await(c, "try")
		l, err := m.TryAcquire(ctx, job)
		if err != nil {
			continue
		}
		w.granted(c, l)
		w.await(c, "release")
		w.ends(c, l)
		_ = l.Release(ctx) // it may be lost, and the nodes not answer
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trying--
}

// granted checks that a lease that is granted is held and has the highest token.
func (w *world) granted(c int, l *quorum.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case l.Token() <= w.highest:
		w.wrong = cmp.Or(w.wrong, "a token that is not above all before")
	case !l.Valid():
		w.wrong = cmp.Or(w.wrong, "a grant that is not held")
	}
	w.highest = max(w.highest, l.Token())
	w.grants++
	w.holders[c] = l
}

// ends checks that a lease that is held until now is nobody else's.
func (w *world) ends(c int, l *quorum.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holders, c)
	if !l.Valid() {
		return
	}
	if l.Token() < w.highest {
		w.wrong = cmp.Or(w.wrong, "a lease that is held after the next was granted")
	}
	for _, other := range w.holders {
		if other.Valid() {
			w.wrong = cmp.Or(w.wrong, "two holders")
		}
	}
}

// await waits until a client's next step is decided.
func (w *world) await(client int, op string) {
	w.arrive(&call{client: client, node: -1, op: op}, nil)
}

// decides has the calls of a client to a node wait until they are decided.
func (w *world) decides(client, node int) memstore.Fault {
	return func(ctx context.Context, op string, _ store.Row, send func() error) error {
		cut := func() error { return cmp.Or(ctx.Err(), mysql.ErrInvalidConn) }
		c := &call{client: client, node: node, op: op}
		switch w.arrive(c, ctx.Done()) {
		case lost:
			return cut()
		case delay:
			err := send()
			c.reached = true
			if w.arrive(c, ctx.Done()) == lost {
				return cut()
			}
			return err
		}
		return send()
	}
}

// arrive has a call wait for its decision, or for its context.
func (w *world) arrive(c *call, ended <-chan struct{}) kind {
	w.mu.Lock()
	if w.open {
		w.mu.Unlock()
		return deliver
	}
	c.decided = make(chan kind, 1)
	w.fresh = append(w.fresh, c)
	w.mu.Unlock()
	select {
	case k := <-c.decided:
		return k
	case <-ended:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	is := func(other *call) bool { return other == c }
	w.calls, w.fresh = slices.DeleteFunc(w.calls, is), slices.DeleteFunc(w.fresh, is)
	return lost
}

// decide decides until all clients have come to their end.
func (w *world) decide(choose func(all []decision) int) {
	for range 1000 {
		synctest.Wait()
		w.mu.Lock()
		all := w.possible()
		if w.trying == 0 || w.wrong != "" {
			w.mu.Unlock()
			break
		}
		var next decision
		if len(all) > 0 {
			next = all[choose(all)]
			w.take(next)
		}
		w.mu.Unlock()
		if len(all) == 0 { // a client waits for a moment
			time.Sleep(5 * time.Millisecond)
		}
		if next.kind == pass {
			time.Sleep(next.d)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
	for _, c := range append(w.calls, w.fresh...) {
		c.decided <- deliver
	}
}

// possible returns what may happen next: first the call that has waited for longest. The caller holds world.mu.
func (w *world) possible() (all []decision) {
	slices.SortFunc(w.fresh, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.node, b.node), cmp.Compare(a.op, b.op))
	})
	w.calls, w.fresh = append(w.calls, w.fresh...), nil
	if len(w.calls) == 0 {
		return nil
	}
	for _, c := range w.calls {
		all = append(all, decision{kind: deliver, call: c})
	}
	for _, c := range w.calls {
		if c.node >= 0 && w.left[lost] > 0 {
			all = append(all, decision{kind: lost, call: c})
		}
		if c.node >= 0 && w.left[delay] > 0 && !c.reached {
			all = append(all, decision{kind: delay, call: c})
		}
	}
	for _, k := range []kind{pass, stop} {
		for _, d := range passes {
			if w.left[k] > 0 {
				all = append(all, decision{kind: k, d: d})
			}
		}
	}
	for _, k := range []kind{empty, set} {
		for n := range w.nodes {
			if w.left[k] > 0 {
				all = append(all, decision{kind: k, node: n})
			}
		}
	}
	return all
}

// take does what was decided, but for letting time pass. The caller holds world.mu.
func (w *world) take(d decision) {
	w.left[d.kind]--
	switch d.kind {
	case deliver, delay, lost:
		w.calls = slices.DeleteFunc(w.calls, func(c *call) bool { return c == d.call })
		d.call.decided <- d.kind
	case stop:
		for _, node := range w.nodes {
			node.Skip(d.d)
		}
	case empty:
		w.nodes[d.node].Forget()
		if w.countsAtOnce {
			_ = w.nodes[d.node].Store().BeginEpoch(context.Background(), rand.Text(), time.Hour) // nothing fails
		}
	case set:
		w.nodes[d.node].SetClock(w.clock)
	}
}
