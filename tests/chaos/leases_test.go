package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/txlock"
)

// second is one of the moments of the histories of leases, whose time to live it is, too.
const second = int64(time.Second)

// held adds a hold, in seconds, and its release unless that is 0.
func (s *story) held(id, kind, key string, token uint64, call, grant, release int64) *op {
	s.hold(id, kind, key, token, call*second, grant*second, max(grant+1, release)*second)
	o := s.ops[len(s.ops)-1]
	o.Owner = id
	if release > 0 {
		s.ops = append(s.ops, &op{ID: id + "-end", Kind: "release", Keys: []string{key}, Of: id, Call: release * second, Return: release * second, Outcome: succeeded})
	}
	return o
}

// refused adds an operation that was told that the keys are taken.
func (s *story) refused(id, kind string, at int64, keys ...string) {
	s.ops = append(s.ops, &op{ID: id, Kind: kind, Keys: keys, Call: at * second, Return: at * second, Outcome: failed, Owner: id, Err: fmt.Sprintf("try to acquire lease %q: %v", keys[0], txlock.ErrBusy)})
}

// asks adds a question.
func (s *story) asks(id string, at int64) { s.asksFor(id, "asked:1", at, succeeded) }

func (s *story) asksFor(id, key string, at int64, came outcome) {
	s.ops = append(s.ops, &op{ID: id, Kind: "ask", Keys: []string{key}, Call: at * second, Return: at * second, Outcome: came})
}

// toldAt notes when a hold was told of a question.
func toldAt(o *op, at int64, question string) { o.Told, o.Question = at*second, question }

// waits adds an operation that waits for several keys.
func (s *story) waits(id string, from, to int64, keys ...string) {
	s.ops = append(s.ops, &op{ID: id, Kind: waitsForAll, Keys: keys, Call: from * second, Return: to * second, Outcome: unknown, Owner: id})
}

// shows adds what the rows say from one second to the other.
func (s *story) shows(from, to int64, sights ...sight) {
	for ; from <= to; from++ {
		for _, one := range sights {
			one.held, one.from, one.to = true, from*second+1, from*second+2
			s.seen = append(s.seen, one)
		}
	}
}

// leaseStories are histories of leases with what is to be found in them.
var leaseStories = map[string]struct {
	finds []string
	tell  func(s *story)
}{
	"kept for long enough": {nil, func(s *story) {
		s.held("a", "keep", "kept:1", 1, 1, 2, 3).AtLeast = 5 * second
		s.refused("r", "try what is kept", 6, "kept:1")
		s.held("b", "try to keep", "kept:1", uint64(1+5*second/1000), 7, 7, 8)
	}},
	"granted too soon": {[]string{tooSoon}, func(s *story) {
		s.held("a", "keep", "kept:1", 1, 1, 2, 3).AtLeast = 5 * second
		s.held("b", "try to keep", "kept:1", uint64(1+5*second/1000), 4, 5, 8)
	}},
	"granted too soon by the server's clock": {[]string{tooSoon}, func(s *story) {
		s.held("a", "keep", "kept:1", 1, 1, 2, 3).AtLeast = 5 * second
		s.held("b", "try to keep", "kept:1", uint64(1+4*second/1000), 7, 7, 8)
	}},
	"of a holder that was killed nothing is kept": {nil, func(s *story) {
		s.held("a", "keep", "kept:1", 1, 1, 2, 0).AtLeast = 9 * second
		s.held("b", "try to keep", "kept:1", uint64(1+4*second/1000), 6, 6, 8)
	}},
	"kept for too long": {[]string{stuck}, func(s *story) {
		s.held("a", "keep", "kept:1", 1, 1, 2, 3).AtLeast = 5 * second
		s.refused("r", "try what is kept", 11, "kept:1")
	}},
	"nobody has it, and it is refused": {[]string{stuck}, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 3)
		s.refused("r", "try to hold until asked", 7, "asked:1")
	}},
	"the server has not answered": {nil, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 3)
		s.refused("r", "try to hold until asked", 7, "asked:1")
		s.ops[len(s.ops)-1].Err = "try: the server has not answered for 4s"
	}},
	"somebody may have it": {nil, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 0) // it was killed at 3
		s.refused("r", "try to hold until asked", 7, "asked:1")
		s.refused("t", "try acquire all", 4, "all:1", "all:2")
		s.waits("u", 3, 5, "all:2", "all:3")
	}},
	"told of a question": {nil, func(s *story) {
		a := s.held("a", "hold until asked", "asked:1", 1, 1, 2, 9)
		s.asks("q", 3)
		toldAt(a, 4, "q")
		s.held("b", "try to hold until asked", "asked:1", 2, 10, 10, 11)
	}},
	"not told of a question, and given up": {nil, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 5)
		s.asks("q", 3)
	}},
	"not told of a question": {[]string{notTold}, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 9)
		s.asks("q", 3)
	}},
	"told of a question too late": {[]string{notTold}, func(s *story) {
		toldAt(s.held("a", "hold until asked", "asked:1", 1, 1, 2, 9), 8, "q")
		s.asks("q", 3)
	}},
	"told of a question that was answered": {[]string{misled}, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 4)
		s.asks("q", 3)
		toldAt(s.held("b", "try to hold until asked", "asked:1", 2, 5, 5, 6), 6, "q")
	}},
	"two are told of a question": {[]string{misled}, func(s *story) {
		toldAt(s.held("a", "hold until asked", "asked:1", 1, 1, 2, 4), 4, "q")
		s.asks("q", 3)
		toldAt(s.held("b", "hold until asked", "asked:1", 2, 2, 5, 6), 6, "q")
	}},
	"a row keeps a question": {[]string{misled}, func(s *story) {
		toldAt(s.held("a", "hold until asked", "asked:1", 1, 1, 2, 4), 4, "q")
		s.asks("q", 3)
		s.held("b", "hold until asked", "asked:1", 2, 2, 5, 6)
		s.shows(5, 5, sight{key: "asked:1", owner: "b", question: "q", token: 2})
	}},
	"told that nobody has what somebody has": {[]string{notTold}, func(s *story) {
		s.held("a", "permit until asked", askedPermits, 1, 1, 2, 5)
		s.asksFor("q", askedPermits, 3, failed)
	}},
	"told that nobody has what was given up": {nil, func(s *story) {
		s.held("a", "permit until asked", askedPermits, 1, 1, 2, 5)
		s.asksFor("q", askedPermits, 6, failed)
		s.held("b", "permit until asked", askedPermits, 2, 7, 8, 9)
	}},
	"all readers are told of a question": {nil, func(s *story) {
		toldAt(s.held("a", "share until asked", askedReaders, 1, 1, 1, 9), 4, "q")
		toldAt(s.held("b", "try share until asked", askedReaders, 2, 1, 2, 9), 5, "q")
		s.asksFor("q", askedReaders, 3, succeeded)
		s.shows(4, 8, sight{key: askedReaders, slot: 4, owner: "a", question: "q", token: 1}, sight{key: askedReaders, slot: 7, owner: "b", question: "q", token: 2})
		s.held("c", "hold until asked", askedReaders, 3, 10, 10, 11)
	}},
	"one reader of two is told": {[]string{notTold}, func(s *story) {
		toldAt(s.held("a", "share until asked", askedReaders, 1, 1, 1, 9), 4, "q")
		s.held("b", "share until asked", askedReaders, 2, 1, 2, 9)
		s.asksFor("q", askedReaders, 3, succeeded)
	}},
	"a later reader is told": {[]string{misled}, func(s *story) {
		toldAt(s.held("a", "share until asked", askedReaders, 1, 1, 1, 9), 4, "q")
		s.asksFor("q", askedReaders, 3, succeeded)
		toldAt(s.held("b", "share until asked", askedReaders, 2, 5, 5, 9), 6, "q")
	}},
	"the row of a permit keeps a question": {[]string{misled}, func(s *story) {
		toldAt(s.held("a", "permit until asked", askedPermits, 1, 1, 2, 4), 4, "q")
		s.asksFor("q", askedPermits, 3, succeeded)
		s.held("b", "permit until asked", askedPermits, 2, 2, 5, 6)
		s.shows(3, 3, sight{key: askedPermits, slot: 2, owner: "a", question: "q", token: 1})
		s.shows(5, 5, sight{key: askedPermits, slot: 2, owner: "b", question: "q", token: 2})
	}},
	"told what was asked of another key": {[]string{misled}, func(s *story) {
		toldAt(s.held("a", "permit until asked", askedPermits, 1, 1, 2, 4), 4, "q")
		s.asksFor("q", askedReaders, 3, succeeded)
	}},
	"told what nobody has asked": {[]string{misled}, func(s *story) {
		toldAt(s.held("a", "hold until asked", "asked:1", 1, 1, 2, 4), 4, "q")
	}},
	"released, and in the row": {[]string{stuck}, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 4)
		s.shows(2, 5, sight{key: "asked:1", owner: "a", token: 1})
	}},
	"refused, and a part in the row": {[]string{stuck}, func(s *story) {
		s.refused("a", "try acquire all", 1, "all:1", "all:2")
		s.waits("b", 1, 4, "all:1", "all:3")
		s.shows(2, 5, sight{key: "all:1", owner: "a", token: 1})
	}},
	"refused, and a part in the row for a while": {nil, func(s *story) {
		s.refused("a", "try acquire all", 2, "all:1", "all:2")
		s.waits("b", 1, 4, "all:1", "all:3")
		s.shows(2, 4, sight{key: "all:1", owner: "a", token: 1})
	}},
	"waits in a line": {nil, func(s *story) {
		s.waits("a", 1, 9, "all:1", "all:2")
		s.waits("b", 1, 9, "all:3", "all:2")
		s.shows(2, 8, sight{key: "all:1", owner: "a", token: 1}, sight{key: "all:2", owner: "b", token: 1})
	}},
	"waits in a circle": {[]string{stuck}, func(s *story) {
		s.waits("a", 1, 9, "all:1", "all:2")
		s.waits("b", 1, 9, "all:2", "all:4", "all:3")
		s.waits("c", 1, 9, "all:3", "all:1")
		s.shows(2, 8, sight{key: "all:1", owner: "a", token: 1}, sight{key: "all:2", owner: "b", token: 1}, sight{key: "all:3", owner: "c", token: 1})
	}},
	"waits in a circle until one is lost": {nil, func(s *story) {
		s.waits("a", 1, 9, "all:1", "all:2")
		s.waits("b", 1, 9, "all:2", "all:1")
		s.shows(2, 3, sight{key: "all:1", owner: "a", token: 1}, sight{key: "all:2", owner: "b", token: 1})
		s.shows(4, 8, sight{key: "all:1", owner: "a", token: 1})
	}},
}

// TestCheckLeases proves of small histories that the judge finds in them what is wrong with
// what is kept, asked for and acquired together, and nothing else.
func TestCheckLeases(t *testing.T) {
	t.Parallel()
	for name, c := range leaseStories {
		var s story
		c.tell(&s)
		var v verdict
		v.checkLeases(s.ops, s.seen, time.Second)
		if found := v.sorts(); !slices.Equal(found, c.finds) {
			t.Errorf("%s: found %q, want %q: %v", name, found, c.finds, v.violations)
		}
	}
}

// TestCheckLingering proves that only where rows stay locked a try may be refused because of one, and
// an operation may take a little longer.
func TestCheckLingering(t *testing.T) {
	t.Parallel()
	of := func(lingers bool, why string, took time.Duration) []string {
		var s story
		s.refused("r", "try to hold until asked", 7, "asked:1")
		o := s.ops[0]
		o.Err += why
		o.Return = o.Call + int64(took)
		v := (&verdict{lingers: lingers}).check(s.ops, s.data)
		v.checkLeases(s.ops, s.seen, time.Second)
		return v.sorts()
	}
	const locked = ": its row is locked"
	for _, c := range []struct {
		lingers bool
		why     string
		took    time.Duration
		finds   []string
	}{
		{true, locked, late + opLimit, nil},
		{true, locked, late + opLimit + 1, []string{stuck}},
		{true, "", 0, []string{stuck}},
		{false, locked, 0, []string{stuck}},
		{false, locked, late, []string{stuck}},
	} {
		if found := of(c.lingers, c.why, c.took); !slices.Equal(found, c.finds) {
			t.Errorf("%+v: found %q", c, found)
		}
	}
}

// TestTellAsks proves that the figures are those of who was told.
func TestTellAsks(t *testing.T) {
	t.Parallel()
	var s story
	for i := range int64(5) {
		id := fmt.Sprint(i)
		toldAt(s.held(id, "hold until asked", "asked:1", uint64(i+1), 10*i+1, 10*i+1, 10*i+9), 11*i+2, "q"+id)
		s.asks("q"+id, 10*i+1)
	}
	leasetest.Equal(t, "what is told of questions", tellAsks(s.ops),
		"  5 holders were told of a question: half of them within 3s, 9 of 10 within 4s, all within 5s\n")
	leasetest.Equal(t, "what is told of no history", tellAsks(nil), "")
}

// TestCheckOnces proves that the judge finds what was done twice, and answers that are lost.
func TestCheckOnces(t *testing.T) {
	t.Parallel()
	answered := func(id, answer string, wrote ...string) *op {
		return &op{ID: id, Kind: "once", Keys: []string{"once:1"}, Call: 1, Return: 2, Outcome: succeeded, Tries: len(wrote), Wrote: wrote, Answer: answer}
	}
	found := &op{ID: "c", Kind: "tick that was done", Keys: []string{"at:1"}, Call: 3, Return: 4, Outcome: succeeded}
	begun := &op{ID: "b", Kind: "tick", Keys: []string{"tick:plain"}, Call: 1, Return: 2, Outcome: succeeded, Token: 1, Valid: 3}
	row := func(op, try, name string) commit { return commit{op: op, try: try, name: name} }
	for what, test := range map[string]struct {
		ops  []*op
		rows []commit
		want string
	}{
		"one, and its answer":    {[]*op{answered("a", "a#1", "once:1"), answered("b", "a#1")}, []commit{row("a", "1", "once:1")}, ""},
		"two":                    {[]*op{answered("a", "a#1", "once:1"), answered("b", "b#1", "once:1")}, []commit{row("a", "1", "once:1"), row("b", "1", "once:1")}, doneTwice},
		"a tick twice":           {[]*op{answered("a", "", "instant:1"), answered("b", "", "instant:1")}, []commit{row("a", "1", "instant:1"), row("b", "1", "instant:1")}, doneTwice},
		"another's answer":       {[]*op{answered("a", "a#1", "once:1"), answered("b", "b#1")}, []commit{row("a", "1", "once:1")}, lostWrite},
		"another's, after a try": {[]*op{answered("a", "a#1", "once:1"), answered("b", "a#1", "once:1")}, []commit{row("a", "1", "once:1")}, ""},
		"one's own that is gone": {[]*op{answered("a", "a#1", "once:1")}, nil, lostWrite},
		"an answer that is gone": {[]*op{answered("b", "a#1")}, nil, lostWrite},
		"a tick at least once":   {[]*op{begun, found}, []commit{row("b", "0", "at:1")}, ""},
		"a tick that is too old": {[]*op{begun, found}, []commit{row("b", "0", "at:2")}, ""},
		"a tick that is lost":    {[]*op{begun, found}, nil, lostWrite},
	} {
		v := (&verdict{}).check(test.ops, data{commits: test.rows})
		if sorts := v.sorts(); test.want == "" && len(sorts) > 0 || test.want != "" && !slices.Contains(sorts, test.want) {
			t.Errorf("%s: %v, want %q", what, v.violations, test.want)
		}
	}
}

// TestCheckLong proves that a history that is as long as that of ten minutes is judged
// in time, and the one thing that is wrong in it found.
func TestCheckLong(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"acquire", "share", "permit"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const holds = 3000
			key := map[string]string{"acquire": leaseKeys[0], "share": sharedKeys[0], "permit": permitKeys[0]}[kind]
			var s story
			for i := range int64(holds) {
				at := 100 + i*10
				switch {
				case kind == "share" && i%5 == 0:
					s.hold(fmt.Sprint(i), "acquire among readers", key, uint64(100+i), at-100, at, at+5)
				case kind == "acquire":
					s.hold(fmt.Sprint(i), kind, key, uint64(100+i), at-100, at, at+5)
				default: // two at a time
					s.hold(fmt.Sprint(i), kind, key, uint64(100+i), at-100, at, at+5)
					s.hold(fmt.Sprint(i, "b"), kind, key, uint64(100+i), at-100, at+1, at+4)
				}
			}
			if v := (&verdict{}).check(s.ops, s.data); len(v.violations) > 0 {
				t.Errorf("%d violations, the first: %v", len(v.violations), v.violations[0])
			}
			s.hold("late", "acquire", key, 1<<40, 1, 100+holds*5+1, 100+holds*5+3)
			v := (&verdict{}).check(s.ops, s.data)
			if _, ok := v.found([]string{notLinear}, key); v.overlaps == 0 || !ok {
				t.Errorf("%d overlaps, %d violations", v.overlaps, len(v.violations))
			}
		})
	}
}

// leapStories are histories of a server whose clock is set at some moments, in seconds, with
// what is to be found in them.
var leapStories = map[string]struct {
	finds []string
	leaps []leap
	tell  func(s *story)
}{
	"two believe in a lease that a clock set forward has ended": {nil, []leap{forward(3)}, func(s *story) {
		s.held("a", "acquire", "lease:1", 1, 1, 2, 6)
		s.held("b", "acquire", "lease:1", 2, 4, 5, 8)
	}},
	"a reader and a writer, and then another writer": {nil, []leap{forward(3)}, func(s *story) {
		s.held("a", "share", "shared:1", 1, 1, 2, 9)
		s.held("b", "acquire", "shared:1", 2, 4, 5, 6)
		s.held("c", "acquire", "shared:1", 3, 7, 8, 9)
	}},
	"two that were granted after the leap": {[]string{notLinear, overlap}, []leap{forward(1)}, func(s *story) {
		s.held("a", "acquire", "lease:1", 1, 3, 4, 8)
		s.held("b", "acquire", "lease:1", 2, 5, 6, 9)
	}},
	"two at the same time before the leap": {[]string{notLinear, overlap}, []leap{forward(7)}, func(s *story) {
		s.held("a", "acquire", "lease:1", 1, 1, 2, 9)
		s.held("b", "acquire", "lease:1", 2, 3, 4, 9)
	}},
	"two beside a clock that is set back": {[]string{notLinear, overlap}, []leap{back(3)}, func(s *story) {
		s.held("a", "acquire", "lease:1", 1, 1, 2, 8)
		s.held("b", "acquire", "lease:1", 2, 4, 5, 9)
	}},
	"a token that falls over a leap": {[]string{notLinear}, []leap{forward(4), back(4)}, func(s *story) {
		s.held("a", "acquire", "lease:1", 7, 1, 2, 3)
		s.held("b", "acquire", "lease:1", 5, 5, 6, 7)
	}},
	"a majority of which two have a lease": {[]string{notLinear, overlap}, nil, func(s *story) {
		s.held("a", "majority", "majority:1", 1, 1, 2, 8)
		s.held("b", "majority", "majority:1", 2, 4, 5, 9)
	}},
	"a writer among a herd": {[]string{notLinear, overlap}, nil, func(s *story) {
		s.held("a", "share of a herd", "herd:1", 1, 1, 2, 8)
		s.held("b", "share of a herd", "herd:1", 1, 1, 2, 8)
		s.held("c", "acquire among herds", "herd:1", 2, 4, 5, 9)
	}},
	"three on two seats": {[]string{notLinear, overlap}, nil, func(s *story) {
		for i, id := range []string{"a", "b", "c"} {
			s.held(id, "permit of a herd", "seats:1", uint64(i+1), 1, 2, 8)
		}
	}},
	"a token of a lock that nobody commits falls with the clock": {nil, []leap{back(4)}, func(s *story) {
		s.fresh("a", 1*second, 3*second, 10)
		s.fresh("b", 6*second, 7*second, 5)
	}},
	"a token of a lock falls, and the clock was set forward": {[]string{tokenBack}, []leap{forward(4)}, func(s *story) {
		s.fresh("a", 1*second, 3*second, 10)
		s.fresh("b", 6*second, 7*second, 5)
	}},
	"a lease is entered again whose end the clock has passed": {nil, []leap{forward(4)}, func(s *story) {
		s.held("a", "acquire", "lease:1", 1, 1, 2, 9)
		s.ops = append(s.ops, &op{ID: "b", Kind: "re-enter", Keys: []string{"lease:1"}, Of: "a", Call: 6 * second, Return: 7 * second, Outcome: succeeded, Token: 2})
	}},
	"kept for too short a time by a clock that was set": {nil, []leap{forward(4)}, func(s *story) {
		s.held("a", "keep", "kept:1", 1e6, 1, 2, 3).AtLeast = 9 * second
		s.held("b", "keep", "kept:1", 2e6, 5, 6, 7)
	}},
	"kept for too short a time, later": {[]string{tooSoon}, []leap{forward(1), back(1)}, func(s *story) {
		s.held("a", "keep", "kept:1", 1e6, 3, 4, 5).AtLeast = 9 * second
		s.held("b", "keep", "kept:1", 1e6+1, 6, 7, 8)
	}},
	"kept by a token that is ahead of the clock": {nil, []leap{back(1)}, func(s *story) {
		s.held("a", "keep", "kept:1", 1e6, 3, 4, 5).AtLeast = 2 * second
		s.held("b", "keep", "kept:1", 1e6+1, 6, 7, 8)
	}},
	"a holder that nobody is told of, whose time is over by the clock": {nil, []leap{forward(3)}, func(s *story) {
		s.held("a", "hold until asked", "asked:1", 1, 1, 2, 9)
		s.asksFor("q", "asked:1", 5, failed)
	}},
	"a dead reader blocks a writer, as long as the clock is behind": {nil, []leap{back(3)}, func(s *story) {
		s.ops = append(s.ops, &op{ID: "a", Kind: "share until asked", Keys: []string{askedReaders}, Call: 2 * second})
		s.refused("b", "try to hold until asked", 60, askedReaders)
	}},
	"a dead writer blocks the first who comes, while the clock is behind": {nil, []leap{back(3)}, func(s *story) {
		s.ops = append(s.ops, &op{ID: "a", Kind: "acquire all", Keys: []string{"all:1"}, Call: 2 * second})
		s.refused("b", "try acquire all", 60, "all:1")
	}},
	"a dead writer is shown when others have come": {[]string{stuck}, []leap{back(3)}, func(s *story) {
		s.dead()
		s.refused("b", "try acquire all", 14, "all:1")
		s.shows(3, 20, sight{key: "all:1", owner: "a", token: 1})
	}},
	"a dead writer is shown when others have come to another of his keys": {nil, []leap{back(3)}, func(s *story) {
		s.dead()
		s.refused("b", "try acquire all", 14, "all:2", "all:1")
		s.shows(3, 20, sight{key: "all:1", owner: "a", token: 1})
	}},
	"a dead writer is shown, and nobody has come": {nil, []leap{back(3)}, func(s *story) {
		s.dead()
		s.shows(3, 20, sight{key: "all:1", owner: "a", token: 1})
	}},
	"a dead writer is shown until others come": {nil, []leap{back(3)}, func(s *story) {
		s.dead()
		s.refused("b", "try acquire all", 6, "all:1")
		s.shows(3, 9, sight{key: "all:1", owner: "a", token: 1})
	}},
}

// dead adds a writer, "a", who was killed.
func (s *story) dead() {
	const id = "a"
	s.ops = append(s.ops,
		&op{ID: id, Kind: "acquire all", Keys: []string{"all:1"}, Call: 2 * second, Return: 2*second + 1, Outcome: succeeded, Owner: id},
		&op{ID: id + "/all:1", Kind: "part", Of: id, Keys: []string{"all:1"}, Call: 2 * second, Return: 2*second + 1, Valid: 3 * second, Outcome: succeeded, Token: 1})
}

// forward is a clock that is set forward by an hour.
func forward(at int64) leap { return leap{from: at * second, to: at*second + 1, forward: time.Hour} }

func back(at int64) leap { return leap{from: at * second, to: at*second + 1, back: time.Hour} }

// TestCheckLeaps proves of small histories that the judge excuses what is not promised of a
// server whose clock is set, and nothing else.
func TestCheckLeaps(t *testing.T) {
	t.Parallel()
	for name, c := range leapStories {
		var s story
		c.tell(&s)
		v := (&verdict{leaps: c.leaps}).check(s.ops, s.data)
		v.checkLeases(s.ops, s.seen, time.Second)
		if found := v.sorts(); !slices.Equal(found, c.finds) {
			t.Errorf("%s: found %q, want %q: %v", name, found, c.finds, v.violations)
		}
	}
}

// TestFaketime proves what the file of a clock says: the offset and the rate, so that the
// clock doesn't jump by the rate.
func TestFaketime(t *testing.T) {
	t.Parallel()
	c := &faketime{file: t.TempDir() + "/time", offset: 90 * time.Second}
	for want, write := range map[string]func() error{
		"+90.000000 x1.000000":  func() error { return c.write(1, time.Hour) },
		"+80.000000 x2.000000":  func() error { return c.write(2, 10*time.Second) },
		"+95.000000 x0.500000":  func() error { return c.write(0.5, 10*time.Second) },
		"-110.000000 x3.000000": func() error { return c.write(3, 100*time.Second) },
	} {
		must(t, write())
		if text, err := os.ReadFile(c.file); err != nil || string(text) != want {
			t.Errorf("%q, %v, want %q", text, err, want)
		}
	}
}

// TestStep proves that a clock is set by a tenth of a time to live up to an hour.
func TestStep(t *testing.T) {
	t.Parallel()
	s := &site{options: options{ttl: time.Second}}
	for choice, want := range map[uint64]time.Duration{0: 100 * time.Millisecond, 1 << 63: 18973 * time.Millisecond, 1<<64 - 1: time.Hour} {
		if d := s.step(fault{choice: choice}); (d - want).Abs() > want/100 {
			t.Errorf("choice %d: %v, want %v", choice, d, want)
		}
	}
}
