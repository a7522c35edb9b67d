package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// runner is a run.
type runner struct {
	options
	sites   []*site
	journal *journal
	began   time.Time
	rest    sync.RWMutex // held while figures are taken, when no operation runs
	cpu     time.Duration
	asked   map[*site]float64 // how many statements the server has executed
	wrong   []string          // what is wrong beside operations that have failed
}

// run uses locks until the time is over or the context ends.
func (r *runner) run(ctx context.Context) error {
	using, stop := context.WithTimeout(ctx, r.duration)
	defer stop()
	var pacing sync.WaitGroup
	defer pacing.Wait()
	defer stop() // before that
	for _, s := range r.sites {
		figures, err := s.prepare(ctx)
		if err != nil {
			return err
		}
		r.asked[s] = figures["statements"]
		for _, k := range kinds() {
			pacing.Go(func() { r.pace(using, s, k) })
		}
		for _, c := range s.clients {
			c.keepRunning()
		}
	}
	r.began, r.cpu = time.Now(), processorTime()
	r.watch(using)
	pacing.Wait()
	for _, s := range r.sites {
		lost, err := s.lost(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		r.wrong = append(r.wrong, lost...)
	}
	return nil
}

// watch takes the figures until the context ends.
func (r *runner) watch(ctx context.Context) {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.look(); err != nil {
			r.wrong = append(r.wrong, fmt.Sprint("no figures: ", err))
			fmt.Println(r.wrong[len(r.wrong)-1])
		}
	}
}

// prepare makes the records of all kinds, and returns the figures of the server before
// anything is done.
func (s *site) prepare(ctx context.Context) (map[string]float64, error) {
	for _, k := range kinds() {
		if err := s.makeRecords(ctx, k.name); err != nil {
			return nil, err
		}
	}
	return s.serverFigures(ctx)
}

// makeRecords makes the records of a kind.
func (s *site) makeRecords(ctx context.Context, kind string) error {
	for i := range records {
		if _, err := s.admin.ExecContext(ctx, "INSERT INTO counters VALUES (?, 0)", recordName(kind, i)); err != nil {
			return err
		}
	}
	return nil
}

// pace lets operations of a kind begin, at about equal distances.
func (r *runner) pace(ctx context.Context, s *site, k kind) {
	var running sync.WaitGroup
	for {
		pause := time.Duration((0.5 + rand.Float64()) * float64(k.every) / r.options.pace)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		r.rest.RLock()
		burst := time.Now().UnixMicro()
		for i := range k.burst {
			running.Go(func() { one(s, k, burst, i) })
		}
		running.Wait()
		r.rest.RUnlock()
	}
}

// one runs an operation.
func one(s *site, k kind, burst int64, index int) {
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	o := &op{client: s.clients[(int(burst)+index)%len(s.clients)], kind: k.name, burst: burst, index: index, began: time.Now()}
	err := k.run(ctx, o)
	if o.waited == 0 {
		o.granted()
	}
	if err != nil && k.isExpected(err) {
		o.wrote, err = nil, nil
	}
	s.tell(k.name, o, err)
}

// look takes the figures while no operation runs, and notes them.
func (r *runner) look() error {
	r.rest.Lock()
	defer r.rest.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	at := time.Since(r.began)
	figures, err := clientFigures()
	if err != nil {
		return err
	}
	cpu := processorTime()
	figures["processor_percent"] = 100 * float64(cpu-r.cpu) / float64(r.every)
	r.cpu = cpu
	r.journal.noteAll(at, place, figures)
	line := fmt.Sprintf("%7v  heap %.1f MB, rss %.0f MB, %.0f goroutines, processor %.1f %%", at.Round(time.Second),
		figures["heap_bytes"]/1e6, figures["rss_bytes"]/1e6, figures["goroutines"], figures["processor_percent"])
	for _, s := range r.sites {
		figures, err := s.serverFigures(ctx)
		if err != nil {
			return errors.Join(err, r.journal.flush())
		}
		perSecond := (figures["statements"] - r.asked[s]) / r.every.Seconds()
		r.asked[s] = figures["statements"]
		delete(figures, "statements")
		figures["statements_per_second"] = perSecond
		waits, done, wrong := s.take()
		total := 0
		for _, k := range kinds() {
			total += done[k.name]
			figures["done "+k.name], figures["failed "+k.name] = float64(done[k.name]), float64(wrong[k.name])
			if all := waits[k.name]; len(all) > 0 {
				figures["wait_p50_ms "+k.name], figures["wait_p99_ms "+k.name] = quantile(all, 0.5), quantile(all, 0.99)
			}
		}
		r.journal.noteAll(at, string(s.engine), figures)
		line += fmt.Sprintf(" | %s: %d done, %d failed, %.0f statements/s, %.0f threads, history %.0f, %.0f prepared, locks %.0f, once %.0f, leases %.0f", s.engine, total, s.failures(), perSecond,
			figures["threads"], figures["history_list"], figures["prepared_statements"], figures["rows lockstep_locks"], figures["rows lockstep_once"], figures["rows lockstep_leases"])
	}
	fmt.Println(line)
	return r.journal.flush()
}
