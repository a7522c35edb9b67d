package elect_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

var (
	ctx    context.Context
	db     *sql.DB
	leases *lease.Manager
)

// nextBatch waits until there is something to plan, and plan writes the plan.
func nextBatch(context.Context) error      { return nil }
func plan(context.Context, *sql.Tx) error  { return nil }
func exportLeader(string, uint64) (_ bool) { return true }

// Every process of the program runs this, and one of them plans.
func Example() {
	scheduler, err := elect.New(leases, txlock.Named("scheduler"))
	if err != nil {
		log.Fatal(err)
	}
	err = scheduler.Run(ctx, func(ctx context.Context, term *elect.Term) error {
		for {
			if err := nextBatch(ctx); err != nil { // ctx ends before the term does
				return err
			}
			err := locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
				if err := plan(ctx, tx); err != nil {
					return err
				}
				return term.Guard(ctx, tx) // last: COMMIT only while this process leads
			})
			if err != nil {
				return err
			}
		}
	})
	if err != nil {
		log.Print(err)
	}
}

// Any process can follow who leads.
func ExampleElection_Observe() {
	scheduler, err := elect.New(leases, txlock.Named("scheduler"))
	if err != nil {
		log.Fatal(err)
	}
	for leader, err := range scheduler.Observe(ctx) {
		if err != nil {
			log.Print(err) // ErrNoLeader, or the server can't be asked
			continue
		}
		exportLeader(leader.Instance, leader.Token)
	}
}

// The context of the function ends before its term does.
func ExampleElection_Run() {
	scheduler, err := elect.New(leases, txlock.Named("scheduler"))
	if err != nil {
		log.Fatal(err)
	}
	err = scheduler.Run(ctx, func(ctx context.Context, _ *elect.Term) error {
		for ctx.Err() == nil {
			if err := nextBatch(ctx); err != nil {
				return err
			}
		}
		return context.Cause(ctx) // txlock.ErrLost, for example
	})
	if err != nil {
		log.Print(err)
	}
}

// Any process can ask who leads.
func ExampleElection_Leader() {
	scheduler, err := elect.New(leases, txlock.Named("scheduler"))
	if err != nil {
		log.Fatal(err)
	}
	leader, err := scheduler.Leader(ctx)
	switch {
	case errors.Is(err, elect.ErrNoLeader):
		log.Print("no leader")
	case err != nil:
		log.Fatal(err)
	default:
		log.Print(leader.Instance)
	}
}

// A process that is about to be replaced lets another one lead.
func ExampleElection_Resign() {
	var scheduler *elect.Election                                                       // whose Run goes on in another goroutine
	if err := scheduler.Resign(ctx); err != nil && !errors.Is(err, txlock.ErrNotHeld) { // it doesn't lead
		log.Print(err)
	}
}

// What the leader writes is committed only while it leads.
func ExampleTerm_Guard() {
	var term *elect.Term // from the function of Run
	err := locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		if err := plan(ctx, tx); err != nil {
			return err
		}
		return term.Guard(ctx, tx) // last
	})
	if errors.Is(err, txlock.ErrLost) {
		log.Print("another process leads, nothing is written")
	}
}
