package tests

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// callers is how many ask for a key at once.
const callers = 20

// TestOnceProcesses asks for each key 20 times at once, from 50 processes, while processes,
// connections and the server are killed. Every effect is there exactly once, every caller
// gets the answer of the first, after errors that say that nobody knows, and who was told
// that nothing was done has done nothing. The same without Once has effects twice. It asks
// for 200 keys with LOCKSTEP_LONG=1, else for 15 from fewer processes.
func TestOnceProcesses(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Durable()).OpenLeases(t) // whose user has no other connections
		r := askOnce(t, db, withOnce, testdb.Long(15, 200), testdb.Long(1, 10))
		t.Logf("%s", r)
		for _, finding := range r.judge() {
			t.Error(finding)
		}
		if r.told["unknown"] == 0 || r.told["again"] == 0 || r.told["first"] == 0 {
			t.Error("no fault was met, or nobody was the first, or all were")
		}
		control := askOnce(t, db, withoutOnce, testdb.Long(6, 40), 0)
		t.Logf("%s", control)
		if findings := control.judge(); len(findings) == 0 {
			t.Error("without Once nothing is done twice: the test can't fail")
		} else {
			t.Logf("%d findings, such as: %s", len(findings), findings[0])
		}
	})
}

// onceRun is a run of processes that ask for keys.
type onceRun struct {
	t     *testing.T
	db    *testdb.DB
	table string
	kind  string

	mu                                      sync.Mutex
	slots                                   []*asker
	asked                                   []string // the keys
	answers                                 map[string][]string
	firsts                                  map[string]int
	denied                                  map[string]string // what was not done, as the caller was told, and its key
	wrong                                   []string
	told                                    map[string]int // by its word
	processKills, connectionKills, restarts int
	due                                     int // how many must be answered before the next restart
	rows                                    map[string][]string
}

func (r *onceRun) String() string {
	return fmt.Sprintf("%s: %d processes, %d keys, %d calls; killed: %d processes, %d connections, the server %d times; told: %v",
		r.kind, len(r.slots), len(r.asked), callers*len(r.asked), r.processKills, r.connectionKills, r.restarts, r.told)
}

// askOnce asks for so many keys, and for more until the server was killed so often.
func askOnce(t *testing.T, db *testdb.DB, kind string, keys, restarts int) *onceRun {
	t.Helper()
	r := &onceRun{
		t: t, db: db, kind: kind, slots: make([]*asker, testdb.Long(5, 50)),
		answers: make(map[string][]string), firsts: make(map[string]int), denied: make(map[string]string), told: make(map[string]int), rows: make(map[string][]string),
	}
	r.table = db.CreateTable(t, "effects", "id BIGINT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(100) NOT NULL, answer VARCHAR(100) NOT NULL, KEY (name)")
	for i := range r.slots {
		r.slots[i] = r.start()
	}
	ctx, stop := context.WithCancel(t.Context())
	var nemesis, asking sync.WaitGroup
	nemesis.Go(func() { r.often(ctx, 500*time.Millisecond, r.killProcess) })
	nemesis.Go(func() { r.often(ctx, 20*time.Millisecond, r.killConnection) })
	nemesis.Go(func() { r.often(ctx, 2*time.Second, func(context.Context) { r.restartServer(restarts) }) })
	next := make(chan string)
	for range testdb.Long(3, 6) {
		asking.Go(func() {
			for name := range next {
				var all sync.WaitGroup
				from := mathrand.IntN(len(r.slots))
				for i := range callers {
					all.Go(func() { r.call(name, (from+i)%len(r.slots)) })
				}
				all.Wait()
			}
		})
	}
	prefix := rand.Text()
	for i := 0; i < keys || !r.enough(restarts); i++ {
		name := fmt.Sprintf("%s:%d", prefix, i)
		r.asked = append(r.asked, name)
		next <- name
	}
	close(next)
	asking.Wait()
	stop()
	nemesis.Wait()
	for _, p := range r.slots {
		p.Kill()
		<-p.gone
		_ = p.orders.Close()
	}
	r.read()
	return r
}

// enough tells whether all kinds of kills have come, or the test has failed.
func (r *onceRun) enough(restarts int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.t.Failed() || r.restarts >= restarts && r.processKills > 0 && r.connectionKills > 0
}

// often does something after random pauses.
func (r *onceRun) often(ctx context.Context, most time.Duration, do func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(mathrand.N(most)):
			do(ctx)
		}
	}
}

// killProcess puts a new process in the place of one, and kills that.
func (r *onceRun) killProcess(context.Context) {
	p, i := r.start(), mathrand.IntN(len(r.slots))
	r.mu.Lock()
	p, r.slots[i] = r.slots[i], p
	r.processKills++
	r.mu.Unlock()
	p.Kill()
	<-p.gone
	_ = p.orders.Close()
}

// killConnection kills a connection of the processes.
func (r *onceRun) killConnection(ctx context.Context) {
	var id int64
	// MySQL answers an error where a text is no UTF-8.
	err := r.db.Admin().QueryRowContext(ctx, "SELECT id FROM information_schema.processlist WHERE user = ? ORDER BY RAND() LIMIT 1", r.db.Config().User).Scan(&id)
	if err == nil {
		_, err = r.db.Admin().ExecContext(ctx, fmt.Sprint("KILL ", id))
	}
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.connectionKills++
	}
}

// restartServer kills the server, and starts it again on the same data, so often in all,
// and each time when callers were answered since the last.
func (r *onceRun) restartServer(most int) {
	r.mu.Lock()
	answered := r.told["first"] + r.told["again"]
	due := r.restarts < most && answered >= r.due
	r.due = answered + 5*callers
	r.mu.Unlock()
	if !due {
		return
	}
	recovered(r.t, r.db)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarts++
}

// recovered kills the server, and starts it again on the same data. MariaDB 10.11 aborts
// at times while it recovers, in its purge: then it is started once more.
func recovered(t *testing.T, db *testdb.DB) {
	t.Helper()
	err := db.Server().Restart(context.Background())
	for range 2 {
		if err != nil {
			t.Log(err)
			err = db.Server().Restart(context.Background())
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// call asks one process, and the next in its place when it has died, until it is answered.
func (r *onceRun) call(name string, slot int) {
	for answered := false; !answered; {
		r.mu.Lock()
		p := r.slots[slot]
		r.mu.Unlock()
		for line := range p.ask(name) {
			word, text, _ := strings.Cut(line, " ")
			answered = r.note(name, word, text) || answered
			if answered {
				break
			}
		}
	}
}

// note notes what a caller was told, and whether that was an answer.
func (r *onceRun) note(name, word, text string) (answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told[word]++
	switch word {
	case "first":
		r.firsts[name]++
		fallthrough
	case "again":
		r.answers[name] = append(r.answers[name], text)
		return true
	case "nothing":
		if text != "" {
			r.denied[text] = name
		}
	case "unknown":
	default:
		r.wrong = append(r.wrong, word+" "+text)
		return true
	}
	return false
}

// read reads the effects.
func (r *onceRun) read() {
	r.t.Helper()
	rows, err := r.db.Admin().QueryContext(r.t.Context(), "SELECT name, answer FROM "+r.table)
	fatal(r.t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name, answer string
		fatal(r.t, rows.Scan(&name, &answer))
		r.rows[name] = append(r.rows[name], answer)
	}
	fatal(r.t, rows.Err())
}

// judge returns what is not as it must be. It knows nothing of how Once does it.
func (r *onceRun) judge() (findings []string) {
	found := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	for _, name := range r.asked {
		effects := r.rows[name]
		if len(effects) != 1 {
			found("%s was done %d times", name, len(effects))
			continue
		}
		if n := len(r.answers[name]); n != callers {
			found("%s: %d of %d callers were answered", name, n, callers)
		}
		if r.firsts[name] > 1 {
			found("%s: %d were told that they are the first", name, r.firsts[name])
		}
		for _, got := range r.answers[name] {
			if got != effects[0] {
				found("%s: a caller was told %q, and %q was done", name, got, effects[0])
			}
		}
		if r.denied[effects[0]] != "" {
			found("%s: its caller was told that nothing was done", name)
		}
	}
	if len(r.rows) > len(r.asked) {
		found("%d keys of %d have effects", len(r.rows), len(r.asked))
	}
	for _, text := range r.wrong {
		found("a caller was told: %s", text)
	}
	return findings
}

// TestOnceJudge proves that the judge finds each way to go wrong, and nothing else.
func TestOnceJudge(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		spoil func(r *onceRun)
		want  string
	}{
		"as it must be":         {func(*onceRun) {}, ""},
		"twice":                 {func(r *onceRun) { r.rows["k"] = []string{"a", "a"} }, "done 2 times"},
		"lost":                  {func(r *onceRun) { r.rows = nil }, "done 0 times"},
		"another answer":        {func(r *onceRun) { r.answers["k"][7] = "b" }, `told "b", and "a"`},
		"no answer":             {func(r *onceRun) { r.answers["k"] = r.answers["k"][1:] }, "19 of 20"},
		"two firsts":            {func(r *onceRun) { r.firsts["k"]++ }, "2 were told"},
		"done and denied":       {func(r *onceRun) { r.denied["a"] = "k" }, "nothing was done"},
		"a key nobody asks for": {func(r *onceRun) { r.rows["l"] = []string{"b"} }, "2 keys of 1"},
		"a wrong error":         {func(r *onceRun) { r.wrong = []string{"no such table"} }, "no such table"},
	} {
		r := &onceRun{asked: []string{"k"}, rows: map[string][]string{"k": {"a"}}, answers: make(map[string][]string), firsts: map[string]int{"k": 1}, denied: make(map[string]string)}
		for range callers {
			r.answers["k"] = append(r.answers["k"], "a")
		}
		test.spoil(r)
		findings := r.judge()
		if test.want == "" && len(findings) > 0 || test.want != "" && (len(findings) != 1 || !strings.Contains(findings[0], test.want)) {
			t.Errorf("%s: %q, want %q", what, findings, test.want)
		}
	}
}

// asker is a process that asks for keys.
type asker struct {
	*testdb.Child
	orders *os.File
	gone   chan struct{} // closed when all that it has said was read

	mu   sync.Mutex
	next int
	open map[string]chan string // by the number of the call; nil when the process is gone
}

// start starts this program as such a process.
func (r *onceRun) start() *asker {
	in, orders, err := os.Pipe()
	if err != nil {
		r.t.Error(err)
	}
	out, say, err := os.Pipe()
	if err != nil {
		r.t.Error(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), askerDSN+"="+r.db.DSN(), askerTable+"="+r.table, askerKind+"="+r.kind, "GOMAXPROCS=2", "GORACE=atexit_sleep_ms=0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, say, os.Stderr
	child, err := testdb.StartChild(cmd)
	if err != nil {
		r.t.Error(err)
	}
	_, _ = in.Close(), say.Close()
	p := &asker{Child: child, orders: orders, gone: make(chan struct{}), open: make(map[string]chan string)}
	go p.listen(out)
	return p
}

// listen hands what the process says to the calls, and ends them when it is gone.
func (p *asker) listen(out *os.File) {
	defer close(p.gone)
	defer func() { _ = out.Close() }()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		number, text, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		call := p.open[number]
		p.mu.Unlock()
		if call != nil {
			call <- text
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, call := range p.open {
		close(call)
	}
	p.open = nil
}

// ask asks for a key. What the process says comes by the channel, which is closed when it
// has died.
func (p *asker) ask(name string) <-chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	call := make(chan string, 1000)
	if p.open == nil {
		close(call)
		return call
	}
	p.next++
	number := fmt.Sprint(p.next)
	p.open[number] = call
	if _, err := fmt.Fprintln(p.orders, number, name); err != nil { // it has died
		delete(p.open, number)
		close(call)
	}
	return call
}
