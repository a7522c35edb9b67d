// Metrics is a service that tells Prometheus what its locks do, by OpenTelemetry's exporter.
//
// It pays orders under locks, writes reports under leases, has a job and an election, and
// serves what all of these measure on /metrics. While it runs, customers ask it at random.
// The service is service.go; contrib/grafana has a dashboard and alerts for its metrics.
//
//	go run . 127.0.0.1:8080
//
// It takes the DSN of a user who may create databases from LOCKSTEP_MARIADB_DSN or
// LOCKSTEP_MYSQL_DSN, and drops the database that it makes when it is interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	address := "127.0.0.1:8080"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	err := run(ctx, cmp.Or(os.Getenv("LOCKSTEP_MARIADB_DSN"), os.Getenv("LOCKSTEP_MYSQL_DSN")), address, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, dsn, address string, out io.Writer) (err error) {
	if dsn == "" {
		return errors.New("set LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN to the DSN of a user who may create databases")
	}
	database, err := scratch.New(ctx, dsn, ddl)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.Drop()) }()
	s, err := newService(database.DSN(), slog.New(slog.NewTextHandler(out, nil)), 10*time.Second)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, s.Close(ctx))
	}()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	var customers sync.WaitGroup
	defer customers.Wait()
	url := "http://" + listener.Addr().String()
	for range 4 {
		customers.Go(func() { buy(ctx, url) })
	}
	_, _ = fmt.Fprintf(out, "the metrics are at %s/metrics\n", url)
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// buy asks the service at random until the context ends.
func buy(ctx context.Context, url string) {
	for ctx.Err() == nil {
		path := fmt.Sprintf("/orders/%d", rand.N(1000))
		if rand.N(10) == 0 {
			path = "/reports/sales"
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, nil)
		if err != nil {
			return
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
		}
		select {
		case <-time.After(rand.N(200 * time.Millisecond)):
		case <-ctx.Done():
		}
	}
}
