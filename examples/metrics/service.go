package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockotel"
)

// The keys of the shop.
var (
	orders   = txlock.NewFamily[int64]("order")
	payments = txlock.NewFamily[int64]("payment")
	reports  = txlock.NewFamily[string]("report", txlock.Exact())
	cleanUp  = txlock.Named("clean-up")
	mailer   = txlock.Named("mailer")
)

const ddl = `CREATE TABLE orders (id BIGINT PRIMARY KEY, paid INT NOT NULL)`

// service is one process of the shop.
type service struct {
	http.Handler
	db       *sql.DB
	leases   *lease.Manager
	jobs     *job.Jobs
	election *elect.Election
	provider *metric.MeterProvider
	unwatch  func() error // the table of jobs
	stop     context.CancelFunc
	working  sync.WaitGroup
}

// newService starts a process of the shop. Everything that takes locks has the same
// observers: one that measures, and one that writes what is slow or goes wrong to the log.
func newService(dsn string, log *slog.Logger, ttl time.Duration) (_ *service, err error) {
	registry := client.NewRegistry()
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry), prometheus.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	s := &service{provider: metric.NewMeterProvider(metric.WithReader(exporter)), stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(context.Background()))
		}
	}()
	measured, err := lockotel.New(s.provider.Meter("shop"), lockotel.WithAttributes(attribute.String("db.namespace", "shop")))
	if err != nil {
		return nil, err
	}
	observer := txlock.MultiObserver(measured.Observe, txlock.SlogObserver(log, txlock.SlogThreshold(time.Second)))
	if s.db, err = locksqlc.Open(dsn, txlock.Observe(observer)); err != nil {
		return nil, err
	}
	if s.leases, err = lease.NewManager(s.db, lease.Observe(observer), lease.TTL(ttl)); err != nil {
		return nil, err
	}
	if s.jobs, err = job.New(s.db, s.leases, job.Observe(measured.Job)); err != nil {
		return nil, err
	}
	if s.unwatch, err = measured.WatchJobs(s.jobs); err != nil {
		return nil, err
	}
	if s.election, err = elect.New(s.leases, mailer, elect.Observe(measured.Election), elect.TTL(ttl)); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("POST /orders/{id}", s.pay)
	mux.HandleFunc("POST /reports/{name}", s.report)
	s.Handler = mux
	s.work(log)
	return s, nil
}

// work begins what the process does without being asked: it cleans up each second, if no
// other process does, and sends mail while it leads.
func (s *service) work(log *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.working.Go(func() {
		err := s.jobs.Run(ctx, cleanUp, job.Every(time.Second), func(context.Context, time.Time) error { return nil })
		if err != nil && ctx.Err() == nil {
			log.Error("clean-up", "error", err)
		}
	})
	s.working.Go(func() {
		err := s.election.Run(ctx, func(ctx context.Context, _ *elect.Term) error {
			<-ctx.Done() // and sends mail meanwhile
			return nil
		})
		if err != nil && ctx.Err() == nil {
			log.Error("mailer", "error", err)
		}
	})
}

// Close ends what the process does, and releases what it holds.
func (s *service) Close(ctx context.Context) (err error) {
	s.stop()
	s.working.Wait()
	if s.unwatch != nil {
		err = s.unwatch()
	}
	if s.leases != nil {
		err = errors.Join(err, s.leases.Close(ctx))
	}
	if s.db != nil {
		err = errors.Join(err, s.db.Close())
	}
	return errors.Join(err, s.provider.Shutdown(ctx))
}

// pay pays an order once, however often it is asked.
func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "an order has a number", http.StatusBadRequest)
		return
	}
	err = locksqlc.Run(r.Context(), s.db, orders.Keys(id), func(tx *sql.Tx) error {
		locks, err := locksqlc.Join(r.Context(), tx)
		if err != nil {
			return err
		}
		if first, err := locks.Once(r.Context(), payments.Key(id)); err != nil || !first {
			return err
		}
		_, err = tx.ExecContext(r.Context(), "INSERT INTO orders (id, paid) VALUES (?, 1) ON DUPLICATE KEY UPDATE paid = paid + 1", id)
		return err
	})
	answer(w, err)
}

// report writes a report, which takes a while, for one who asks at a time.
func (s *service) report(w http.ResponseWriter, r *http.Request) {
	answer(w, s.leases.Do(r.Context(), reports.Key(r.PathValue("name")), func(ctx context.Context, _ *lease.Lease) error {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
		return ctx.Err()
	}))
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, fmt.Sprintf("try again: %v", err), http.StatusServiceUnavailable)
	}
}
