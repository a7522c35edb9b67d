package schema_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/dca00107/lockstep/schema"
)

var (
	ctx context.Context
	db  *sql.DB
)

// A program that makes its tables itself does so when it starts.
func ExampleInstall() {
	if err := schema.Install(ctx, db); errors.Is(err, schema.ErrPrivilege) {
		log.Fatal(err) // with the GRANT to run
	} else if err != nil {
		log.Fatal(err)
	}
}

// A program whose tables a migration tool makes looks at them when it starts.
func ExampleCheck() {
	err := schema.Check(ctx, db)
	switch {
	case schema.Advisory(err):
		log.Print(err) // locks hold nevertheless
	case err != nil:
		log.Fatal(err) // each finding has its remedy
	}
}

// Shared leases can't work on a multi-primary cluster.
func ExampleCheckCluster() {
	if err := schema.CheckCluster(ctx, db); errors.Is(err, schema.ErrMultiPrimary) {
		log.Print("several nodes take writes: leases are taken exclusively")
	} else if err != nil {
		log.Fatal(err)
	}
}

// People see who holds what by SELECT * FROM lockstep_held.
func ExampleInstallViews() {
	if err := schema.InstallViews(ctx, db); err != nil {
		log.Fatal(err)
	}
}
