// Payments is a service whose clients repeat their requests, and a consumer that is
// handed each message twice. Every payment is made once, and every message has its
// effect once.
//
// The service is service.go: an http.Handler behind locksqlc.OnceHandler. Its clients,
// client.go, send each payment several times at once, by a network that loses answers,
// until they get one. The consumer is consumer.go: it gives points for payments, by
// locksqlc.Once. This file runs them, and counts.
//
// It takes the DSN of a user who may create databases from LOCKSTEP_MARIADB_DSN or
// LOCKSTEP_MYSQL_DSN, and drops the database that it makes.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/locksqlc"
)

//go:embed schema.sql
var ddl string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Getenv, os.Stdout)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "payments:", err)
	if errors.Is(err, errNoServer) {
		os.Exit(2)
	}
	os.Exit(1)
}

var errNoServer = errors.New("set LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN to the DSN of a user who may create databases")

// start runs the example on each server that the environment names.
func start(ctx context.Context, getenv func(string) string, out io.Writer) error {
	err := errNoServer
	for _, variable := range []string{"LOCKSTEP_MARIADB_DSN", "LOCKSTEP_MYSQL_DSN"} {
		dsn := getenv(variable)
		if dsn == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "The server of %s:\n", variable); err != nil {
			return err
		}
		if _, err = onServer(ctx, dsn, out); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	return err
}

// What the example does: so many payments of 1, 2, 3 and so on, each sent by so many
// goroutines at once.
const (
	payments = 30
	senders  = 3
	accounts = 4
	balance  = 1000 // of each account at the beginning
)

// books is what the database has at the end.
type books struct {
	sent, received         int   // requests, by the clients and by the service
	payments, paid, points int64 // rows, their sum, and the points for them
	total                  int64 // of all balances
}

// onServer runs the service and the consumers in a database of their own.
func onServer(ctx context.Context, dsn string, out io.Writer) (b books, err error) {
	database, err := scratch.New(ctx, dsn, ddl) // with schema.Install inside
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, database.Drop()) }()
	db, err := locksqlc.Open(database.DSN())
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(20) // a request that waits for the first one keeps a connection
	for id := range accounts {
		if _, err := db.ExecContext(ctx, "INSERT INTO accounts VALUES (?, ?, 0)", id+1, balance); err != nil {
			return b, err
		}
	}
	service := NewService(db)
	server := httptest.NewServer(service)
	defer server.Close()
	network := &network{}
	if err := payAll(ctx, server.URL, network); err != nil {
		return b, err
	}
	b.sent, b.received = int(network.sent.Load()), int(service.received.Load())
	if err := consumeAll(ctx, db); err != nil {
		return b, err
	}
	if err := b.read(ctx, db); err != nil {
		return b, err
	}
	_, err = fmt.Fprintf(out, "  %d payments, sent %d times, of which %d answers were lost: made %d times\n"+
		"  each message handed over twice: %d points for %d paid\n", payments, b.sent, network.lost.Load(), b.payments, b.points, b.paid)
	return b, errors.Join(err, b.check())
}

// read reads the books.
func (b *books) read(ctx context.Context, db *sql.DB) error {
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*), SUM(amount) FROM payments").Scan(&b.payments, &b.paid); err != nil {
		return err
	}
	return db.QueryRowContext(ctx, "SELECT SUM(balance), SUM(points) FROM accounts").Scan(&b.total, &b.points)
}

// check returns an error unless everything was done once.
func (b *books) check() error {
	const sum = payments * (payments + 1) / 2
	switch {
	case b.payments != payments || b.paid != sum:
		return fmt.Errorf("%d payments of %d were made, %d paid of %d", b.payments, payments, b.paid, sum)
	case b.points != b.paid:
		return fmt.Errorf("%d points for %d", b.points, b.paid)
	case b.total != accounts*balance:
		return fmt.Errorf("the accounts have %d, not %d", b.total, accounts*balance)
	}
	return nil
}
