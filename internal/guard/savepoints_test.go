package guard

import (
	"strings"
	"testing"
)

// TestSavepoints tells which locks of a history are gone after savepoints were rolled back. All
// others stand. A name of "" may be any.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, history, gone string }{
		{"after the savepoint", "a|SAVEPOINT x|b|ROLLBACK TO x|c", "b"},
		{"twice", "SAVEPOINT x|a|ROLLBACK TO x|b|ROLLBACK TO x|c", "ab"},
		{"an inner one", "SAVEPOINT x|a|SAVEPOINT y|b|ROLLBACK TO y", "b"},
		{"an outer one, after an inner one", "a|SAVEPOINT x|b|SAVEPOINT y|c|ROLLBACK TO y|d|ROLLBACK TO x", "bcd"},
		{"set again under the same name", "SAVEPOINT x|a|SAVEPOINT x|b|ROLLBACK TO x", "b"},
		{"released with those after it", "SAVEPOINT x|a|SAVEPOINT y|SAVEPOINT z|RELEASE y|b|ROLLBACK TO x", "ab"},
		{"one that was set unseen", "a|UNSEEN|b|ROLLBACK TO p", "b"},
		{"unseen, to one of the program", "a|SAVEPOINT x|b|UNSEEN|c", "b"},
		{"unseen, to one that was set unseen", "UNSEEN|a|UNSEEN", "a"},
		{"unseen, where all were released", "SAVEPOINT x|SAVEPOINT y|RELEASE x|a|UNSEEN", ""},
		{"one that nobody has seen set", "a|SAVEPOINT x|b|ROLLBACK TO y|c", "ab"},
		{"one whose name may be any", "a|SAVEPOINT x|b|ROLLBACK TO |c", "b"},
		{"one after one whose name may be any", "a|SAVEPOINT |b|SAVEPOINT x|c|ROLLBACK TO x", "bc"},
		{"one before one whose name may be its own, which is released", "SAVEPOINT x|SAVEPOINT y|a|SAVEPOINT |RELEASE x|b|ROLLBACK TO y", "ab"},
		{"one before a release whose name may be any", "a|SAVEPOINT x|SAVEPOINT y|b|RELEASE |c|ROLLBACK TO x", "bc"},
		{"one before a rollback whose name may be any", "a|SAVEPOINT x|SAVEPOINT y|b|ROLLBACK TO |c|ROLLBACK TO y", "bc"},
		{"unseen, where none was set", "a|UNSEEN", ""},
	} {
		var s savepoints
		stamps := make(map[string]int)
		for step := range strings.SplitSeq(c.history, "|") {
			if name, is := strings.CutPrefix(step, "SAVEPOINT "); is {
				s.set(name)
			} else if name, is := strings.CutPrefix(step, "RELEASE "); is {
				s.release(name)
			} else if name, is := strings.CutPrefix(step, "ROLLBACK TO "); is {
				s.rollBackTo(name)
			} else if step == "UNSEEN" {
				s.unseen()
			} else {
				stamps[step] = s.stamp()
			}
		}
		for lock, stamp := range stamps {
			if s.stands(stamp) == strings.Contains(c.gone, lock) {
				t.Errorf("%s: lock %s stands: %t: %+v", c.name, lock, s.stands(stamp), s)
			}
		}
	}
}

// TestSavepointsStaySmall proves that many failed nested transactions don't fill the
// memory.
func TestSavepointsStaySmall(t *testing.T) {
	t.Parallel()
	var s savepoints
	s.stamp()
	s.set("outer")
	for range 10_000 {
		s.set("inner")
		s.stamp()
		s.rollBackTo("inner")
		s.release("inner")
	}
	for range 10_000 {
		s.set("empty")
		s.rollBackTo("empty")
	}
	for range 10_000 {
		s.set("")
		s.set("behind it")
	}
	if len(s.marks) > 3 || len(s.undone) > 1 {
		t.Errorf("%d savepoints and %d spans are kept", len(s.marks), len(s.undone))
	}
	s.rollBackTo("outer")
	if len(s.undone) != 1 || !s.stands(1) {
		t.Errorf("after the outer one: %d spans, the first lock stands: %t", len(s.undone), s.stands(1))
	}
}
