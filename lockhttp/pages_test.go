package lockhttp_test

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func TestTmp(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		s.lock(txlock.Named("order:42"))
		s.waits(txlock.Named("order:42"))
		l, err := s.manager().Acquire(t.Context(), txlock.Named("report"))
		s.must(err)
		defer l.Release(t.Context())
		for _, p := range []string{"", "locks", "leases", "waits", "queues", "jobs", "leaders", "events", "search?q=ord", "key?key=order:42", "key?key=report", "overview.json"} {
			t.Log(s.shows(p))
		}
	})
}
