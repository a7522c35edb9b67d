// A job that runs once a second, however many processes there are.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func main() {
	ctx := context.Background()
	db, err := locksqlc.Open(os.Getenv("SHOP_DSN"))
	must(err)
	must(schema.Install(ctx, db))
	leases, err := lease.NewManager(db)
	must(err)
	jobs, err := job.New(db, leases)
	must(err)

	running, stop := context.WithTimeout(ctx, 10*time.Second) // a service has no limit
	defer stop()
	// Start this program as many times as you like: each second, one copy reports.
	report := func(_ context.Context, at time.Time) error {
		fmt.Println("report for", at.Format(time.TimeOnly))
		return nil
	}
	err = jobs.Run(running, txlock.Named("report"), job.Every(time.Second), report)
	if !errors.Is(err, context.DeadlineExceeded) {
		must(err)
	}
	must(leases.Close(ctx))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
