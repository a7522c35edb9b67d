package differential_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// program is what a few actors do, one step at a time. A step of an actor whose last one
// still waits is left out.
type program struct {
	keys  []kind // what the keys are like at the beginning
	steps []step
}

// kind is a kind of key.
type kind string

const (
	fresh   kind = "fresh"   // never locked
	ensured kind = "ensured" // never locked, but its row was made beforehand
	hashed  kind = "hashed"
)

// step is one call. What a verb doesn't need is zero.
type step struct {
	actor int
	verb  string
	keys  []int
	arg   string
}

func (s step) String() string {
	words := []string{fmt.Sprintf("T%d", s.actor+1), s.verb}
	for _, key := range s.keys {
		words = append(words, fmt.Sprintf("k%d", key))
	}
	if s.arg != "" {
		words = append(words, s.arg)
	}
	return strings.Join(words, " ")
}

func (p program) String() string {
	var b strings.Builder
	for i, kind := range p.keys {
		fmt.Fprintf(&b, "k%d is %s\n", i, kind)
	}
	for _, step := range p.steps {
		fmt.Fprintln(&b, step)
	}
	return b.String()
}

// verb is a call that programs make.
type verb struct {
	weight int // how often it is made
	keys   func(r *rand.Rand, n int) []int
	args   []string // one of them
	call   func(a *actor, s step) answer
}

// randomProgram makes a program of the verbs.
func randomProgram(r *rand.Rand, verbs map[string]verb) program {
	p := program{keys: make([]kind, 3)}
	for i := range p.keys {
		p.keys[i] = []kind{fresh, fresh, ensured, ensured, hashed}[r.IntN(5)]
	}
	open := make([]bool, 2+r.IntN(2)) // the actors' transactions
	var names []string
	for name, v := range verbs {
		names = append(names, slices.Repeat([]string{name}, v.weight)...)
	}
	slices.Sort(names) // the map has no order
	for range 12 + r.IntN(20) {
		s := step{actor: r.IntN(len(open)), verb: names[r.IntN(len(names))]}
		if !open[s.actor] && r.IntN(20) > 0 {
			s.verb = "Begin"
		}
		open[s.actor] = s.verb != "Commit" && s.verb != "Rollback"
		v := verbs[s.verb]
		if v.keys != nil {
			s.keys = v.keys(r, len(p.keys))
		}
		if len(v.args) > 0 {
			s.arg = v.args[r.IntN(len(v.args))]
		}
		p.steps = append(p.steps, s)
	}
	return p
}

// oneKey prefers the first, so that actors meet.
func oneKey(r *rand.Rand, n int) []int { return []int{max(0, r.IntN(n+2)-2)} }

func someKeys(r *rand.Rand, n int) []int { return r.Perm(n)[:1+r.IntN(n)] }

// shrink leaves out steps as long as the program fails, and returns the smallest one.
func shrink(p program, fails func(program) bool) program {
	for size := len(p.steps) / 2; size > 0; {
		smaller := false
		for from := 0; from < len(p.steps); {
			without := program{p.keys, slices.Delete(slices.Clone(p.steps), from, min(from+size, len(p.steps)))}
			if fails(without) {
				p, smaller = without, true
			} else {
				from += size
			}
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return p
}
