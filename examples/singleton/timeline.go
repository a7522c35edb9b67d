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
	plan    []planned
	results []result
}

// turn is one time that a worker led.
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

// planned is one row of the plan.
type planned struct {
	item   int64
	worker string
	token  uint64
}

// result is one row of what was done.
type result struct {
	item, result int64
	worker       string
}

// read reads the plan, and what was done, in the order in which they were written.
func (h *history) read(ctx context.Context, db *sql.DB) error {
	err := each(ctx, db, "SELECT item, worker, token FROM plan ORDER BY id", func(rows *sql.Rows) error {
		var p planned
		defer func() { h.plan = append(h.plan, p) }()
		return rows.Scan(&p.item, &p.worker, &p.token)
	})
	if err != nil {
		return err
	}
	return each(ctx, db, "SELECT item, result, worker FROM results ORDER BY id", func(rows *sql.Rows) error {
		var r result
		defer func() { h.results = append(h.results, r) }()
		return rows.Scan(&r.item, &r.result, &r.worker)
	})
}

// each calls a function for each row of a query.
func each(ctx context.Context, db *sql.DB, query string, f func(*sql.Rows) error) (err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// check returns an error where an item was not planned exactly once and in its turn, or
// not done exactly once, or nobody has taken over.
func (h *history) check(c config) error {
	if h.takeOver() < 0 {
		return errors.New("nobody was killed and followed by another")
	}
	for i, p := range h.plan {
		if want := int64(i + 1); p.item != want {
			return fmt.Errorf("row %d of the plan is item %d", want, p.item)
		}
		if i > 0 && p.token < h.plan[i-1].token {
			return fmt.Errorf("item %d was planned under token %d, after one under token %d", p.item, p.token, h.plan[i-1].token)
		}
	}
	if n := int64(len(h.plan)); n != c.items {
		return fmt.Errorf("%d items were planned, not %d", n, c.items)
	}
	done := make(map[int64]bool)
	for _, r := range h.results {
		if done[r.item] || r.result != r.item*r.item {
			return fmt.Errorf("item %d has the result %d, or was done twice", r.item, r.result)
		}
		done[r.item] = true
	}
	if n := int64(len(done)); n != c.items {
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
	line(h.began, "%d processes start; the time to live is %v, to plan an item takes %v, and to do it", c.workers, c.ttl, c.takes)
	for i, t := range h.turns {
		after := ""
		if i > 0 && h.turns[i-1].how == killed {
			after = fmt.Sprintf(", %.3f s after the kill", h.takeOver().Seconds())
		}
		if t.item <= c.items {
			after += fmt.Sprintf(", and goes on from item %d", t.item)
		}
		line(t.from, "%s leads with token %d%s", t.worker, t.token, after)
		first, last := h.planned(t.token)
		done := fmt.Sprintf("has planned the items %d to %d", first, last)
		if first == 0 {
			done = "has found nothing left to plan"
		}
		line(t.to, "%s %s and %s", t.worker, done, map[string]string{
			ends: "leads no more", loses: "has lost the lead", killed: "is killed in the middle of the next",
		}[t.how])
	}
	if err != nil {
		return err
	}
	byWorker := make(map[string]int)
	for _, r := range h.results {
		byWorker[r.worker]++
	}
	_, err = fmt.Fprintf(w, "%d items, %d planned, %d done: %v\n", c.items, len(h.plan), len(h.results), byWorker)
	return err
}

// planned returns the first and the last item that were planned under a token.
func (h *history) planned(token uint64) (first, last int64) {
	for _, p := range h.plan {
		if p.token != token {
			continue
		}
		if first == 0 {
			first = p.item
		}
		last = p.item
	}
	return first, last
}
