package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"
)

// history is what happened.
type history struct {
	began   time.Time
	turns   []turn
	killed  string // the worker
	results []result
}

// turn is one time that a worker held the lease.
type turn struct {
	worker   string
	token    uint64
	item     int64 // where it went on
	from, to time.Time
	how      string // it has ended: ends, loses or killed
}

const killed = "killed"

// follow takes the reports of so many processes until all are gone. The function is
// called for each; its error is returned, after that.
func (h *history) follow(reports <-chan report, processes int, each func(report) error) error {
	var errs []error
	for processes > 0 {
		r := <-reports
		if r.What == gone {
			processes--
		}
		errs = append(errs, h.note(r))
		if each != nil {
			errs = append(errs, each(r))
		}
	}
	return errors.Join(errs...)
}

// note adds a report to the history. A process may end in an error only where it was
// killed.
func (h *history) note(r report) error {
	switch r.What {
	case holds:
		h.turns = append(h.turns, turn{worker: r.Worker, token: r.Token, item: r.Item, from: r.at})
	case ends, loses:
		h.over(r.Worker, r.What, r.at)
	case gone:
		if r.err != nil && r.Worker != h.killed {
			return fmt.Errorf("%s: %w", r.Worker, r.err)
		}
	}
	return nil
}

// kills notes that a worker is being killed.
func (h *history) kills(worker string) {
	h.killed = worker
	h.over(worker, killed, time.Now())
}

// over ends the turn that a worker has.
func (h *history) over(worker, how string, at time.Time) {
	for i := range h.turns {
		if t := &h.turns[i]; t.worker == worker && t.how == "" {
			t.how, t.to = how, at
		}
	}
}

// takeOver returns how long after the kill the next worker had the lease.
func (h *history) takeOver() time.Duration {
	for i, t := range h.turns {
		if t.how == killed && i+1 < len(h.turns) {
			return h.turns[i+1].from.Sub(t.to)
		}
	}
	return -1
}

// result is one row of what was done.
type result struct {
	item, result int64
	worker       string
	token        uint64
}

// readResults reads them in the order in which they were written.
func readResults(ctx context.Context, db *sql.DB) (_ []result, err error) {
	rows, err := db.QueryContext(ctx, "SELECT item, result, worker, token FROM results ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all []result
	for rows.Next() {
		var r result
		if err := rows.Scan(&r.item, &r.result, &r.worker, &r.token); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// check returns an error where an item was not done exactly once and in its turn,
// or nobody has taken over.
func (h *history) check(c config) error {
	if h.takeOver() < 0 {
		return errors.New("nobody was killed and followed by another")
	}
	for i, r := range h.results {
		if want := int64(i + 1); r.item != want || r.result != want*want {
			return fmt.Errorf("result %d is that of item %d: %d", want, r.item, r.result)
		}
		if i > 0 && r.token < h.results[i-1].token {
			return fmt.Errorf("item %d was done under token %d, after one under token %d", r.item, r.token, h.results[i-1].token)
		}
	}
	if n := int64(len(h.results)); n != c.items {
		return fmt.Errorf("%d items were done, not %d", n, c.items)
	}
	return nil
}

// print writes the timeline.
func (h *history) print(w io.Writer, c config) error {
	var err error
	line := func(at time.Time, format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, "%7.3f s  %s\n", at.Sub(h.began).Seconds(), fmt.Sprintf(format, args...))
		}
	}
	line(h.began, "%d processes start; the lease lives %v, an item takes %v", c.workers, c.ttl, c.takes)
	for i, t := range h.turns {
		after := ""
		if i > 0 && h.turns[i-1].how == killed {
			after = fmt.Sprintf(", %.3f s after the kill", h.takeOver().Seconds())
		}
		if t.item <= c.items {
			after += fmt.Sprintf(", and goes on from item %d", t.item)
		}
		line(t.from, "%s holds the lease with token %d%s", t.worker, t.token, after)
		first, last := h.done(t.token)
		done := fmt.Sprintf("has done the items %d to %d", first, last)
		if first == 0 {
			done = "has found nothing left to do"
		}
		line(t.to, "%s %s and %s", t.worker, done, map[string]string{
			ends: "gives the lease back", loses: "has lost the lease", killed: "is killed in the middle of the next",
		}[t.how])
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%d items, %d results\n", c.items, len(h.results))
	return err
}

// done returns the first and the last item that were done under a token.
func (h *history) done(token uint64) (first, last int64) {
	for _, r := range h.results {
		if r.token != token {
			continue
		}
		if first == 0 {
			first = r.item
		}
		last = r.item
	}
	return first, last
}
