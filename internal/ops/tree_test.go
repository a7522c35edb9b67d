package ops_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
)

func wait(key string, session uint64, blockers ...uint64) ops.Wait {
	return ops.Wait{Row: ops.Row{Kind: ops.Named, Key: key}, Session: session, Blockers: blockers}
}

var stock = ops.Row{Kind: ops.Table, Table: "stock"}

// flat writes a tree: a row, its holders, and in brackets its waiters with what they hold.
func flat(nodes []*ops.Node) string {
	var all []string
	for _, n := range nodes {
		text := n.Key + fmt.Sprint(n.Holders)
		if n.Deadlock {
			text += "!"
		}
		for _, w := range n.Waiters {
			text += fmt.Sprintf("(%d %s)", w.Session, flat(w.Holds))
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// TestTree draws chains, a queue, a holder of two rows, and circles.
func TestTree(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waits []ops.Wait
		want  string
	}{
		"nobody":     {nil, ""},
		"a queue":    {[]ops.Wait{wait("a", 2, 1), wait("a", 3, 1)}, "a[1](2 )(3 )"},
		"a chain":    {[]ops.Wait{wait("b", 3, 2), wait("a", 2, 1)}, "a[1](2 b[2](3 ))"},
		"two rows":   {[]ops.Wait{wait("a", 2, 1), wait("b", 3, 1)}, "a[1](2 ) b[1](3 )"},
		"readers":    {[]ops.Wait{wait("a", 3, 1, 2)}, "a[1 2](3 )"},
		"unknown":    {[]ops.Wait{wait("a", 3)}, "a[](3 )"},
		"a circle":   {[]ops.Wait{wait("a", 2, 1), wait("b", 1, 2)}, "a[1]!(2 b[2](1 ))"},
		"behind DDL": {[]ops.Wait{{Row: stock, Session: 2, Blockers: []uint64{1}}, {Row: stock, Session: 3, Blockers: []uint64{2}, Queued: true}, wait("a", 4, 3)}, "[1](2 [2](3 a[3](4 )))"},
		"unsure":     {[]ops.Wait{wait("a", 2, 1), {Row: stock, Session: 1, Blockers: []uint64{2}, Unsure: true}}, "a[1](2 [2](1 ))"},
		"and a tail": {[]ops.Wait{wait("a", 2, 1), wait("b", 1, 2), wait("b", 3, 2)}, "a[1]!(2 b[2](1 )(3 ))"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &ops.Picture{Waits: c.waits}
			if got := flat(p.Tree()); got != c.want {
				t.Errorf("the tree is %s, want %s", got, c.want)
			}
		})
	}
}

// TestSeconds writes times for people.
func TestSeconds(t *testing.T) {
	t.Parallel()
	for s, want := range map[ops.Seconds]string{0: "0.0s", 1.25: "1.2s", 41.4: "41s", 192: "3m12s", 93780: "26h3m", -2: "-2.0s"} {
		if s.String() != want {
			t.Errorf("%v is written %q, want %q", float64(s), s, want)
		}
	}
}
