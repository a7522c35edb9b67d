package main

import (
	"context"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
)

// ofElection begins the records that leaders write.
const ofElection = "election:"

// electionKeys are the keys of the elections.
var electionKeys = []string{ofElection + "1"}

// fenced is a lease or a term.
type fenced interface {
	Err() error
	Token() uint64
	Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error
}

// stubborn is the term of a leader that believes in it whatever happens.
type stubborn struct{ *elect.Term }

func (stubborn) Err() error                                                   { return nil }
func (stubborn) Guard(context.Context, txlock.Tx, ...txlock.JoinOption) error { return nil }

// lead stands for an election in which others stand, too, and leads for some terms: each
// is a hold, which is asked for when the one before has ended.
func (w *worker) lead() outcome {
	key := w.one(electionKeys)
	election, err := elect.New(w.leases, keyOf(key), elect.TTL(w.TTL), elect.InstanceName(w.name), elect.Log(nil))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	came := failed
	o := w.begin("lead", key)
	err = election.Run(ctx, func(ctx context.Context, term *elect.Term) error {
		came = succeeded
		w.journal.write(op{ID: o.ID, Return: w.now(), Outcome: succeeded, Token: term.Token()})
		h := &holding{w: w, fenced: term, id: o.ID, key: key}
		if w.Without == "term" {
			h.fenced = stubborn{term}
		}
		h.watched(func() { h.rule(ctx, term) })
		w.journal.write(op{ID: o.ID, Valid: h.valid.Load()})
		o = w.begin("lead", key)
		return nil
	})
	none := op{ID: o.ID, Return: w.now(), Outcome: failed}
	if err != nil {
		none.Err = err.Error()
	}
	w.journal.write(none)
	return came
}

// rule writes under a term until it must not, and resigns now and then, after which it
// has the grace.
func (h *holding) rule(ctx context.Context, term *elect.Term) {
	for range 1 + h.w.IntN(6) {
		h.pause()
		if h.w.Without != "term" && (h.w.stopped() || ctx.Err() != nil) {
			return
		}
		if h.w.IntN(6) == 0 {
			term.Resign()
		}
		if h.write() == unknown {
			return // the server may be about to commit it
		}
	}
}
