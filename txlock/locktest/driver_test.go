package locktest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

const (
	maxActors = 3
	// patience is how long the server may take for what the stand-in has done. It passes
	// only where the two differ.
	patience = 5 * time.Second
)

// driver runs one program. Each step is made on the server, and then on the stand-in, whose
// answers are known at once: they say which of the server's to wait for.
type driver struct {
	game       game
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

func newDriver(t *testing.T, g game, s *server, keys []txlock.Key, bubble chan func()) *driver {
	d := &driver{game: g, server: s, keys: keys, names: [2]names{{}, {}}, deadlocked: make(chan int, 2*maxActors)}
	d.memory = newMemory(t, bubble, d.victim)
	for i := range maxActors {
		d.real[i] = &actor{number: i, world: s, keys: keys, versions: make(map[int]uint64)}
		d.fake[i] = &actor{number: i, world: d.memory, keys: keys, versions: make(map[int]uint64)}
	}
	return d
}

// run returns what has happened, if the two differ.
func (d *driver) run(p program) string {
	defer d.end()
	d.memory.do(func() {
		for i, kind := range p.keys {
			if kind == ensured {
				_ = txlock.Ensure(context.Background(), d.memory.DB(), d.keys[i])
			}
		}
	})
	looked := false
	var begins [maxActors]bool // the next statement is the first of a transaction
	for _, s := range slices.Concat(p.steps, d.game.last(p)) {
		if d.undecided {
			d.server.undecided++
			return ""
		}
		if d.calls[s.actor] != nil || !d.game.possible(s, d.real[s.actor]) {
			continue
		}
		differ := d.step(s)
		if differ && looked {
			d.server.undecided++
			return ""
		}
		if differ {
			return d.log.String()
		}
		looked = looked || begins[s.actor] && s.looks(d.server, p)
		if s.verb != "Held" && s.verb != "Holders" && s.verb != "ReadVersion" { // which the transaction doesn't send
			begins[s.actor] = s.verb == "Begin"
		}
	}
	return ""
}

// looks tells whether a step may look for the row of a key first, which fixes the snapshot:
// the library does so on MySQL, but where a procedure begins the transaction.
func (s step) looks(on *server, p program) bool {
	return on.db.Engine() == testdb.MySQL && s.limited() &&
		slices.ContainsFunc(s.keys, func(key int) bool { return p.keys[key] == fresh })
}

// step makes a step on both, and tells whether they differ.
func (d *driver) step(s step) (differ bool) {
	call := d.game.verbs[s.verb].call
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
		case strings.HasPrefix(a.text, "ErrDeadlock"):
			d.deadlocked <- s.actor
		case a.text == "ErrWaitTimeout" || a.text == "ErrBusy":
			close(late)
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

// end ends what the program has left open: what doesn't wait, and then what has waited for
// that.
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
