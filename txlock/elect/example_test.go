package elect_test

import (
	"context"
	"database/sql"
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
		exportLeader(leader.By, leader.Token)
	}
}
