package scale

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

var page = flag.String("page", "", "the `file` whose tables are written; else little is measured and nothing written")

// most leaves out larger numbers of processes, on a machine that has no room for them.
var most = flag.Int("processes", 64, "measure with so many `processes` at most")

func TestMain(m *testing.M) {
	if os.Getenv(inProcess) == "" {
		testdb.Main(m)
		return
	}
	if err := runProcess(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// effort is how much is done.
type effort struct {
	processes []int
	leases    int // that each of them holds
	long      time.Duration
	simulated []int
	virtual   time.Duration
}

var (
	little = effort{[]int{2}, 10, 100 * time.Millisecond, []int{20}, 40 * time.Second}
	whole  = effort{[]int{1, 4, 16, 64}, 100, 3 * time.Second, []int{64, 1000, 10_000}, 60 * time.Second}
)

// TestScale measures and simulates. Figures are only printed: of them it demands no more
// than that work was done, and no lease lost that the server could have renewed.
func TestScale(t *testing.T) {
	e := little
	if *page != "" {
		e = whole
	}
	cpus, load := runtime.NumCPU(), loadOf(t)
	tables := make(map[string]*strings.Builder) // by the marks on the page
	table := func(mark string) *strings.Builder {
		if tables[mark] == nil {
			tables[mark] = new(strings.Builder)
		}
		return tables[mark]
	}
	for _, engine := range testdb.Engines() {
		mark := "measured"
		if engine == testdb.TiDB {
			mark += " on TiDB"
		}
		measured := table(mark)
		if measured.Len() == 0 {
			fmt.Fprintf(measured, "%s\n\n", circumstances(cpus, load))
		}
		db := testdb.Fresh(t, engine)
		install(t, db)
		costs := e.measured(t, measured, db)
		if engine != testdb.TiDB {
			simulation := table("simulated")
			fmt.Fprintf(simulation, "%s: a server that executes %d statements at once, %v for one that writes and %v for one that reads.\n\n", engine, costs.slots, short(costs.write), short(costs.read))
			e.simulation(t, simulation, costs)
		}
	}
	if *page == "" {
		return
	}
	text := testdb.Got(os.ReadFile(*page))(t)
	out := string(text)
	for mark, table := range tables {
		out = replaced(t, out, mark, table.String())
	}
	must(t, os.WriteFile(*page, []byte(out), 0o644))
}

// measured measures on a server, writes the table, and returns the costs for simulations.
func (e effort) measured(t *testing.T, w *strings.Builder, db *testdb.DB) costs {
	t.Helper()
	var version string
	how := "one process with its embedded store"
	must(t, db.Admin().QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
	if db.Engine() != testdb.TiDB {
		var flush, binlog int
		must(t, db.Admin().QueryRowContext(t.Context(), "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin").Scan(&flush, &binlog))
		how = fmt.Sprintf("innodb_flush_log_at_trx_commit = %d, log_bin = %d", flush, binlog)
	}
	fmt.Fprintf(w, "%s %s, %s:\n\n", db.Engine(), version, how)
	fmt.Fprintf(w, "| processes | transactions with a lock of their own, a second (p50, p99) | leases taken and released, a second (p50, p99) | leases held and renewed, lost | reads of a lease, a second | waiters for one lock; it is handed over, a second (p50, p99 of the wait) |\n|---|---|---|---|---|---|\n")
	var alone time.Duration
	var writes, reads float64
	for _, processes := range e.processes {
		if processes > *most {
			break
		}
		results := make(map[string]result)
		for _, work := range []string{"lock", "lease", "hold", "look", "wait"} {
			long := e.long
			if work == "hold" && *page != "" {
				long = 2 * ttl
			}
			r := e.measure(t, db.DSN(), work, processes, long)
			testdb.ErrorIf(t, r.Count == 0, "%s with %d processes: nothing was done", work, processes)
			results[work] = r
		}
		lock, taken, hold, look, wait := results["lock"], results["lease"], results["hold"], results["look"], results["wait"]
		fmt.Fprintf(w, "| %d | %.0f (%v, %v) | %.0f (%v, %v) | %d, %d | %.0f | %d; %.0f (%v, %v) |\n", processes,
			lock.rate(), short(lock.at(0.5)), short(lock.at(0.99)), taken.rate(), short(taken.at(0.5)), short(taken.at(0.99)),
			hold.Count, hold.Lost, look.rate(), waiters*processes-1, wait.rate(), short(wait.at(0.5)), short(wait.at(0.99)))
		if alone == 0 {
			alone = time.Duration(float64(time.Second) / taken.rate() / 2) // one statement of two
			if processes > 1 {
				alone *= time.Duration(processes)
			}
		}
		writes, reads = max(writes, 2*taken.rate()), max(reads, look.rate())
	}
	w.WriteString("\n")
	return costsOf(alone, writes, reads)
}

// simulation simulates with the costs, and writes the table.
func (e effort) simulation(t *testing.T, w *strings.Builder, c costs) {
	t.Helper()
	w.WriteString("| processes | each holds a lease: statements a second, server busy, lost | each takes a lease for 1 s every 10 s: statements a second, server busy, p99 of Acquire | all want one lease for 10 ms: statements a second, server busy, grants a second |\n|---|---|---|---|\n")
	for _, n := range e.simulated {
		h, own, hot := holding(t, c, n, e.virtual), working(t, c, n, e.virtual), wanting(t, c, n, e.virtual)
		testdb.ErrorIf(t, h.lost > 0 && h.busy < 0.5 || own.done == 0 || hot.done == 0,
			"%d processes: %d leases lost on a server that is busy for %.2f, %.0f and %.0f grants a second", n, h.lost, h.busy, own.done, hot.done)
		fmt.Fprintf(w, "| %d | %.0f, %.0f %%, %d | %.0f, %.0f %%, %v | %.0f, %.0f %%, %.0f |\n", n,
			h.statements, 100*h.busy, h.lost, own.statements, 100*own.busy, short(own.p99()), hot.statements, 100*hot.busy, hot.done)
	}
	w.WriteString("\n")
}

// install makes the tables that are needed.
func install(t *testing.T, db *testdb.DB) {
	t.Helper()
	statements := testdb.Got(schema.Statements())(t)
	for _, s := range statements {
		if strings.Contains(s, "TABLE IF NOT EXISTS lockstep_locks") || strings.Contains(s, "TABLE IF NOT EXISTS lockstep_leases") {
			db.Exec(t, s)
		}
	}
	db.Grant(t, "lockstep_locks", "lockstep_leases")
}

// loadOf is the load of the machine in the last minute, as uptime says, or "unknown".
func loadOf(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// circumstances says how the figures are to be taken.
func circumstances(cpus int, load string) string {
	text := fmt.Sprintf("Measured by `make scale` on %s, on a machine of %d cores that clients and servers share, with a load of %s before.", time.Now().UTC().Format(time.DateOnly), cpus, load)
	var n float64
	if _, err := fmt.Sscan(load, &n); err != nil || n >= 1 {
		text += " **The machine was loaded by other work: the figures are lower than those of an idle one.**"
	}
	return text
}

// short is a time with two or three digits.
func short(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

// replaced puts a text between the marks of a page.
func replaced(t *testing.T, page, mark, text string) string {
	t.Helper()
	before, rest, begun := strings.Cut(page, "<!-- "+mark+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end of "+mark+" -->")
	testdb.FatalIf(t, !begun || !ended, "the page has no marks for %q", mark)
	return before + "<!-- " + mark + " -->\n\n" + strings.TrimSpace(text) + "\n\n<!-- end of " + mark + " -->" + after
}

// costs are what a server takes for statements: it executes so many at once, and the others
// queue.
type costs struct {
	slots       int
	write, read time.Duration
}

// costsOf makes costs of what was measured: the time of one process that is alone, and how
// many all processes have come to.
func costsOf(alone time.Duration, writes, reads float64) costs {
	slots := max(1, int(alone.Seconds()*writes+0.5))
	each := func(rate float64) time.Duration { return time.Duration(float64(slots) / rate * float64(time.Second)) }
	return costs{slots, each(writes), each(reads)}
}

// simulated is what the processes of a simulation have come to.
type simulated struct {
	statements float64         // a second, at the end
	busy       float64         // part of the server
	done       float64         // grants a second
	took       []time.Duration // from Acquire to its grant, in order
	lost       int
}

func (s simulated) p99() time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	return s.took[len(s.took)*99/100]
}

// simulate runs so many processes, each with a manager of its own, against a server in memory
// with these costs, in the time of a bubble. The first half of the time isn't counted.
func simulate(t *testing.T, c costs, processes int, long time.Duration, work func(ctx context.Context, m *lease.Manager, i int, granted func(asked time.Time))) (s simulated) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the race detector crashes where timers of a bubble are due at once
	synctest.Test(t, func(t *testing.T) {
		server, slots := memstore.New(), make(chan struct{}, c.slots)
		var mu sync.Mutex
		var sent, grants int
		var used time.Duration
		counts := time.Now().Add(long / 2)
		fault := func(ctx context.Context, op string, _ store.Row, call func() error) error {
			cost := c.write
			switch op {
			case "Look", "Inspect", "List", "ReadClock", "ReleaseReasonOf":
				cost = c.read
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			time.Sleep(cost)
			<-slots
			mu.Lock()
			if time.Now().After(counts) {
				sent++
				used += cost
			}
			mu.Unlock()
			return call()
		}
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		var all sync.WaitGroup
		for i := range processes {
			store := server.Store()
			store.SetFault(fault)
			pool := store.Pool()
			m := testdb.Got(lease.NewManager(pool, lease.PurgeEvery(0, time.Hour)))(t)
			all.Go(func() {
				time.Sleep(rand.N(long / 4)) // they don't start at once
				work(ctx, m, i, func(asked time.Time) {
					mu.Lock()
					defer mu.Unlock()
					if now := time.Now(); now.After(counts) {
						grants++
						s.took = append(s.took, now.Sub(asked))
					}
				})
				<-ctx.Done()
				store.Up() // the end is not what is simulated
				_ = m.Close(context.Background())
				_ = pool.Close()
			})
		}
		<-ctx.Done()
		mu.Lock()
		half := (long / 2).Seconds()
		s.statements, s.done = float64(sent)/half, float64(grants)/half
		s.busy = used.Seconds() / half / float64(c.slots)
		mu.Unlock()
		all.Wait()
	})
	slices.Sort(s.took)
	return s
}

// own is the lease of a process.
func own(i int) txlock.Key { return txlock.NewFamily[int]("scale").Key(i + 1) }

// holding has each process hold a lease of its own all the time.
func holding(t *testing.T, c costs, processes int, long time.Duration) simulated {
	var mu sync.Mutex
	lost := 0
	s := simulate(t, c, processes, long, func(ctx context.Context, m *lease.Manager, i int, granted func(time.Time)) {
		asked := time.Now()
		l, err := m.Acquire(ctx, own(i))
		if err != nil {
			return
		}
		granted(asked)
		select {
		case <-ctx.Done():
		case <-l.Done():
			mu.Lock()
			lost++
			mu.Unlock()
		}
	})
	s.lost = lost
	return s
}

// working has each process take a lease of its own once in ten seconds, for a second.
func working(t *testing.T, c costs, processes int, long time.Duration) simulated {
	return simulate(t, c, processes, long, func(ctx context.Context, m *lease.Manager, i int, granted func(time.Time)) {
		for ctx.Err() == nil {
			asked := time.Now()
			if l, err := m.Acquire(ctx, own(i)); err == nil {
				granted(asked)
				time.Sleep(time.Second)
				_ = l.Release(ctx)
			}
			select {
			case <-time.After(time.Until(asked.Add(9*time.Second + rand.N(2*time.Second)))):
			case <-ctx.Done():
			}
		}
	})
}

// wanting has all processes want one lease, for 10 ms each time.
func wanting(t *testing.T, c costs, processes int, long time.Duration) simulated {
	return simulate(t, c, processes, long, func(ctx context.Context, m *lease.Manager, _ int, granted func(time.Time)) {
		for ctx.Err() == nil {
			asked := time.Now()
			if l, err := m.Acquire(ctx, txlock.Named("scale:hot")); err == nil {
				granted(asked)
				time.Sleep(10 * time.Millisecond)
				_ = l.Release(ctx)
			}
		}
	})
}

// inProcess is set in the environment of a process that works.
const inProcess = "LOCKSTEP_SCALE_PROCESS"

// order is what a process does.
type order struct {
	DSN    string
	Work   string
	Index  int
	Leases int // that it holds
	For    time.Duration
}

// result is what the processes have done together.
type result struct {
	Count int             // in the time
	Took  []time.Duration // of some of them, in order
	Lost  int             // leases
	over  time.Duration
}

func (r result) rate() float64 { return float64(r.Count) / r.over.Seconds() }

func (r result) at(part float64) time.Duration {
	if len(r.Took) == 0 {
		return 0
	}
	return r.Took[min(len(r.Took)-1, int(part*float64(len(r.Took))))]
}

const (
	samples = 2000 // of a process
	waiters = 4    // goroutines of a process that want the one key
	ttl     = 9 * time.Second
)

// runProcess is the main function of a process.
func runProcess() error {
	var o order
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return err
	}
	db, err := locksqlc.Open(o.DSN)
	if err != nil {
		return err
	}
	db.SetMaxIdleConns(waiters)
	m, err := lease.NewManager(db, lease.TTL(ttl))
	if err != nil {
		return err
	}
	ctx := context.Background()
	key := txlock.Named(fmt.Sprintf("scale:%d", o.Index))
	works := map[string]func(ctx context.Context) error{
		"lock": func(ctx context.Context) error {
			return locksqlc.Run(ctx, db, []txlock.Key{key}, func(*sql.Tx) error { return nil })
		},
		"wait": func(ctx context.Context) error {
			return locksqlc.Run(ctx, db, []txlock.Key{txlock.Named("scale:hot")}, func(*sql.Tx) error { return nil })
		},
		"lease": func(ctx context.Context) error {
			l, err := m.Acquire(ctx, key)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
		"look": func(ctx context.Context) error { _, err := m.Inspect(ctx, key); return err },
	}
	var held []*lease.Lease
	if o.Work == "hold" {
		for i := range o.Leases {
			l, err := m.Acquire(ctx, txlock.Named(fmt.Sprintf("scale:%d:%d", o.Index, i)))
			if err != nil {
				return err
			}
			held = append(held, l)
		}
	} else if err := works[o.Work](ctx); err != nil && !errors.Is(err, txlock.ErrWaitTimeout) { // which connects, and makes the row
		return err
	}
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	var r result
	if o.Work == "hold" {
		time.Sleep(o.For)
		for _, l := range held {
			if l.Valid() {
				r.Count++
			} else {
				r.Lost++
			}
		}
	} else {
		r, err = repeat(ctx, o, works[o.Work])
	}
	err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(r))
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	closed := m.Close(limited)
	if o.Work == "hold" {
		closed = nil // what is not released in time expires
	}
	return errors.Join(err, closed, db.Close())
}

// repeat works until the time is over.
func repeat(ctx context.Context, o order, work func(ctx context.Context) error) (r result, err error) {
	workers := 1
	if o.Work == "wait" {
		workers = waiters
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(o.For)
	for range workers {
		all.Go(func() {
			for {
				began := time.Now()
				if began.After(end) {
					return
				}
				failed := work(ctx)
				mu.Lock()
				if errors.Is(failed, txlock.ErrWaitTimeout) { // of the server, on a machine with other work
					failed = nil
				} else {
					r.Count++
				}
				if err = errors.Join(err, failed); err != nil {
					mu.Unlock()
					return
				}
				if took := time.Since(began); len(r.Took) < samples {
					r.Took = append(r.Took, took)
				} else if i := rand.IntN(r.Count + 1); i < samples {
					r.Took[i] = took
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return r, err
}

// measure has so many processes do the work, all at once.
func (e effort) measure(t *testing.T, dsn, work string, processes int, long time.Duration) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	type process struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	var all []process
	for i := range processes {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), inProcess+"=1"), os.Stderr
		in := testdb.Got(cmd.StdinPipe())(t)
		out := testdb.Got(cmd.StdoutPipe())(t)
		must(t, cmd.Start())
		must(t, json.NewEncoder(in).Encode(order{DSN: dsn, Work: work, Index: i, Leases: e.leases, For: long}))
		all = append(all, process{cmd, in, bufio.NewReader(out)})
	}
	for _, p := range all {
		line, err := p.out.ReadString('\n')
		testdb.FatalIf(t, line != "ready\n", "a process says %q: %v", line, err)
	}
	for _, p := range all {
		_, err := io.WriteString(p.in, "go\n")
		must(t, err)
	}
	sum := result{over: long}
	for _, p := range all {
		var r result
		must(t, json.NewDecoder(p.out).Decode(&r))
		must(t, p.cmd.Wait())
		sum.Count, sum.Lost, sum.Took = sum.Count+r.Count, sum.Lost+r.Lost, append(sum.Took, r.Took...)
	}
	slices.Sort(sum.Took)
	return sum
}

var must = testdb.Must
