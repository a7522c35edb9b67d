package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/tests/faults"
)

// guards are what can be switched off, each with the violations of which one must be found
// then.
var guards = map[string]struct {
	finds    []string
	of       string   // how the name of the record or lease begins that they are of
	bug      string   // planted in the statements
	faults   []string // that help to find it
	tells    string
	lies     faults.Lies   // told by the replies
	careless bool          // only careless statements show it
	least    time.Duration // that the first run takes: what shows it is rare
}{
	"lock":       {finds: []string{lostUpdate}, faults: calm, tells: "transactions write without their lock"},
	"snapshot":   {finds: []string{lostUpdate}, faults: calm, tells: "a lock after a read does not look whether the read is stale"},
	"doom":       {finds: []string{ghostWrite, torn}, faults: calm, tells: "the pool does not refuse what comes after a deadlock"},
	"version":    {finds: []string{lostUpdate}, faults: calm, tells: "versions are not compared"},
	"guard":      {finds: []string{lostUpdate, tokenBack}, faults: []string{"stop client for ttl"}, tells: "writes under a lease are not guarded"},
	"token":      {finds: []string{notLinear}, bug: "same token", faults: calm, tells: "the token of a lease does not rise"},
	"exclusion":  {finds: []string{overlap}, bug: "two owners", faults: calm, tells: "a lease that is held is granted to another"},
	"expiry":     {finds: []string{overlap}, bug: "early expiry", faults: []string{"hang network", "cut network"}, tells: "a lease ends before its holder thinks so"},
	"flag":       {finds: []string{lostUpdate, lostWrite, ghostWrite, torn}, faults: calm, lies: faults.Lies{Open: true}, careless: true, tells: "the reply of a statement that has ended the transaction says that it is open"},
	"savepoint":  {finds: []string{lostUpdate, ghostWrite, broken}, faults: calm, lies: faults.Lies{Savepoints: true}, careless: true, tells: "a savepoint is released that a statement has ended"},
	"retry":      {finds: []string{ghostWrite}, faults: calm, careless: true, tells: "a transaction that was committed is begun again after a deadlock"},
	"plugin":     {finds: []string{lostUpdate}, faults: calm, tells: "the plugin is told that a model needs no lock"},
	"prediction": {finds: []string{lostUpdate}, of: "version:", faults: calm, tells: "a version that was rolled back is that of another's commit"},
	"owner":      {finds: []string{overlap, lostUpdate}, of: "inner:", faults: calm, tells: "goroutines under the context of a lease are one owner"},
	"once":       {finds: []string{doneTwice}, of: ofOnce, faults: calm, tells: "who asks for a key looks first, and writes then"},
	"tick":       {finds: []string{doneTwice}, of: ofTickTx, faults: calm, tells: "a tick is done under its lease, and not marked"},
	"term":       {finds: []string{overlap, lostUpdate, tokenBack}, of: ofElection, faults: []string{"stop client for ttl", "hang network"}, tells: "a leader goes on though its term is over"},
	"order":      {finds: []string{stuck}, of: ofAll, faults: calm, tells: "several leases are acquired in the order in which they are named"},
	"part":       {finds: []string{overlap, lostUpdate}, of: ofAll, faults: calm, tells: "who gets some of several leases works as if it had all"},
	"rest":       {finds: []string{stuck}, of: ofAll, faults: calm, tells: "what was acquired for a call that fails stays held"},
	"keep":       {finds: []string{tooSoon}, of: ofKept, bug: "freed too early", faults: calm, tells: "a key is free before it was held for long enough"},
	"end":        {finds: []string{stuck}, of: ofKept, bug: "kept too long", faults: calm, tells: "a key stays held for longer than was asked for"},
	"telling":    {finds: []string{notTold}, of: ofAsked + "1", bug: "not told", faults: calm, tells: "no holder is told that somebody asks for the key"},
	"reader":     {finds: []string{notTold}, of: askedReaders, bug: "not told", faults: calm, tells: "no reader is told that somebody asks for the key"},
	"permit":     {finds: []string{notTold}, of: askedPermits, bug: "not told", faults: calm, tells: "no holder of a permit is told that somebody asks for it"},
	"everybody":  {finds: []string{notTold}, of: askedReaders, bug: "one is asked", faults: calm, tells: "of several readers one is asked"},
	"sharing":    {finds: []string{notTold}, of: askedPermits, bug: "nobody who shares is asked", faults: calm, tells: "holders of permits count as nobody when they are asked for"},
	"neighbour":  {finds: []string{misled}, of: ofAsked, bug: "all keys are asked", faults: calm, tells: "holders of other keys are asked"},
	"addressee":  {finds: []string{misled}, of: ofAsked + "1", bug: "question kept", faults: calm, tells: "a question stays for the next holder"},
	"seat":       {finds: []string{misled}, of: askedReaders, bug: "question kept", faults: calm, tells: "a question stays for the next reader"},
	"turn":       {finds: []string{misled}, of: askedPermits, bug: "question kept", faults: calm, tells: "a question stays for the next holder of a permit"},
	"release":    {finds: []string{stuck}, of: ofAsked, bug: "lost release", faults: calm, tells: "a lease that was given up stays held"},
	"herd":       {finds: []string{overlap}, of: ofHerd, bug: "no room", faults: calm, tells: "readers by the hundred are granted beside a writer"},
	"majority":   {finds: []string{overlap, notLinear}, of: ofMajority, faults: calm, tells: "one database of three grants a lease"},
	"sale":       {finds: []string{lostUpdate}, faults: calm, tells: "a read does not take the lock that was asked for with it"},
	"rows":       {finds: []string{lostUpdate}, of: ofSales, faults: calm, tells: "a sale commits whatever number of rows it has changed"},
	"generated":  {finds: []string{lostUpdate}, of: ofGenerated, faults: calm, tells: "generated queries don't lock"},
	"clock":      {finds: []string{notLinear, tokenBack}, bug: "token by the clock", faults: []string{"set clock back"}, tells: "the token of a lease is the server's clock"},
	"locktoken":  {finds: []string{tokenBack}, bug: "lock token by the clock", faults: []string{"set clock back"}, tells: "the token of a lock is the server's clock"},
	"setback":    {finds: []string{stuck}, of: ofAll, bug: "expiry kept", faults: []string{"set clock back for long", "kill client"}, least: time.Minute, tells: "a dead writer's lease lasts until a clock that was set back has come to its end"},
	"room":       {finds: []string{overlap}, bug: "no room", faults: calm, tells: "readers and permits are granted that there is no room for"},
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
