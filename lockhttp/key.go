package lockhttp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
)

// target is what a page of a key is about: a key, or a slot of hashed keys.
type target struct {
	shown, key string
	slot       int64 // that the key would have in a hashed family
	bySlot     bool
}

func (m masks) targetOf(c content, key, slot string) (target, bool) {
	if key != "" {
		shown, key := m.reveal(c, key)
		return target{shown: shown, key: key, slot: ops.SlotOf(key)}, true
	}
	n, err := strconv.ParseInt(slot, 10, 64)
	return target{slot: n, bySlot: true}, err == nil && n >= 0 && n < 1<<16
}

// has tells whether a row is of the target; its key is masked.
func (t target) has(r ops.Row) bool {
	return r.Kind == ops.Hashed && r.Slot == t.slot || !t.bySlot && r.Key == t.shown && r.Kind != ops.Hashed && r.Kind != ops.Other && r.Kind != ops.Between
}

func (t target) String() string {
	if t.bySlot {
		return fmt.Sprintf("slot %d", t.slot)
	}
	return ops.Shown(t.shown)
}

func (t target) href() string {
	if t.bySlot {
		return slotHref(t.slot)
	}
	return keyHref(t.shown)
}

// onceForm is what is shown of a key of Once: not its answer, and not its fingerprint.
type onceForm struct {
	Key   string      `json:"key"`
	State string      `json:"state"` // open, done, over
	Done  string      `json:"done"`
	Left  ops.Seconds `json:"left_s"`
	Bytes int         `json:"result_bytes"`
}

// keyForm is all that is known of a key.
type keyForm struct {
	seenForm
	Key      string                 `json:"key"`
	Slot     int64                  `json:"slot"`
	Locks    []ops.Lock             `json:"locks"`
	Leases   []ops.Lease            `json:"leases"`
	Waits    []*ops.Node            `json:"waits"`
	Once     []onceForm             `json:"once"`
	Jobs     []ops.JobStatus        `json:"jobs"`
	Runs     []ops.JobRun           `json:"runs"`
	Events   []happening            `json:"events"`
	Sessions map[uint64]ops.Session `json:"sessions"`
}

func (c *call) titleOfKey() string {
	if t, ok := c.targetOf(c.content, c.query.Get("key"), c.param("slot")); ok {
		return printable(t.String())
	}
	return "Key"
}

func (c *call) key() ([]section, any) {
	t, ok := c.targetOf(c.content, c.query.Get("key"), c.param("slot"))
	if !ok {
		return []section{{ID: "none", Title: "Which key?", Text: "Search for it above."}}, keyForm{seenForm: c.seen()}
	}
	f := c.about(t)
	var sections []section
	add := func(some int, s section) {
		if some > 0 {
			sections = append(sections, s)
		}
	}
	hint := ""
	if slices.ContainsFunc(f.Locks, func(l ops.Lock) bool { return l.Kind == ops.Hashed }) {
		hint = "Hashed keys share slots, which don't know their keys: the slot may be held for another one."
	}
	add(len(f.Locks), section{ID: "locks", Title: "Locks", Text: hint, Table: c.lockTable("locks", "Transaction locks of this key", f.Locks)})
	add(len(f.Leases), section{ID: "leases", Title: "Leases", Text: c.OlderLeases(), Table: c.leaseTable("leases", "Leases, readers and permits of this key", f.Leases)})
	forms := c.forms(t, f)
	add(len(forms), section{ID: "act", Title: "What you may do", Forms: forms})
	add(len(f.Waits), section{ID: "waits", Title: "Waiters", Tree: c.branches(f.Waits, "wait")})
	add(len(f.Once), section{ID: "once", Title: "Once", Table: c.onceTable(f.Once)})
	add(len(f.Jobs), section{ID: "job", Title: "Job", Text: c.jobsOlder(), Table: c.jobTable(f.Jobs)})
	add(len(f.Runs), section{ID: "runs", Title: "Last runs", Table: c.runTable(f.Runs)})
	if len(sections) == 0 {
		sections = []section{{ID: "none", Title: "Not held", Text: asSeen("This key is not held, and no one waits for it.", c.Hiding())}}
	}
	add(len(f.Events), section{ID: "events", Title: "History", Table: c.eventTable(f.Events)})
	return sections, f
}

// about gathers what is known of a key.
func (c *call) about(t target) keyForm {
	f := keyForm{seenForm: c.seen(), Key: t.shown, Slot: t.slot, Once: []onceForm{}, Sessions: make(map[uint64]ops.Session)}
	f.Locks = keep(c.Locks, func(l ops.Lock) bool { return t.has(l.Row) })
	f.Leases = keep(c.Leases, func(l ops.Lease) bool { return !t.bySlot && l.Key == t.shown })
	f.Waits = c.Around(t.has).Tree()
	f.Jobs = keep(c.jobs.Jobs, func(j ops.JobStatus) bool { return !t.bySlot && j.Key == t.shown })
	f.Runs = append([]ops.JobRun{}, c.runs[t.key]...)
	f.Events = keep(c.timeline(), func(e happening) bool {
		return t.has(ops.Row{Kind: ops.Kind(e.Kind), Key: e.Key, Slot: e.Slot})
	})
	if o, known := c.once[t.key]; known {
		form := onceForm{t.shown, "done", when(o.Done), o.Left, o.Result}
		switch {
		case o.Open:
			form.State = "open"
		case o.Left < 0:
			form.State = "over"
		}
		f.Once = append(f.Once, form)
	}
	for _, l := range f.Locks {
		f.Sessions[l.Session] = c.Sessions[l.Session]
	}
	for _, w := range c.Waits {
		if t.has(w.Row) {
			for _, id := range append([]uint64{w.Session}, w.Blockers...) {
				f.Sessions[id] = c.Sessions[id]
			}
		}
	}
	return f
}

func (c *call) onceTable(once []onceForm) *table {
	return c.newTable("once", "The key of Once", "", "Key, State, Done, Left, Answer", len(once), func(i int) row {
		o := once[i]
		return row{ID: "once", Cells: []cell{{Text: ops.Shown(o.Key), Head: true}, text(o.State), text(o.Done), text(o.Left.String()), text(fmt.Sprintf("%d bytes", o.Bytes))}}
	})
}

// found is a key that a search has found.
type found struct {
	Key  string   `json:"key"`
	Kind []string `json:"kinds"`
}

// search lists the keys that are held, waited for, or of jobs.
func (c *call) search() ([]section, any) {
	places := make(map[string]int)
	all := []found{}
	add := func(key, kind string) {
		if key == "" || !c.matches(key) {
			return
		}
		i, known := places[key]
		if !known {
			i = len(all)
			places[key] = i
			all = append(all, found{Key: key})
		}
		if !slices.Contains(all[i].Kind, kind) {
			all[i].Kind = append(all[i].Kind, kind)
		}
	}
	if wanted := c.param("q"); wanted != "" && (txlock.ParseKey(wanted).Validate() == nil) {
		shown, _ := c.reveal(c.content, wanted)
		places[shown] = 0
		all = append(all, found{Key: shown, Kind: []string{"the key of this name"}})
	}
	for _, l := range c.Locks {
		add(l.Key, string(l.Kind))
	}
	for _, l := range c.Leases {
		add(l.Key, l.Kind)
	}
	for _, w := range c.Waits {
		if w.Kind != ops.Between { // the key behind it is another one
			add(w.Key, "waited for")
		}
	}
	for _, j := range c.jobs.Jobs {
		add(j.Key, "job")
	}
	t := c.newTable("found", "Keys that are held, waited for, or of jobs", asSeen("Nothing is found.", c.Hiding()), "Key, Is", len(all), func(i int) row {
		return row{ID: idOf("found", all[i].Key), Cells: []cell{keyCell(all[i].Key), text(strings.Join(all[i].Kind, ", "))}}
	})
	return []section{{ID: "found", Text: c.OlderLeases(), Table: t}}, struct {
		seenForm
		Found []found `json:"found"`
	}{c.seen(), all}
}
