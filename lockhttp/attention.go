package lockhttp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dca00107/lockstep/internal/ops"
)

// trouble is something that a person should look at.
type trouble struct {
	What string `json:"what"` // deadlock, no leader, wait, overdue job, failing job, long job, prepared, late lease
	ops.Row
	For  ops.Seconds `json:"for_s"`
	Text string      `json:"text"`
}

// troubles are the kinds of trouble, the most urgent ones first. Each returns what there is of it.
var troubles = []func(c *call) []trouble{(*call).deadlocks, (*call).leaderless, (*call).longWaits, (*call).troubledJobs, (*call).preparedLocks, (*call).lateLeases}

// longWait is from when on a wait is shown as trouble.
const longWait ops.Seconds = 1

// attention returns all trouble.
func (c *call) attention() []trouble {
	all := []trouble{}
	for _, find := range troubles {
		all = append(all, find(c)...)
	}
	return all
}

// deadlocks returns the circles of waits.
func (c *call) deadlocks() []trouble { return c.roots("deadlock", true, 0) }

// longWaits returns the roots of waits that last long, the longest first.
func (c *call) longWaits() []trouble { return c.roots("wait", false, longWait) }

func (c *call) roots(what string, deadlock bool, least ops.Seconds) (all []trouble) {
	for _, n := range c.tree {
		below, longest := waitersBelow(n)
		if n.Deadlock != deadlock || longest < least {
			continue
		}
		text := fmt.Sprintf("%s waiting", count(below, "session"))
		for _, l := range n.Leases {
			text += "; " + l.Describe()
		}
		for i, id := range n.Holders {
			if i == 2 {
				text += fmt.Sprintf("; and %s", count(len(n.Holders)-2, "more session"))
				break
			}
			text += "; held by " + c.session(id)
		}
		if n.Detached {
			text += "; held by a prepared transaction: " + ops.EndDetached
		}
		all = append(all, trouble{what, n.Row, longest, text})
	}
	slices.SortStableFunc(all, func(a, b trouble) int { return cmp.Compare(b.For, a.For) })
	return all
}

// waitersBelow counts the sessions that wait below a node, and returns the longest wait.
func waitersBelow(n *ops.Node) (sessions int, longest ops.Seconds) {
	for _, w := range n.Waiters {
		sessions, longest = sessions+1, max(longest, w.For)
		for _, held := range w.Holds {
			more, longer := waitersBelow(held)
			sessions, longest = sessions+more, max(longest, longer)
		}
	}
	return sessions, longest
}

// leaderless returns the elections without a leader.
func (c *call) leaderless() (all []trouble) {
	for _, l := range c.vacant {
		text := "no process stands for election"
		if len(l.Standby) > 0 {
			text = count(len(l.Standby), "process") + " on standby"
			if len(l.Standby) > 1 {
				text = fmt.Sprintf("%d processes on standby", len(l.Standby))
			}
		}
		all = append(all, trouble{What: "no leader", Row: ops.Row{Kind: ops.LeaseRow, Key: l.Key}, Text: text})
	}
	return all
}

// preparedLocks returns the locks of transactions without a session.
func (c *call) preparedLocks() (all []trouble) {
	for _, l := range c.Locks {
		if l.Detached {
			all = append(all, trouble{"prepared", l.Row, l.Held, "no session holds it: " + ops.EndDetached})
		}
	}
	return all
}

// lateLeases returns the leases that their holders don't renew in time.
func (c *call) lateLeases() (all []trouble) {
	for _, l := range c.Leases {
		if l.Late() {
			all = append(all, trouble{"late lease", l.Row(), l.Renewed, l.Describe()})
		}
	}
	return all
}

func (c *call) attentionTable(all []trouble) *table {
	return c.newTable("attention", "What needs a person, the most urgent first", asSeen("Nothing: no session waits for long, no lease is late, no job is overdue or fails, and each election has a leader.", c.Hiding()), "Key, What, For, Details", len(all), func(i int) row {
		t := all[i]
		lasts := ""
		if t.For > 0 {
			lasts = t.For.String()
		}
		return row{ID: idOf("attention", t.What, t.Kind, t.Slot, t.Key, t.Table), Class: "late", Cells: []cell{rowCell(t.Row), text(t.What), text(lasts), text(t.Text)}}
	})
}
