package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/tests/faults"
)

// guards are what can be switched off, each with the violations of which one must be found
// then.
var guards = map[string]struct {
	finds  []string
	bug    string   // planted in the statements
	faults []string // that help to find it
	tells  string
}{
	"lock":      {[]string{lostUpdate}, "", calm, "transactions write without their lock"},
	"snapshot":  {[]string{lostUpdate}, "", calm, "a lock after a read does not look whether the read is stale"},
	"doom":      {[]string{ghostWrite, torn}, "", calm, "the pool does not refuse what comes after a deadlock"},
	"version":   {[]string{lostUpdate}, "", calm, "versions are not compared"},
	"guard":     {[]string{lostUpdate, tokenBack}, "", []string{"stop client for ttl"}, "writes under a lease are not guarded"},
	"token":     {[]string{notLinear}, "same token", calm, "the token of a lease does not rise"},
	"exclusion": {[]string{overlap}, "two owners", calm, "a lease that is held is granted to another"},
	"expiry":    {[]string{overlap}, "early expiry", []string{"hang network", "cut network"}, "a lease ends before its holder thinks so"},
	"room":      {[]string{overlap}, "no room", calm, "readers and permits are granted that there is no room for"},
}

// calm lets most operations succeed.
var calm = []string{"kill connections"}

// guardNames are the names of the guards, in the order of the alphabet.
func guardNames() []string { return slices.Sorted(maps.Keys(guards)) }

// checkGuard refuses the name of a guard that there isn't.
func checkGuard(without string) error {
	if _, ok := guards[without]; without != "" && !ok {
		return fmt.Errorf("-without %q: it is one of %s", without, strings.Join(guardNames(), ", "))
	}
	return nil
}

// rewriteFor returns what changes the statements of a client without that guard, nil
// for nothing.
func rewriteFor(without string) (func(string) string, error) {
	if guards[without].bug == "" {
		return nil, nil
	}
	return faults.Plant(guards[without].bug)
}
