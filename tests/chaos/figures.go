package main

import (
	"fmt"
	"io"
	"time"
)

// result is what came of a run.
type result struct {
	options
	dir    string
	sites  []*site
	begun  time.Time
	lasted time.Duration
}

// clean tells whether nothing is wrong.
func (r *result) clean() bool {
	for _, s := range r.sites {
		if len(s.v.violations) > 0 {
			return false
		}
	}
	return true
}

func (o *options) guardsOff() string {
	if o.without == "" {
		return "none"
	}
	return o.without
}

// mostShown is how many violations of a sort are told of a server.
const mostShown = 8

// tell writes the figures and returns the exit code.
func (r *result) tell(out io.Writer) int {
	for _, s := range r.sites {
		_, _ = fmt.Fprintf(out, "\n%s, seed %d, %v\n", s.engine, r.seed, r.lasted.Round(time.Second))
		s.tellOperations(out)
		_, _ = fmt.Fprint(out, tellAsks(s.history))
		_, _ = fmt.Fprintln(out, "  faults:")
		for _, kind := range faultNames() {
			_, _ = fmt.Fprintf(out, "    %-22s %7d\n", kind, s.faults[kind])
		}
		for _, kind := range sortedKeys(s.feels) {
			_, _ = fmt.Fprintf(out, "    %s was felt %d times\n", kind, s.feels[kind])
		}
		for _, kind := range sortedKeys(s.absent) {
			_, _ = fmt.Fprintf(out, "    %s was not made, it is not possible here: %v\n", kind, s.absent[kind])
		}
		_, _ = fmt.Fprintf(out, "  overlaps %d, lost updates %d, violations %d\n", s.v.overlaps, s.v.lostUpdates, len(s.v.violations))
		s.v.tell(out)
	}
	if r.clean() {
		_, _ = fmt.Fprintf(out, "seed %d: nothing is wrong\n", r.seed)
		return 0
	}
	_, _ = fmt.Fprintf(out, "seed %d: FAILED. The histories are in %s\nThe same faults and choices, in another schedule of the machine, in tests/:\n  %s\n", r.seed, r.dir, r.command())
	return 1
}

// tell writes the first violations of each sort.
func (v *verdict) tell(out io.Writer) {
	bySort := make(map[string][]violation)
	for _, f := range v.violations {
		bySort[f.sort] = append(bySort[f.sort], f)
	}
	for _, sort := range sortedKeys(bySort) {
		found := bySort[sort]
		for _, f := range found[:min(len(found), mostShown)] {
			_, _ = fmt.Fprintf(out, "    %s: %s\n", f.sort, f.text)
		}
		if n := len(found) - mostShown; n > 0 {
			_, _ = fmt.Fprintf(out, "    %s: and %d more\n", sort, n)
		}
	}
}

// tellOperations writes how many operations of each kind had which outcome, and how
// often transactions were begun again.
func (s *site) tellOperations(out io.Writer) {
	counts, again := make(map[string]map[outcome]int), make(map[string]int)
	for _, o := range s.history {
		if counts[o.Kind] == nil {
			counts[o.Kind] = make(map[outcome]int)
		}
		counts[o.Kind][o.Outcome]++
		again[o.Kind] += max(0, o.Tries-1)
	}
	_, _ = fmt.Fprintf(out, "    %-22s %7s %7s %7s %7s %7s\n", "operations", "ok", "failed", "unknown", "killed", "retries")
	for _, kind := range sortedKeys(counts) {
		c := counts[kind]
		_, _ = fmt.Fprintf(out, "    %-22s %7d %7d %7d %7d %7d\n", kind, c[succeeded], c[failed], c[unknown], c[""], again[kind])
	}
}
