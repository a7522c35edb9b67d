package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// run makes one run and judges it. What it has started is stopped when it returns.
func run(ctx context.Context, o options) (r *result, err error) {
	dir, err := o.directory()
	if err != nil {
		return nil, err
	}
	made := &result{options: o, dir: dir}
	r = made
	defer func() { err = made.end(err) }() // of what was made, also where nothing is returned
	fmt.Printf("chaos: seed %d, %v, guards off: %s\n", o.seed, o.duration, o.guardsOff())
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	r.begun = time.Now()
	look := r.looking(context.WithoutCancel(ctx))
	defer look()
	r.torment(ctx)
	r.lasted = time.Since(r.begun)
	for _, s := range r.sites {
		if s.broken != nil {
			return nil, fmt.Errorf("%s: %w", s.engine, s.broken)
		}
	}
	fmt.Println("chaos: the clients come to their end")
	var ending sync.WaitGroup
	for _, s := range r.sites {
		ending.Go(s.finish)
	}
	ending.Wait()
	look()
	// What follows is short, and wanted also of a run that was interrupted.
	ctx = context.WithoutCancel(ctx)
	for _, s := range r.sites {
		if err := s.judge(ctx, r.lasted); err != nil {
			return nil, fmt.Errorf("%s: %w", s.engine, err)
		}
	}
	return r, nil
}

// start starts the servers and their clients.
func (r *result) start(ctx context.Context) error {
	for _, engine := range r.engines {
		fmt.Printf("chaos: starting %s\n", engine)
		s, err := newSite(ctx, r.options, engine, r.dir)
		if err != nil {
			return err
		}
		r.sites = append(r.sites, s)
		for i := range s.clients {
			if err := s.start(i, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// end stops what was started, and removes the histories of a run without an error in
// which nothing is wrong.
func (r *result) end(err error) error {
	for _, s := range r.sites {
		err = errors.Join(err, s.close())
	}
	if err != nil {
		return fmt.Errorf("%w; the histories are in %s", err, r.dir)
	}
	if r.clean() && r.keep == "" {
		return os.RemoveAll(r.dir)
	}
	return nil
}

// directory makes the directory of the histories.
func (o *options) directory() (string, error) {
	if o.keep == "" {
		return os.MkdirTemp("", "lockstep-chaos-")
	}
	return o.keep, os.Mkdir(o.keep, 0o700)
}

// torment makes the faults, and tells how it goes on.
func (r *result) torment(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.duration)
	defer cancel()
	var tormenting sync.WaitGroup
	for _, s := range r.sites {
		for i, lane := range lanes {
			for kind := range s.absent {
				lane = without(lane, kind)
			}
			faults := schedule(s.options, s.stream(i), lane)
			tormenting.Go(func() { s.torment(ctx, r.begun, faults, lane) })
		}
	}
	const every = 10 * time.Second
	count := counter{offsets: make(map[string]int64)}
	for !r.broken() && sleep(ctx, every) == nil {
		fmt.Printf("%5.0fs %s\n", time.Since(r.begun).Seconds(), r.progress(&count))
	}
	cancel()
	tormenting.Wait()
}

// broken tells whether a fault could not be made, so that the run proves nothing.
func (r *result) broken() bool {
	return slices.ContainsFunc(r.sites, func(s *site) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.broken != nil
	})
}

// without is the lane without a kind of fault.
func without(lane map[string]faultKind, kind string) map[string]faultKind {
	rest := make(map[string]faultKind)
	for name, k := range lane {
		if name != kind {
			rest[name] = k
		}
	}
	return rest
}

// progress tells how many operations have succeeded, and how many faults were made.
func (r *result) progress(count *counter) string {
	text := ""
	for _, s := range r.sites {
		n, err := count.succeeded(filepath.Join(r.dir, string(s.engine)+"*.jsonl"))
		if err != nil {
			return err.Error()
		}
		made := 0
		for _, n := range s.counted() {
			made += n
		}
		text += fmt.Sprintf("  %s: %d operations, %d faults", s.engine, n, made)
	}
	return text
}

// counter counts the operations in journals that grow.
type counter struct {
	offsets map[string]int64
	totals  map[string]int
}

func (c *counter) succeeded(pattern string) (int, error) {
	if c.totals == nil {
		c.totals = make(map[string]int)
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		_, err = f.Seek(c.offsets[path], io.SeekStart)
		text := []byte{}
		if err == nil {
			text, err = io.ReadAll(f)
		}
		text = text[:bytes.LastIndexByte(text, '\n')+1]
		c.offsets[path] += int64(len(text))
		c.totals[pattern] += bytes.Count(text, []byte(`"outcome":"ok"`))
		if err = errors.Join(err, f.Close()); err != nil {
			return 0, err
		}
	}
	return c.totals[pattern], nil
}

// proveAll switches one guard off after the other, or the one given, and returns 1 where
// that is not noticed on each server.
func proveAll(ctx context.Context, o options) (code int, err error) {
	o.keep, o.readers = "", 0
	names := guardNames()
	if o.without != "" {
		names = []string{o.without}
	}
	for _, name := range names {
		missed, err := prove(ctx, o, name)
		if err != nil {
			return 2, fmt.Errorf("without %s: %w", name, err)
		}
		for _, engine := range missed {
			fmt.Printf("MISSED  %s without %s: %s, and nothing is wrong\n", engine, name, guards[name].tells)
			code = 1
		}
		if ctx.Err() != nil {
			return 2, ctx.Err()
		}
	}
	return code, nil
}

// prove switches a guard off, and returns the servers on which nobody notices. A run that
// finds nothing may have been too short, so the next one takes longer.
func prove(ctx context.Context, o options, name string) (missed []testdb.Engine, err error) {
	const tries = 3
	o.without, o.kinds = name, guards[name].faults
	missed = o.engines
	for try := range tries {
		longer := o
		longer.engines, longer.seed, longer.duration = missed, o.seed+uint64(try), max(o.duration, guards[name].least)<<try
		r, err := run(ctx, longer)
		if err != nil {
			return nil, err
		}
		missed = r.missed(name)
		if err := os.RemoveAll(r.dir); err != nil {
			return nil, err
		}
		if len(missed) == 0 || ctx.Err() != nil {
			break
		}
	}
	return missed, nil
}

// missed returns the servers on which a guard is off and the run has not found what that
// does, and tells of the others.
func (r *result) missed(guard string) (missed []testdb.Engine) {
	g := guards[guard]
	for _, s := range r.sites {
		if f, ok := s.v.found(g.finds, g.of); ok {
			fmt.Printf("PROVED  %s without %s: %s: %s: %s\n", s.engine, guard, g.tells, f.sort, f.text)
		} else {
			missed = append(missed, s.engine)
		}
	}
	return missed
}
