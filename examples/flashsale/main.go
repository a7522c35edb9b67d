// Flashsale is one hot product: 200 buyers want it at once, and all of them change the
// same number, its stock. Under one lock they come one after the other, however many
// connections there are.
//
// The program sells the same stock three times on each server: as a whole, and divided
// into 4 and 16 segments, each with a lock of its own. A buyer takes any segment that is
// free. When the segments run dry the rest is collected from all of them, so that
// nothing is left over and nothing is sold twice. At the end a table tells the
// throughput by the number of segments, and an SVG file shows it as bars.
//
// The purchase is sale.go. This file sets up and counts, and chart.go prints.
//
// It takes the DSN of a user who may create databases from LOCKSTEP_MARIADB_DSN or
// LOCKSTEP_MYSQL_DSN, drops the database that it makes, and writes flashsale-mariadb.svg
// or flashsale-mysql.svg into the directory that it is given as its argument, or into
// the current one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	directory := "."
	if len(os.Args) > 1 {
		directory = os.Args[1]
	}
	err := start(ctx, whole, os.Getenv, directory, os.Stdout)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "flashsale:", err)
	if errors.Is(err, errNoServer) {
		os.Exit(2)
	}
	os.Exit(1)
}

var errNoServer = errors.New("set LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN to the DSN of a user who may create databases")

// config is the size of the example.
type config struct {
	buyers      int
	connections int
	stock       int64
	most        int64         // items in one purchase
	takes       time.Duration // what a purchase does besides, under the lock
	segments    []int         // the sales
}

var whole = config{buyers: 200, connections: 48, stock: 1500, most: 3, takes: 3 * time.Millisecond, segments: []int{1, 4, 16}}

// start runs the example on each server that the environment names.
func start(ctx context.Context, c config, getenv func(string) string, directory string, out io.Writer) error {
	err := errNoServer
	for _, server := range []struct{ variable, engine string }{{"LOCKSTEP_MARIADB_DSN", "mariadb"}, {"LOCKSTEP_MYSQL_DSN", "mysql"}} {
		dsn := getenv(server.variable)
		if dsn == "" {
			continue
		}
		file := filepath.Join(directory, "flashsale-"+server.engine+".svg")
		if err = onServer(ctx, c, server.engine, dsn, file, out); err != nil {
			return fmt.Errorf("%s: %w", server.variable, err)
		}
	}
	return err
}

// onServer runs the sales in a database of their own, prints the table and writes the
// chart.
func onServer(ctx context.Context, c config, engine, dsn, file string, out io.Writer) (err error) {
	database, err := scratch.New(ctx, dsn, ddl)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.Drop()) }()
	var results []result
	for _, segments := range c.segments {
		r, err := runSale(ctx, c, database, segments)
		if err != nil {
			return fmt.Errorf("%d segments: %w", segments, err)
		}
		results = append(results, r)
	}
	if err := printTable(out, engine, c, results); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(chart(engine, results)), 0o644)
}

// result is how one sale went.
type result struct {
	segments  int
	items     int64 // sold
	purchases int64
	collected int64 // of which took their items from several segments
	took      time.Duration
}

// perSecond is the throughput.
func (r result) perSecond() float64 { return float64(r.items) / r.took.Seconds() }
