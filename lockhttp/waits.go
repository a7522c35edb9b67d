package lockhttp

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dca00107/lockstep/internal/ops"
)

// branch is a row that is held, with those who wait for it, as the template draws it.
type branch struct {
	ID      string
	Name    cell
	Notes   string
	Holders []string
	Waiters []twig
	Wrong   bool // a deadlock
}

type twig struct {
	Text  string
	Holds []branch
}

func (c *call) waits() ([]section, any) {
	found := keep(c.tree, func(n *ops.Node) bool { return c.param("q") == "" || c.inTree(n) })
	at := section{ID: "waits", Tree: c.branches(found, "wait")}
	if len(found) == 0 {
		at.Text = asSeen("No session waits.", c.Hiding())
	} else {
		at.Text = "At the root are holders that wait for nothing; ending one unblocks all below it."
	}
	at.Text = strings.TrimSpace(at.Text + " " + c.OlderLeases())
	return []section{at}, struct {
		seenForm
		Waits    []*ops.Node            `json:"waits"`
		Sessions map[uint64]ops.Session `json:"sessions"`
	}{c.seen(), found, c.Sessions}
}

// inTree tells whether the row or one below matches the search.
func (c *call) inTree(n *ops.Node) bool {
	return c.matches(n.String(), n.Key) || slices.ContainsFunc(n.Waiters, func(w ops.Waiter) bool { return slices.ContainsFunc(w.Holds, c.inTree) })
}

func (c *call) branches(nodes []*ops.Node, id string) (all []branch) {
	for _, n := range nodes[:min(len(nodes), perPage)] {
		b := branch{ID: idOf(id, n.Kind, n.Slot, n.Key), Name: rowCell(n.Row), Notes: printable(strings.Join(c.Notes(n), "; ")), Wrong: n.Deadlock}
		for _, l := range n.Leases {
			b.Holders = append(b.Holders, printable(l.Describe()))
		}
		for _, session := range n.Holders {
			b.Holders = append(b.Holders, "held by "+c.session(session))
		}
		for i, w := range n.Waiters {
			if i == perPage {
				b.Waiters = append(b.Waiters, twig{Text: fmt.Sprintf("and %d more", len(n.Waiters)-perPage)})
				break
			}
			how := ""
			if w.Mode == ops.Shared {
				how = " (shared)"
			}
			b.Waiters = append(b.Waiters, twig{"waits " + w.For.String() + how + ": " + c.session(w.Session), c.branches(w.Holds, b.ID)})
		}
		all = append(all, b)
	}
	return all
}

// session describes a session in one line.
func (c *call) session(id uint64) string {
	return printable(c.Describe(id, ops.Session.Doing))
}

// queue is a row that sessions wait for.
type queue struct {
	ops.Row
	Waiters int         `json:"waiters"`
	Longest ops.Seconds `json:"longest_s"`
	First   uint64      `json:"first"`   // the session that has waited longest
	Holders []uint64    `json:"holders"` // sessions; none of a lease
}

// queuesOf counts who waits. The waiters of Fair are one queue with the first of them, who
// waits for the lease itself.
func queuesOf(waits []ops.Wait) []queue {
	places := make(map[ops.Row]int)
	all := []queue{}
	for _, w := range waits {
		at := w.Row
		if at.Kind == ops.Queue {
			at.Kind, at.Slot = ops.LeaseRow, 0
		}
		i, known := places[at]
		if !known {
			i = len(all)
			places[at] = i
			all = append(all, queue{Row: at, Holders: []uint64{}})
		}
		q := &all[i]
		if q.Waiters++; q.First == 0 || w.For > q.Longest {
			q.Longest, q.First = w.For, w.Session
		}
		for _, session := range w.Blockers {
			if w.Kind != ops.Queue && !slices.Contains(q.Holders, session) {
				q.Holders = append(q.Holders, session)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b queue) int {
		return cmp.Or(cmp.Compare(b.Waiters, a.Waiters), cmp.Compare(b.Longest, a.Longest))
	})
	return all
}

func (c *call) queues() ([]section, any) {
	found := keep(queuesOf(c.Waits), func(q queue) bool { return c.matches(q.String(), q.Key) })
	return []section{{ID: "queues", Text: c.OlderLeases(), Table: c.queueTable(found)}}, struct {
		seenForm
		Queues []queue `json:"queues"`
	}{c.seen(), found}
}

func (c *call) queueTable(queues []queue) *table {
	return c.newTable("queues", "Keys with waiters, and how many", asSeen("No session waits.", c.Hiding()), "Key, Kind, Waiters, Longest, First, Held by", len(queues), func(i int) row {
		q := queues[i]
		var holders []string
		for _, session := range q.Holders {
			holders = append(holders, strconv.FormatUint(session, 10))
		}
		return row{ID: idOf("queue", q.Kind, q.Slot, q.Key), Class: "waited", Cells: []cell{
			rowCell(q.Row), text(string(q.Kind)), text(strconv.Itoa(q.Waiters)), text(q.Longest.String()),
			text("session " + strconv.FormatUint(q.First, 10)), text(strings.Join(holders, ", ")),
		}}
	})
}
