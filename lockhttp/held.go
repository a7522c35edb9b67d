package lockhttp

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/dca00107/lockstep/internal/ops"
)

var (
	lockWords  = map[string]string{"Key": "key", "Held": "age", "Waiters": "waiters"}
	leaseWords = map[string]string{"Key": "key", "Held": "age", "Waiters": "waiters"}
)

func (c *call) locks() ([]section, any) {
	found := keep(c.Locks, func(l ops.Lock) bool { return c.matches(l.String(), l.Key, l.Owner) })
	by := c.sortedBy(lockWords, "waiters")
	slices.SortStableFunc(found, func(a, b ops.Lock) int {
		return order(by, a.Waiters, b.Waiters, a.Held, b.Held, a.Key, b.Key)
	})
	t := c.lockTable("locks", "Transaction locks that are held", found)
	c.sorting(t, lockWords, by)
	data := struct {
		seenForm
		Locks    []ops.Lock             `json:"locks"`
		Sessions map[uint64]ops.Session `json:"sessions"`
	}{c.seen(), found, c.Sessions}
	return []section{{ID: "locks", Text: c.OlderLocks(), Table: t}}, data
}

// order compares by what the viewer has chosen.
func order(by string, waiters, otherWaiters ops.Count, age, otherAge ops.Seconds, key, otherKey string) int {
	switch by {
	case "waiters":
		return cmp.Or(cmp.Compare(otherWaiters, waiters), cmp.Compare(otherAge, age), strings.Compare(key, otherKey))
	case "age":
		return cmp.Or(cmp.Compare(otherAge, age), strings.Compare(key, otherKey))
	}
	return strings.Compare(key, otherKey)
}

// keep returns a list of those that are wanted, never nil.
func keep[T any](all []T, wanted func(T) bool) []T {
	kept := []T{}
	for _, one := range all {
		if wanted(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

func (c *call) lockTable(id, caption string, locks []ops.Lock) *table {
	return c.newTable(id, caption, asSeen("No locks are held.", c.Hiding()), "Key, Mode, Held, Waiters, Owner, Session, User, Program, Transaction, Activity", len(locks), func(i int) row {
		l := locks[i]
		s := c.Sessions[l.Session]
		return row{ID: idOf(l.Kind, l.Slot, l.Key, l.Session), Class: waited(l.Waiters), Cells: []cell{
			rowCell(l.Row), text(l.How()), text(l.Held.String()), text(l.Waiters.String()), text(l.Owner),
			text(ops.Number(l.Session)), text(s.Who()), text(s.Program), text(s.Age()), text(s.Doing()),
		}}
	})
}

func waited(n ops.Count) string {
	if n > 0 {
		return "waited"
	}
	return ""
}

// rowCell names a row, and leads to the page of its key.
func rowCell(r ops.Row) cell {
	at := cell{Text: shown(r.String()), Head: true}
	switch {
	case r.Key != "" && r.Kind != ops.Between:
		at.Href = keyHref(r.Key)
	case r.Kind == ops.Hashed:
		at.Href = slotHref(r.Slot)
	}
	return at
}

func (c *call) leases() ([]section, any) {
	found := keep(c.Leases, func(l ops.Lease) bool { return c.matches(l.Key, l.Owner, l.Label) })
	by := c.sortedBy(leaseWords, "waiters")
	slices.SortStableFunc(found, func(a, b ops.Lease) int {
		return order(by, a.Waiters, b.Waiters, a.Held, b.Held, a.Key, b.Key)
	})
	t := c.leaseTable("leases", "Leases, readers and permits that are held", found)
	c.sorting(t, leaseWords, by)
	return []section{{ID: "leases", Text: c.OlderLeases(), Table: t}}, struct {
		seenForm
		Leases []ops.Lease `json:"leases"`
	}{c.seen(), found}
}

func (c *call) leaseTable(id, caption string, leases []ops.Lease) *table {
	return c.newTable(id, caption, asSeen("No leases are held.", c.GapsOf("lockstep_leases")), "Key, Kind, Holder, Held, Left, Renewed, Waiters, Owner, Token", len(leases), func(i int) row {
		l := leases[i]
		at := row{ID: idOf("lease", l.Slot, l.Key, l.Kind), Class: waited(l.Waiters)}
		if l.Kind == "waiter" {
			at.Cells = []cell{keyCell(l.Key), text("waits"), text(l.Label), text(l.Held.String()), text(""), text(""), text(l.Waiters.String()), text(l.Owner), text("")}
			return at
		}
		if l.Late() {
			at.Class = "late"
		}
		at.Cells = []cell{keyCell(l.Key), text(kindOf(l)), text(l.Label), {Text: l.Held.String(), Time: l.Since.UTC().Format(exactly)}, text(l.Left.String()), text(l.Renewal()), text(l.Waiters.String()),
			text(l.Owner), text(strconv.FormatUint(l.Token, 10))}
		return at
	})
}

func kindOf(l ops.Lease) string {
	kind := l.Kind
	if l.Leads {
		kind = "leader"
	}
	if !l.AskedAt.IsZero() {
		kind += ", asked: " + l.Asked
	}
	return kind
}

func (c *call) showLeaders() ([]section, any) {
	found := keep(c.leaders, func(l ops.Leader) bool { return c.matches(l.Key, l.By) })
	t := c.newTable("leaders", "Leaders and standby processes", asSeen("No process leads.", c.GapsOf("lockstep_leases")), "Election, Leader, Since, Left, Standby", len(found), func(i int) row {
		l := found[i]
		return row{ID: idOf("leader", l.Key), Cells: []cell{keyCell(l.Key), text(l.By), c.at(l.Since), text(l.Left.String()), text(strings.Join(l.Standby, ", "))}}
	})
	return []section{{ID: "leaders", Text: c.OlderLeases(), Table: t}}, struct {
		seenForm
		Leaders []ops.Leader `json:"leaders"`
	}{c.seen(), found}
}
