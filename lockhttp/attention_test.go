package lockhttp

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

// TestAttention proves that the first screen has what needs a person, the most urgent first, and
// nothing of what is as it should be.
func TestAttention(t *testing.T) {
	t.Parallel()
	key := func(name string) ops.Row { return ops.Row{Kind: ops.Named, Key: name} }
	circle := &ops.Node{Row: key("circle"), Deadlock: true, Holders: []uint64{1}, Waiters: []ops.Waiter{{Wait: ops.Wait{Session: 2, For: 3}}}}
	below := &ops.Node{Row: key("order:77"), Holders: []uint64{4}, Waiters: []ops.Waiter{{Wait: ops.Wait{Session: 5, For: 90}}}}
	root := &ops.Node{Row: key("order:42"), Holders: []uint64{3, 8, 9}, Waiters: []ops.Waiter{{Wait: ops.Wait{Session: 4, For: 60}, Holds: []*ops.Node{below}}}}
	short := &ops.Node{Row: key("order:1"), Holders: []uint64{6}, Waiters: []ops.Waiter{{Wait: ops.Wait{Session: 7, For: 0.2}}}}
	now := time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	p := &ops.Picture{
		Locks:  []ops.Lock{{Row: key("order:9"), Detached: true, Held: 7}, {Row: key("order:42"), Session: 3, Held: 100}},
		Leases: []ops.Lease{{Key: "report", Kind: "exclusive", TTL: 30, Renewed: 25}, {Key: "mailer", Kind: "exclusive", TTL: 30, Renewed: 5}, {Key: "lockstep:cleanup", Kind: "exclusive", TTL: 54, Left: 1, Renewed: ops.Seconds(math.NaN())}},
	}
	c := &call{content: content{Picture: p, tree: []*ops.Node{short, root, circle}, vacant: []ops.Leader{{Key: "scheduler", Standby: []string{"a", "b"}}, {Key: "old"}}, jobs: ops.Jobs{Now: now, Jobs: []ops.JobStatus{
		{Key: "fine", State: "done"}, {Key: "late", State: "done", Overdue: 120}, {Key: "long", State: "running", TooLong: 60, Took: 300},
		{Key: "broken", State: "failed", Failing: 3, Since: now.Add(-time.Hour), Err: "no paper"}, {Key: "paused", State: "done", Paused: now},
	}}}, query: url.Values{}}
	var got []string
	for _, a := range c.attention() {
		got = append(got, fmt.Sprintf("%s %s %v", a.What, a.Key, float64(a.For)))
	}
	if want := "deadlock circle 3, no leader scheduler 0, no leader old 0, wait order:42 90, overdue job late 120, long job long 300, failing job broken 3600, prepared order:9 7, late lease report 25"; strings.Join(got, ", ") != want {
		t.Errorf("there are %s, want %s", strings.Join(got, ", "), want)
	}
	texts := ""
	for _, a := range c.attention() {
		texts += a.Text + "\n"
	}
	for _, want := range []string{"2 sessions waiting; held by session 3; held by session 8; and 1 more session", "2 processes on standby", "no process stands for election", "overdue by 2m0s", "too long by 1m0s", "failed 3 times in 1h0m: no paper"} {
		if !strings.Contains(texts, want) {
			t.Errorf("no text has %q: %s", want, texts)
		}
	}
	if rows := c.attentionTable(nil); len(rows.Rows) != 0 || !strings.HasPrefix(rows.Empty, "Nothing:") {
		t.Errorf("nothing is shown as %+v", rows)
	}
}

// TestUnknownTimes proves that a page writes no number for a time that isn't known, as text or as JSON.
func TestUnknownTimes(t *testing.T) {
	t.Parallel()
	unknown := ops.Seconds(math.NaN())
	c := &call{Handler: &Handler{}, r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), query: url.Values{}, content: content{Picture: &ops.Picture{
		Locks:    []ops.Lock{{Row: ops.Row{Kind: ops.Named, Key: "order:42"}, Mode: ops.Shared, Session: 7, Held: unknown}},
		Leases:   []ops.Lease{{Key: "lockstep:cleanup", Kind: "exclusive", TTL: 54, Left: 1, Renewed: unknown}},
		Sessions: map[uint64]ops.Session{7: {ID: 7, InTx: true, TxAge: unknown}},
	}}}
	for page, show := range map[string]func() ([]section, any){"locks": c.locks, "leases": c.leases} {
		sections, form := show()
		written, err := json.Marshal(form)
		if err != nil || strings.Contains(string(written), "NaN") || !strings.Contains(string(written), `_s":null`) {
			t.Errorf("the JSON of %s is %s, %v", page, written, err)
		}
		for _, cell := range sections[0].Table.Rows[0].Cells {
			if strings.Contains(cell.Text, "NaN") || strings.Contains(cell.Text, "-9223372036") || strings.Contains(cell.Text, "ago") {
				t.Errorf("a cell of %s is %q", page, cell.Text)
			}
		}
	}
}

// TestAlikeKeys proves that no two keys look alike on a page, and that each leads to its own.
func TestAlikeKeys(t *testing.T) {
	t.Parallel()
	shown := make(map[string]string)
	for _, key := range []string{"tab\there", `tab\there`, "a  b", "a b", "slot 7", `"slot 7"`, "a", " a", "zero\u200bwidth", "zerowidth"} {
		for _, cell := range []cell{keyCell(key), rowCell(ops.Row{Kind: ops.Named, Key: key})} {
			if other, twice := shown[cell.Text]; twice && other != key || cell.Href != keyHref(key) {
				t.Errorf("%q and %q are shown as %s, and lead to %s", key, other, cell.Text, cell.Href)
			}
			shown[cell.Text] = key
		}
	}
	if slot := rowCell(ops.Row{Kind: ops.Hashed, Slot: 7}); shown[slot.Text] != "" {
		t.Errorf("the key %q is shown as the slot is: %s", shown[slot.Text], slot.Text)
	}
}

// TestOldJobs proves that jobs that can't be read any more are shown with their age.
func TestOldJobs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	for read, want := range map[time.Time]string{now.Add(-12 * time.Second): "read 12 s ago", now.Add(50 * time.Millisecond): "", {}: ""} {
		c := &call{content: content{Picture: &ops.Picture{Taken: now}, jobs: ops.Jobs{Now: read}}}
		if got := c.jobsOlder(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("of jobs of %v is said %q", read, got)
		}
	}
}

// TestOldParts proves that each page says, in text and in JSON, how old what it shows is, if that is
// older than the look.
func TestOldParts(t *testing.T) {
	t.Parallel()
	held := []ops.Lease{{Key: "report", Kind: "exclusive"}}
	for age, words := range map[ops.Ages][]string{
		{LeasesAge: 12}: {"Leases are shown as they were 12s ago.", `"leases_age_s":12`},
		{LocksAge: 9}:   {"were looked for 9.0s ago", `"locks_age_s":9`},
		{}:              {"", `"taken"`},
	} {
		for _, p := range pages {
			c := &call{Handler: &Handler{}, content: content{Picture: &ops.Picture{Leases: held, Ages: age}}, r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), query: url.Values{"key": {"report"}}}
			sections, form := p.show(c)
			written, err := json.Marshal(form)
			if err != nil || !strings.Contains(string(written), words[1]) || words[0] == "" && strings.Contains(string(written), "_age_s") {
				t.Errorf("%s has the JSON %s, %v", p.name, written, err)
			}
			if strings.Contains(string(written), `"now"`) {
				t.Errorf("%s says when jobs were read that weren't: %s", p.name, written)
			}
			text := ""
			for _, s := range sections {
				text += s.Text
			}
			ofLocks, ofNone := p.name == "locks", slices.Contains([]string{"jobs", "events"}, p.name)
			if is := words[0] != "" && !ofNone && ofLocks == (age.LocksAge > 0); strings.Contains(text, " ago") != is || is && !strings.Contains(text, words[0]) {
				t.Errorf("%+v is said on the page %q: %q", age, p.name, text)
			}
		}
	}
}

// TestAgo writes how long ago something was.
func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 s ago", 59 * time.Second: "59 s ago", 3*time.Minute + 50*time.Second: "3 m ago", 26 * time.Hour: "1 d ago", 5 * time.Hour: "5 h ago", -90 * time.Second: "in 1 m",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v is written %q, not %q", d, got, want)
		}
	}
	c := &call{content: content{Picture: &ops.Picture{Taken: time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)}}}
	if at := c.at(time.Date(2026, 11, 23, 3, 9, 0, 0, time.UTC)); at.Text != "3 m ago" || at.Time != "2026-11-23 03:09:00.000 UTC" {
		t.Errorf("a time is %+v", at)
	}
	if none := c.at(time.Time{}); none.Text != "–" || none.Time != "" {
		t.Errorf("no time is %+v", none)
	}
}
