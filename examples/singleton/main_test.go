package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestMain is the worker too: the example starts its own program, which is the test
// here.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asWorker {
		main()
		return
	}
	testdb.Main(m)
}

// eachEngine runs a test on every engine, with the DSN of an administrator.
func eachEngine(t *testing.T, test func(t *testing.T, dsn string)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		test(t, testdb.Shared(t, engine).Config().FormatDSN())
	})
}

// TestExample proves that every item is planned and done exactly once although the leader
// is killed, that another takes over within the time to live, that all processes work, and
// that the timeline says so.
func TestExample(t *testing.T) {
	eachEngine(t, func(t *testing.T, dsn string) {
		var out bytes.Buffer
		h, err := onServer(t.Context(), whole, dsn, &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		t.Log(out.String())
		const slack = 3 * time.Second // 50 ms would do
		if d := h.takeOver(); d > whole.ttl+slack {
			t.Errorf("taken over after %v, the time to live is %v", d, whole.ttl)
		}
		for i, turn := range h.turns {
			if i > 0 && turn.token <= h.turns[i-1].token {
				t.Errorf("token %d after %d", turn.token, h.turns[i-1].token)
			}
		}
		leaders := make(map[string]bool)
		for i, p := range h.plan {
			leaders[p.worker] = true
			if turn := turnOf(h, p.token); turn == nil || turn.worker != p.worker || p.item < turn.item {
				t.Errorf("row %d of the plan: %+v, in the turn %+v", i, p, turn)
			}
			if turn := turnOf(h, p.token); p.worker == h.killed && turn != nil && turn.from.After(h.death()) {
				t.Errorf("%s has planned item %d after its death", h.killed, p.item)
			}
		}
		if len(leaders) < 2 || !leaders[h.killed] {
			t.Errorf("the items were planned by %v, %s was killed", leaders, h.killed)
		}
		leasetest.Says(t, "the output", out.String(),
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

// death returns when a worker was killed.
func (h *history) death() (at time.Time) {
	for _, turn := range h.turns {
		if turn.how == killed {
			at = turn.to
		}
	}
	return at
}

func turnOf(h *history, token uint64) *turn {
	for i := range h.turns {
		if h.turns[i].token == token {
			return &h.turns[i]
		}
	}
	return nil
}

// TestStart proves that the program runs on the server that it is given, and says
// what it needs where there is none.
func TestStart(t *testing.T) {
	t.Parallel()
	wants(t, "start", start(t.Context(), func(string) string { return "" }, io.Discard), errNoServer)
	err := start(t.Context(), func(string) string { return "not a data source name" }, io.Discard)
	leasetest.Fails(t, "start", err, "LOCKSTEP_MARIADB_DSN")
}

// TestWorkerEndsWithItsParent proves that a worker whose parent is gone ends, and
// leads no more.
func TestWorkerEndsWithItsParent(t *testing.T) {
	eachEngine(t, func(t *testing.T, dsn string) {
		database, err := scratch.New(t.Context(), dsn, ddl)
		check(t, err)
		t.Cleanup(func() { check(t, database.Drop()) })
		in, parent := io.Pipe()
		said, out := io.Pipe()
		ended := make(chan error, 1)
		slow := config{items: 2, takes: time.Hour, ttl: time.Hour}
		go func() {
			err := work(context.Background(), slow.arguments("only")[1:], database.DSN(), in, out)
			_ = out.Close()
			ended <- err
		}()
		lines := json.NewDecoder(said)
		for _, want := range []report{{Worker: "only", What: holds, Item: 1}, {Worker: "only", What: doing, Item: 1}} {
			var got report
			if err := lines.Decode(&got); err != nil || got.Token == 0 {
				t.Fatalf("it says %+v, %v", got, err)
			}
			got.Token = 0
			leasetest.Equal(t, "what it says", got, want)
		}
		check(t, parent.Close())
		wants(t, "work", <-ended, errOrphan)
		db, err := locksqlc.Open(database.DSN())
		check(t, err)
		defer db.Close()
		m, err := lease.NewManager(db)
		check(t, err)
		_, err = m.TryAcquire(t.Context(), job)
		wants(t, "TryAcquire of the job", err, nil)
		check(t, m.Close(t.Context()))
	})
}

// TestWorkRefuses proves that a worker with bad arguments does nothing.
func TestWorkRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"a", "1", "1s"}, {"a", "x", "1s", "1s"}, {"a", "1", "x", "1s"}, {"a", "1", "1s", "x"}} {
		leasetest.Fails(t, fmt.Sprintf("work(%q)", args), work(t.Context(), args, "root@/none", strings.NewReader(""), io.Discard))
	}
}

// TestRunJobFails proves that an error of the processes is that of the job, after all
// of them have ended, and that none is started under a context that has ended.
func TestRunJobFails(t *testing.T) {
	t.Parallel()
	_, err := runJob(t.Context(), whole, "not a data source name")
	for i := range whole.workers {
		if name := fmt.Sprintf("worker-%d: exit status 1", i+1); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("runJob = %v, want %q", err, name)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = runJob(ended, whole, "not a data source name")
	wants(t, "runJob", err, context.Canceled)
}

// TestInterruptedJob proves that the end of the context ends the processes while they
// work and wait, and leaves no database behind.
func TestInterruptedJob(t *testing.T) {
	eachEngine(t, func(t *testing.T, dsn string) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		long := whole
		long.items, long.killAt = 1000000, 0
		database, err := scratch.New(ctx, dsn, ddl)
		check(t, err)
		var reading sync.WaitGroup
		defer reading.Wait()
		reading.Go(func() {
			for ctx.Err() == nil { // until somebody works
				h := new(history)
				err := h.read(ctx, database.Pool())
				if err != nil && ctx.Err() == nil {
					t.Errorf("read the results: %v", err)
				}
				if len(h.results) > 0 || err != nil {
					interrupt()
				}
			}
		})
		_, err = runJob(ctx, long, database.DSN())
		leasetest.Fails(t, "an interrupted job", err)
		check(t, database.Drop())
	})
}

// TestCheckFindsWhatDoesNotHold proves that an item that was planned or done twice, never,
// late or wrongly is found, and so is a run in which nobody took over.
func TestCheckFindsWhatDoesNotHold(t *testing.T) {
	t.Parallel()
	c := config{items: 3}
	for name, test := range map[string]struct {
		change func(h *history)
		want   string
	}{
		"as it should be":     {func(*history) {}, ""},
		"planned twice":       {func(h *history) { h.plan = append(h.plan[:2], h.plan[1:]...) }, "row 3 of the plan is item 2"},
		"never planned":       {func(h *history) { h.plan = append(h.plan[:1], h.plan[2:]...) }, "row 2 of the plan is item 3"},
		"planned too little":  {func(h *history) { h.plan = h.plan[:2] }, "2 items were planned, not 3"},
		"planned by the dead": {func(h *history) { h.plan[2].token = 1 }, "under token 1, after one under token 2"},
		"done twice":          {func(h *history) { h.results[2] = h.results[0] }, "was done twice"},
		"never done":          {func(h *history) { h.results = h.results[:2] }, "2 items were done, not 3"},
		"done wrongly":        {func(h *history) { h.results[1].result = 5 }, "item 3 has the result 5"},
		"no take-over":        {func(h *history) { h.turns = h.turns[:1] }, "nobody was killed"},
		"no kill":             {func(h *history) { h.turns[0].how = ends }, "nobody was killed"},
	} {
		at := time.Now()
		h := &history{
			turns:   []turn{{worker: "a", token: 1, how: killed, from: at, to: at}, {worker: "b", token: 2, how: ends, from: at, to: at}},
			plan:    []planned{{1, "a", 1}, {2, "b", 2}, {3, "b", 2}},
			results: []result{{1, 1, "a"}, {3, 9, "b"}, {2, 4, "b"}},
		}
		test.change(h)
		err := h.check(c)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(fmt.Sprint(err), test.want)) {
			t.Errorf("%s: check = %v, want %q", name, err, test.want)
		}
	}
}

// TestTimelineOfALoss proves that a worker that loses the lead and comes back has
// two turns.
func TestTimelineOfALoss(t *testing.T) {
	t.Parallel()
	h := new(history)
	for _, r := range []report{
		{Worker: "a", What: holds, Token: 1, Item: 1}, {Worker: "a", What: loses},
		{Worker: "b", What: holds, Token: 2, Item: 1}, {Worker: "b", What: ends, Token: 2},
		{Worker: "a", What: holds, Token: 3, Item: 4}, {Worker: "a", What: ends, Token: 3}, {Worker: "a", What: gone},
	} {
		check(t, h.note(r))
	}
	var how []string
	for _, turn := range h.turns {
		how = append(how, turn.worker+" "+turn.how)
	}
	leasetest.Equal(t, "turns", strings.Join(how, ", "), "a loses, b ends, a ends")
	wants(t, "a worker that fails", h.note(report{Worker: "b", What: gone, err: io.ErrUnexpectedEOF}), io.ErrUnexpectedEOF)
	h.killed = "b"
	wants(t, "a worker that was killed", h.note(report{Worker: "b", What: gone, err: io.ErrUnexpectedEOF}), nil)
}

var check, wants = leasetest.Must, leasetest.Wants
