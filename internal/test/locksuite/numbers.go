package locksuite

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// tables are those of env.numbers that no test uses: to make and drop one for each test
// was a fifth of the server's work.
type tables struct {
	mu    sync.Mutex
	spare map[*testdb.DB][]string
}

var spareNumbers = tables{spare: make(map[*testdb.DB][]string)}

// take returns a table that is this test's alone until it ends.
func (s *tables) take(tb testing.TB, db *testdb.DB) string {
	tb.Helper()
	table := s.pop(db)
	if table == "" {
		table = "numbers_" + rand.Text()
		db.Exec(tb, "CREATE TABLE "+table+" (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=InnoDB")
		db.Exec(tb, "INSERT INTO "+table+" VALUES (1, 0)")
		db.Grant(tb, table)
	}
	tb.Cleanup(func() {
		for _, statement := range []string{"DELETE FROM " + table, "INSERT INTO " + table + " VALUES (1, 0)"} {
			if _, err := db.Admin().ExecContext(context.Background(), statement); err != nil {
				tb.Errorf("%s: %v", statement, err)
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.spare[db] = append(s.spare[db], table)
	})
	return table
}

func (s *tables) pop(db *testdb.DB) (table string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.spare[db]); n > 0 {
		table, s.spare[db] = s.spare[db][n-1], s.spare[db][:n-1]
	}
	return table
}
