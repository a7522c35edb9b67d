package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// story is a small history: operations that are called and return at the given
// moments, and the data at its end.
type story struct {
	ops  []*op
	data data
	seen []sight
}

// write adds a transaction that has written a value of lock:a with a token.
func (s *story) write(id string, call, end int64, became outcome, value int64, token uint64) *op {
	o := &op{ID: id, Kind: "lock", Keys: []string{"lock:a"}, Call: call, Return: end, Outcome: became, Tries: 1}
	if became != failed {
		o.Wrote = []string{"lock:a"}
		s.commit(commit{id, "1", "lock:a", value, token})
	}
	s.ops = append(s.ops, o)
	return o
}

// commit adds a row of the table commits.
func (s *story) commit(c commit) {
	if s.data.counters == nil {
		s.data.counters = make(map[string]int64)
	}
	s.data.counters[c.name] = max(s.data.counters[c.name], c.value)
	s.data.commits = append(s.data.commits, c)
}

// read adds a transaction that has read lock:a.
func (s *story) read(id string, call, end, value int64) {
	s.ops = append(s.ops, &op{ID: id, Kind: "read", Keys: []string{"lock:a"}, Call: call, Return: end, Outcome: succeeded, Tries: 1, Value: value})
}

// hold adds a hold of a lease.
func (s *story) hold(id, kind, key string, token uint64, call, grant, valid int64) {
	s.ops = append(s.ops, &op{ID: id, Kind: kind, Keys: []string{key}, Call: call, Return: grant, Outcome: succeeded, Token: token, Valid: valid})
}

// fresh adds a lock of a key that nobody has committed.
func (s *story) fresh(id string, call, end, token int64) {
	s.ops = append(s.ops, &op{ID: id, Kind: "fresh lock", Keys: []string{"fresh:1"}, Call: call, Return: end, Outcome: succeeded, Value: token})
}

// careless adds a transaction with a careless statement, whose first write is there.
func (s *story) careless(became, becameThen outcome, ended bool) {
	const first, then = "a", "a, then"
	s.ops = append(s.ops,
		&op{ID: first, Kind: coreEnds, Keys: []string{"lock:a"}, Call: 1, Return: 5, Outcome: became, Tries: 1, Ended: ended, Wrote: []string{"lock:a"}},
		&op{ID: then, Kind: coreEnds + ", then", Keys: []string{"lock:b"}, Call: 1, Return: 5, Outcome: becameThen, Tries: 1})
	if becameThen == succeeded {
		s.ops[len(s.ops)-1].Wrote = []string{"lock:b"}
	}
	s.commit(commit{first, "1", "lock:a", 1, 0})
}

// session adds a look at a connection of the pool.
func (s *story) session(seen int64) {
	s.ops = append(s.ops, &op{ID: "a", Kind: "session", Call: 1, Return: 2, Outcome: succeeded, Value: seen})
}

// enter adds the re-entry of a hold.
func (s *story) enter(of string, token uint64, call, end int64) {
	s.ops = append(s.ops, &op{ID: of + "-again", Kind: "re-enter", Keys: []string{"lease:1"}, Of: of, Call: call, Return: end, Outcome: succeeded, Token: token})
}

// stories are histories with what is to be found in them, nothing where they are good.
var stories = map[string]struct {
	finds []string
	tell  func(s *story)
}{
	"writes one after the other": {nil, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		s.write("b", 2, 9, succeeded, 2, 102)
		s.write("c", 10, 12, failed, 0, 0)
		s.read("r", 6, 12, 1) // b may have come after it
		s.read("q", 10, 12, 2)
	}},
	"not known, and committed": {nil, func(s *story) {
		s.write("a", 1, 5, unknown, 1, 101)
		s.write("b", 6, 9, succeeded, 2, 102)
	}},
	"not known, and not committed": {nil, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		o := s.write("b", 6, 9, failed, 0, 0)
		o.Outcome, o.Wrote = unknown, []string{"lock:a"}
	}},
	"killed in its second try": {nil, func(s *story) {
		o := s.write("a", 1, 0, "", 1, 101)
		o.Tries, o.Wrote, s.data.commits[0].try = 0, nil, "2"
		s.write("b", 6, 9, succeeded, 2, 102)
	}},
	"a call that takes too long": {[]string{stuck}, func(s *story) { s.write("a", 1, int64(time.Minute), succeeded, 1, 101) }},
	"the same value twice": {[]string{lostUpdate}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		s.write("b", 2, 9, succeeded, 1, 102)
	}},
	"a counter below its writes": {[]string{lostUpdate}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		s.write("b", 6, 9, succeeded, 2, 102)
		s.data.counters["lock:a"] = 1
	}},
	"a write that is gone": {[]string{lostWrite}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		s.data.commits, s.data.counters["lock:a"] = nil, 0
	}},
	"a failed write that is there": {[]string{ghostWrite}, func(s *story) { s.write("a", 1, 5, succeeded, 1, 101).Outcome = failed }},
	"a try that was rolled back, and is there": {[]string{ghostWrite}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101).Tries = 2
		s.commit(commit{"a", "2", "lock:a", 2, 102})
	}},
	"half of two tries": {[]string{ghostWrite}, func(s *story) {
		o := s.write("a", 1, 5, unknown, 1, 101)
		o.Wrote = []string{"lock:a", "lock:b"}
		s.commit(commit{"a", "2", "lock:b", 1, 101})
	}},
	"half of a transaction": {[]string{torn}, func(s *story) { s.write("a", 1, 5, unknown, 1, 101).Wrote = []string{"lock:a", "lock:b"} }},
	"a write of nobody":     {[]string{ghostWrite}, func(s *story) { s.commit(commit{"a", "1", "lock:a", 1, 101}) }},
	"the same token of a lock twice": {[]string{tokenBack}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		s.write("b", 6, 9, succeeded, 2, 101)
	}},
	"a lower token": {[]string{tokenBack}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 102)
		s.write("n", 2, 9, succeeded, 2, 0) // whose token is not known
		s.write("b", 6, 9, succeeded, 3, 101)
	}},
	"a lease's token twice": {nil, func(s *story) {
		for i, id := range []string{"a", "b"} {
			s.ops = append(s.ops, &op{ID: id, Kind: "guarded write", Keys: []string{"lease:1"}, Call: int64(i*10 + 1), Return: int64(i*10 + 5), Outcome: succeeded, Tries: 1, Wrote: []string{"lease:1"}})
			s.commit(commit{id, "1", "lease:1", int64(i + 1), 101})
		}
	}},
	"a lease's writer come late": {[]string{tokenBack}, func(s *story) {
		for i, id := range []string{"a", "b"} {
			s.ops = append(s.ops, &op{ID: id, Kind: "guarded write", Keys: []string{"lease:1"}, Call: 1, Return: 5, Outcome: succeeded, Tries: 1, Wrote: []string{"lease:1"}})
			s.commit(commit{id, "1", "lease:1", int64(i + 1), uint64(102 - i)})
		}
	}},
	"a write before what had returned": {[]string{outOfOrder}, func(s *story) {
		s.write("a", 6, 9, succeeded, 1, 101)
		s.write("b", 1, 5, succeeded, 2, 102)
	}},
	"a stale read": {[]string{outOfOrder}, func(s *story) {
		s.write("a", 1, 5, succeeded, 1, 101)
		s.read("r", 6, 9, 0)
	}},
	"a read of what comes later": {[]string{outOfOrder}, func(s *story) {
		s.read("r", 1, 2, 1)
		s.write("a", 4, 5, succeeded, 1, 101)
	}},
	"a read of what nobody has committed": {[]string{outOfOrder}, func(s *story) {
		s.write("a", 4, 5, succeeded, 1, 101)
		s.read("r", 6, 9, 2)
	}},

	"fresh locks one after the other, and at a time": {nil, func(s *story) {
		s.fresh("a", 1, 5, 101)
		s.fresh("b", 4, 9, 100) // asked for before a had returned
		s.fresh("c", 10, 12, 102)
	}},
	"a fresh lock with a lower token": {[]string{tokenBack}, func(s *story) {
		s.fresh("a", 1, 5, 101)
		s.fresh("b", 6, 9, 100)
	}},
	"a fresh lock with the same token": {[]string{tokenBack}, func(s *story) {
		s.fresh("a", 1, 5, 101)
		s.fresh("b", 6, 9, 101)
	}},
	"a transaction that a statement has ended, refused": {nil, func(s *story) { s.careless(unknown, failed, true) }},
	"a transaction that a statement has ended, committed": {[]string{broken}, func(s *story) {
		s.careless(succeeded, succeeded, true)
		s.commit(commit{"a, then", "1", "lock:b", 1, 0})
	}},
	"a write after a statement that has ended the transaction": {[]string{ghostWrite}, func(s *story) {
		s.careless(unknown, failed, true)
		s.commit(commit{"a, then", "1", "lock:b", 1, 0})
	}},
	"begun again after a statement that has committed": {[]string{ghostWrite}, func(s *story) {
		s.careless(unknown, failed, false)
		s.commit(commit{"a", "2", "lock:c", 1, 0})
	}},
	"lost in a statement":                {[]string{lostWrite}, func(s *story) { s.careless(succeeded, succeeded, false) }},
	"a session as the server makes them": {nil, func(s *story) { s.session(lockWait) }},
	"a session that has kept a limit":    {[]string{broken}, func(s *story) { s.session(3) }},

	"holders one after the other": {nil, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 5, 10)
		s.hold("b", "acquire", "lease:1", 102, 2, 11, 20) // granted while the release was under way
		s.hold("c", "acquire", "lease:2", 101, 2, 11, 20) // another key
		s.enter("b", 102, 12, 14)
	}},
	"a grant that was over when it came": {nil, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 20, 0)
		s.hold("b", "acquire", "lease:1", 102, 2, 11, 15)
	}},
	"two holders": {[]string{overlap, notLinear}, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 5, 10)
		s.hold("b", "acquire", "lease:1", 102, 2, 8, 20)
	}},
	"a grant that was over when it came, with a token of before": {[]string{notLinear}, func(s *story) {
		s.hold("a", "acquire", "lease:1", 102, 1, 5, 10)
		s.hold("b", "acquire", "lease:1", 101, 6, 20, 0)
	}},
	"the same token": {[]string{notLinear}, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 5, 10)
		s.hold("b", "acquire", "lease:1", 101, 13, 15, 20)
	}},
	"entered with a lower token": {[]string{tokenBack}, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 5, 30)
		s.enter("a", 100, 6, 8)
	}},
	"entered with another token while it is held": {[]string{broken}, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 5, 30)
		s.enter("a", 103, 6, 8)
	}},
	"entered with another token after it was lost": {nil, func(s *story) {
		s.hold("a", "acquire", "lease:1", 101, 1, 5, 6)
		s.enter("a", 103, 7, 9)
	}},
	"a leader that goes on beside its successor": {[]string{overlap, notLinear, tokenBack}, func(s *story) {
		s.hold("a", "lead", "election:1", 101, 1, 5, 30)
		s.hold("b", "lead", "election:1", 102, 2, 20, 40)
		for i, token := range []uint64{102, 101} {
			id := fmt.Sprint(token)
			s.ops = append(s.ops, &op{ID: id, Kind: "guarded write", Keys: []string{"election:1"}, Call: 21, Return: 25, Outcome: succeeded, Tries: 1, Wrote: []string{"election:1"}})
			s.commit(commit{id, "1", "election:1", int64(i + 1), token})
		}
	}},
	"terms one after the other": {nil, func(s *story) {
		s.hold("a", "lead", "election:1", 101, 1, 5, 30)
		s.hold("b", "lead", "election:1", 102, 2, 31, 40)
	}},
	"readers, then a writer": {nil, func(s *story) {
		s.hold("a", "share", "shared:1", 1, 1, 5, 10)
		s.hold("b", "share", "shared:1", 2, 1, 6, 14)
		s.hold("c", "acquire among readers", "shared:1", 101, 2, 16, 20)
	}},
	"a reader beside a writer": {[]string{overlap, notLinear}, func(s *story) {
		s.hold("a", "share", "shared:1", 1, 1, 5, 10)
		s.hold("c", "acquire among readers", "shared:1", 101, 2, 8, 20)
	}},
	"as many permits as there are": {nil, func(s *story) {
		s.hold("a", "permit", "permit:1", 1, 1, 5, 10)
		s.hold("b", "permit", "permit:1", 2, 1, 6, 14)
		s.hold("c", "permit", "permit:1", 3, 1, 11, 14)
	}},
	"a permit too many": {[]string{overlap, notLinear}, func(s *story) {
		s.hold("a", "permit", "permit:1", 1, 1, 5, 10)
		s.hold("b", "permit", "permit:1", 2, 1, 6, 14)
		s.hold("c", "permit", "permit:1", 3, 1, 8, 14)
	}},
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
		var s story
		c.tell(&s)
		v := (&verdict{}).check(s.ops, s.data)
		found, want := v.sorts(), slices.Sorted(slices.Values(c.finds))
		if !slices.Equal(found, want) {
			t.Errorf("%s: found %q, want %q: %v", name, found, want, v.violations)
		}
		if (v.overlaps > 0) != slices.Contains(found, overlap) || (v.lostUpdates > 0) != slices.Contains(found, lostUpdate) {
			t.Errorf("%s: %d overlaps and %d lost updates, found %q", name, v.overlaps, v.lostUpdates, found)
		}
	}
}

// TestJournal proves that what is known of an operation at several times comes together,
// and that a line that was not finished is left out.
func TestJournal(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/a1.1.jsonl"
	j, err := openJournal(path)
	must(t, err)
	j.write(op{ID: "b", Kind: "share", Keys: []string{"shared:1"}, Call: 2})
	j.write(op{ID: "a", Kind: "acquire", Keys: []string{"lease:1"}, Call: 1})
	j.write(op{ID: "a", Return: 3, Outcome: succeeded, Token: 101})
	j.write(op{ID: "a", Valid: 4})
	j.write(op{ID: "a", Valid: 5})
	if _, err := j.file.WriteString(`{"id":"b","return":7`); err != nil {
		t.Fatal(err)
	}
	must(t, j.file.Close())
	ops, err := readHistory(t.TempDir() + "/nothing*")
	if err != nil || len(ops) != 0 {
		t.Errorf("nothing: %v, %v", ops, err)
	}
	want := []*op{
		{ID: "a", Kind: "acquire", Keys: []string{"lease:1"}, Call: 1, Return: 3, Outcome: succeeded, Token: 101, Valid: 5},
		{ID: "b", Kind: "share", Keys: []string{"shared:1"}, Call: 2},
	}
	if ops, err = readHistory(path); err != nil || !reflect.DeepEqual(ops, want) {
		t.Errorf("%+v, %v, want %+v", ops, err, want)
	}
	_, err = readJournal(strings.NewReader("{\n"))
	leasetest.Fails(t, "a line that is no operation", err)
}

// TestListen proves that what a client has said is a violation of its server's site.
func TestListen(t *testing.T) {
	t.Parallel()
	s := &site{dir: t.TempDir(), engine: "mariadb"}
	for name, text := range map[string]string{"mariadb0.1": "", "mariadb1.2": "WARNING: DATA RACE", "mysql0.1": "panic"} {
		must(t, os.WriteFile(filepath.Join(s.dir, name+".stderr"), []byte(text), 0o600))
	}
	must(t, s.listen())
	if len(s.v.violations) != 1 || s.v.violations[0] != (violation{broken, "mariadb1.2.stderr: WARNING: DATA RACE"}) {
		t.Errorf("found %v", s.v.violations)
	}
}

// TestProgress proves that operations are counted once, while the journals grow.
func TestProgress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := openJournal(filepath.Join(dir, "mysql0.1.jsonl"))
	must(t, err)
	defer func() { _ = j.file.Close() }()
	count := counter{offsets: make(map[string]int64)}
	for want := range 3 {
		n, err := count.succeeded(filepath.Join(dir, "mysql*.jsonl"))
		if err != nil || n != want {
			t.Errorf("%d operations, %v, want %d", n, err, want)
		}
		j.write(op{ID: "a", Outcome: succeeded})
		j.write(op{ID: "b", Outcome: failed})
	}
}

// TestSchedule proves that the same seed gives the same faults, and another one others,
// each within the run and of those that are asked for.
func TestSchedule(t *testing.T) {
	t.Parallel()
	o := options{duration: 5 * time.Minute, seed: 1, perSite: 4, ttl: time.Second}
	for i, lane := range lanes {
		faults := schedule(o, uint64(i), lane)
		if !slices.Equal(faults, schedule(o, uint64(i), lane)) {
			t.Errorf("lane %d: the same seed gives other faults", i)
		}
		other := o
		other.seed = 2
		if slices.Equal(faults, schedule(other, uint64(i), lane)) {
			t.Errorf("lane %d: another seed gives the same faults", i)
		}
		kinds := make(map[string]int)
		end := time.Duration(0)
		for _, f := range faults {
			kinds[f.kind]++
			if f.at < end || f.at+f.lasts > o.duration || f.client < 0 || f.client >= o.perSite {
				t.Errorf("lane %d: %+v after %v", i, f, end)
			}
			end = f.at + f.lasts
		}
		if len(kinds) != len(lane) {
			t.Errorf("lane %d: %v of %d kinds", i, kinds, len(lane))
		}
		other.kinds = []string{"kill server"}
		for _, f := range schedule(other, uint64(i), lane) {
			if f.kind != "kill server" {
				t.Errorf("lane %d: %s was not asked for", i, f.kind)
			}
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
		if err == nil || code != 2 || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d, %v, want %q", line, code, err, says)
		}
	}
}

// TestInterrupted proves that a run which is interrupted while it starts says so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	testdb.NeedsServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, err := chaos(ctx, []string{"-engines", "mariadb,mysql"})
	if code != 2 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d, %v", code, err)
	}
}

// TestGuards proves that what is planted for a guard can be planted.
func TestGuards(t *testing.T) {
	t.Parallel()
	for _, name := range guardNames() {
		leasetest.Wants(t, name, checkFaults(guards[name].faults), nil)
		rewrite, err := rewriteFor(name)
		if err != nil || (rewrite != nil) != (guards[name].bug != "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTell proves that a violation is told with the command that runs the same again.
func TestTell(t *testing.T) {
	t.Parallel()
	o := options{duration: time.Minute, seed: 7, perSite: 4, workers: 3, ttl: time.Second, without: "lock"}
	s := &site{options: o, engine: "mariadb", faults: map[string]int{"kill server": 3}, history: []*op{{ID: "a", Kind: "run", Outcome: succeeded, Tries: 2}}}
	r := &result{options: o, sites: []*site{s}}
	var text strings.Builder
	if code := r.tell(&text); code != 0 || !strings.Contains(text.String(), "seed 7: nothing is wrong") {
		t.Errorf("%d: %s", code, &text)
	}
	s.add(overlap, "two of them")
	text.Reset()
	leasetest.Equal(t, "what tell returns", r.tell(&text), 1)
	for range mostShown + 2 {
		s.add(broken, "once more")
	}
	text.Reset()
	r.tell(&text)
	leasetest.Says(t, "the report", text.String(),
		"overlap: two of them", "broken: and 2 more", "kill server                  3", "FAILED", "-duration 1m0s -seed 7", "-without lock")
}

var must = leasetest.Must
