package lockhttp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
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
	if got := strings.Join(words, "; "); len(events) != 503 || got != "dropped ; refused another error; lost "+reason(txlock.ErrLost)+"; released " || strings.Contains(got, "order") {
		t.Errorf("there are %d events, with %s", len(events), got)
	}
	if len(hour) != 2 || hour[1].x-hour[0].x != 6 || hour[0].sample.lost != 1 || hour[1].sample.granted != 1000 || hour[1].sample.refused != 1 || mean(hour[1].sample) != 1 {
		t.Errorf("the hour is %+v", hour)
	}
	if _, later := r.events(now.Add(time.Hour)); len(later) != 0 {
		t.Errorf("an hour later there is %+v", later)
	}
}

// TestHistory proves that looks tell what is new and what is gone, unless there was no look
// for a while.
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
	for _, c := range []struct {
		after time.Duration
		token uint64
		want  string
	}{
		{0, 1, ""}, {time.Second, 1, ""}, {time.Second, 2, "held2 ended1"}, {time.Second, 0, "ended2 held2 ended1"}, {time.Minute, 3, "ended2 held2 ended1"},
	} {
		if got := look(c.after, c.token); got != c.want {
			t.Errorf("with token %d after %v the news are %q, not %q", c.token, c.after, got, c.want)
		}
	}
	if _, hour := h.events(at); len(hour) != 2 || hour[0].sample.grants < 0.4 || hour[0].sample.grants > 0.6 || hour[0].sample.most != 30 || hour[0].sample.counted != 3*time.Second || hour[0].sample.waits != 1 || hour[0].sample.longest != 3 || hour[0].sample.leases != 0 || hour[0].sample.over != 3*time.Second {
		t.Errorf("the hour is %+v", hour)
	}
}

// TestChart proves that lines are drawn in one scale, with gaps.
func TestChart(t *testing.T) {
	t.Parallel()
	points := []point[float64]{{0, 0}, {1, 30}, {5, 50}}
	c := newChart("held", "Held", number, newLine("locks", points, func(v float64) float64 { return v }))
	if l := c.Lines[0]; c.Top != "50" || l.Path != "M0 80.0h.01L1 32.0M5 0.0h.01" || l.Last != "50" || c.Text != "locks: 50 at last, at most 50" {
		t.Errorf("the chart is %+v", c)
	}
	if c.Half != "25" || len(c.Spans) != spans || c.Spans[0].Name != "60–50 min ago" || c.Spans[0].Values[0] != "50" || c.Spans[5].Values[0] != "–" {
		t.Errorf("its numbers are %+v", c.Spans)
	}
	if c := newChart("held", "Held", duration, newLine[float64]("none", nil, nil)); c.Text != "nothing was seen yet" || c.Top != "1.0s" {
		t.Errorf("the empty chart is %+v", c)
	}
	for v, want := range map[float64]float64{0: 1, 0.03: 0.05, 1: 1, 1.2: 2, 7: 10, 99: 100, 101: 200} {
		if got := rounded(v); got < want*0.999 || got > want*1.001 {
			t.Errorf("%v is rounded to %v, not %v", v, got, want)
		}
	}
	for v, want := range map[float64]string{0.0625: "0.0625", 99.95: "100", 442: "442", 20_000: "20000", 1_234_567.8: "1234568"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %s, not %s", v, got, want)
		}
	}
}

// TestVerb proves that a statement is shown without what it says.
func TestVerb(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]string{
		"": "", "lockstep LockNamed": "lockstep LockNamed", "lockstep x, 'secret'": "LOCKSTEP …", "update t SET a = 'secret'": "UPDATE …", "COMMIT": "COMMIT",
		"/* secret */ SELECT 1": "…", "query GetOrder: SELECT 'secret'": "query GetOrder", "query GetOrder": "query GetOrder", "'secret'": "…",
	} {
		if got := verb(statement); got != want {
			t.Errorf("%q is shown as %q, not %q", statement, got, want)
		}
	}
}

// TestSessionsOfOneQueue proves that the waiters of a lease's queue are counted with the
// first of them.
func TestSessionsOfOneQueue(t *testing.T) {
	t.Parallel()
	lease := ops.Row{Kind: ops.LeaseRow, Key: "report"}
	queue := ops.Row{Kind: ops.Queue, Key: "report", Slot: -1}
	order := ops.Row{Kind: ops.Named, Key: "order:42"}
	all := queuesOf([]ops.Wait{{Row: order, Session: 9, For: 8, Blockers: []uint64{3}}, {Row: lease, Session: 7, For: 5}, {Row: queue, Session: 8, For: 4, Blockers: []uint64{7}}})
	if got := fmt.Sprintf("%+v", all); len(all) != 2 || all[0].Waiters != 2 || all[0].First != 7 || len(all[0].Holders) != 0 || all[1].Holders[0] != 3 {
		t.Errorf("the queues are %s", got)
	}
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
	if err != nil || first.err != nil || first.number != 1 {
		t.Fatalf("the first look is %+v, %v", first, err)
	}
	second, err := s.next(t.Context(), first.number, demand{jobs: true, keys: map[string]bool{"a": true}})
	if err != nil || !errors.Is(second.err, down) || second.Picture != first.Picture || second.ended.Sub(first.ended) < every {
		t.Errorf("the second look is %+v, %v", second, err)
	}
	old := time.Since(second.ended) >= every
	again, err := s.next(t.Context(), 0, demand{keys: map[string]bool{"a": true}})
	if err != nil || again != second && !old {
		t.Errorf("what is there is looked for again: %+v, %v", again, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.next(ctx, 2, demand{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a viewer who has gone gets %v", err)
	}
	s.close()
	if _, err := s.next(t.Context(), 0, demand{}); !errors.Is(err, errClosed) {
		t.Errorf("after its end there is %v", err)
	}
	<-asked
	if d := <-asked; !d.jobs || !d.keys["a"] {
		t.Errorf("the second look is asked for %+v", d)
	}
}
