package lockhttp

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

// sampleForm is a step of the last hour, in JSON. Looks have no sample where nobody looked.
type sampleForm struct {
	AgoSeconds int          `json:"ago_s"`
	Locks      int          `json:"locks"`
	Leases     int          `json:"leases"`
	Waits      int          `json:"waits"`
	Longest    ops.Seconds  `json:"longest_wait_s"`
	Grants     float64      `json:"grants_per_s"`                // of locks of transactions, by their tokens: at least
	Most       float64      `json:"grants_per_s_most,omitempty"` // by the rows that MySQL has updated: at most
	Own        *ownFormHour `json:"process,omitempty"`
}

// ownFormHour is what the Recorder has counted.
type ownFormHour struct {
	Granted int         `json:"granted"`
	Refused int         `json:"refused"`
	Lost    int         `json:"lost"`
	Mean    ops.Seconds `json:"mean_s"`
	Longest ops.Seconds `json:"longest_s"`
}

func (c *call) overview() ([]section, any) {
	now := time.Now()
	_, seen := c.history.events(now)
	_, own := c.recorder.events(now)
	waited := queuesOf(c.Waits)
	events := c.timeline()
	troubles := c.attention()
	sections := []section{
		{ID: "attention", Title: "Needs a person", Text: strings.TrimSpace(c.OlderLeases() + " " + c.jobsOlder()), Table: c.attentionTable(troubles)},
		{ID: "now", Title: "Keys with waiters", Table: c.queueTable(waited[:min(len(waited), 10)])},
		{ID: "hour", Title: "The last hour", Text: asSeen("The server is queried only while a page is open; the lines have gaps where none was. They count what was held and waited for.", c.Hiding()), Charts: c.charts(seen, own)},
		{ID: "events", Title: "Last events", Table: c.eventTable(events[:min(len(events), 10)])},
	}
	return sections, struct {
		seenForm
		Trouble  []trouble    `json:"attention"`
		Version  string       `json:"version"`
		Database string       `json:"database"`
		User     string       `json:"user"`
		Locks    int          `json:"locks"`
		Leases   int          `json:"leases"`
		Waits    int          `json:"waits"`
		Samples  []sampleForm `json:"samples"`
	}{c.seen(), troubles, c.Version, c.Database, c.User, len(c.Locks), c.holding(), len(c.Waits), samples(seen, own)}
}

func samples(seen []point[seenSample], own []point[ownSample]) []sampleForm {
	byPlace := make(map[int]*sampleForm)
	at := func(x int) *sampleForm {
		if byPlace[x] == nil {
			byPlace[x] = &sampleForm{AgoSeconds: (int(steps) - 1 - x) * int(step/time.Second)}
		}
		return byPlace[x]
	}
	for _, p := range seen {
		s, f := p.sample, at(p.x)
		f.Locks, f.Leases, f.Waits, f.Longest, f.Grants, f.Most = s.locks, s.leases, s.waits, s.longest, rate(s.grants, s.over), rate(s.most, s.counted)
	}
	for _, p := range own {
		s := p.sample
		at(p.x).Own = &ownFormHour{s.granted, s.refused, s.lost, mean(s), ops.Seconds(s.longest.Seconds())}
	}
	all := []sampleForm{}
	for _, f := range byPlace {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b sampleForm) int { return cmp.Compare(b.AgoSeconds, a.AgoSeconds) })
	return all
}

func rate(n float64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return n / over.Seconds()
}

func mean(s ownSample) ops.Seconds {
	if s.granted == 0 {
		return 0
	}
	return ops.Seconds(s.took.Seconds() / float64(s.granted))
}

// charts draws the last hour: what looks have seen of all programs, and what the Recorder
// has counted in this one.
func (c *call) charts(seen []point[seenSample], own []point[ownSample]) []chart {
	ofLooks := func(name string, value func(seenSample) float64) line { return newLine(name, seen, value) }
	charts := []chart{
		newChart("held", "Held", number, ofLooks("locks", func(s seenSample) float64 { return float64(s.locks) }),
			ofLooks("leases", func(s seenSample) float64 { return float64(s.leases) })),
		newChart("waiting", "Waiting sessions", number, ofLooks("sessions", func(s seenSample) float64 { return float64(s.waits) })),
		newChart("longest", "Longest wait", duration, ofLooks("wait", func(s seenSample) float64 { return float64(s.longest) })),
		grantsChart(seen),
	}
	if c.recorder == nil {
		return charts
	}
	ofProcess := func(name string, value func(ownSample) float64) line { return newLine(name, own, value) }
	return append(charts,
		newChart("own-rate", "Of this process", perSecond, ofProcess("granted", func(s ownSample) float64 { return rate(float64(s.granted), step) }),
			ofProcess("refused", func(s ownSample) float64 { return rate(float64(s.refused), step) })),
		newChart("own-wait", "Time until a grant in this process", duration, ofProcess("mean", func(s ownSample) float64 { return float64(mean(s)) }),
			ofProcess("longest", func(s ownSample) float64 { return s.longest.Seconds() })))
}

// grantsChart draws how often locks were granted. Looks see the tokens only of keys that are held just
// then; MySQL counts the rows that were updated, which grants can't exceed.
func grantsChart(seen []point[seenSample]) chart {
	lines := []line{newLine("at least, by tokens", seen, func(s seenSample) float64 { return rate(s.grants, s.over) })}
	counted := slices.DeleteFunc(slices.Clone(seen), func(p point[seenSample]) bool { return p.sample.counted == 0 })
	if len(counted) > 0 {
		lines = append(lines, newLine("at most, by rows updated", counted, func(s seenSample) float64 { return rate(s.most, s.counted) }))
	}
	drawn := newChart("grants", "Grants of transaction locks", perSecond, lines...)
	drawn.Note = "Tokens count only keys that were held when the server was queried."
	return drawn
}

func (c *call) events() ([]section, any) {
	found := keep(c.timeline(), func(e happening) bool { return c.matches(e.Key, e.Owner, e.What) })
	text := "What queries of the server have seen while a page was open."
	if c.recorder != nil {
		text = "What this process has reported (process), and what queries of the server have seen while a page was open (server)."
	}
	return []section{{ID: "events", Text: text, Table: c.eventTable(found)}}, struct {
		seenForm
		Events []happening `json:"events"`
	}{c.seen(), found}
}

func (c *call) eventTable(events []happening) *table {
	return c.newTable("events", "The last events, the newest first", "Nothing has happened yet.", "Time, Event, Key, Kind, Owner, Took, Why, From", len(events), func(i int) row {
		e := events[i]
		at := row{ID: idOf("event", e.At.UnixNano(), e.What, e.Key, e.Slot, e.Token)}
		if e.What == "lost" || e.What == "dropped" || e.What == "doomed" {
			at.Class = "late"
		}
		key := rowCell(ops.Row{Kind: ops.Kind(e.Kind), Key: e.Key, Slot: e.Slot})
		if key.Head = false; e.Key != "" {
			key.Text = ops.Shown(e.Key) // the kind has its own column
		}
		at.Cells = []cell{{Time: e.At.UTC().Format(exactly), Text: ago(time.Since(e.At)), Head: true}, text(e.What), key, text(e.Kind), text(e.Owner), text(duration(float64(e.Took))), text(e.Why), text(e.From)}
		return at
	})
}

// duration writes seconds for people, those below one as milliseconds.
func duration(seconds float64) string {
	if seconds < 1 {
		return fmt.Sprintf("%.1fms", math.Max(0, seconds)*1000)
	}
	return ops.Seconds(seconds).String()
}
