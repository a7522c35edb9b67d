package lockhttp_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestCost proves that pages cost the server little more than lockstep top, which looks once a second,
// however many view them, with 1,000 locks and 100 waiters. It logs what both cost.
func TestCost(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			server := testdb.Long(testdb.Shared, func(tb testing.TB, engine testdb.Engine) *testdb.Server { return testdb.Dedicated(tb, engine) })(t, engine)
			s := open(t, server.OpenLeases(t))
			holders, each, waiters := 4, testdb.Long(10, 250), testdb.Long(5, 100)
			family := txlock.NewFamily[int]("many")
			var keys []txlock.Key
			for i := range holders * each {
				keys = append(keys, family.Key(i+1))
			}
			s.must(txlock.Ensure(t.Context(), s.pool, keys...))
			for i := range holders {
				s.lock(keys[i*each : (i+1)*each]...)
			}
			s.queue(waiters, keys[0])
			seen := fmt.Sprintf("%d sessions waiting", waiters)
			s.shows("locks", "many:", seen)

			cpu := s.processor()
			during := testdb.Long(100*time.Millisecond, 30*time.Second) // a short one judges nothing
			measure := func() time.Duration {
				began := cpu()
				time.Sleep(during) // that is what is measured
				return cpu() - began
			}
			idle := measure()
			viewed := s.viewed([]string{"", "", "locks", "locks", "waits", "waits", "queues", "events"}, seen, measure)
			top := s.looked(ops.New(s.admin), measure)
			t.Logf("in %v: idle %v, viewed %v, top %v", during, idle, viewed, top)
			if most := testdb.Long(time.Hour, 2*(top-idle)+100*time.Millisecond); viewed-idle > most {
				t.Errorf("in %v the server needs %v with 8 viewers, and %v with top, %v without", during, viewed, top, idle)
			}
		})
	}
}

// viewed opens pages, and measures while they are live.
func (s *stage) viewed(pages []string, wanted string, measure func() time.Duration) time.Duration {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	events := make(chan string, 10_000)
	for _, page := range pages {
		ended := s.live(ctx, page, func(event string) { events <- event })
		all.Go(func() {
			if err := <-ended; ctx.Err() == nil {
				s.Errorf("a stream has ended: %v", err)
			}
		})
	}
	took := measure()
	for deadline := time.After(time.Minute); ; {
		select {
		case event := <-events:
			if strings.Contains(event, wanted) { // a look may see the wait of another test, too
				return took
			}
		case <-deadline:
			s.Fatalf("no viewer sees %q", wanted)
		}
	}
}

// looked looks once a second, as lockstep top does, and measures.
func (s *stage) looked(room *ops.Room, measure func() time.Duration) time.Duration {
	s.Helper()
	_, err := room.Look(s.Context()) // it knows the tables then
	s.must(err)
	ctx, cancel := context.WithCancel(s.Context())
	var looks sync.WaitGroup
	defer func() { cancel(); looks.Wait() }()
	looks.Go(func() {
		for ctx.Err() == nil {
			if _, err := room.Look(ctx); err != nil && ctx.Err() == nil {
				s.Errorf("look: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return measure()
}

// queue lets so many transactions wait for a key until the end of the test.
func (s *stage) queue(n int, key txlock.Key) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	var all sync.WaitGroup
	s.Cleanup(func() { cancel(); all.Wait() })
	pool := s.patient()
	for range n {
		_, scope := s.beginOn(pool)
		all.Go(func() { _, _ = scope.Lock(ctx, key) }) // it is cancelled
	}
}

// processor returns how long processors have worked for the server, which is always 0 where
// it runs on another machine, or in a container.
func (s *stage) processor() func() time.Duration {
	s.Helper()
	var file string
	s.must(s.db.Admin().QueryRowContext(s.Context(), "SELECT @@pid_file").Scan(&file))
	text, _ := os.ReadFile(file)
	pid := strings.TrimSpace(string(text))
	name, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	if pid == "" || !strings.Contains(string(name), file) {
		return func() time.Duration { return 0 }
	}
	return func() time.Duration {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		s.must(err)
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):])) // after the name
		user, err := strconv.Atoi(fields[12])
		s.must(err)
		system, err := strconv.Atoi(fields[13])
		s.must(err)
		return time.Duration(user+system) * 10 * time.Millisecond // a tick
	}
}
