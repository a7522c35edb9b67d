package lockhttp

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

// snapshot is what one look has found, as viewers may see it.
type snapshot struct {
	number int
	ended  time.Time
	asked  demand
	err    error // of the look; the content is older then
	seen   time.Time
	content
}

type content struct {
	*ops.Picture // nil before the first look that succeeds
	tree         []*ops.Node
	leaders      []ops.Leader
	vacant       []ops.Leader // elections without a leader
	jobs         ops.Jobs
	runs         map[string][]ops.JobRun // of jobs whose pages are viewed, by their keys
	once         map[string]ops.OnceRecord
	names        map[string]string // the keys behind their masks; "" where they are several
}

var errPanic = errors.New("a query or a mask has panicked: see the program's log")

// take looks at the server. A mask is the program's own code: its panic, over a key that it
// didn't expect, must not end the program.
func (h *Handler) take(ctx context.Context, d demand) (s *snapshot) {
	defer func() {
		if why := recover(); why != nil {
			h.log.Error("lockhttp: a query or a mask has panicked", "panic", why, "stack", string(debug.Stack()))
			s = &snapshot{err: errPanic}
		}
	}()
	p, err := h.room.Look(ctx)
	if err != nil {
		return &snapshot{err: err}
	}
	updates := 0.0
	if !p.MariaDB() { // which counts the rows of all tables
		if updates, err = h.room.Updates(ctx); err != nil {
			return &snapshot{err: err}
		}
	}
	c := content{Picture: p, tree: p.Tree(), leaders: p.Leaders(), vacant: p.Vacant(), once: make(map[string]ops.OnceRecord)}
	if d.jobs {
		h.readJobs(ctx, &c, d.keys)
	}
	found, err := h.room.OnceOf(ctx, slices.Collect(maps.Keys(d.keys))...)
	if err != nil {
		p.Gaps = append(p.Gaps, ops.Gap{What: "keys of Once are not known", Fix: err.Error(), Hides: true})
	}
	for _, o := range found {
		c.once[o.Key] = o
	}
	h.history.note(time.Now(), c, updates)
	h.apply(&c)
	return &snapshot{content: c}
}

// readJobs reads the jobs, and the last runs of those that are demanded. If it can't, those that it
// has read last are shown, with their age.
func (h *Handler) readJobs(ctx context.Context, c *content, keys map[string]bool) {
	gap := func(what string, err error) {
		c.Gaps = append(c.Gaps, ops.Gap{What: what, Fix: err.Error(), Hides: true})
	}
	if jobs, err := h.room.Jobs(ctx); err != nil {
		gap("jobs are not known", err)
	} else {
		h.last = jobs
	}
	c.jobs, c.runs = ops.Jobs{Now: h.last.Now, Jobs: slices.Clone(h.last.Jobs)}, make(map[string][]ops.JobRun)
	for key := range keys {
		if _, is := c.jobs.Job(key); !is {
			continue
		}
		runs, err := h.room.JobRuns(ctx, key)
		if err != nil {
			gap("the last runs of jobs are not known", err)
		}
		c.runs[key] = runs
	}
}

// masks are what viewers see in place of keys and notes.
type masks struct{ keys, notes func(string) string }

func replace(text *string, mask func(string) string) {
	if mask != nil && *text != "" {
		*text = mask(*text)
	}
}

// apply masks all that viewers see, and removes the texts of statements.
func (m masks) apply(c *content) {
	for id, s := range c.Sessions {
		s.Statement = verb(s.Statement)
		c.Sessions[id] = s
	}
	if m.keys != nil {
		c.names = make(map[string]string)
	}
	for i := range c.Locks {
		m.remember(c, c.Locks[i].Key)
		replace(&c.Locks[i].Key, m.keys)
		replace(&c.Locks[i].Owner, m.notes)
	}
	for i := range c.Leases {
		m.remember(c, c.Leases[i].Key)
		m.lease(&c.Leases[i])
	}
	for i := range c.Waits {
		m.remember(c, c.Waits[i].Key)
		replace(&c.Waits[i].Key, m.keys)
	}
	for i := range c.jobs.Jobs {
		m.remember(c, c.jobs.Jobs[i].Key)
		replace(&c.jobs.Jobs[i].Key, m.keys)
		replace(&c.jobs.Jobs[i].By, m.notes)
		replace(&c.jobs.Jobs[i].Err, m.notes)
		replace(&c.jobs.Jobs[i].PausedBy, m.notes)
	}
	for _, runs := range c.runs {
		for i := range runs {
			replace(&runs[i].By, m.notes)
			replace(&runs[i].Err, m.notes)
		}
	}
	for _, leaders := range [][]ops.Leader{c.leaders, c.vacant} {
		for i := range leaders {
			l := &leaders[i]
			m.remember(c, l.Key)
			replace(&l.Key, m.keys)
			replace(&l.By, m.notes)
			for i := range l.Standby {
				replace(&l.Standby[i], m.notes)
			}
		}
	}
	m.tree(c.tree)
}

func (m masks) lease(l *ops.Lease) {
	replace(&l.Key, m.keys)
	replace(&l.Owner, m.notes)
	replace(&l.Label, m.notes)
	replace(&l.Asked, m.notes)
}

func (m masks) tree(nodes []*ops.Node) {
	for _, n := range nodes {
		replace(&n.Key, m.keys)
		for i := range n.Leases {
			m.lease(&n.Leases[i])
		}
		for i := range n.Waiters {
			replace(&n.Waiters[i].Key, m.keys)
			m.tree(n.Waiters[i].Holds)
		}
	}
}

// remember notes which key is behind a mask.
func (m masks) remember(c *content, key string) {
	if m.keys == nil || key == "" {
		return
	}
	masked := m.keys(key)
	if other, known := c.names[masked]; known && other != key {
		key = ""
	}
	c.names[masked] = key
}

// reveal returns how the key that a viewer has named is shown, and the key itself, which is
// empty if a mask stands for several.
func (m masks) reveal(c content, named string) (shown, key string) {
	if m.keys == nil || named == "" {
		return named, named
	}
	if key, known := c.names[named]; known {
		return named, key
	}
	return m.keys(named), named
}

var (
	ownStatement = regexp.MustCompile(`^lockstep \w+$`)
	ofSqlc       = regexp.MustCompile(`^query (\w+)(?:: |$)`)
	oneWord      = regexp.MustCompile(`^[A-Za-z]+$`)
)

// verb returns what is shown of a statement: its name if it is one of lockstep's or was made by
// sqlc, else its first word, since others hold business data.
func verb(statement string) string {
	if ownStatement.MatchString(statement) {
		return statement
	}
	if made := ofSqlc.FindStringSubmatch(statement); made != nil {
		return "query " + made[1]
	}
	word, _, more := strings.Cut(statement, " ")
	switch {
	case statement == "":
		return ""
	case !oneWord.MatchString(word):
		return "…"
	case more:
		return strings.ToUpper(word) + " …"
	}
	return strings.ToUpper(word)
}
