// Quickstart is a shop on a real server: 64 buyers at a time buy 20 products
// until nothing is left. A purchase is a business transaction as programs have it:
// it reads the stock, decides in Go, and writes an order and the new stock.
//
// The shop opens four times on each server, once without a lock and three times
// with lockstep, and at the end a table says what became of the stock. Start with
// the four purchases: nolock.go and sqlc.go run the same function, once without and
// once under a lock, gorm.go is the same with GORM, and in plugin.go the model names
// its lock.
//
//	make demo
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// config is the size of the demo.
type config struct {
	buyers   int // who buy at the same time
	products int
	items    int64 // of each product
}

// stock is what there is to sell.
func (c config) stock() int64 { return int64(c.products) * c.items }

// server is a database server to run on.
type server struct{ engine, dsn string }

func main() {
	// Ctrl-C ends the context, and everything below cleans up behind itself.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Getenv, os.Stdout)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "quickstart:", err)
	if errors.Is(err, errNoServer) {
		os.Exit(2)
	}
	os.Exit(1)
}

var errNoServer = errors.New("run it by \"make demo\", or set LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN to the DSN of a user who may create databases")

// start runs the demo on each server that the environment names. It returns an
// error where a claim of the table doesn't hold, too.
func start(ctx context.Context, getenv func(string) string, out *os.File) error {
	servers := serversOf(getenv)
	if len(servers) == 0 {
		return errNoServer
	}
	// The driver would log each connection that it closes on Ctrl-C.
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil {
		return err
	}
	cfg := config{buyers: 64, products: 20, items: 60}
	results, err := demo(ctx, cfg, servers, newProgress(out))
	if err != nil {
		return err
	}
	return report(out, cfg, results)
}

// serversOf returns the servers that the environment names.
func serversOf(getenv func(string) string) []server {
	var servers []server
	for _, s := range []server{{"mariadb", getenv("LOCKSTEP_MARIADB_DSN")}, {"mysql", getenv("LOCKSTEP_MYSQL_DSN")}} {
		if s.dsn != "" {
			servers = append(servers, s)
		}
	}
	return servers
}

// demo opens the shop in every way on every server.
func demo(ctx context.Context, cfg config, servers []server, p *progress) ([]result, error) {
	var results []result
	for _, s := range servers {
		onServer, err := demoOn(ctx, cfg, s, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.engine, err)
		}
		results = append(results, onServer...)
	}
	return results, nil
}

// demoOn opens the shop in every way on one server, in a database of its own.
func demoOn(ctx context.Context, cfg config, s server, p *progress) (_ []result, err error) {
	shop, err := newShop(ctx, cfg, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, shop.drop()) }()
	var results []result
	for _, w := range ways {
		r, err := shop.sellAll(ctx, w, p)
		// The run without a lock has to prove that the others could have
		// failed, so it gets three chances to.
		for try := 1; err == nil && !w.locked && r.right() && try < 3; try++ {
			r, err = shop.sellAll(ctx, w, p)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		results = append(results, r)
	}
	return results, nil
}
