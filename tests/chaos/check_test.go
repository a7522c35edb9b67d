package main

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// story is a small history: operations that are called and return at the given
// moments, and the data at its end.
type story struct {
	ops  []*op
	data data
	seen []sight
}

func (s *story) add(o op) *story {
	s.ops = append(s.ops, &o)
	return s
}

// but changes what was told.
func (s *story) but(change func(s *story)) *story {
	change(s)
	return s
}

// write adds a transaction that has written a value of lock:a with a token.
func (s *story) write(id string, call, end int64, became outcome, value int64, token uint64) *story {
	o := op{ID: id, Kind: "lock", Keys: []string{"lock:a"}, Call: call, Return: end, Outcome: became, Tries: 1}
	if became != failed {
		o.Wrote = []string{"lock:a"}
		s.commit(id, "1", "lock:a", value, token)
	}
	return s.add(o)
}

// guarded adds a guarded write of a key, which is the n-th.
func (s *story) guarded(id, key string, call, n int64, token uint64) *story {
	s.commit(id, "1", key, n, token)
	return s.add(op{ID: id, Kind: "guarded write", Keys: []string{key}, Call: call, Return: call + 4, Outcome: succeeded, Tries: 1, Wrote: []string{key}})
}

// commit adds a row of the table commits.
func (s *story) commit(op, try, name string, value int64, token uint64) *story {
	if s.data.counters == nil {
		s.data.counters = make(map[string]int64)
	}
	s.data.counters[name] = max(s.data.counters[name], value)
	s.data.commits = append(s.data.commits, commit{op, try, name, value, token})
	return s
}

// read adds a transaction that has read lock:a.
func (s *story) read(id string, call, end, value int64) *story {
	return s.add(op{ID: id, Kind: "read", Keys: []string{"lock:a"}, Call: call, Return: end, Outcome: succeeded, Tries: 1, Value: value})
}

// hold adds a hold of a lease.
func (s *story) hold(id, kind, key string, token uint64, call, grant, valid int64) *story {
	return s.add(op{ID: id, Kind: kind, Keys: []string{key}, Call: call, Return: grant, Outcome: succeeded, Token: token, Valid: valid})
}

// fresh adds a lock of a key that nobody has committed.
func (s *story) fresh(id string, call, end, token int64) *story {
	return s.add(op{ID: id, Kind: "fresh lock", Keys: []string{"fresh:1"}, Call: call, Return: end, Outcome: succeeded, Value: token})
}

// careless adds a transaction with a careless statement, whose first write is there.
func (s *story) careless(became, becameThen outcome, ended bool) *story {
	second := op{ID: "a, then", Kind: coreEnds + ", then", Keys: []string{"lock:b"}, Call: 1, Return: 5, Outcome: becameThen, Tries: 1}
	if becameThen == succeeded {
		second.Wrote = []string{"lock:b"}
	}
	s.add(op{ID: "a", Kind: coreEnds, Keys: []string{"lock:a"}, Call: 1, Return: 5, Outcome: became, Tries: 1, Ended: ended, Wrote: []string{"lock:a"}})
	return s.add(second).commit("a", "1", "lock:a", 1, 0)
}

// enter adds the re-entry of a hold.
func (s *story) enter(of string, token uint64, call, end int64) *story {
	return s.add(op{ID: of + "-again", Kind: "re-enter", Keys: []string{"lease:1"}, Of: of, Call: call, Return: end, Outcome: succeeded, Token: token})
}

// wrote is a story that begins with a write.
func wrote() *story { return new(story).write("a", 1, 5, succeeded, 1, 101) }

// acquired is a story that begins with a hold, which is valid until then.
func acquired(valid int64) *story {
	return new(story).hold("a", "acquire", "lease:1", 101, 1, 5, valid)
}

// ab are the keys of a transaction that should have written both.
var ab = []string{"lock:a", "lock:b"}

// stories are histories with what is to be found in them, nothing where they are good.
var stories = map[string]struct {
	finds []string
	*story
}{
	"writes one after the other": {nil, wrote().write("b", 2, 9, succeeded, 2, 102).write("c", 10, 12, failed, 0, 0).
		read("r", 6, 12, 1). // b may have come after it
		read("q", 10, 12, 2)},
	"a call that takes too long": {[]string{stuck}, new(story).write("a", 1, int64(time.Minute), succeeded, 1, 101)},
	"the same value twice":       {[]string{lostUpdate}, wrote().write("b", 2, 9, succeeded, 1, 102)},
	"a counter below its writes": {[]string{lostUpdate}, wrote().write("b", 6, 9, succeeded, 2, 102).
		but(func(s *story) { s.data.counters["lock:a"] = 1 })},
	"a write that is gone":                     {[]string{lostWrite}, wrote().but(func(s *story) { s.data.commits, s.data.counters["lock:a"] = nil, 0 })},
	"a failed write that is there":             {[]string{ghostWrite}, wrote().but(func(s *story) { s.ops[0].Outcome = failed })},
	"a try that was rolled back, and is there": {[]string{ghostWrite}, wrote().commit("a", "2", "lock:a", 2, 102).but(func(s *story) { s.ops[0].Tries = 2 })},
	"half of two tries": {[]string{ghostWrite}, new(story).write("a", 1, 5, unknown, 1, 101).commit("a", "2", "lock:b", 1, 101).
		but(func(s *story) { s.ops[0].Wrote = ab })},
	"half of a transaction":          {[]string{torn}, new(story).write("a", 1, 5, unknown, 1, 101).but(func(s *story) { s.ops[0].Wrote = ab })},
	"a write of nobody":              {[]string{ghostWrite}, new(story).commit("a", "1", "lock:a", 1, 101)},
	"the same token of a lock twice": {[]string{tokenBack}, wrote().write("b", 6, 9, succeeded, 2, 101)},
	"a lower token": {[]string{tokenBack}, new(story).write("a", 1, 5, succeeded, 1, 102).
		write("n", 2, 9, succeeded, 2, 0). // whose token is not known
		write("b", 6, 9, succeeded, 3, 101)},
	"a lease's writer come late":          {[]string{tokenBack}, new(story).guarded("a", "lease:1", 1, 1, 102).guarded("b", "lease:1", 1, 2, 101)},
	"a write before what had returned":    {[]string{outOfOrder}, new(story).write("a", 6, 9, succeeded, 1, 101).write("b", 1, 5, succeeded, 2, 102)},
	"a stale read":                        {[]string{outOfOrder}, wrote().read("r", 6, 9, 0)},
	"a read of what nobody has committed": {[]string{outOfOrder}, new(story).write("a", 4, 5, succeeded, 1, 101).read("r", 6, 9, 2)},
	"a read of what comes later":          {[]string{outOfOrder}, new(story).read("r", 1, 2, 1).write("a", 4, 5, succeeded, 1, 101)},
	"a fresh lock with a lower token":     {[]string{tokenBack}, new(story).fresh("a", 1, 5, 101).fresh("b", 6, 9, 100)},
	"a transaction that a statement has ended, committed": {[]string{broken}, new(story).careless(succeeded, succeeded, true).
		commit("a, then", "1", "lock:b", 1, 0)},
	"a write after a statement that has ended the transaction": {[]string{ghostWrite}, new(story).careless(unknown, failed, true).
		commit("a, then", "1", "lock:b", 1, 0)},
	"lost in a statement":             {[]string{lostWrite}, new(story).careless(succeeded, succeeded, false)},
	"a session that has kept a limit": {[]string{broken}, new(story).add(op{ID: "a", Kind: "session", Call: 1, Return: 2, Outcome: succeeded, Value: 3})},

	"holders one after the other": {nil, acquired(10).
		hold("b", "acquire", "lease:1", 102, 2, 11, 20). // granted while the release was under way
		hold("c", "acquire", "lease:2", 101, 2, 11, 20). // another key
		enter("b", 102, 12, 14)},
	"two holders": {[]string{overlap, notLinear}, acquired(10).hold("b", "acquire", "lease:1", 102, 2, 8, 20)},
	"a grant that was over when it came, with a token of before": {[]string{notLinear}, new(story).
		hold("a", "acquire", "lease:1", 102, 1, 5, 10).hold("b", "acquire", "lease:1", 101, 6, 20, 0)},
	"entered with a lower token":                  {[]string{tokenBack}, acquired(30).enter("a", 100, 6, 8)},
	"entered with another token while it is held": {[]string{broken}, acquired(30).enter("a", 103, 6, 8)},
	"a leader that goes on beside its successor": {[]string{overlap, notLinear, tokenBack}, new(story).
		hold("a", "lead", "election:1", 101, 1, 5, 30).hold("b", "lead", "election:1", 102, 2, 20, 40).
		guarded("102", "election:1", 21, 1, 102).guarded("101", "election:1", 21, 2, 101)},
	"a reader beside a writer": {[]string{overlap, notLinear}, new(story).
		hold("a", "share", "shared:1", 1, 1, 5, 10).hold("c", "acquire among readers", "shared:1", 101, 2, 8, 20)},
	"a permit too many": {[]string{overlap, notLinear}, new(story).
		hold("a", "permit", "permit:1", 1, 1, 5, 10).hold("b", "permit", "permit:1", 2, 1, 6, 14).hold("c", "permit", "permit:1", 3, 1, 8, 14)},
}

// sorts are the sorts of the violations.
func (v *verdict) sorts() (found []string) {
	for _, f := range v.violations {
		found = append(found, f.sort)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// TestCheck proves of small histories that the judge finds in them what is wrong, and
// nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range stories {
		v := (&verdict{}).check(c.ops, c.data)
		found, want := v.sorts(), slices.Sorted(slices.Values(c.finds))
		testdb.ErrorIf(t, !slices.Equal(found, want), "%s: found %q, want %q: %v", name, found, want, v.violations)
		testdb.ErrorIf(t, (v.overlaps > 0) != slices.Contains(found, overlap) || (v.lostUpdates > 0) != slices.Contains(found, lostUpdate),
			"%s: %d overlaps and %d lost updates, found %q", name, v.overlaps, v.lostUpdates, found)
	}
}

// TestSchedule proves that the same seed gives the same faults, and another one others,
// each within the run.
func TestSchedule(t *testing.T) {
	t.Parallel()
	o := options{duration: 5 * time.Minute, seed: 1, perSite: 4, ttl: time.Second}
	other := o
	other.seed = 2
	for i, lane := range lanes {
		faults := schedule(o, uint64(i), lane)
		testdb.ErrorIf(t, !slices.Equal(faults, schedule(o, uint64(i), lane)) || slices.Equal(faults, schedule(other, uint64(i), lane)),
			"lane %d: the same seed gives other faults, or another the same", i)
		end := time.Duration(0)
		for _, f := range faults {
			testdb.ErrorIf(t, f.at < end || f.at+f.lasts > o.duration || f.client < 0 || f.client >= o.perSite, "lane %d: %+v after %v", i, f, end)
			end = f.at + f.lasts
		}
	}
}

// TestRefused proves that what can't be run is refused before anything is started, with
// what is wrong.
func TestRefused(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"-without nonsense":        `-without "nonsense": it is one of addressee`,
		"-faults nonsense":         `"nonsense" is not one of kill connections`,
		"-engines oracle":          "unknown engine",
		"-duration -1s":            "must be positive",
		"-clients 1":               "two clients",
		"-ttl 1ms":                 "100ms at least",
		"-crowd -1":                "must not be negative",
		"-wrappers nonsense":       `"nonsense" is not one of comment before`,
		"-seed 1 -engines x 10s":   "unknown engine",
		"-engines mariadb 10s now": `"10s" is no flag`,
	} {
		code, err := chaos(t.Context(), strings.Fields("-engines mariadb "+line))
		testdb.Fails(t, line, err, says)
		testdb.Equal(t, line, code, 2)
	}
}

// TestTell proves that a violation, and what a client has said, is told with the command that runs
// the same again.
func TestTell(t *testing.T) {
	t.Parallel()
	o := options{duration: time.Minute, seed: 7, perSite: 4, workers: 3, ttl: time.Second, without: "lock"}
	s := &site{options: o, dir: t.TempDir(), engine: "mariadb", faults: map[string]int{"kill server": 3}, history: []*op{{ID: "a", Kind: "run", Outcome: succeeded, Tries: 2}}}
	r := &result{options: o, sites: []*site{s}}
	told := func(want int) string {
		var text strings.Builder
		testdb.Equal(t, "what tell returns", r.tell(&text), want)
		return text.String()
	}
	for name, text := range map[string]string{"mariadb0.1": "", "mysql0.1": "panic"} {
		must(t, os.WriteFile(filepath.Join(s.dir, name+".stderr"), []byte(text), 0o600))
	}
	must(t, s.listen())
	testdb.Says(t, "the report", told(0), "seed 7: nothing is wrong")
	s.add(overlap, "two of them")
	told(1)
	must(t, os.WriteFile(filepath.Join(s.dir, "mariadb1.2.stderr"), []byte("WARNING: DATA RACE"), 0o600))
	must(t, s.listen())
	for range mostShown + 1 {
		s.add(broken, "once more")
	}
	testdb.Says(t, "the report", told(1), "broken: mariadb1.2.stderr: WARNING: DATA RACE",
		"overlap: two of them", "broken: and 2 more", "kill server                  3", "FAILED", "-duration 1m0s -seed 7", "-without lock")
}

var must = testdb.Must

// second is one of the moments of the histories of leases, whose time to live it is, too.
const second = int64(time.Second)

// held adds a hold, in seconds, and its release unless that is 0.
func (s *story) held(id, kind, key string, token uint64, call, grant, release int64, as ...func(*op)) *story {
	s.hold(id, kind, key, token, call*second, grant*second, max(grant+1, release)*second)
	o := s.ops[len(s.ops)-1]
	o.Owner = id
	for _, change := range as {
		change(o)
	}
	if release > 0 {
		s.add(op{ID: id + "-end", Kind: "release", Keys: []string{key}, Of: id, Call: release * second, Return: release * second, Outcome: succeeded})
	}
	return s
}

// atLeast says for how many seconds a hold is kept.
func atLeast(n int64) func(*op) { return func(o *op) { o.AtLeast = n * second } }

// toldAt notes when a hold was told of a question.
func toldAt(at int64) func(*op) { return func(o *op) { o.Told, o.Question = at*second, "q" } }

// refused adds an operation that was told that the keys are taken.
func (s *story) refused(id, kind string, at int64, keys ...string) *story {
	return s.add(op{ID: id, Kind: kind, Keys: keys, Call: at * second, Return: at * second, Outcome: failed, Owner: id,
		Err: fmt.Sprintf("try to acquire lease %q: %v", keys[0], txlock.ErrBusy)})
}

// asks adds a question in the third second.
func (s *story) asks(key string, came outcome) *story {
	return s.add(op{ID: "q", Kind: "ask", Keys: []string{key}, Call: 3 * second, Return: 3 * second, Outcome: came})
}

// waits adds an operation that waits for several keys.
func (s *story) waits(id string, to int64, keys ...string) *story {
	return s.add(op{ID: id, Kind: waitsForAll, Keys: keys, Call: second, Return: to * second, Outcome: unknown, Owner: id})
}

// shows adds what the rows say from one second to the other.
func (s *story) shows(from, to int64, sights ...sight) *story {
	for ; from <= to; from++ {
		for _, one := range sights {
			one.held, one.from, one.to = true, from*second+1, from*second+2
			s.seen = append(s.seen, one)
		}
	}
	return s
}

// has is a row of an owner with the token 1.
func has(key, owner string) sight { return sight{key: key, owner: owner, token: 1} }

// kept is a story that begins with a hold which is kept for five seconds, and is released in the third one.
func kept() *story { return new(story).held("a", "keep", "kept:1", 1, 1, 2, 3, atLeast(5)) }

// keeps adds the next hold, whose token is so many seconds after that of the first.
func (s *story) keeps(after, call, grant int64) *story {
	return s.held("b", "try to keep", "kept:1", uint64(1+after*second/1000), call, grant, 8)
}

// untilAsked is a story that begins with a hold until somebody asks.
func untilAsked(release int64, as ...func(*op)) *story {
	return new(story).held("a", "hold until asked", "asked:1", 1, 1, 2, release, as...)
}

// both is a story of two who acquire the lease, with these moments.
func both(a, b [3]int64) *story {
	return new(story).held("a", "acquire", "lease:1", 1, a[0], a[1], a[2]).held("b", "acquire", "lease:1", 2, b[0], b[1], b[2])
}

// leaseStories are histories of leases with what is to be found in them, some of a server whose
// clock is set at some moments, in seconds, or on which rows stay locked for a while.
var leaseStories = map[string]struct {
	finds   []string
	leaps   []leap
	lingers bool
	*story
}{
	"kept for long enough":                   {story: kept().refused("r", "try what is kept", 6, "kept:1").keeps(5, 7, 7)},
	"granted too soon":                       {finds: []string{tooSoon}, story: kept().keeps(5, 4, 5)},
	"granted too soon by the server's clock": {finds: []string{tooSoon}, story: kept().keeps(4, 7, 7)},
	"kept for too long":                      {finds: []string{stuck}, story: kept().refused("r", "try what is kept", 11, "kept:1")},
	"nobody has it, and it is refused":       {finds: []string{stuck}, story: untilAsked(3).refused("r", "try to hold until asked", 7, "asked:1")},
	"not told of a question":                 {finds: []string{notTold}, story: untilAsked(9).asks("asked:1", succeeded)},
	"told of a question too late":            {finds: []string{notTold}, story: untilAsked(9, toldAt(8)).asks("asked:1", succeeded)},
	"told of a question that was answered": {finds: []string{misled}, story: untilAsked(4).asks("asked:1", succeeded).
		held("b", "try to hold until asked", "asked:1", 2, 5, 5, 6, toldAt(6))},
	"two are told of a question": {finds: []string{misled}, story: untilAsked(4, toldAt(4)).asks("asked:1", succeeded).
		held("b", "hold until asked", "asked:1", 2, 2, 5, 6, toldAt(6))},
	"a row keeps a question": {finds: []string{misled}, story: untilAsked(4, toldAt(4)).asks("asked:1", succeeded).
		held("b", "hold until asked", "asked:1", 2, 2, 5, 6).shows(5, 5, sight{key: "asked:1", owner: "b", question: "q", token: 2})},
	"told that nobody has what somebody has": {finds: []string{notTold}, story: new(story).
		held("a", "permit until asked", askedPermits, 1, 1, 2, 5).asks(askedPermits, failed)},
	"one reader of two is told": {finds: []string{notTold}, story: new(story).held("a", "share until asked", askedReaders, 1, 1, 1, 9, toldAt(4)).
		held("b", "share until asked", askedReaders, 2, 1, 2, 9).asks(askedReaders, succeeded)},
	"told what nobody has asked": {finds: []string{misled}, story: untilAsked(4, toldAt(4))},
	"released, and in the row":   {finds: []string{stuck}, story: untilAsked(4).shows(2, 5, has("asked:1", "a"))},
	"refused, and a part in the row": {finds: []string{stuck}, story: new(story).refused("a", "try acquire all", 1, "all:1", "all:2").
		waits("b", 4, "all:1", "all:3").shows(2, 5, has("all:1", "a"))},
	"waits in a circle": {finds: []string{stuck}, story: new(story).
		waits("a", 9, "all:1", "all:2").waits("b", 9, "all:2", "all:4", "all:3").waits("c", 9, "all:3", "all:1").
		shows(2, 8, has("all:1", "a"), has("all:2", "b"), has("all:3", "c"))},
	"refused for a row that stays locked, where rows do":        {lingers: true, story: refusedFor("its row is locked", late+opLimit)},
	"the same for too long":                                     {finds: []string{stuck}, lingers: true, story: refusedFor("its row is locked", late+opLimit+1)},
	"refused for nothing, where rows stay locked":               {finds: []string{stuck}, lingers: true, story: refusedFor("", 0)},
	"refused for a row that is locked, where none stays so":     {finds: []string{stuck}, story: refusedFor("its row is locked", 0)},
	"two believe in a lease that a clock set forward has ended": {leaps: []leap{forward(3)}, story: both([3]int64{1, 2, 6}, [3]int64{4, 5, 8})},
	"two that were granted after the leap": {finds: []string{notLinear, overlap}, leaps: []leap{forward(1)}, story: both(
		[3]int64{3, 4, 8}, [3]int64{5, 6, 9})},
	"two beside a clock that is set back": {finds: []string{notLinear, overlap}, leaps: []leap{back(3)}, story: both(
		[3]int64{1, 2, 8}, [3]int64{4, 5, 9})},
	"a token that falls over a leap": {finds: []string{notLinear}, leaps: []leap{forward(4), back(4)}, story: new(story).
		held("a", "acquire", "lease:1", 7, 1, 2, 3).held("b", "acquire", "lease:1", 5, 5, 6, 7)},
	"a majority of which two have a lease": {finds: []string{notLinear, overlap}, story: new(story).
		held("a", "majority", "majority:1", 1, 1, 2, 8).held("b", "majority", "majority:1", 2, 4, 5, 9)},
	"a writer among a herd": {finds: []string{notLinear, overlap}, story: new(story).held("a", "share of a herd", "herd:1", 1, 1, 2, 8).
		held("b", "share of a herd", "herd:1", 1, 1, 2, 8).held("c", "acquire among herds", "herd:1", 2, 4, 5, 9)},
	"three on two seats": {finds: []string{notLinear, overlap}, story: new(story).held("a", "permit of a herd", "seats:1", 1, 1, 2, 8).
		held("b", "permit of a herd", "seats:1", 2, 1, 2, 8).held("c", "permit of a herd", "seats:1", 3, 1, 2, 8)},
	"a token of a lock falls, and the clock was set forward": {finds: []string{tokenBack}, leaps: []leap{forward(4)}, story: new(story).
		fresh("a", 1*second, 3*second, 10).fresh("b", 6*second, 7*second, 5)},
	"kept for too short a time, later": {finds: []string{tooSoon}, leaps: []leap{forward(1), back(1)}, story: new(story).
		held("a", "keep", "kept:1", 1e6, 3, 4, 5, atLeast(9)).held("b", "keep", "kept:1", 1e6+1, 6, 7, 8)},
	"a dead writer blocks the first who comes, while the clock is behind": {leaps: []leap{back(3)}, story: new(story).
		add(op{ID: "a", Kind: "acquire all", Keys: []string{"all:1"}, Call: 2 * second}).refused("b", "try acquire all", 60, "all:1")},
	"a dead writer is shown when others have come": {finds: []string{stuck}, leaps: []leap{back(3)}, story: dead().
		refused("b", "try acquire all", 14, "all:1").shows(3, 20, has("all:1", "a"))},
	"a dead writer is shown, and nobody has come": {leaps: []leap{back(3)}, story: dead().shows(3, 20, has("all:1", "a"))},
}

// refusedFor is a story of an operation that was refused for a reason after a while.
func refusedFor(why string, took time.Duration) *story {
	return new(story).refused("r", "try to hold until asked", 7, "asked:1").but(func(s *story) {
		s.ops[0].Err += why
		s.ops[0].Return += int64(took)
	})
}

// TestCheckLeases proves the same of what is kept, asked for and acquired together, and that the judge excuses what is not promised of
// a server whose clock is set.
func TestCheckLeases(t *testing.T) {
	t.Parallel()
	for name, c := range leaseStories {
		v := (&verdict{leaps: c.leaps, lingers: c.lingers}).check(c.ops, c.data)
		v.checkLeases(c.ops, c.seen, time.Second)
		found := v.sorts()
		testdb.ErrorIf(t, !slices.Equal(found, c.finds), "%s: found %q, want %q: %v", name, found, c.finds, v.violations)
	}
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
		sorts := v.sorts()
		testdb.ErrorIf(t, test.want == "" && len(sorts) > 0 || test.want != "" && !slices.Contains(sorts, test.want), "%s: %v, want %q", what, v.violations, test.want)
	}
}

// dead is a story of a writer, "a", who was killed.
func dead() *story {
	writer := op{ID: "a", Kind: "acquire all", Keys: []string{"all:1"}, Call: 2 * second, Return: 2*second + 1, Outcome: succeeded, Owner: "a"}
	part := writer
	part.ID, part.Kind, part.Of, part.Owner, part.Valid, part.Token = "a/all:1", "part", "a", "", 3*second, 1
	return new(story).add(writer).add(part)
}

// forward is a clock that is set forward by an hour.
func forward(at int64) leap { return leap{from: at * second, to: at*second + 1, forward: time.Hour} }

func back(at int64) leap { return leap{from: at * second, to: at*second + 1, back: time.Hour} }

func TestMain(m *testing.M) { testdb.Main(m) }

// TestCores proves on the servers that the cores do to a transaction what the judge takes them to do, however they are written: a
// savepoint made before is there afterwards, or is not.
func TestCores(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		must(t, install(t.Context(), db.Admin(), engine))
		pool := db.ConnectAdmin(t, func(cfg *mysql.Config) { cfg.MultiStatements = true })
		pool.SetMaxIdleConns(0) // a session for each, of which nothing stays
		taken := make(map[string]int)
		for kind, texts := range cores {
			for _, text := range texts {
				if strings.Contains(text, "%s") {
					text = fmt.Sprintf(text, spots[0])
				}
				for _, l := range layers {
					if l.only != "" && l.only != engine {
						continue
					}
					for _, prepared := range []bool{false, true} {
						p := phrase{kind: kind, texts: l.write(text), prepared: prepared}
						if goesOn, err := sent(t, pool, p); err == nil {
							taken[kind+": "+text]++
							testdb.ErrorIf(t, goesOn == (kind == coreEnds), "a %q goes on: %t, after %q", kind, goesOn, p.texts)
						}
					}
				}
			}
		}
		for _, kind := range sortedKeys(cores) {
			for _, text := range cores[kind] {
				if strings.Contains(text, "%s") {
					text = fmt.Sprintf(text, spots[0])
				}
				// In a transaction these are refused, but where a handler swallows that.
				refused := []string{"XA START 'chaos'", "XA ROLLBACK 'chaos'", "ROLLBACK TO SAVEPOINT never_made"}
				testdb.ErrorIf(t, taken[kind+": "+text] == 0 && !slices.Contains(refused, text), "%q was taken in no form", text)
			}
		}
	})
}

// sent sends a phrase in a transaction, and tells whether that goes on.
func sent(t *testing.T, pool *sql.DB, p phrase) (goesOn bool, err error) {
	t.Helper()
	tx := testdb.Got(pool.BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }() // it may be over
	for _, text := range []string{"UPDATE counters SET token = token WHERE name = 'lock:a'", "SAVEPOINT mark"} {
		_, err := tx.ExecContext(t.Context(), text)
		must(t, err)
	}
	if err := p.send(t.Context(), tx); err != nil {
		return false, err
	}
	_, released := tx.ExecContext(t.Context(), "RELEASE SAVEPOINT mark")
	var server *mysql.MySQLError
	testdb.FatalIf(t, released != nil && (!errors.As(released, &server) || server.Number != 1305), "%q: %v", p.texts, released)
	return released == nil, nil
}

// TestPhrases proves that the grammar makes all kinds of statements, in all layers that
// the client's server and connection take, and no other.
func TestPhrases(t *testing.T) {
	t.Parallel()
	for _, engine := range []testdb.Engine{testdb.MariaDB, testdb.MySQL} {
		for _, multi := range []bool{false, true} {
			w := &worker{client: &client{clientConfig: clientConfig{Engine: engine}, multi: multi}, Rand: rand.New(rand.NewPCG(1, 2))}
			kinds := make(map[string]int)
			var all strings.Builder
			for range 5000 {
				p := w.phrase(spots[1])
				kinds[p.kind]++
				all.WriteString(strings.Join(p.texts, "\n") + "\n")
			}
			testdb.ErrorIf(t, len(kinds) != len(cores), "%v", kinds)
			for part, want := range map[string]bool{
				"/*! ": true, "/*m!": false, "EXECUTE careless": true, "CALL chaos_swallow('y')": true, "%": false,
				"BEGIN NOT ATOMIC ": engine == testdb.MariaDB, "SET STATEMENT": engine == testdb.MariaDB, "\nDO 1; ": multi,
			} {
				testdb.ErrorIf(t, strings.Contains(all.String(), part) != want, "%s, multi %t: it has %q: %t", engine, multi, part, !want)
			}
		}
	}
}
