package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// rules say by how much figures may grow, by the beginnings of their names. What has no
// rule is not judged.
var rules = []struct {
	prefix string
	rule
}{
	{"heap_bytes", rule{0.1, 512 << 10}},
	{"rss_bytes", rule{0.15, 8 << 20}},
	{"goroutines", rule{0.1, 3}},
	{"threads", rule{0.15, 3}},
	{"prepared_statements", rule{0.2, 15}},
	{"history_list", rule{0.5, 300}},
	{"rows ", rule{0.2, 20}},
	{"bytes ", rule{0.25, 1 << 20}},
	{"wait_p50_ms ", rule{0.5, 3}},
	{"wait_p99_ms ", rule{1, 25}},
}

// ruleOf is the rule for a figure.
func ruleOf(name string) (rule, bool) {
	for _, r := range rules {
		if strings.HasPrefix(name, r.prefix) {
			return r.rule, true
		}
	}
	return rule{}, false
}

// judge judges a figure.
func (r *runner) judge(f figure) (v verdict, ruled bool) {
	rule, ruled := ruleOf(f.name)
	if !ruled {
		return v, false
	}
	values := r.journal.after(f, r.warmUp)
	v = rule.judge(values)
	if what, _, found := strings.Cut(f.name, "_ms "); found {
		v = slower(v, rule.judge(steadied(values, r.journal.after(figure{f.place, what + "_ms " + control}, r.warmUp))))
	}
	return v, true
}

// failures is how many operations have failed.
func (s *site) failures() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wrong := range s.wrong {
		n += wrong
	}
	return n
}

// tell judges, prints what grows, writes the summary, and returns the exit code.
func (r *runner) tell() (code int, err error) {
	path := filepath.Join(r.out, "summary.md")
	text, grown, judged := r.summarise()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return 2, err
	}
	for _, line := range grown {
		fmt.Println("not flat:", line)
	}
	for _, line := range r.wrong {
		fmt.Println("wrong:", line)
	}
	failures := 0
	for _, s := range r.sites {
		failures += s.failures()
		for _, line := range s.errors {
			fmt.Println("failed:", line)
		}
	}
	fmt.Printf("%d figures judged, %d not flat, %d operations failed, %d other faults: %s\n", judged, len(grown), failures, len(r.wrong), path)
	if len(grown)+len(r.wrong)+failures > 0 {
		return 1, nil
	}
	return 0, nil
}

// summarise writes the figures as tables, and names those that grow.
func (r *runner) summarise() (text string, grown []string, judged int) {
	var w strings.Builder
	fmt.Fprintf(&w, "%v from %s UTC, the first %v of which are not judged.\n\n", time.Since(r.began).Round(time.Minute), r.began.UTC().Format("2006-01-02 15:04"), r.warmUp)
	say := func(f figure, v verdict) string {
		if !v.judged() {
			return "too few"
		}
		judged++
		if v.flat() {
			return "flat"
		}
		grown = append(grown, line(f, v))
		return "**grows**"
	}
	fmt.Fprintln(&w, "| where | figure | first third | last third | growth | allowed | |\n|---|---|---|---|---|---|---|")
	for _, f := range r.journal.order {
		if v, ruled := r.judge(f); ruled && !strings.HasPrefix(f.name, "wait_") {
			fmt.Fprintf(&w, "| %s | %s | %s | %s | %s | %s | %s |\n", f.place, f.name, short(f.name, v.first), short(f.name, v.last), short(f.name, v.growth), short(f.name, v.allowed), say(f, v))
		}
	}
	fmt.Fprintln(&w, "\nWaits in ms, medians of the minutes of the first third and of the last:\n\n| where | kind | done | failed | p50 | | | p99 | | |\n|---|---|---|---|---|---|---|---|---|---|")
	for _, s := range r.sites {
		for _, k := range kinds() {
			at := string(s.engine)
			fmt.Fprintf(&w, "| %s | %s | %.0f | %.0f |", at, k.name, r.journal.last(at, "done "+k.name), r.journal.last(at, "failed "+k.name))
			for _, what := range []string{"wait_p50_ms ", "wait_p99_ms "} {
				f := figure{at, what + k.name}
				v, _ := r.judge(f)
				fmt.Fprintf(&w, " %.1f | %.1f | %s |", v.first, v.last, say(f, v))
			}
			fmt.Fprintln(&w)
		}
	}
	return w.String(), grown, judged
}

// line says what grows.
func line(f figure, v verdict) string {
	return fmt.Sprintf("%s: %s: from %s to %s, by %s over the run, surely by %s, where %s is allowed", f.place, f.name,
		short(f.name, v.first), short(f.name, v.last), short(f.name, v.growth), short(f.name, v.surely), short(f.name, v.allowed))
}

// short writes a figure for people.
func short(name string, value float64) string {
	switch {
	case strings.Contains(name, "bytes"):
		return fmt.Sprintf("%.2f MB", value/1e6)
	case strings.Contains(name, "_ms"):
		return fmt.Sprintf("%.1f ms", value)
	}
	return fmt.Sprintf("%.0f", value)
}
