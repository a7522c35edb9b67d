package main

import (
	"os"
	"slices"
	"testing"
	"time"
)

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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s story
			c.tell(&s)
			v := (&verdict{leaps: c.leaps}).check(s.ops, s.data)
			v.checkLeases(s.ops, s.seen, time.Second)
			if found := v.sorts(); !slices.Equal(found, c.finds) {
				t.Errorf("found %q, want %q: %v", found, c.finds, v.violations)
			}
		})
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
