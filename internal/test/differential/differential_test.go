// Package differential runs random programs on a server and on the stand-in of package
// locktest, side by side, and compares what the calls return.
package differential_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const (
	maxActors = 3
	lanes     = 4 // programs that run beside each other
)

// patience is for the server to do what the stand-in has done. It passes only where the
// two differ.
var patience = time.Second

var (
	programs = flag.Int("programs", 0, "how many programs are run")
	most     = flag.Int("most", 1, "how many programs fail")
	seed     = flag.Uint64("seed", 1, "of the first program")
)

// TestLocks runs random programs of transaction locks.
func TestLocks(t *testing.T) {
	testdb.NeedsServer(t)
	t.Parallel()
	t.Cleanup(func() {
		for _, k := range slices.Sorted(maps.Keys(tallies)) {
			t.Log(k, tallies[k])
		}
		t.Log(time.Duration(made.Load()))
		for k, v := range durs {
			t.Log("DUR", k, v, v/time.Duration(tallies["D"+k]))
		}
	})
	n := 160
	if os.Getenv("LOCKSTEP_LONG") != "" {
		n = 5000
	}
	if *programs > 0 {
		n = *programs
	}
	for _, engine := range testdb.Engines() {
		for lane := range lanes {
			t.Run(fmt.Sprintf("%s/%d", engine, lane), func(t *testing.T) {
				t.Parallel()
				s := newServer(t, testdb.Open(t, engine))
				failures := 0
				for i := lane; i < n && (failures < *most); i += lanes {
					number := *seed + uint64(i)
					p := randomProgram(rand.New(rand.NewPCG(number, 0)), lockVerbs)
					began := time.Now()
					if s.differs(t, p) == "" {
						if d := time.Since(began); d > time.Second {
							t.Logf("%d took %v", number, d)
						}
						continue
					}
					failures++
					p = shrink(p, func(p program) bool { return s.differs(t, p) != "" })
					t.Errorf("program %d on %s, made smaller:\n%s\n%s", number, engine, p, s.differs(t, p))
				}
			})
		}
	}
}

// differs runs a program on both, and returns what has happened where they differ.
func (s *server) differs(t *testing.T, p program) string {
	d := &driver{server: s, deadlocked: make(chan int, 2*maxActors), keys: s.keys(t, p)}
	found := make(chan string, 1)
	bubble := make(chan func())
	go func() {
		defer close(bubble)
		found <- d.run(p, bubble)
	}()
	synctest.Test(t, func(*testing.T) {
		for f := range bubble {
			f()
		}
	})
	return <-found
}

var lastProgram, made atomic.Int64

// keys makes the keys of a program. Between two there is a row that nobody locks, so
// that what the server does to the gap beside one concerns no other.
func (s *server) keys(t *testing.T, p program) []txlock.Key {
	t.Helper()
	number := lastProgram.Add(1)
	var keys, there []txlock.Key
	for i, kind := range p.keys {
		key := txlock.Named(fmt.Sprintf("%06d:%d", number, i))
		there = append(there, txlock.Named(key.String()+"-"), txlock.Named(key.String()+"~"))
		switch kind {
		case ensured:
			there = append(there, key)
		case hashed:
			key = s.hashed()
		}
		keys = append(keys, key)
	}
	began := time.Now()
	if err := txlock.Ensure(t.Context(), s.db.Admin(), there...); err != nil {
		t.Fatal(err)
	}
	made.Add(int64(time.Since(began)))
	return keys
}

// driver runs one program.
type driver struct {
	server     *server
	memory     *memory
	keys       []txlock.Key
	real, fake [maxActors]*actor
	calls      [maxActors]chan answer // of the server, that have not returned
	deadlocked chan int               // who was rolled back on the server
	names      [2]names
	log        strings.Builder
	timeout    <-chan time.Time
}

func (d *driver) run(p program, bubble chan func()) string {
	d.memory = newMemory(d.server.db.Engine(), bubble, d.victim)
	d.names = [2]names{{}, {}}
	for i := range maxActors {
		d.real[i] = &actor{number: i, world: d.server, keys: d.keys, versions: make(map[int]uint64)}
		d.fake[i] = &actor{number: i, world: d.memory, keys: d.keys, versions: make(map[int]uint64)}
	}
	defer d.end()
	d.memory.do(func() {
		for i, kind := range p.keys {
			if kind == ensured {
				_ = d.memory.Ensure(context.Background(), d.keys[i])
			}
		}
	})
	for _, s := range slices.Concat(p.steps, last(p)) {
		if d.calls[s.actor] != nil || d.real[s.actor].tx == nil && s.verb != "Begin" {
			continue
		}
		if differs := d.step(s); differs {
			return d.log.String()
		}
	}
	return ""
}

// last are the steps after a program: all end, who waits after the others, and what is
// committed is compared.
func last(p program) (steps []step) {
	for range maxActors {
		for i := range maxActors {
			steps = append(steps, step{actor: i, verb: "Rollback"})
		}
	}
	for i := range p.keys {
		steps = append(steps, step{verb: "ReadVersion", keys: []int{i}})
	}
	return steps
}

// step makes a step on both, and tells whether they differ.
func (d *driver) step(s step) bool {
	call := lockVerbs[s.verb].call
	began := time.Now()
	defer func() {
		tallyD(s.verb+s.arg, time.Since(began))
	}()
	d.timeout = time.After(patience)
	if s.limited() {
		d.timeout = time.After(10 * time.Second)
	}
	d.start(s, call)
	d.memory.start(d.fake[s.actor], s, call)
	fmt.Fprintf(&d.log, "%s\n", s)
	differs := false
	for i, returned := range d.calls {
		if returned == nil {
			continue
		}
		real := "waits"
		if a, ok, err := d.settled(i, returned); err != nil {
			real = err.Error()
		} else if ok {
			d.calls[i] = nil
			real = d.names[0].of(a)
		}
		fake := "waits"
		if a := d.memory.answer(i); a != nil {
			d.memory.answers[i] = nil
			fake = d.names[1].of(*a)
		}
		if real == fake {
			fmt.Fprintf(&d.log, "    T%d: %s\n", i+1, real)
			tally(s.verb + " " + strings.Split(real, ",")[0])
			continue
		}
		fmt.Fprintf(&d.log, "    T%d: on the server: %s\n        in memory:     %s\n", i+1, real, fake)
		differs = true
	}
	for len(d.deadlocked) > 0 {
		<-d.deadlocked
	}
	return differs
}

// start begins the step on the server.
func (d *driver) start(s step, call func(*actor, step) answer) {
	returned := make(chan answer, 1)
	d.calls[s.actor] = returned
	go func() {
		a := call(d.real[s.actor], s)
		if strings.HasPrefix(a.text, "ErrDeadlock") {
			d.deadlocked <- s.actor
		}
		returned <- a
	}()
}

// settled returns when the server's call waits, or has returned. Where the stand-in's
// has, it is awaited.
func (d *driver) settled(actor int, returned <-chan answer) (answer, bool, error) {
	if d.memory.answer(actor) != nil {
		select {
		case a := <-returned:
			return a, true, nil
		case <-d.timeout:
		}
	}
	return d.server.waits(actor, returned)
}

// victim returns which of the actors the server has rolled back, -1 if none of them.
func (d *driver) victim(actors []int) int {
	for {
		select {
		case actor := <-d.deadlocked:
			if slices.Contains(actors, actor) {
				return actor
			}
		case <-d.timeout:
			return -1
		}
	}
}

// end ends what the program has left open.
func (d *driver) end() {
	for range maxActors {
		for i, a := range d.real {
			if d.calls[i] != nil {
				select {
				case <-d.calls[i]:
					d.calls[i] = nil
				case <-time.After(200 * time.Millisecond):
					continue
				}
			}
			if a.tx != nil {
				_ = a.tx.Rollback()
			}
		}
	}
	d.memory.end(d.fake[:])
}

var (
	mu      sync.Mutex
	tallies = map[string]int{}
)

func tallyD(s string, d time.Duration) {
	mu.Lock()
	defer mu.Unlock()
	durs[s] += d
	tallies["D"+s]++
}

var durs = map[string]time.Duration{}

func tally(s string) { mu.Lock(); defer mu.Unlock(); tallies[s]++ }
