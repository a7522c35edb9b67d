package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestMain is the worker too: the example starts its own program, which is the test here.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asWorker {
		main()
		return
	}
	testdb.Main(m)
}

// TestExample proves that every item is planned and done exactly once although the leader is killed, that another
// takes over within the time to live, that all processes work, and that the timeline says so.
func TestExample(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		var out bytes.Buffer
		h, err := onServer(t.Context(), whole, testdb.Shared(t, engine).Config().FormatDSN(), &out)
		testdb.FatalIf(t, err != nil, "%v\n%s", err, out.String())
		t.Log(out.String())
		const slack = 3 * time.Second // 50 ms would do
		d := h.takeOver()
		testdb.ErrorIf(t, d > whole.ttl+slack, "taken over after %v, the time to live is %v", d, whole.ttl)
		for i, turn := range h.turns {
			if i > 0 && turn.token <= h.turns[i-1].token {
				t.Errorf("token %d after %d", turn.token, h.turns[i-1].token)
			}
		}
		leaders := make(map[string]bool)
		for _, p := range h.plan {
			leaders[p.worker] = true
		}
		testdb.ErrorIf(t, len(leaders) < 2 || !leaders[h.killed], "the items were planned by %v, %s was killed", leaders, h.killed)
		testdb.Says(t, "the output", out.String(),
			"3 processes start",
			h.killed+" has planned the items ",
			"is killed in the middle of the next",
			" after the kill, and goes on from item ",
			"to 40 and leads no more",
			"has found nothing left to plan and leads no more",
			"40 items, 40 planned, 40 done: ",
		)
	})
}
