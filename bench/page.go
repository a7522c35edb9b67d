package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/scenario"
	"github.com/dca00107/lockstep/bench/site"
	"github.com/dca00107/lockstep/bench/stats"
)

// writeFiles writes the CSV file and the charts of a scenario.
func (o *options) writeFiles(r result) error {
	directory := filepath.Join(o.out, "bench")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	var csv bytes.Buffer
	if err := r.book.WriteCSV(&csv); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(directory, r.Letter+".csv"), csv.Bytes(), 0o644); err != nil {
		return err
	}
	for _, chart := range r.Charts {
		for engine := range o.dsns {
			drawing, err := r.book.DrawSVG(chart, fmt.Sprintf("(%s) %s, %s", r.Letter, r.Title, engine), engine)
			if err != nil {
				return err
			}
			path := filepath.Join(o.out, chartPath(r.Scenario, chart.Name, engine))
			if drawing == nil {
				continue
			}
			if err := os.WriteFile(path, drawing, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// chartPath is where a chart is, from the page.
func chartPath(s scenario.Scenario, chart, engine string) string {
	return "bench/" + s.Letter + "-" + strings.ReplaceAll(chart, " ", "-") + "-" + strings.ToLower(engine) + ".svg"
}

// writePage writes bench.md, with what it keeps of an earlier one.
func (o *options) writePage(p *place, results []result, took time.Duration) error {
	var out strings.Builder
	out.WriteString("# Bench\n\n")
	if o.quick {
		out.WriteString(quickly + "\n\n")
	} else {
		out.WriteString("Written by `make bench`. ")
	}
	fmt.Fprintf(&out, "Contenders take turns in one process, in another order each round; a figure is the median of %d rounds, in parentheses its quartiles. "+
		"What counts are the ratios (bold), which are made within each round; the absolute figures are this machine's.\n\n", o.effort.Rounds)
	o.writeMachine(&out, p, took)
	out.WriteString("## Contenders\n\n| | |\n|---|---|\n")
	for _, m := range contender.All() {
		if o.wants(m.Name) {
			fmt.Fprintf(&out, "| %s | %s |\n", m.Name, m.About)
		}
	}
	if left := o.leftOut(); len(left) > 0 {
		fmt.Fprintf(&out, "\nLeft out by CONTENDERS: %s.\n", strings.Join(left, "; "))
	}
	out.WriteString("\n")
	for _, known := range scenario.All() {
		out.WriteString(o.kept[known.Letter])
		at := slices.IndexFunc(results, func(r result) bool { return r.Letter == known.Letter })
		if at < 0 {
			continue
		}
		r := results[at]
		fmt.Fprintf(&out, "## (%s) %s\n\n%s\n\n", r.Letter, r.Title, r.About)
		fmt.Fprintf(&out, "Measured from %s on, for %v.\n\n", r.began.UTC().Format("2006-01-02 15:04 MST"), r.took.Round(time.Second))
		o.writeLinks(&out, r)
		for _, err := range r.failed {
			fmt.Fprintf(&out, "Not measured to its end: `%s`\n\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		for _, chart := range r.Charts {
			for _, e := range p.engines {
				path := chartPath(r.Scenario, chart.Name, e.server.Engine)
				if _, err := os.Stat(filepath.Join(o.out, path)); err == nil {
					fmt.Fprintf(&out, "![%s, %s](%s)\n", chart.Metric, e.server.Engine, path)
				}
			}
		}
		fmt.Fprintf(&out, "\n%s[The figures as CSV](bench/%s.csv)\n\n", r.book.Tables(), r.Letter)
	}
	return os.WriteFile(filepath.Join(o.out, "bench.md"), []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644)
}

// summaries are the tables of the page of few figures.
var summaries = []report.Summary{
	{Letter: "a", Metric: "time", Links: []string{"loopback", "1 ms"}, Contenders: []string{"no lock", "FOR UPDATE", "lockstep Run", "lockstep Optimistic", "lockstep lockgorm", "GET_LOCK", "ShedLock", "redsync"}},
	{Letter: "b", Metric: "pairs", Case: "64 goroutines", Links: []string{"loopback", "1 ms"}, Contenders: []string{"two bare upserts", "lockstep lease", "ShedLock", "Spring JdbcLockRegistry", "GET_LOCK", "redsync"}},
	{Letter: "c", Metric: "transactions", Case: "64 workers", Links: []string{"loopback", "1 ms"}, Contenders: []string{"bare upsert", "FOR UPDATE", "lockstep Run", "GET_LOCK", "Spring JdbcLockRegistry", "redislock 5 ms", "redsync"}},
	{Letter: "g", Metric: "sales", Case: "16 workers", Links: []string{"loopback", "1 ms"}, Contenders: []string{"FOR UPDATE", "lockstep Run", "lockstep LockWith, CommitWith", "FOR UPDATE, CommitWith", "lockstep 16 segments"}},
}

var chartOf = regexp.MustCompile(`\]\((bench/[a-z-]+\.svg)\)`)

// writeSummaries replaces the tables and charts of the page of few figures.
func (o *options) writeSummaries() error {
	text, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	page := string(text)
	for _, s := range summaries {
		figures, err := os.Open(filepath.Join(o.out, "bench", s.Letter+".csv"))
		if err != nil {
			return err
		}
		table, err := s.Table(figures)
		if err == nil {
			page, err = s.Put(page, table)
		}
		if err = errors.Join(err, figures.Close()); err != nil {
			return fmt.Errorf("%s: %w", o.page, err)
		}
	}
	for _, chart := range chartOf.FindAllStringSubmatch(page, -1) {
		drawing, err := os.ReadFile(filepath.Join(o.out, chart[1]))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(o.page), chart[1]), drawing, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(o.page, []byte(page), 0o644)
}

// quickly is what a page of a quick run begins with.
const quickly = "**Written by `make bench QUICK=1`, which measures too little for figures to be compared: it shows that all contenders run. `make bench` makes the real ones.**"

// keep finds the sections of an earlier page that this run doesn't measure, by their letters.
// Those of a quick run aren't kept by another one, nor the other way round.
func (o *options) keep() error {
	o.kept = make(map[string]string)
	page, err := os.ReadFile(filepath.Join(o.out, "bench.md"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || strings.Contains(string(page), quickly) != o.quick {
		return err
	}
	for _, section := range strings.Split(string(page), "\n## (")[1:] {
		letter, _, _ := strings.Cut(section, ")")
		if !slices.ContainsFunc(o.scenarios, func(s scenario.Scenario) bool { return s.Letter == letter }) {
			o.kept[letter] = "## (" + strings.TrimRight(section, "\n") + "\n\n"
		}
	}
	return nil
}

// writeLinks tells which links a quick run has left out.
func (o *options) writeLinks(out *strings.Builder, r result) {
	if measured := o.linksOf(r.Scenario); len(measured) < len(o.links) {
		var left []string
		for _, link := range o.links[len(measured):] {
			left = append(left, site.LinkName(link))
		}
		fmt.Fprintf(out, "Left out by the quick run: %s.\n\n", strings.Join(left, ", "))
	}
}

// writeMachine tells what the figures depend on.
func (o *options) writeMachine(out *strings.Builder, p *place, took time.Duration) {
	out.WriteString("## Machine and settings\n\n| | |\n|---|---|\n")
	line := func(name, text string) { fmt.Fprintf(out, "| %s | %s |\n", name, text) }
	line("machine", machine())
	line("Go", runtime.Version()+", "+modules())
	all := func(settings []site.Setting) string {
		var texts []string
		for _, s := range settings {
			texts = append(texts, fmt.Sprintf("`%s=%s`", s.Name, s.Value))
		}
		return strings.Join(texts, " ")
	}
	for _, e := range p.engines {
		line(e.server.Engine+" "+e.server.Version, durable(e.server.Durable())+" "+all(e.server.Settings))
	}
	if p.redis != nil {
		line("Redis "+p.redis.Version, durable(p.redis.Durable())+" "+all(p.redis.Settings))
	}
	line("connections", "`interpolateParams=true` for everybody; as many idle connections as workers")
	line("links", "loopback, and through a proxy that delays each direction by half of the round trip")
	for _, name := range slices.Sorted(maps.Keys(p.pings)) {
		ping := stats.Of(p.pings[name])
		line("ping of "+name, fmt.Sprintf("%s us (%s to %s)", report.Number(ping.Median), report.Number(ping.Q1), report.Number(ping.Q3)))
	}
	line("the last run took", took.Round(time.Second).String())
	out.WriteString("\n")
}

func durable(is bool) string {
	if is {
		return "flushes every commit:"
	}
	return "**does not flush every commit**:"
}

// machine is the processor and how many of it there are.
func machine() string {
	model := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel := runtime.GOOS
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel += " " + strings.TrimSpace(string(release))
	}
	return fmt.Sprintf("%d cores, %s, %s", runtime.NumCPU(), model, kernel)
}

// modules are the versions of what is measured.
func modules() string {
	shown := []string{"go-sql-driver/mysql", "gorm.io/gorm", "bsm/redislock", "go-redsync/redsync", "redis/go-redis"}
	var texts []string
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, module := range info.Deps {
		for _, name := range shown {
			if strings.Contains(module.Path, name) {
				texts = append(texts, module.Path+" "+module.Version)
			}
		}
	}
	return strings.Join(texts, ", ")
}
