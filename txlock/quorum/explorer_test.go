package quorum_test

import (
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// The model of a majority lease: three nodes, and clients that ask all of them at
// once. Every message may be processed at any time, or not at all, and every answer may
// be lost; the time of a client's lease may be over at any moment, for the client first
// and for each node some time later. One node may lose its data.

const modelNodes, modelMajority = 3, 2

// order is the order of what a client does.
type order int

const (
	confirmThenJudge order = iota // what round does
	notAwaited                    // the token is written back behind the grant
	judgeThenConfirm              // validity is judged before the token is written back
	noDelay                       // as round does, but an empty node counts at once
)

// What a client does.
type phase int8

const (
	idle phase = iota
	asking
	confirming
	holding
	leaving
	absent // there are fewer clients
)

// What a client knows of a node.
type known int8

const (
	nothing   known = iota
	granted         // with a token
	confirmed       // it has the token of the lease
	failed          // refused, or not answered
)

type modelNode struct {
	holder  int8 // client + 1
	token   int8
	waits   int8 // clients that must be over before the node counts again, by bit
	emptied bool
}

type modelClient struct {
	phase  phase
	over   bool // its time is over
	rounds int8
	token  int8
	knows  [modelNodes]known
	tokens [modelNodes]int8
}

// world is one state of everything. It is comparable.
type world struct {
	nodes   [modelNodes]modelNode
	clients [3]modelClient
	highest int8 // token of a grant
	clock   int8 // the highest token of any node, ever
	losses  int8 // messages that may still be lost
	empties int8 // nodes that may still lose their data
}

// explore visits every state that can be reached, and returns how many there are, or
// the first violation.
func explore(o order, start world) (states int, violation string) {
	seen := map[world]struct{}{start: {}}
	todo := []world{start}
	for len(todo) > 0 {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		w.steps(o, func(next world, wrong string) {
			next.forget(o)
			if wrong != "" && violation == "" {
				violation = wrong
			}
			if _, again := seen[next]; !again {
				seen[next] = struct{}{}
				todo = append(todo, next)
			}
		})
		if violation != "" {
			break
		}
	}
	return len(seen), violation
}

// forget drops what makes no difference any more, so that more states are the same.
func (w *world) forget(o order) {
	for c := range w.clients {
		me := &w.clients[c]
		switch {
		case me.phase == leaving, me.phase == holding && o != notAwaited:
			me.knows, me.tokens, me.token = [modelNodes]known{}, [modelNodes]int8{}, 0
		case me.phase != asking:
			me.tokens = [modelNodes]int8{}
		}
	}
}

// steps calls visit with every state that may come next.
func (w world) steps(o order, visit func(next world, wrong string)) {
	for n := range w.nodes {
		if h := w.nodes[n].holder; h > 0 && w.clients[h-1].over { // expired
			next := w
			next.nodes[n].holder = 0
			visit(next, "")
		}
		if w.empties > 0 {
			next := w
			next.empties--
			next.nodes[n] = modelNode{emptied: true}
			if o != noDelay {
				for c := range w.clients {
					if p := w.clients[c].phase; p != idle && p != absent && !w.clients[c].over {
						next.nodes[n].waits |= 1 << c
					}
				}
			}
			visit(next, "")
		}
	}
	for c := range w.clients {
		w.clientSteps(o, c, visit)
	}
}

func (w world) clientSteps(o order, c int, visit func(next world, wrong string)) {
	me := w.clients[c]
	mayEnd := c == 0 || !w.three() // of three only one, for there to be fewer states
	if me.phase != idle && me.phase != absent && !me.over && mayEnd {
		next := w
		next.clients[c].over = true
		for n := range next.nodes {
			next.nodes[n].waits &^= 1 << c
		}
		if me.phase == holding {
			next.clients[c].phase = leaving
		}
		visit(next, "")
	}
	switch me.phase {
	case idle:
		if me.rounds > 0 {
			next := w
			next.clients[c] = modelClient{phase: asking, rounds: me.rounds - 1}
			visit(next, "")
		}
	case asking:
		if me.count(granted) >= modelMajority || me.count(failed) > modelNodes-modelMajority {
			w.decide(o, c, visit)
			return
		}
		for n := range w.nodes {
			if me.knows[n] == nothing {
				w.ask(o, c, n, visit)
			}
		}
	case confirming:
		for n := range w.nodes {
			if me.knows[n] == granted {
				w.raise(c, n, visit)
			}
		}
		switch {
		case me.count(confirmed) >= modelMajority && (o == judgeThenConfirm || !me.over):
			w.hold(c, visit)
		case me.count(granted)+me.count(confirmed) < modelMajority, me.over && o != judgeThenConfirm:
			next := w
			next.clients[c].phase = leaving
			visit(next, "")
		}
	case holding:
		if o == notAwaited {
			for n := range w.nodes {
				if me.knows[n] == granted {
					w.raise(c, n, visit)
				}
			}
		}
		next := w
		next.clients[c].phase = leaving
		visit(next, "")
	case leaving:
		w.leave(c, visit)
	}
}

// three tells whether there are three clients.
func (w *world) three() bool { return w.clients[len(w.clients)-1].phase != absent }

func (m modelClient) count(k known) (n int) {
	for _, v := range m.knows {
		if v == k {
			n++
		}
	}
	return n
}

// ask is a request for the lease of one node.
func (w world) ask(o order, c, n int, visit func(next world, wrong string)) {
	node := &w.nodes[n]
	refused := w
	refused.clients[c].knows[n] = failed
	if w.losses > 0 { // the request is lost
		lost := refused
		lost.losses--
		visit(lost, "")
	}
	if node.holder != 0 || node.waits != 0 {
		visit(refused, "")
		return
	}
	if node.emptied {
		// With the delay its clock is past every token; without, it is anywhere.
		node.emptied = false
		node.token = 0
		if o != noDelay {
			node.token = w.clock
		}
	}
	node.holder, node.token = int8(c+1), node.token+1
	w.clock = max(w.clock, node.token)
	if w.losses > 0 { // the answer is lost
		lost := w
		lost.losses--
		lost.clients[c].knows[n] = failed
		visit(lost, "")
	}
	w.clients[c].knows[n], w.clients[c].tokens[n] = granted, node.token
	visit(w, "")
}

// decide takes the highest token of a majority, or gives up without one.
func (w world) decide(o order, c int, visit func(next world, wrong string)) {
	me := &w.clients[c]
	switch {
	case me.count(failed) > modelNodes-modelMajority:
		me.phase = leaving
		visit(w, "")
	case me.count(granted) >= modelMajority:
		for n, k := range me.knows {
			if k == granted {
				me.token = max(me.token, me.tokens[n])
			}
		}
		switch {
		case me.over:
			me.phase = leaving
			visit(w, "")
		case o == notAwaited:
			w.hold(c, visit)
		default:
			me.phase = confirming
			visit(w, "")
		}
	}
}

// raise writes the token of the lease to one node.
func (w world) raise(c, n int, visit func(next world, wrong string)) {
	refused := w
	refused.clients[c].knows[n] = failed
	if w.losses > 0 {
		lost := refused
		lost.losses--
		visit(lost, "")
	}
	node := &w.nodes[n]
	if node.holder != int8(c+1) {
		visit(refused, "")
		return
	}
	node.token = max(node.token, w.clients[c].token)
	if w.losses > 0 {
		lost := w
		lost.losses--
		lost.clients[c].knows[n] = failed
		visit(lost, "")
	}
	w.clients[c].knows[n] = confirmed
	visit(w, "")
}

// hold is the grant, which must be the only one and have the highest token.
func (w world) hold(c int, visit func(next world, wrong string)) {
	wrong := ""
	for other := range w.clients {
		if other != c && w.clients[other].phase == holding {
			wrong = fmt.Sprintf("clients %d and %d hold the lease", other, c)
		}
	}
	if token := w.clients[c].token; token <= w.highest {
		wrong = fmt.Sprintf("client %d has token %d after %d", c, token, w.highest)
	}
	w.clients[c].phase = holding
	w.highest = max(w.highest, w.clients[c].token)
	if w.clients[c].over {
		w.clients[c].phase = leaving
	}
	visit(w, wrong)
}

// leave releases the nodes, each at a time of its own, and starts again.
func (w world) leave(c int, visit func(next world, wrong string)) {
	left := 0
	for n := range w.nodes {
		if w.nodes[n].holder == int8(c+1) {
			next := w
			next.nodes[n].holder = 0
			if w.three() { // all at once, for there to be fewer states
				for other := range next.nodes {
					if next.nodes[other].holder == int8(c+1) {
						next.nodes[other].holder = 0
					}
				}
				visit(next, "")
				return
			}
			visit(next, "")
			left++
		}
	}
	if left == 0 {
		next := w
		next.clients[c] = modelClient{rounds: w.clients[c].rounds}
		for n := range next.nodes {
			next.nodes[n].waits &^= 1 << c
		}
		visit(next, "")
	}
}

// TestExplorer proves, for three nodes and every order of what can happen, that no two
// clients hold a lease and that no token is as low as one before, with the order of
// round; and that it takes all of that order, and the delay of an empty node.
func TestExplorer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		order           order
		rounds          []int8 // of each client
		losses, empties int8
		long, violated  bool
	}{
		{"two clients", confirmThenJudge, []int8{1, 1}, 1, 0, false, false},
		{"two rounds", confirmThenJudge, []int8{2, 1}, 0, 0, false, false},
		{"three clients", confirmThenJudge, []int8{1, 1, 1}, 0, 0, false, false},
		{"an empty node", confirmThenJudge, []int8{1, 1}, 0, 1, false, false},
		{"two lost messages", confirmThenJudge, []int8{1, 1}, 2, 0, true, false},
		{"two rounds of both", confirmThenJudge, []int8{2, 2}, 0, 0, true, false},
		{"an empty node and a lost message", confirmThenJudge, []int8{1, 1}, 1, 1, true, false},
		{"write-back not awaited", notAwaited, []int8{1, 1}, 1, 0, false, true},
		{"validity judged first", judgeThenConfirm, []int8{1, 1}, 1, 0, false, true},
		{"an empty node counts at once", noDelay, []int8{1, 1}, 0, 1, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.long && testdb.Long(true, false) {
				return // minutes, and gigabytes
			}
			start := world{losses: c.losses, empties: c.empties, clock: 2}
			start.nodes[0].token = 2 // the clocks are apart
			for i := range start.clients {
				start.clients[i].phase = absent
				if i < len(c.rounds) {
					start.clients[i] = modelClient{rounds: c.rounds[i]}
				}
			}
			states, violation := explore(c.order, start)
			t.Logf("%d states; violation: %q", states, violation)
			if (violation != "") != c.violated {
				t.Errorf("violation: %q", violation)
			}
		})
	}
}
