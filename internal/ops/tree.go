package ops

import (
	"fmt"
	"slices"
	"strings"
)

// Node is a row that is held, with those who wait for it.
type Node struct {
	Row
	Holders  []uint64 `json:"holders"`            // sessions; none for a lease that no transaction has locked
	Unsure   bool     `json:"unsure,omitempty"`   // one or more of the holders, the server doesn't tell which
	Changing bool     `json:"changing,omitempty"` // the row was granted anew while the look read it
	Detached bool     `json:"detached,omitempty"` // a transaction without a session holds the row, too
	Queued   bool     `json:"queued,omitempty"`   // the holders only wait for it, ahead of the waiters
	Leases   []Lease  `json:"leases,omitempty"`   // who holds the lease
	Deadlock bool     `json:"deadlock,omitempty"` // the holder waits for somebody who waits for it
	Waiters  []Waiter `json:"waiters"`
}

// Waiter is a session that waits for the row above, and the rows that it holds and others
// wait for.
type Waiter struct {
	Wait
	Holds []*Node `json:"holds,omitempty"`
}

// Tree orders the waits: at the root are the rows whose holders wait for nobody. Who holds
// several is there for each.
func (p *Picture) Tree() []*Node {
	t := &tree{Picture: p, nodes: make(map[place]*Node), done: make(map[place]bool)}
	waits := make(map[uint64]bool)
	for _, w := range p.Waits {
		waits[w.Session] = true
		t.add(w)
	}
	roots := []*Node{}
	for _, g := range t.order { // first those that nobody is above
		if !slices.ContainsFunc(t.nodes[g].Holders, func(session uint64) bool { return waits[session] }) {
			roots = append(roots, t.grow(g))
		}
	}
	for _, g := range t.order { // what is left goes round in a circle
		if !t.done[g] {
			root := t.grow(g)
			root.Deadlock = !root.guessed()
			roots = append(roots, root)
		}
	}
	return roots
}

// guessed reports whether it isn't sure who holds the row, or one below.
func (n *Node) guessed() bool {
	return n.Unsure || slices.ContainsFunc(n.Waiters, func(w Waiter) bool { return slices.ContainsFunc(w.Holds, (*Node).guessed) })
}

type tree struct {
	*Picture
	nodes map[place]*Node
	order []place
	done  map[place]bool
}

// add adds a wait to the node of its row.
func (t *tree) add(w Wait) {
	g := place{w.Row, w.place, w.Queued}
	n := t.nodes[g]
	if n == nil {
		n = &Node{Row: w.Row, Holders: []uint64{}, Queued: w.Queued}
		if w.Kind == LeaseRow {
			for _, lease := range t.Leases {
				if lease.Key == w.Key && lease.Kind != waiter {
					n.Leases = append(n.Leases, lease)
				}
			}
		}
		t.nodes[g], t.order = n, append(t.order, g)
	}
	for _, session := range w.Blockers {
		if !slices.Contains(n.Holders, session) {
			n.Holders = append(n.Holders, session)
		}
	}
	n.Unsure, n.Changing, n.Detached = n.Unsure || w.Unsure, n.Changing || w.Changing, n.Detached || w.Detached
	n.Waiters = append(n.Waiters, Waiter{Wait: w})
}

// grow hangs below each waiter of a row what it holds, once.
func (t *tree) grow(g place) *Node {
	t.done[g] = true
	n := t.nodes[g]
	for i := range n.Waiters {
		w := &n.Waiters[i]
		for _, below := range t.order {
			if !t.done[below] && slices.Contains(t.nodes[below].Holders, w.Session) {
				w.Holds = append(w.Holds, t.grow(below))
			}
		}
	}
	return n
}

// Around returns the waits for the rows that mine picks, and those that keep the holders of such rows
// from going on, up to the roots.
func (p *Picture) Around(mine func(Row) bool) *Picture {
	holds := make(map[uint64]bool)
	for _, l := range p.Locks {
		holds[l.Session] = holds[l.Session] || mine(l.Row)
	}
	kept := make([]bool, len(p.Waits))
	for grown := true; grown; {
		grown = false
		for i, w := range p.Waits {
			if kept[i] || !mine(w.Row) && !holds[w.Session] {
				continue
			}
			kept[i], grown = true, true
			for _, session := range w.Blockers {
				holds[session] = true
			}
		}
	}
	around := *p
	around.Waits = nil
	for i, w := range p.Waits {
		if kept[i] {
			around.Waits = append(around.Waits, w)
		}
	}
	return &around
}

// Notes says of a node of the tree who holds its row, in words for people.
func (p *Picture) Notes(n *Node) []string {
	var notes []string
	for _, l := range p.Locks {
		switch {
		case l.Row != n.Row:
		case l.Owner != "":
			notes = append(notes, fmt.Sprintf("%s, held %s by %s", l.Mode, l.Held, l.Owner))
		case l.Mode == Shared && !n.Unsure && !slices.Contains(notes, "shared"):
			notes = append(notes, "shared")
		}
	}
	if n.Changing {
		notes = append(notes, "changing: other sessions were granted it during the look")
	} else if len(n.Holders) == 0 && len(n.Leases) == 0 && !n.Detached {
		notes = append(notes, "the holder is not known")
	}
	if n.Queued {
		notes = append(notes, "the session ahead waits for it, too")
	}
	if n.Kind == Between {
		notes = append(notes, "new keys wait until the transaction ends that has locked the gap")
	}
	if n.Detached {
		notes = append(notes, "held by a transaction without a session: "+EndDetached)
	}
	switch {
	case n.Unsure && n.Kind == Table && len(n.Holders) > 0: // or by LOCK TABLES or HANDLER, without a transaction
		notes = append(notes, "perhaps held by one of these")
	case n.Unsure && n.Kind != Table:
		notes = append(notes, "shared, held by one or more of these")
	}
	if n.Deadlock {
		notes = append(notes, "a deadlock: its holder waits below")
	}
	return notes
}

// Describe describes a session in one line; doing says what it does.
func (p *Picture) Describe(id uint64, doing func(Session) string) string {
	parts := []string{fmt.Sprintf("session %d", id)}
	s, known := p.Sessions[id]
	if !known || s.User == "" {
		return parts[0]
	}
	parts = append(parts, s.Who())
	if s.Program != "" {
		parts = append(parts, s.Program)
	}
	if s.InTx {
		parts = append(parts, "transaction "+s.Age())
	}
	if does := doing(s); does != "" {
		parts = append(parts, does)
	}
	return strings.Join(parts, ", ")
}

// Until says how long the lease lasts, and when it was renewed.
func (l Lease) Until() string {
	text := l.Left.String() + " left"
	if renewal := l.Renewal(); renewal != "" {
		text += ", renewed " + renewal
	}
	return text
}

// IfReleased says what happens if an operator releases the lease.
func (l Lease) IfReleased() string {
	if l.Kept() {
		return fmt.Sprintf("Nobody holds it: it was released, and is kept for %s more by HoldAtLeast.", l.Left)
	}
	return fmt.Sprintf("The holder gets ErrLost from its next renewal, within %s, or its next Guard; until then it may believe that it holds the lease. "+
		"What it has guarded can't be committed; KILL ends its session after 5 s.", l.TTL/2)
}

// IfAsked says what happens if an operator asks the holder to release the lease. RenewEvery is a half of
// the TTL at most.
func (l Lease) IfAsked() string {
	return fmt.Sprintf("Its process sees the request within %s, and decides; elections and jobs ignore it.", l.TTL/2)
}

// Describe describes a lease in one line.
func (l Lease) Describe() string {
	text := fmt.Sprintf("%s, held %s by %s (%s), %s", l.Kind, l.Held, l.Owner, l.Label, l.Until())
	if !l.AskedAt.IsZero() {
		text += ", asked to give it up: " + l.Asked
	}
	return text
}
