//go:build tidb

package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestTiDBElections proves what TestElections does on six processes over two TiDB servers, of which the leader's is killed again and
// again. Where the leader has been in a guarded transaction, the store keeps its row locked for 20 s.
func TestTiDBElections(t *testing.T) {
	lasts := testdb.Long(time.Minute, 10*time.Minute)
	nodes, err := testdb.StartTiDB(t.Context(), 2)
	fatal(t, err)
	t.Cleanup(func() { fatal(t, testdb.StopAll(nodes)) })
	db := nodes[0].Open(t)
	e := newElection(t, 6, false, db, db.At(t, nodes[1]))
	var took []time.Duration
	leader, term := e.leader(0)
	for end := time.Now().Add(lasts); len(took) < 3 || time.Now().Before(end); {
		e.await(func(s said) bool {
			return s.What == "wrote" && s.Token == term.Token || s.What == "leads" && s.Token > term.Token
		})
		server := nodes[slices.Index(e.members, leader)%len(nodes)]
		at := moment()
		fatal(t, server.Kill())
		next, following := e.leader(term.Token)
		if following.From > at { // else it had lost the lead already
			took = append(took, time.Duration(following.From-at))
		}
		fatal(t, server.Restart(t.Context()))
		leader, term = next, following
	}
	all := e.end()
	testdb.ErrorIf(t, twoLead(t, all), "two believe at once that they lead")
	t.Logf("%d servers were killed; somebody else led after %v at least, %v in the middle, %v at most", len(took), slices.Min(took), median(took), slices.Max(took))
	e.checkTerms(all)
	e.checkRows()
}
