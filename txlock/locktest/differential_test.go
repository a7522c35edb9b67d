package locktest_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// lanes are how many programs run beside each other: they wait most of their time.
const lanes = 4

var (
	programs = flag.Int("programs", 60, "how many programs run on each server; LOCKSTEP_LONG=1 makes it 5000")
	seed     = flag.Uint64("seed", 1, "the number of the first program")
)

// TestLocks runs random programs of transaction locks on servers and on a Kit, side by side, and compares what the
// calls return. A Kit does as MariaDB: on MySQL programs read nothing, since a stale snapshot is no end there.
func TestLocks(t *testing.T) {
	testdb.NeedsServer(t)
	t.Parallel()
	n := testdb.Long(*programs, 5000)
	for _, engine := range testdb.Engines() {
		for lane := range lanes {
			t.Run(fmt.Sprintf("%s/%d", engine, lane), func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				if engine == testdb.MariaDB && !db.HasSnapshotIsolation(t) {
					t.Skip("this MariaDB leaves the comparison with the snapshot to the library, the stand-in doesn't")
				}
				s := newServer(t, db)
				defer func() {
					testdb.ErrorIf(t, s.undecided*10 > s.programs+10, "of %d programs %d were not compared to the end", s.programs, s.undecided)
					t.Logf("%d programs, %d not to the end", s.programs, s.undecided)
				}()
				for i := lane; i < n && !t.Failed(); i += lanes {
					number := *seed + uint64(i)
					p := forKit(randomProgram(rand.New(rand.NewPCG(number, 0))), engine)
					if difference := differs(t, s, p); difference != "" {
						t.Errorf("program %d on %s, in short:\n%s", number, engine, shrunk(p, difference, func(p program) string { return differs(t, s, p) }))
					}
				}
			})
		}
	}
}

// forKit leaves out of a program what a Kit doesn't do as the server.
func forKit(p program, engine testdb.Engine) program {
	if engine == testdb.MySQL {
		for i := range p.steps {
			switch s := &p.steps[i]; {
			case s.verb == "Begin":
				s.arg = "READ COMMITTED"
			case s.arg == "short" && (s.verb == "LockAll" || s.verb == "LockMixed"):
				s.arg = "" // with a limit they lock one by one, and what they have got stays written
			}
		}
	}
	return p
}

// shrunk returns what happens in the smallest part of a program that still differs.
func shrunk(p program, difference string, differs func(program) string) string {
	end := time.Now().Add(2 * time.Minute)
	p = shrink(p, func(p program) bool {
		if time.Now().After(end) {
			return false
		}
		d := differs(p)
		if d != "" {
			difference = d
		}
		return d != ""
	})
	return p.String() + "\n" + difference
}

// differs runs a program on both, and returns what has happened where they differ.
func differs(t *testing.T, s *server, p program) string {
	t.Helper()
	keys := s.keys(t, p)
	s.programs++
	bubble, found := make(chan func()), make(chan string, 1)
	go func() {
		defer close(bubble)
		found <- newDriver(t, s, keys, bubble).run(p)
	}()
	synctest.Test(t, func(*testing.T) {
		for f := range bubble {
			f()
		}
	})
	return <-found
}

const (
	maxActors = 3
	// patience is how long the server may take for what the stand-in has done. It passes only where the two differ.
	patience = 5 * time.Second
)

// driver runs one program. Each step is made on the server, and then on the stand-in, whose
// answers are known at once: they say which of the server's to wait for.
type driver struct {
	server     *server
	memory     *memory
	keys       []txlock.Key
	real, fake [maxActors]*actor
	calls      [maxActors]chan answer // of the server, that have not returned
	deadlocked chan int               // who was rolled back on the server
	names      [2]names
	log        strings.Builder
	late       chan struct{}    // closed when the limit of the step's call has ended it
	victims    int              // how many were rolled back in the step
	undecided  bool             // the rest depends on what can't be foretold
	timeout    <-chan time.Time // of the step
}

func newDriver(t *testing.T, s *server, keys []txlock.Key, bubble chan func()) *driver {
	d := &driver{server: s, keys: keys, names: [2]names{{}, {}}, deadlocked: make(chan int, 2*maxActors)}
	d.memory = newMemory(t, bubble, d.victim)
	for i := range maxActors {
		d.real[i] = &actor{number: i, world: &s.sessions, keys: keys, versions: make(map[int]uint64)}
		d.fake[i] = &actor{number: i, world: &d.memory.sessions, keys: keys, versions: make(map[int]uint64)}
	}
	return d
}

// run returns what has happened, if the two differ.
func (d *driver) run(p program) string {
	defer d.end()
	d.memory.do(func() {
		for i, kind := range p.keys {
			if kind == ensured {
				_ = txlock.Ensure(context.Background(), d.memory.asked, d.keys[i])
			}
		}
	})
	for _, s := range slices.Concat(p.steps, endOfLocks(p)) {
		if d.undecided {
			d.server.undecided++
			return ""
		}
		if d.calls[s.actor] != nil || s.verb != "Begin" && d.real[s.actor].tx == nil {
			continue
		}
		if d.step(s) {
			return d.log.String()
		}
	}
	return ""
}

// step makes a step on both, and tells whether they differ.
func (d *driver) step(s step) (differ bool) {
	call := lockVerbs[s.verb].call
	d.timeout, d.victims = time.After(patience), 0
	if s.limited() {
		d.timeout = time.After(6 * patience)
	}
	d.start(s, call)
	d.memory.start(d.fake[s.actor], s, call)
	if d.undecided {
		return false
	}
	fmt.Fprintln(&d.log, s)
	for i, returned := range d.calls {
		if returned == nil {
			continue
		}
		real, fake := d.onServer(i, returned), d.inMemory(i)
		if real == fake {
			fmt.Fprintf(&d.log, "    T%d: %s\n", i+1, real)
			continue
		}
		fmt.Fprintf(&d.log, "    T%d: on the server: %s\n        in memory:     %s\n", i+1, real, fake)
		differ = true
	}
	for len(d.deadlocked) > 0 {
		d.victims++
		<-d.deadlocked
	}
	if differ && d.victims > 1 { // which of the two was first depends on who has come to answer
		d.undecided = true
		return false
	}
	return differ
}

// onServer is what an actor's call has come to.
func (d *driver) onServer(actor int, returned <-chan answer) string {
	a, ok, err := d.settled(actor, returned)
	switch {
	case err != nil:
		return err.Error()
	case !ok:
		return "waits"
	}
	d.calls[actor] = nil
	return d.names[0].of(a)
}

// inMemory is what it has come to there.
func (d *driver) inMemory(actor int) string {
	a := d.memory.answer(actor)
	if a == nil {
		return "waits"
	}
	d.memory.answers[actor] = nil
	return d.names[1].of(*a)
}

// start begins the step on the server.
func (d *driver) start(s step, call func(*actor, step) answer) {
	returned := make(chan answer, 1)
	late := make(chan struct{})
	d.calls[s.actor], d.late = returned, late
	go func() {
		a := call(d.real[s.actor], s)
		switch {
		case strings.HasPrefix(a.text, txlock.ErrDeadlock.Error()):
			d.deadlocked <- s.actor
		case a.text == txlock.ErrWaitTimeout.Error() || a.text == txlock.ErrBusy.Error():
			close(late)
		}
		returned <- a
	}()
}

// settled returns when the server's call waits, or has returned. Where the stand-in's has, it is awaited.
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

// victim returns which of the actors the server has rolled back, -1 if none of them. It is
// the server's choice, and the only thing that the stand-in is told.
func (d *driver) victim(actors []int) int {
	for {
		select {
		case actor := <-d.deadlocked:
			d.victims++
			if slices.Contains(actors, actor) {
				return actor
			}
		case <-d.late:
			d.undecided = true
			return -1
		case <-d.timeout:
			d.undecided = d.shares()
			return -1
		}
	}
}

// shares tells whether two actors share a key. A waiter for both is taken by the servers
// to wait for one of them, and a circle through the other is seen when that one has ended.
func (d *driver) shares() bool {
	for _, key := range d.keys {
		n := 0
		for _, a := range d.real {
			if a.tx == nil {
				continue
			}
			if grant, held := a.tx.Held(key); held && grant.Shared() {
				n++
			}
		}
		if n > 1 {
			return true
		}
	}
	return false
}

// end ends what the program has left open: what doesn't wait, and then what has waited for that.
func (d *driver) end() {
	end(d.real, d.calls)
	d.memory.end(d.fake[:])
}

// end ends the transactions of actors on a server, whose calls have perhaps not returned.
func end(actors [maxActors]*actor, calls [maxActors]chan answer) {
	open := slices.Clone(actors[:])
	for deadline := time.Now().Add(time.Minute); len(open) > 0 && time.Now().Before(deadline); {
		open = slices.DeleteFunc(open, func(a *actor) bool {
			if returned := calls[a.number]; returned != nil {
				select {
				case <-returned:
				case <-time.After(20 * time.Millisecond):
					return false
				}
			}
			if a.tx != nil {
				_ = a.tx.Rollback()
			}
			return true
		})
	}
}

// memory is a Kit. Its actors live in a bubble of testing/synctest, where it is known who waits, and limits cost no
// time. The driver lives outside, and sends it functions.
type memory struct {
	sessions
	bubble chan func()

	mu      sync.Mutex
	answers []*answer // of those who have returned
	close   func()
}

func newMemory(t *testing.T, bubble chan func(), victim func(actors []int) int) *memory {
	m := &memory{bubble: bubble, answers: make([]*answer, maxActors)}
	m.do(func() {
		fails, program := &said{TB: t}, sql.OpenDB(&numbers{all: map[string]int64{"nothing": 0}})
		k := locktest.Open(fails, program)
		m.sessions = sessions{asked: k.DB(), table: "nothing"}
		for range maxActors { // whose sessions are 1, 2 and 3
			pool := sql.OpenDB(locksqlc.Connector(k.Connector()))
			pool.SetMaxOpenConns(1)
			wants(t, "Ping", pool.Ping(), nil)
			m.pools = append(m.pools, pool)
		}
		k.Choose(func(sessions []uint64) int {
			actors := make([]int, len(sessions))
			for i, s := range sessions {
				actors[i] = int(s) - 1
			}
			return slices.Index(actors, victim(actors))
		})
		m.close = func() {
			for _, pool := range m.pools {
				must(t, pool.Close())
			}
			fails.end()
			must(t, program.Close())
		}
	})
	return m
}

// do does something in the bubble, and returns when it is done.
func (m *memory) do(f func()) {
	done := make(chan struct{})
	m.bubble <- func() { defer close(done); f() }
	<-done
}

// start begins a step. When it returns, all that could return has.
func (m *memory) start(a *actor, s step, call func(*actor, step) answer) {
	m.do(func() {
		go func() {
			answer := call(a, s)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.answers[a.number] = &answer
		}()
		synctest.Wait()
		for s.limited() && m.answer(a.number) == nil {
			time.Sleep(short)
			synctest.Wait()
		}
	})
}

// answer returns what the actor's call has returned, nil where it waits.
func (m *memory) answer(actor int) *answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answers[actor]
}

// end ends the transactions of the actors: those that wait after those that don't.
func (m *memory) end(actors []*actor) {
	m.do(func() {
		for _, a := range actors {
			if a.tx != nil {
				go func() { _ = a.tx.Rollback() }()
			}
		}
		synctest.Wait()
		m.close()
	})
}
