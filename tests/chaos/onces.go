package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// doneTwice is a sort of violation: what must be done once was done again.
const doneTwice = "done twice"

// The records that are written once begin so: those of keys of Once, of ticks in a
// transaction, and of other ticks, which may be written several times.
const (
	ofOnce   = "once:"
	ofTickTx = "instant:"
	ofTick   = "at:"
)

// tickKeys are the keys of the jobs.
var tickKeys = []string{"tick:tx", "tick:plain"}

// instant is the one that everybody asks for now.
func instant() time.Time { return time.Now().Truncate(200 * time.Millisecond) }

// write writes a record that must be written once.
func (t *transaction) write(ctx context.Context, name string) error {
	t.w.think(3 * time.Millisecond)
	t.wrote = append(t.wrote, name)
	_, err := t.ExecContext(ctx, "INSERT INTO commits VALUES (?, ?, 0, 0)", t.id, name)
	return err
}

// once is OnceValue of a key that others ask for, too. The answer is the try that has
// written the record.
func (w *worker) once() outcome {
	const each = int64(500 * time.Millisecond)
	name, answer, id := fmt.Sprintf("%s%d:%d", ofOnce, w.now()/each, w.IntN(3)), "", ""
	o := w.begin("once", name)
	came := w.transact(o, func(ctx context.Context, fn func(tx *sql.Tx) error) (err error) {
		if w.Without == "once" {
			return locksqlc.Run(ctx, w.pool, nil, func(tx *sql.Tx) error {
				err := tx.QueryRowContext(ctx, "SELECT id FROM commits WHERE name = ?", name).Scan(&answer)
				if errors.Is(err, sql.ErrNoRows) {
					err, answer = fn(tx), id
				}
				return err
			})
		}
		answer, _, err = locksqlc.OnceValue(ctx, w.pool, txlock.Named(name), func(tx *sql.Tx) (string, error) {
			err := fn(tx)
			return id, err
		})
		return err
	}, func(ctx context.Context, t *transaction) error {
		id = t.id
		return t.write(ctx, name)
	})
	if came == succeeded {
		w.journal.write(op{ID: o.ID, Answer: answer})
	}
	return came
}

// tickTx is TickTx of an instant that others ask for, too.
func (w *worker) tickTx() outcome {
	key, at := keyOf(tickKeys[0]), instant()
	name := fmt.Sprint(ofTickTx, at.UnixMilli())
	return w.transact(w.begin("tick in a transaction", name), func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		if w.Without == "tick" { // a lock alone, which is free again before the next one asks
			return w.leases.Do(ctx, key, func(ctx context.Context, _ *lease.Lease) error { return locksqlc.Run(ctx, w.pool, nil, fn) })
		}
		_, err := w.jobs.TickTx(ctx, key, at, func(_ context.Context, tx *sql.Tx, _ time.Time) error { return fn(tx) })
		return err
	}, func(ctx context.Context, t *transaction) error { return t.write(ctx, name) })
}

// tick is a Claim of an instant that others ask for, too, and its work under the lease.
func (w *worker) tick() outcome {
	key, at := tickKeys[1], instant()
	name := fmt.Sprint(ofTick, at.UnixMilli())
	var claim *job.Claim
	var refusal error
	came := w.hold(context.Background(), "tick", key, func(ctx context.Context) (*lease.Lease, error) {
		claim, refusal = w.jobs.Claim(ctx, keyOf(key), at)
		if refusal != nil {
			return nil, refusal
		}
		return claim.Lease(), nil
	}, func(h *holding) {
		h.pause()
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		defer cancel()
		working, stop := h.l.Context(ctx)
		defer stop()
		_, err := w.pool.ExecContext(working, "INSERT INTO commits VALUES (?, ?, 0, 0)", tryID(h.id, "0"), name)
		_ = claim.Finish(ctx, err) // it may be done again
	})
	if errors.Is(refusal, job.ErrDone) {
		o := w.begin("tick that was done", name)
		w.journal.write(op{ID: o.ID, Return: w.now(), Outcome: succeeded})
		return succeeded
	}
	return came
}

// checkOnces checks what must be done once, and what clients were told of it. A tick that
// is older than one that was done counts as done.
func (v *verdict) checkOnces(history []*op, d data) {
	byName := make(map[string][]commit)
	for _, c := range d.commits {
		byName[c.name] = append(byName[c.name], c)
	}
	for _, name := range sortedKeys(byName) {
		if all := byName[name]; len(all) > 1 && (strings.HasPrefix(name, ofOnce) || strings.HasPrefix(name, ofTickTx)) {
			v.add(doneTwice, "%s was done by %s#%s and by %s#%s, %d times in all", name, all[0].op, all[0].try, all[1].op, all[1].try, len(all))
		}
	}
	for _, o := range history {
		switch {
		case o.Outcome != succeeded:
		case o.Kind == "tick that was done" && !slices.ContainsFunc(d.commits, func(c commit) bool { return strings.HasPrefix(c.name, ofTick) && c.name >= o.Keys[0] }):
			v.add(lostWrite, "%s: %s was told that it is done, and nobody has done it", o.Keys[0], o.ID)
		case o.Answer != "" && !slices.ContainsFunc(byName[o.Keys[0]], func(c commit) bool { return tryID(c.op, c.try) == o.Answer }):
			v.add(lostWrite, "%s: %s was told that %s has done it, which is not there", o.Keys[0], o.ID, o.Answer)
		}
	}
}
