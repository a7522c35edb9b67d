package locktest_test

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

// game is what programs are made of.
type game struct {
	verbs map[string]verb
	begin string               // the verb that is the first of an actor's, "" if any is
	last  func(program) []step // what follows each program
}

// verb is a call that programs make.
type verb struct {
	weight int  // how often it is made
	ends   bool // the next step of the actor is mostly the game's first
	keys   func(r *rand.Rand, n int) []int
	args   []string // one of them
	call   func(a *actor, s step) answer
}

// possible tells whether the actor can make the step.
func (g game) possible(s step, a *actor) bool {
	return g.begin == "" || s.verb == g.begin || a.tx != nil
}

// randomProgram makes a program of the game's verbs.
func randomProgram(r *rand.Rand, g game) program {
	p := program{keys: make([]kind, 3)}
	for i := range p.keys {
		p.keys[i] = []kind{fresh, fresh, ensured, ensured, hashed}[r.IntN(5)]
	}
	var names []string
	for name, v := range g.verbs {
		names = append(names, slices.Repeat([]string{name}, v.weight)...)
	}
	slices.Sort(names) // the map has no order
	begun := make([]bool, 2+r.IntN(maxActors-1))
	for range 12 + r.IntN(20) {
		s := step{actor: r.IntN(len(begun)), verb: names[r.IntN(len(names))]}
		if g.begin != "" && !begun[s.actor] && r.IntN(20) > 0 {
			s.verb = g.begin
		}
		v := g.verbs[s.verb]
		begun[s.actor] = !v.ends
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
