// Sqlcorders is a small shop as somebody has it who uses sqlc: schema.sql,
// queries.sql and sqlc.yaml are that program's own, and package ordersdb is what
// sqlc makes of them. To lock with lockstep it needed three things:
//
//  1. schema.Install, or the DDL of package schema among the migrations, so that
//     lockstep's tables exist. sqlc is not told of them.
//  2. locksqlc.Open instead of sql.Open. What it returns is a *sql.DB, and the
//     generated code, prepared queries included, runs on it as before.
//  3. locksqlc.Run, Join and Do where things have to happen one at a time: see
//     service.go and settle.go, which are the example. This file only runs it.
//
// It takes the DSN of a user who may create databases from LOCKSTEP_MARIADB_DSN or
// LOCKSTEP_MYSQL_DSN, and drops the database that it makes.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/examples/sqlcorders/ordersdb"
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
	fmt.Fprintln(os.Stderr, "sqlcorders:", err)
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
		if err = onServer(ctx, dsn, out); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	return err
}

// onServer sets up the shop in a database of its own and shows what it does.
func onServer(ctx context.Context, dsn string, out io.Writer) (err error) {
	database, err := scratch.New(ctx, dsn, ddl) // with schema.Install inside
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.Drop()) }()
	db, err := locksqlc.Open(database.DSN())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	shop, err := NewService(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shop.Close()) }()
	return show(ctx, shop, out)
}

const alice, bob = 2, 3

// show lets the shop do what it can.
func show(ctx context.Context, shop *Service, out io.Writer) error {
	for _, account := range []ordersdb.AddAccountParams{{ID: till, Owner: "till"}, {ID: alice, Owner: "alice", Balance: 100_00}, {ID: bob, Owner: "bob", Balance: 100_00}} {
		if err := shop.queries.AddAccount(ctx, account); err != nil {
			return err
		}
	}

	// Transfers in both directions at the same time.
	err := together(60, func(i int) error {
		if i%2 == 0 {
			return shop.Transfer(ctx, alice, bob, 1_00)
		}
		return shop.Transfer(ctx, bob, alice, 1_50)
	})
	if err != nil {
		return err
	}
	if err := shop.print(ctx, out, "30 transfers of 1.00 to bob and 30 of 1.50 to alice, all at the same time"); err != nil {
		return err
	}

	// Orders, paid in the transaction that places them.
	if err := together(10, func(int) error { _, err := shop.Buy(ctx, alice, 2_50); return err }); err != nil {
		return err
	}
	if err := shop.print(ctx, out, "alice has bought 10 times for 2.50"); err != nil {
		return err
	}
	if _, err := shop.Buy(ctx, bob, 1000_00); !errors.Is(err, ErrTooPoor) {
		return fmt.Errorf("bob buys for 1000.00: %w", err)
	}
	if err := shop.print(ctx, out, "bob could not pay 1000.00"); err != nil {
		return err
	}

	// One settlement, however many servers feel like it.
	b := &printingBank{out: out}
	return together(5, func(int) error { _, err := shop.Settle(ctx, b); return err })
}

// together calls fn n times at the same time and returns all errors.
func together(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// print writes the balances.
func (s *Service) print(ctx context.Context, out io.Writer, what string) error {
	line := what + ":"
	for _, account := range []struct {
		id    int64
		owner string
	}{{alice, "alice"}, {bob, "bob"}, {till, "till"}} {
		balance, err := s.queries.Balance(ctx, account.id)
		if err != nil {
			return err
		}
		line += fmt.Sprintf(" %s %d.%02d", account.owner, balance/100, balance%100)
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// printingBank is a bank that prints what it is sent. It needs no lock of its own:
// Settle sees to it that nobody else sends at the same time.
type printingBank struct{ out io.Writer }

// Send prints a line.
func (b *printingBank) Send(_ context.Context, paid []ordersdb.Order) error {
	var sum int64
	for _, order := range paid {
		sum += order.Amount
	}
	_, err := fmt.Fprintf(b.out, "the bank was told once, by one of 5 servers, of %d orders for %d.%02d\n", len(paid), sum/100, sum%100)
	return err
}
