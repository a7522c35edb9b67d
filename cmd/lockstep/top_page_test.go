package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// topPage is what top shows of MySQL: the picture in the README is made of it by make
// diagrams.
const topPage = "../../docs/diagrams/lockstep-top.txt"

// TestTopPage proves that top shows real servers as the README does.
func TestTopPage(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		_, holder := s.begin()
		s.lock(holder, orders.Key(42), orders.Key(77))
		for range 2 {
			tx, scope := s.begin()
			s.waits(tx, func(ctx context.Context) error { return second(scope.Lock(ctx, orders.Key(42))) })
		}
		leases := s.manager(lease.WithLabel("the nightly report"))
		s.must(second(leases.Acquire(lease.WithOwner(s.ctx, "web-2/815"), txlock.Named("report"))))
		exports, err := leases.Semaphore(txlock.Named("exports"), 3)
		s.must(err)
		s.must(second(exports.TryAcquire(lease.WithOwner(s.ctx, "web-3/77"))))
		if page := s.top(); s.db.Engine() != testdb.MySQL {
			for _, key := range []string{"order:42", "order:77", "report", "exports"} {
				if !strings.Contains(page, "\n"+key+" ") {
					t.Errorf("there is no %s:\n%s", key, page)
				}
			}
		} else if want, _ := os.ReadFile(topPage); page != string(want) && *update {
			s.must(os.WriteFile(topPage, []byte(page), 0o644))
		} else if page != string(want) {
			t.Errorf("top shows:\n%s\n%s has (go test -update writes it):\n%s", page, topPage, want)
		}
	})
}

// top returns what the live table shows, when the servers have noticed all waits, and tests beside it hide nothing, with the
// sessions, users, hosts and times of the page.
func (s *stage) top() string {
	s.Helper()
	var picture *ops.Picture
	if !testdb.Await(time.Minute, func() (seen bool) {
		testdb.Refresh()
		var err error
		picture, err = ops.New(s.db.Admin()).Look(s.Context())
		s.must(err)
		return len(picture.Waits) == 2 && len(picture.Leases) == 2 && len(picture.Hiding()) == 0
	}) {
		s.Fatalf("two don't wait, two leases are not held, or not all is seen: %+v", picture)
	}
	picture.Version, picture.Taken = "9.7.4", time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	sessions := make(map[uint64]ops.Session)
	for i := range picture.Locks {
		l := &picture.Locks[i]
		l.Held = 12
		session := picture.Sessions[l.Session]
		session.User, session.Host, session.For = "app", "web-1", 12
		l.Session = 51
		sessions[51] = session
	}
	picture.Sessions = sessions
	for i := range picture.Leases {
		l := &picture.Leases[i]
		l.Held, l.Left, l.Renewed = 100, 25, 5
	}
	live := screen{by: "waiters", rates: new(ops.Rates), width: 160, height: 30, every: time.Second}
	live.see(looked{Picture: picture})
	return live.text()
}
