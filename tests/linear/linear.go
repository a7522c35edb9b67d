// Package linear is the model that histories of leases are checked against: one writer
// or several others at a time, with tokens that rise.
package linear

import (
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verb is an operation of a history.
type Verb string

// The operations.
const (
	Acquire   Verb = "acquire"
	Share     Verb = "share" // a reader's place, or a permit
	Downgrade Verb = "downgrade"
	Release   Verb = "release"
	Force     Verb = "force"
	Inspect   Verb = "inspect"
)

// Call is one operation on one key.
type Call struct {
	Verb  Verb
	Owner string // of a release and a downgrade, whose lease it is
	// Excused tells that another call changed the key at the same time: a row that
	// is locked for a moment makes a try busy.
	Excused bool
}

// Reply is what came of a call.
type Reply struct {
	OK      bool // granted, released, downgraded, held
	Unknown bool // it is carried out in the background, some time
	Owner   string
	Token   uint64
}

// Forever is the return of a call that has not returned: it may have been carried out,
// at any moment since.
const Forever = 1<<63 - 1

// Unlimited is for keys that any number may share.
const Unlimited = 1 << 30

// Check tells whether the calls on a key, at most so many of which share it, could have
// come one after the other, each at a moment between its begin and its end (Herlihy and
// Wing, "Linearizability", 1990), or porcupine.Unknown where that takes too long to find
// out.
func Check(history []porcupine.Operation, most int, limit time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(porcupine.Model{
		Init: func() any { return holding{} },
		Step: func(state, input, output any) (bool, any) {
			return state.(holding).step(input.(Call), output.(Reply), most)
		},
	}, history, limit)
}

// holding is the state of one key: a writer with the token of the last grant, and
// the others.
type holding struct {
	owner   string // of the writer, "" for none
	token   uint64
	sharing string // the owners of readers or permits, sorted, each in brackets
}

func (s holding) shared(owner string) bool { return strings.Contains(s.sharing, "["+owner+"]") }

func (s holding) enter(owner string) holding {
	all := append(strings.SplitAfter(s.sharing, "]"), "["+owner+"]")
	slices.Sort(all)
	s.sharing = strings.Join(all, "")
	return s
}

func (s holding) leave(owner string) holding {
	if s.owner == owner {
		s.owner = ""
	}
	s.sharing = strings.Replace(s.sharing, "["+owner+"]", "", 1)
	return s
}

// step tells what a call may reply in a state, where at most so many share it.
func (s holding) step(c Call, r Reply, most int) (bool, holding) {
	free := s.owner == "" && s.sharing == ""
	room := s.owner == "" && strings.Count(s.sharing, "[") < most
	switch c.Verb {
	case Acquire:
		if !r.OK {
			return !free || c.Excused, s
		}
		return free && r.Token > s.token, holding{owner: r.Owner, token: r.Token}
	case Share:
		if !r.OK {
			return !room || c.Excused, s
		}
		return room, s.enter(r.Owner)
	case Downgrade:
		if !r.OK {
			return s.owner != c.Owner || c.Excused, s
		}
		return s.owner == c.Owner, holding{token: s.token}.enter(c.Owner)
	case Release:
		held := s.owner == c.Owner || s.shared(c.Owner)
		if !r.Unknown && r.OK != held {
			return false, s
		}
		return true, s.leave(c.Owner)
	case Force:
		if !r.OK {
			return s.owner == "", s
		}
		return s.owner != "", holding{token: s.token + 1, sharing: s.sharing}
	default: // Inspect, which among readers may show a writer who only tries
		return most > 0 || s.shown(r), s
	}
}

// shown tells whether a reply shows the writer and the token of this state.
func (s holding) shown(r Reply) bool {
	return r.OK == (s.owner != "") && r.Token == s.token && (!r.OK || r.Owner == s.owner)
}
