package lockhttp

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestRecorder proves that many grants don't hide a loss, that the last hour is counted,
// and that errors are told by what they are, without keys.
func TestRecorder(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	r := NewRecorder()
	r.now = func() time.Time { return now }
	observe := func(kind txlock.Kind, err error) {
		r.Observe(t.Context(), txlock.Event{Kind: kind, Key: txlock.Named("order:42"), Took: time.Second, Err: err, Lease: true})
	}
	observe(txlock.Lost, fmt.Errorf("lease order:42: %w", txlock.ErrLost))
	now = now.Add(time.Minute)
	for range 1000 {
		observe(txlock.Granted, nil)
		observe(txlock.Renewed, nil)
	}
	observe(txlock.Refused, errors.New("order:42"))
	observe(txlock.Dropped, nil)
	observe(txlock.Waited, context.Canceled)
	observe(txlock.Released, nil)
	events, hour := r.events(now)
	var words []string
	for _, e := range events[:4] {
		words = append(words, e.What+" "+e.Why)
	}
	got := strings.Join(words, "; ")
	testdb.ErrorIf(t, len(events) != 503 || got != "dropped ; refused another error; lost "+reason(txlock.ErrLost)+"; released " || strings.Contains(got, "order"),
		"there are %d events, with %s", len(events), got)
	if len(hour) != 2 || hour[1].x-hour[0].x != 6 || hour[0].sample.lost != 1 || hour[1].sample.granted != 1000 || hour[1].sample.refused != 1 || mean(hour[1].sample) != 1 {
		t.Errorf("the hour is %+v", hour)
	}
	_, later := r.events(now.Add(time.Hour))
	testdb.ErrorIf(t, len(later) != 0, "an hour later there is %+v", later)
}

// TestHistory proves that looks tell what is new and what is gone, unless there was no look for a while.
func TestHistory(t *testing.T) {
	t.Parallel()
	var h history
	at := time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	first, updates := uint64(at.UnixMicro()), 1000.0
	look := func(after time.Duration, token uint64) string {
		at = at.Add(after)
		updates += 10
		p := &ops.Picture{Taken: at, Waits: []ops.Wait{{For: 3}}, Leases: []ops.Lease{{Key: "report", Kind: "waiter"}}}
		if token > 0 {
			p.Locks = []ops.Lock{{Row: ops.Row{Kind: ops.Named, Key: "order:42"}, Session: 51, Token: first + token}}
		}
		h.note(at, content{Picture: p}, updates)
		var words []string
		news, _ := h.events(at)
		for _, e := range news {
			words = append(words, fmt.Sprint(e.What, e.Token-first))
		}
		return strings.Join(words, " ")
	}
	news := [...]string{look(0, 1), look(time.Second, 1), look(time.Second, 2), look(time.Second, 0), look(time.Minute, 3)}
	testdb.Equal(t, "the news", news, [...]string{"", "", "held2 ended1", "ended2 held2 ended1", "ended2 held2 ended1"})
	if _, hour := h.events(at); len(hour) != 2 || hour[0].sample.grants < 0.4 || hour[0].sample.grants > 0.6 || hour[0].sample.most != 30 || hour[0].sample.counted != 3*time.Second || hour[0].sample.waits != 1 || hour[0].sample.longest != 3 || hour[0].sample.leases != 0 || hour[0].sample.over != 3*time.Second {
		t.Errorf("the hour is %+v", hour)
	}
}

// TestChart proves that lines are drawn in one scale, with gaps.
func TestChart(t *testing.T) {
	t.Parallel()
	points := []point[float64]{{0, 0}, {1, 30}, {5, 50}}
	c := newChart("held", "Held", number, newLine("locks", points, func(v float64) float64 { return v }))
	l := c.Lines[0]
	testdb.ErrorIf(t, c.Top != "50" || l.Path != "M0 80.0h.01L1 32.0M5 0.0h.01" || l.Last != "50" || c.Text != "locks: 50 at last, at most 50", "the chart is %+v", c)
	testdb.ErrorIf(t, c.Half != "25" || len(c.Spans) != spans || c.Spans[0].Name != "60–50 min ago" || c.Spans[0].Values[0] != "50" || c.Spans[5].Values[0] != "–",
		"its numbers are %+v", c.Spans)
	c = newChart("held", "Held", duration, newLine[float64]("none", nil, nil))
	testdb.ErrorIf(t, c.Text != "nothing was seen yet" || c.Top != "1.0s", "the empty chart is %+v", c)
	for v, want := range map[float64]float64{0: 1, 0.03: 0.05, 1: 1, 1.2: 2, 7: 10, 99: 100, 101: 200} {
		got := rounded(v)
		testdb.ErrorIf(t, got < want*0.999 || got > want*1.001, "%v is rounded to %v, not %v", v, got, want)
	}
	for v, want := range map[float64]string{0.0625: "0.0625", 99.95: "100", 442: "442", 20_000: "20000", 1_234_567.8: "1234568"} {
		testdb.Equal(t, fmt.Sprintf("how %v is written", v), number(v), want)
	}
}

// TestVerb proves that a statement is shown without what it says.
func TestVerb(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]string{
		"": "", "lockstep LockNamed": "lockstep LockNamed", "lockstep x, 'secret'": "LOCKSTEP …", "update t SET a = 'secret'": "UPDATE …", "COMMIT": "COMMIT",
		"/* secret */ SELECT 1": "…", "query GetOrder: SELECT 'secret'": "query GetOrder", "query GetOrder": "query GetOrder", "'secret'": "…",
	} {
		testdb.Equal(t, fmt.Sprintf("how %q is shown", statement), verb(statement), want)
	}
}

// TestSessionsOfOneQueue proves that the waiters of a lease's queue are counted with the first of them.
func TestSessionsOfOneQueue(t *testing.T) {
	t.Parallel()
	lease := ops.Row{Kind: ops.LeaseRow, Key: "report"}
	queue := ops.Row{Kind: ops.Queue, Key: "report", Slot: -1}
	order := ops.Row{Kind: ops.Named, Key: "order:42"}
	all := queuesOf([]ops.Wait{{Row: order, Session: 9, For: 8, Blockers: []uint64{3}}, {Row: lease, Session: 7, For: 5}, {Row: queue, Session: 8, For: 4, Blockers: []uint64{7}}})
	got := fmt.Sprintf("%+v", all)
	testdb.ErrorIf(t, len(all) != 2 || all[0].Waiters != 2 || all[0].First != 7 || len(all[0].Holders) != 0 || all[1].Holders[0] != 3, "the queues are %s", got)
}

// TestSampler proves that what was seen last is shown with the error of a later look, that
// what viewers demand is looked for, once, and that nobody looks without being asked.
func TestSampler(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	asked := make(chan demand, 9)
	s := newSampler(func(_ context.Context, d demand) *snapshot {
		asked <- d
		if len(asked) > 1 {
			return &snapshot{err: down}
		}
		return &snapshot{content: content{Picture: &ops.Picture{Version: "1"}}}
	})
	first, err := s.next(t.Context(), 0, demand{})
	testdb.FatalIf(t, err != nil || first.err != nil || first.number != 1, "the first look is %+v, %v", first, err)
	second, err := s.next(t.Context(), first.number, demand{jobs: true, keys: map[string]bool{"a": true}})
	testdb.ErrorIf(t, err != nil || !errors.Is(second.err, down) || second.Picture != first.Picture || second.ended.Sub(first.ended) < every,
		"the second look is %+v, %v", second, err)
	old := time.Since(second.ended) >= every
	again, err := s.next(t.Context(), 0, demand{keys: map[string]bool{"a": true}})
	testdb.ErrorIf(t, err != nil || again != second && !old, "what is there is looked for again: %+v, %v", again, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.next(ctx, 2, demand{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a viewer who has gone gets %v", err)
	}
	s.close()
	_, err = s.next(t.Context(), 0, demand{})
	testdb.ErrorIf(t, !errors.Is(err, errClosed), "after its end there is %v", err)
	<-asked
	d := <-asked
	testdb.ErrorIf(t, !d.jobs || !d.keys["a"], "the second look is asked for %+v", d)
}

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
	texts := ""
	for _, a := range c.attention() {
		got = append(got, fmt.Sprintf("%s %s %v", a.What, a.Key, float64(a.For)))
		texts += a.Text + "\n"
	}
	if want := "deadlock circle 3, no leader scheduler 0, no leader old 0, wait order:42 90, overdue job late 120, long job long 300, failing job broken 3600, prepared order:9 7, late lease report 25"; strings.Join(got, ", ") != want {
		t.Errorf("there are %s, want %s", strings.Join(got, ", "), want)
	}
	testdb.Says(t, "the texts", texts, "2 sessions waiting; held by session 3; held by session 8; and 1 more session", "2 processes on standby",
		"no process stands for election", "overdue by 2m0s", "too long by 1m0s", "failed 3 times in 1h0m: no paper")
	rows := c.attentionTable(nil)
	testdb.ErrorIf(t, len(rows.Rows) != 0 || !strings.HasPrefix(rows.Empty, "Nothing:"), "nothing is shown as %+v", rows)
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
		testdb.ErrorIf(t, err != nil || strings.Contains(string(written), "NaN") || !strings.Contains(string(written), `_s":null`),
			"the JSON of %s is %s, %v", page, written, err)
		for _, cell := range sections[0].Table.Rows[0].Cells {
			testdb.ErrorIf(t, strings.Contains(cell.Text, "NaN") || strings.Contains(cell.Text, "-9223372036") || strings.Contains(cell.Text, "ago"),
				"a cell of %s is %q", page, cell.Text)
		}
	}
}

// TestAlikeKeys proves that no two keys look alike on a page, and that each leads to its own.
func TestAlikeKeys(t *testing.T) {
	t.Parallel()
	shown := make(map[string]string)
	for _, key := range []string{"tab\there", `tab\there`, "a  b", "a b", "slot 7", `"slot 7"`, "a", " a", "zero\u200bwidth", "zerowidth"} {
		for _, cell := range []cell{keyCell(key), rowCell(ops.Row{Kind: ops.Named, Key: key})} {
			other, twice := shown[cell.Text]
			testdb.ErrorIf(t, twice && other != key || cell.Href != keyHref(key), "%q and %q are shown as %s, and lead to %s", key, other, cell.Text, cell.Href)
			shown[cell.Text] = key
		}
	}
	slot := rowCell(ops.Row{Kind: ops.Hashed, Slot: 7})
	testdb.ErrorIf(t, shown[slot.Text] != "", "the key %q is shown as the slot is: %s", shown[slot.Text], slot.Text)
}

// TestOldParts proves that each page says, in text and in JSON, how old what it shows is, if that is
// older than the look, and that jobs that can't be read any more are shown with their age.
func TestOldParts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	for read, want := range map[time.Time]string{now.Add(-12 * time.Second): "read 12 s ago", now.Add(50 * time.Millisecond): "", {}: ""} {
		c := &call{content: content{Picture: &ops.Picture{Taken: now}, jobs: ops.Jobs{Now: read}}}
		got := c.jobsOlder()
		testdb.ErrorIf(t, (got == "") != (want == "") || !strings.Contains(got, want), "of jobs of %v is said %q", read, got)
	}
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
			testdb.ErrorIf(t, err != nil || !strings.Contains(string(written), words[1]) || words[0] == "" && strings.Contains(string(written), "_age_s"),
				"%s has the JSON %s, %v", p.name, written, err)
			testdb.ErrorIf(t, strings.Contains(string(written), `"now"`), "%s says when jobs were read that weren't: %s", p.name, written)
			text := ""
			for _, s := range sections {
				text += s.Text
			}
			ofLocks, ofNone := p.name == "locks", slices.Contains([]string{"jobs", "events"}, p.name)
			is := words[0] != "" && !ofNone && ofLocks == (age.LocksAge > 0)
			testdb.ErrorIf(t, strings.Contains(text, " ago") != is || is && !strings.Contains(text, words[0]), "%+v is said on the page %q: %q", age, p.name, text)
		}
	}
}

// TestAgo writes how long ago something was.
func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 s ago", 59 * time.Second: "59 s ago", 3*time.Minute + 50*time.Second: "3 m ago", 26 * time.Hour: "1 d ago", 5 * time.Hour: "5 h ago", -90 * time.Second: "in 1 m",
	} {
		testdb.Equal(t, fmt.Sprintf("how %v is written", d), ago(d), want)
	}
	c := &call{content: content{Picture: &ops.Picture{Taken: time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)}}}
	at := c.at(time.Date(2026, 11, 23, 3, 9, 0, 0, time.UTC))
	testdb.ErrorIf(t, at.Text != "3 m ago" || at.Time != "2026-11-23 03:09:00.000 UTC", "a time is %+v", at)
	none := c.at(time.Time{})
	testdb.ErrorIf(t, none.Text != "–" || none.Time != "", "no time is %+v", none)
}
