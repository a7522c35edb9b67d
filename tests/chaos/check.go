package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dca00107/lockstep/tests/linear"
)

// The sorts of violations.
const (
	lostUpdate = "lost update"  // two writers have read the same value, or a counter is not the number of its writes
	lostWrite  = "lost write"   // what was reported as committed is not there
	ghostWrite = "ghost write"  // what was reported as not committed is there
	torn       = "torn"         // of a transaction a part is there
	tokenBack  = "token back"   // a record was written with a lower token than before
	outOfOrder = "out of order" // a read, or a write, has not seen what was committed before it began
	overlap    = "overlap"      // more holders at a time than may be
	notLinear  = "not linear"   // the grants of a lease could not have come in any order
	broken     = "broken"       // a call has returned what it must not
	lost       = "lost lease"   // a lease was lost though nothing was done to its holder
	stuck      = "stuck"        // something is not free again, or doesn't end
)

// violation is something that must not be.
type violation struct {
	sort string
	text string
}

// verdict is what a history and the data at its end show.
type verdict struct {
	leaps       []leap // of the server's clock
	lingers     bool   // a row may stay locked for 20 s after its session or server was killed
	violations  []violation
	overlaps    int // pairs of holders, or holders too many, at a time
	lostUpdates int
}

func (v *verdict) add(sort, format string, args ...any) {
	v.violations = append(v.violations, violation{sort, fmt.Sprintf(format, args...)})
}

// found returns the first violation of one of the sorts, of a record or a lease whose
// name begins so.
func (v *verdict) found(sorts []string, of string) (first violation, ok bool) {
	for _, f := range v.violations {
		if slices.Contains(sorts, f.sort) && (of == "" || strings.HasPrefix(f.text, of)) {
			return f, true
		}
	}
	return violation{}, false
}

// late is how long an operation may take, which should take no longer than opLimit but
// where its process is stopped. Where rows stay locked, a release of four leases alone takes as long.
const late = 5 * opLimit

// checkLimit bounds the search for an order of the grants of one key.
const checkLimit = 2 * time.Minute

// check judges a history.
func (v *verdict) check(history []*op, d data) *verdict {
	most := late
	if v.lingers {
		most += opLimit
	}
	ops := make(map[string]*op, len(history))
	for _, o := range history {
		ops[o.ID] = o
	}
	v.checkOutcomes(ops, d)
	reads, fresh := make(map[string][]*op), make(map[string][]*op)
	for _, o := range history {
		if took := time.Duration(o.Return - o.Call); took > most {
			v.add(stuck, "%s, a %q, took %v: %s", o.ID, o.Kind, took, o.Err)
		}
		switch {
		case o.Ended && o.Outcome == succeeded:
			v.add(broken, "%s was told that its transaction is committed, which %q had ended", o.ID, o.Form)
		case o.Kind == "session" && o.Outcome == succeeded && o.Value != lockWait:
			v.add(broken, "%s has got a connection whose innodb_lock_wait_timeout is %d", o.ID, o.Value)
		}
		switch {
		case o.Outcome != succeeded:
		case o.Kind == "read":
			reads[o.Keys[0]] = append(reads[o.Keys[0]], o)
		case o.Kind == "fresh lock":
			fresh[o.Keys[0]] = append(fresh[o.Keys[0]], o)
		}
	}
	for _, key := range sortedKeys(fresh) {
		v.checkFresh(key, fresh[key])
	}
	byName := make(map[string][]commit)
	for _, c := range d.commits {
		byName[c.name] = append(byName[c.name], c)
	}
	for _, name := range sortedKeys(d.counters) {
		v.checkCounter(name, d.counters[name], byName[name], reads[name], ops)
	}
	v.checkHolds(ops, history)
	v.checkOnces(history, d)
	return v
}

// checkOutcomes compares what clients were told of their transactions with what is
// there. Where the outcome is not known, or the client was killed, both is right, but
// at most one of the tries can have been committed.
func (v *verdict) checkOutcomes(ops map[string]*op, d data) {
	there := make(map[string]map[string]string) // operation, record: try
	for _, c := range d.commits {
		o := ops[c.op]
		if there[c.op] == nil {
			there[c.op] = make(map[string]string)
		}
		before, twice := there[c.op][c.name]
		there[c.op][c.name] = c.try
		switch {
		case o == nil:
			v.add(ghostWrite, "%s of %s is committed, and nobody has begun it", c.op, c.name)
		case twice || len(there[c.op]) > 1 && !sameTry(there[c.op]):
			v.add(ghostWrite, "%s of %s is committed by try %s, and by try %s", c.op, c.name, before, c.try)
		case o.Outcome == failed:
			v.add(ghostWrite, "%s of %s is committed by try %s, and the client was told that it is not: %s", c.op, c.name, c.try, o.Err)
		case o.Outcome != "" && c.try != fmt.Sprint(o.Tries):
			v.add(ghostWrite, "%s of %s is committed by try %s of %d, which was rolled back", c.op, c.name, c.try, o.Tries)
		}
	}
	for _, o := range ops {
		for _, name := range o.Wrote {
			_, ok := there[o.ID][name]
			switch {
			case ok, o.Answer != "" && o.Answer != tryID(o.ID, fmt.Sprint(o.Tries)): // after its try another has done it
			case o.Outcome == succeeded:
				v.add(lostWrite, "%s of %s was reported as committed, and is not there", o.ID, name)
			case len(there[o.ID]) > 0:
				v.add(torn, "%s of %s is not there, and of %s it is: %s", o.ID, name, sortedKeys(there[o.ID]), o.Err)
			}
		}
	}
}

func sameTry(tries map[string]string) bool {
	first := ""
	for _, try := range tries {
		if first != "" && try != first {
			return false
		}
		first = try
	}
	return true
}

// checkCounter checks that each write of a counter has read what the one before has
// written, that their tokens rise, and that they have come in an order that agrees with
// the clock: what has returned before another began is before it.
func (v *verdict) checkCounter(name string, value int64, writes []commit, reads []*op, ops map[string]*op) {
	slices.SortFunc(writes, func(a, b commit) int { return cmp.Compare(a.value, b.value) })
	if lost := v.checkLost(name, value, writes); lost > 0 {
		v.lostUpdates += lost
		return // there is no order to check
	}
	v.checkTokens(name, writes)
	v.checkClock(name, writes, reads, ops)
}

// checkLost returns how many of the writes, by their values, are lost.
func (v *verdict) checkLost(name string, value int64, writes []commit) (lost int) {
	for i, c := range writes {
		if i > 0 && c.value == writes[i-1].value {
			lost++
			v.add(lostUpdate, "%s: %s and %s have both written %d", name, writes[i-1].op, c.op, c.value)
		}
	}
	if lost == 0 && (value != int64(len(writes)) || len(writes) > 0 && writes[len(writes)-1].value != value) {
		lost++
		v.add(lostUpdate, "%s is %d after %d writes", name, value, len(writes))
	}
	return lost
}

// checkTokens checks that the tokens rise, but for those of leases, which may write twice.
func (v *verdict) checkTokens(name string, writes []commit) {
	lease := slices.Contains(slices.Concat(leaseKeys, sharedKeys, innerKeys, electionKeys, allKeys, askedLeases), name)
	token := uint64(0)
	for i, c := range writes {
		if c.token == 0 {
			continue
		}
		if c.token < token || c.token == token && !lease {
			v.add(tokenBack, "%s: %s has written %d with token %d after %d", name, c.op, writes[i].value, c.token, token)
		}
		token = c.token
	}
}

// checkClock checks that the writes and reads agree with the clock.
func (v *verdict) checkClock(name string, writes []commit, reads []*op, ops map[string]*op) {
	// returned[i] is when the first of the writes from i on had returned, called[i]
	// when the last of those before i was called.
	returned, called := make([]int64, len(writes)+1), make([]int64, len(writes)+1)
	returned[len(writes)] = linear.Forever
	for i := len(writes) - 1; i >= 0; i-- {
		returned[i] = returned[i+1]
		if o := ops[writes[i].op]; o != nil && o.Outcome == succeeded {
			returned[i] = min(returned[i], o.Return)
		}
	}
	for i, c := range writes {
		called[i+1] = called[i]
		if o := ops[c.op]; o != nil {
			called[i+1] = max(called[i], o.Call)
			if o.Call > returned[i+1] {
				v.add(outOfOrder, "%s: %s was called after a later write had returned", name, c.op)
			}
		}
	}
	for _, r := range reads {
		switch {
		case r.Value > int64(len(writes)):
			v.add(outOfOrder, "%s: %s has read %d, which nobody has committed", name, r.ID, r.Value)
		case r.Call > returned[r.Value]:
			v.add(outOfOrder, "%s: %s has read %d after a later write had returned", name, r.ID, r.Value)
		case r.Return < called[r.Value]:
			v.add(outOfOrder, "%s: %s has read %d before that was written", name, r.ID, r.Value)
		}
	}
}

// checkFresh checks that a grant of a lock has a higher token than those which had
// returned before it was asked for, all of transactions that were rolled back. That is not
// promised over a clock that is set back.
func (v *verdict) checkFresh(key string, grants []*op) {
	for _, o := range grants {
		for _, before := range grants {
			if before.Return < o.Call && before.Value >= o.Value && behind(v.leaps, before.Call, o.Return) == 0 {
				v.add(tokenBack, "%s: %s was granted with token %d after %s with token %d", key, o.ID, o.Value, before.ID, before.Value)
				break
			}
		}
	}
}

// hold is a lease in the eyes of its holder: granted between call and grant, and valid
// for certain from then to valid. Its holder has believed in it to the end, which is later
// where the server's clock was set forward meanwhile.
type hold struct {
	id                 string
	shared             bool
	token              uint64
	call, grant, valid int64
	end                int64
}

// checkHolds checks the leases of each key: their holders by the moments at which they
// believed in their lease, and the order of their grants by the model.
func (v *verdict) checkHolds(ops map[string]*op, history []*op) {
	byKey := make(map[string][]hold)
	for _, o := range history {
		switch {
		case o.Kind == "re-enter":
			v.checkEntry(o, ops[o.Of])
		case o.Token > 0 && o.Outcome == succeeded:
			byKey[o.Keys[0]] = append(byKey[o.Keys[0]], hold{
				o.ID, shares(o.Kind), o.Token, o.Call, o.Return, certain(v.leaps, o.Call, o.Return, o.Valid), o.Valid,
			})
		}
	}
	for _, key := range sortedKeys(byKey) {
		v.checkOverlaps(key, byKey[key], mostOf(key))
		v.checkOrder(key, byKey[key], mostOf(key))
	}
}

// checkEntry checks that somebody who re-enters a lease gets the token that he has, or a
// higher one when he has lost it. That a reader has entered by another row is no
// different.
func (v *verdict) checkEntry(o, of *op) {
	switch {
	case o.Outcome != succeeded || shares(of.Kind) && o.Token != of.Token:
	case o.Token < of.Token:
		v.add(tokenBack, "%s has entered %s again with token %d after %d", o.ID, of.ID, o.Token, of.Token)
	case o.Token > of.Token && certain(v.leaps, of.Call, of.Return, of.Valid) > o.Return:
		v.add(broken, "%s has entered %s again with token %d, and token %d was still valid", o.ID, of.ID, o.Token, of.Token)
	}
}

// checkOverlaps finds holders that have believed in a lease at the same time.
func (v *verdict) checkOverlaps(key string, holds []hold, most int) {
	slices.SortFunc(holds, func(a, b hold) int { return cmp.Compare(a.grant, b.grant) })
	var now []hold
	for _, h := range holds {
		now = slices.DeleteFunc(now, func(before hold) bool { return before.valid <= h.grant })
		if h.valid <= h.grant {
			continue // it was over when it came
		}
		sharing := 0
		for _, before := range now {
			if before.shared && h.shared {
				sharing++
				continue
			}
			v.overlaps++
			v.add(overlap, "%s: %s (token %d) was granted %v before %s (token %d) has ceased to believe in it", key,
				h.id, h.token, time.Duration(min(before.valid, h.valid)-h.grant), before.id, before.token)
		}
		if h.shared && sharing >= most {
			v.overlaps++
			v.add(overlap, "%s: %s was granted beside %d others", key, h.id, sharing)
		}
		now = append(now, h)
	}
}

// checkOrder checks that the grants and the ends of the holds could have come one after
// the other, with tokens that rise. A hold is taken to begin when its grant had returned
// and to end when it was valid last: if there is an order for a longer time, there is one
// for this. One that was never seen valid had its grant at some moment of the call, and
// says something of the token only.
func (v *verdict) checkOrder(key string, holds []hold, most int) {
	var events []porcupine.Operation
	for i, h := range holds {
		first, last, end := h.grant, h.valid, h.end
		if h.valid <= h.grant {
			if h.shared {
				continue
			}
			first, last, end = h.call, h.call, linear.Forever
		}
		grant := linear.Call{Verb: linear.Acquire}
		if h.shared {
			grant.Verb = linear.Share
		}
		events = append(events,
			porcupine.Operation{ClientId: i, Input: grant, Output: linear.Reply{OK: true, Owner: h.id, Token: h.token}, Call: first, Return: h.grant},
			porcupine.Operation{ClientId: i, Input: linear.Call{Verb: linear.Release, Owner: h.id}, Output: linear.Reply{OK: true}, Call: last, Return: end})
	}
	switch linear.Check(events, most, checkLimit) {
	case porcupine.Illegal:
		v.add(notLinear, "%s: there is no order in which its %d grants could have come, with tokens that rise", key, len(holds))
	case porcupine.Unknown:
		v.add(notLinear, "%s: no order of its %d grants was found in %v", key, len(holds), checkLimit)
	}
}
