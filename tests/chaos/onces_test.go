package main

import (
	"slices"
	"testing"
)

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
		if sorts := v.sorts(); test.want == "" && len(sorts) > 0 || test.want != "" && !slices.Contains(sorts, test.want) {
			t.Errorf("%s: %v, want %q", what, v.violations, test.want)
		}
	}
}
