package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/scenario"
	"github.com/dca00107/lockstep/bench/site"
)

// result is a scenario with its figures.
type result struct {
	scenario.Scenario
	book   *report.Book
	failed []error // each of one server and one link
	began  time.Time
	took   time.Duration
}

// run measures, and writes the files and the page anew after each scenario. What an earlier
// page has of other scenarios stays. What can't be
// measured is named on the page, and is the error at the end.
func (o *options) run(ctx context.Context) (err error) {
	began := time.Now()
	if err := o.keep(); err != nil {
		return err
	}
	place, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, place.close()) }()
	var results []result
	var failed []error
	for _, s := range o.scenarios {
		r := result{Scenario: s, book: &report.Book{Metrics: s.Metrics, Base: s.Base}, began: time.Now()}
		for _, engine := range place.engines {
			for _, roundTrip := range o.linksOf(s) {
				began := time.Now()
				err := o.measure(ctx, place, engine, roundTrip, r)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err != nil {
					r.failed = append(r.failed, fmt.Errorf("(%s) on %s, %s: %w", s.Letter, engine.server.Engine, site.LinkName(roundTrip), err))
				}
				fmt.Fprintf(os.Stderr, "bench: (%s) on %s, %s: %.1f s\n", s.Letter, engine.server.Engine, site.LinkName(roundTrip), time.Since(began).Seconds())
			}
		}
		r.took = time.Since(r.began)
		results = append(results, r)
		failed = append(failed, r.failed...)
		if err := errors.Join(o.writeFiles(r), o.writePage(place, results, time.Since(began))); err != nil {
			return err
		}
	}
	if o.page != "" && len(failed) == 0 {
		failed = append(failed, o.writeSummaries())
	}
	return errors.Join(failed...)
}

// measure runs a scenario on one server, over one link.
func (o *options) measure(ctx context.Context, place *place, engine *engine, roundTrip time.Duration, r result) error {
	link, err := site.NewLink(engine.server, place.redis, roundTrip)
	if err != nil {
		return err
	}
	if took, err := link.Ping(ctx, engine.database, 50); err == nil {
		key := engine.server.Engine + ", " + link.Name()
		place.pings[key] = append(place.pings[key], took...)
	}
	err = r.Run(ctx, &scenario.Ground{
		Server: engine.server, Database: engine.database, Link: link, Book: r.book, Effort: o.effort, Wants: o.wants,
	})
	return errors.Join(err, link.Close())
}

// place is all that the contenders work on.
type place struct {
	engines []*engine
	redis   *site.Redis
	pings   map[string][]float64 // by server and link, in microseconds
}

type engine struct {
	server   *site.Server
	database *site.Database
}

// connections is how many all contenders need.
const connections = 1000

// open connects to the servers, starts what is missing, and makes the databases.
func (o *options) open(ctx context.Context) (*place, error) {
	p := &place{pings: make(map[string][]float64)}
	for _, known := range site.Engines {
		dsn, wanted := o.dsns[known.Name]
		if !wanted {
			continue
		}
		server, err := site.Connect(ctx, known.Name, dsn)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		if n := server.Connections(); n < connections && o.contenders == nil {
			return nil, errors.Join(fmt.Errorf("%s takes %d connections at a time: set max_connections to %d", known.Name, n, connections), p.close())
		}
		e := &engine{server: server}
		if e.database, err = server.NewDatabase(ctx, scenario.Keys, true); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", known.Name, err), p.close())
		}
		p.engines = append(p.engines, e)
	}
	if o.needsRedis() {
		var err error
		if p.redis, err = site.StartRedis(ctx, o.redis); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return p, nil
}

func (p *place) close() error {
	var errs []error
	for _, e := range p.engines {
		errs = append(errs, e.database.Drop())
	}
	if p.redis != nil {
		errs = append(errs, p.redis.Stop())
	}
	return errors.Join(errs...)
}
