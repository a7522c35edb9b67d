package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// runner compiles and runs tests.
type runner struct {
	root    string // of the repository
	dir     string // for what is compiled
	engines []string
	jobs    int
	limit   time.Duration
	instead string
	began   time.Time

	choices map[string]string // the files that have several mutations; see choices
	commons sync.Map          // what common has compiled, by directory

	mu     sync.Mutex
	counts map[string]map[string]int // by area and verdict
}

// The verdicts. What was killed on servers is also counted by server.
const (
	total      = "mutations"
	killed     = "killed"
	survived   = "survived"
	broken     = "doesn't compile"
	equivalent = "equivalent"
	left       = "left out" // none of its servers is there
	failed     = "error"
)

// all runs the mutations, several at the same time, and says what became of each.
func (r *runner) all(ctx context.Context, list []*mutation) error {
	r.counts = make(map[string]map[string]int)
	jobs := make(chan *mutation)
	var group sync.WaitGroup
	for range r.jobs {
		group.Go(func() {
			for m := range jobs {
				r.judge(ctx, m)
			}
		})
	}
	for _, m := range list {
		if ctx.Err() == nil {
			jobs <- m
		}
	}
	close(jobs)
	group.Wait()
	if err := r.sum(list); err != nil {
		return err
	}
	return ctx.Err()
}

// judge runs one mutation and writes down its verdict.
func (r *runner) judge(ctx context.Context, m *mutation) {
	began := time.Now()
	verdict, detail := r.verdict(ctx, m)
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.counts[m.area]
	if counts == nil {
		counts = make(map[string]int)
		r.counts[m.area] = counts
	}
	counts[total]++
	counts[verdict]++
	if verdict == killed {
		for _, engine := range r.on(m) {
			counts["on "+engine]++
		}
	}
	fmt.Printf("%-15s  %-16v %5.1fs  %s: %s\n", verdict, m, time.Since(began).Seconds(), m.place(), m.decision)
	if detail != "" {
		fmt.Printf("%34s%s\n", "", strings.ReplaceAll(detail, "\n", "\n"+strings.Repeat(" ", 34)))
	}
}

// on returns the engines that a mutation is run on here.
func (r *runner) on(m *mutation) []string {
	if len(m.engines) == 0 {
		return []string{"none"}
	}
	return slices.DeleteFunc(slices.Clone(m.engines), func(engine string) bool { return !slices.Contains(r.engines, engine) })
}

// verdict compiles the test with the mutation and runs it on each server. It must fail
// on each.
func (r *runner) verdict(ctx context.Context, m *mutation) (verdict, detail string) {
	if m.equivalent != "" {
		return equivalent, m.equivalent
	}
	engines := r.on(m)
	if len(engines) == 0 {
		return left, ""
	}
	changed, err := m.apply(r.root)
	if err != nil {
		return failed, err.Error()
	}
	var binary, out string
	if m.chosen() {
		binary, out, err = r.common(ctx, m.dir)
	} else {
		binary, out, err = r.compile(ctx, m.String(), m.dir, map[string]string{m.file: changed})
		defer func() { _ = os.Remove(binary) }()
	}
	if err != nil {
		return broken, tail(out)
	}
	for _, engine := range engines {
		out, err := r.test(ctx, binary, m.dir, engine, pattern(m.test), m.String())
		fails := names(out, "FAIL")
		switch {
		case err == nil:
			return survived, "on " + engine
		case strings.Contains(out, "panic: test timed out"): // a busy machine kills nothing
			return failed, "the test has timed out on " + engine
		case len(fails) == 0 && !strings.Contains(out, "panic: ") && !strings.Contains(out, "fatal error: "):
			return failed, tail(out)
		case r.instead != "":
			detail = strings.TrimSpace(detail + " " + engine + ": " + strings.Join(fails, " "))
		}
	}
	return killed, detail
}

// test runs tests of a binary, with the mutation of that name if it has several.
func (r *runner) test(ctx context.Context, binary, dir, engine, pattern, mutation string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit+10*time.Second)
	defer cancel()
	if r.instead != "" {
		pattern = r.instead
	}
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.parallel=4", "-test.timeout="+r.limit.String(), "-test.run="+pattern)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(dir))
	cmd.Env = append(os.Environ(), "LOCKSTEP_ENGINES="+engine, variable+"="+mutation)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// place is where tests run: their package, and their server.
type place struct{ dir, engine string }

// baseline runs all tests without a mutation: what fails anyway kills nothing, nor does what
// is skipped.
func (r *runner) baseline(ctx context.Context, list []*mutation) error {
	tests := make(map[place][]string)
	var order []place
	for _, m := range list {
		for _, engine := range r.on(m) {
			p := place{m.dir, engine}
			if m.equivalent != "" || slices.Contains(tests[p], m.test) {
				continue
			}
			if tests[p] == nil {
				order = append(order, p)
			}
			tests[p] = append(tests[p], m.test)
		}
	}
	for _, p := range order {
		for _, pattern := range together(tests[p]) {
			if err := r.passes(ctx, p, pattern, tests[p]); err != nil {
				return fmt.Errorf("without a mutation, on %s, %s: %w", p.engine, p.dir, err)
			}
		}
	}
	fmt.Printf("All tests pass without a mutation, after %v.\n", time.Since(r.began).Round(time.Second))
	return nil
}

// passes runs those of the tests that the pattern matches, which must run and pass.
func (r *runner) passes(ctx context.Context, p place, pattern string, tests []string) error {
	binary, out, err := r.common(ctx, p.dir)
	if err == nil {
		out, err = r.test(ctx, binary, p.dir, p.engine, pattern, "")
	}
	if err != nil {
		return fmt.Errorf("%w: %s\n%s", err, strings.Join(names(out, "FAIL"), " "), tail(out))
	}
	passed, first := names(out, "PASS"), regexp.MustCompile(strings.Split(pattern, "/")[0])
	for _, test := range tests {
		name, _, _ := strings.Cut(test, "/")
		if first.MatchString(name) && !slices.Contains(passed, name) {
			return fmt.Errorf("%s doesn't run", name)
		}
	}
	return nil
}

// together returns patterns for the tests: one for all, and one for each with a subtest.
func together(tests []string) (patterns []string) {
	var whole []string
	for _, test := range tests {
		if strings.Contains(test, "/") {
			patterns = append(patterns, pattern(test))
		} else {
			whole = append(whole, test)
		}
	}
	if len(whole) > 0 {
		patterns = append(patterns, "^("+strings.Join(whole, "|")+")$")
	}
	return patterns
}

// pattern is the one that matches this test and these subtests.
func pattern(test string) string {
	return "^" + strings.ReplaceAll(test, "/", "$/^") + "$"
}

var verdictLine = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+)`)

// names returns the tests that have ended so.
func names(out, verdict string) (names []string) {
	for _, match := range verdictLine.FindAllStringSubmatch(out, -1) {
		if match[1] == verdict {
			names = append(names, match[2])
		}
	}
	return names
}

// tail is the end of what a command has written.
func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// sum prints the figures by area. It returns an error unless everything was killed that
// can be.
func (r *runner) sum(list []*mutation) error {
	columns := []string{total, killed, "on none", "on mariadb", "on mysql", survived, broken, failed, equivalent, left}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	text := "\narea\t" + strings.Join(columns, "\t") + "\t\n"
	sums := make(map[string]int)
	row := func(area string, counts map[string]int) {
		text += area + "\t"
		for _, column := range columns {
			text += fmt.Sprint(counts[column]) + "\t"
			if area != "all" {
				sums[column] += counts[column]
			}
		}
		text += "\n"
	}
	var areas []string
	for _, m := range list {
		if counts := r.counts[m.area]; counts != nil && !slices.Contains(areas, m.area) {
			areas = append(areas, m.area)
			row(m.area, counts)
		}
	}
	row("all", sums)
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("It took %v.\n", time.Since(r.began).Round(time.Second))
	if bad := sums[survived] + sums[broken] + sums[failed]; bad > 0 {
		return fmt.Errorf("%d mutations were not killed", bad)
	}
	return nil
}
