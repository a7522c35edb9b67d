package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOnceUnderKills asks for each key 20 times at once, from several pools, while
// connections are killed. Every effect is there exactly once, and all who ask get its
// answer, after errors of which nobody knows what has become of them. The same with a
// SELECT before the INSERT has effects twice. It asks for 200 keys with LOCKSTEP_LONG=1,
// else for 60 or more.
func TestOnceUnderKills(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t) // whose user has no other connections
			onceUnderKills(t, db)
		})
	}
}

func onceUnderKills(t *testing.T, db *testdb.DB) {
	s := newOnceStress(t, db)
	asked := s.ask("once", testdb.Long(60, 200), func(ctx context.Context, pool *sql.DB, name string) (string, error) {
		answer, _, err := locksqlc.OnceValue(ctx, pool, txlock.Named(name), func(tx *sql.Tx) (string, error) {
			return s.effect(ctx, tx, name)
		})
		return answer, err
	})
	var keys, rows int
	if err := db.Admin().QueryRow("SELECT COUNT(DISTINCT name), COUNT(*) FROM "+s.table).Scan(&keys, &rows); err != nil {
		t.Fatal(err)
	}
	if keys != asked || rows != asked {
		t.Errorf("%d effects of %d keys, want %d of as many", rows, keys, asked)
	}
	for name, answers := range s.answers() {
		var want string
		if err := db.Admin().QueryRow("SELECT answer FROM "+s.table+" WHERE name = ?", name).Scan(&want); err != nil {
			t.Fatal(err)
		}
		for _, got := range answers {
			if got != want {
				t.Errorf("%s: answered %q, the effect is %q", name, got, want)
			}
		}
	}
	if s.killed.Load() == 0 || s.unknown.Load() == 0 {
		t.Errorf("%d connections were killed, and %d calls got an error", s.killed.Load(), s.unknown.Load())
	}
	t.Logf("%d connections killed, %d errors", s.killed.Load(), s.unknown.Load())

	control := newOnceStress(t, db)
	control.ask("without", 20, func(ctx context.Context, pool *sql.DB, name string) (answer string, err error) {
		err = locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+control.table+" WHERE name = ?", name).Scan(&n); err != nil || n > 0 {
				return err
			}
			answer, err = control.effect(ctx, tx, name)
			return err
		})
		return answer, err
	})
	if n := count(t, db.Admin(), "SELECT COUNT(*) - COUNT(DISTINCT name) FROM "+control.table); n == 0 {
		t.Error("without Once nothing is done twice: the test can't fail")
	}
}

// onceStress asks for keys over several pools.
type onceStress struct {
	t               *testing.T
	db              *testdb.DB
	table           string
	pools           []*sql.DB
	killed, unknown atomic.Int64

	mu  sync.Mutex
	got map[string][]string
}

func newOnceStress(t *testing.T, db *testdb.DB) *onceStress {
	s := &onceStress{t: t, db: db, got: make(map[string][]string)}
	s.table = db.CreateTable(t, "effects", "name VARCHAR(100) NOT NULL, answer VARCHAR(100) NOT NULL, KEY (name)")
	for range 4 {
		pool := newPool(t, db.Config(func(c *mysql.Config) { c.Logger = &mysql.NopLogger{} }), true)
		pool.SetMaxOpenConns(15)
		s.pools = append(s.pools, pool)
	}
	return s
}

// effect is what must be done once.
func (s *onceStress) effect(ctx context.Context, tx *sql.Tx, name string) (string, error) {
	answer := rand.Text()
	_, err := tx.ExecContext(ctx, "INSERT INTO "+s.table+" VALUES (?, ?)", name, answer)
	return answer, err
}

// ask asks for each key 20 times at once, three keys at a time, until it is answered:
// so many keys, and more until a call got an error. It returns how many.
func (s *onceStress) ask(kind string, keys int, call func(ctx context.Context, pool *sql.DB, name string) (string, error)) (asked int) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	var killer, asking sync.WaitGroup
	killer.Go(func() { s.kill(ctx) })
	next := make(chan string)
	for range 3 {
		asking.Go(func() {
			for name := range next {
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() { s.untilAnswered(name, s.pools[i%len(s.pools)], call) })
				}
				wg.Wait()
			}
		})
	}
	run := rand.Text()
	for ; asked < keys || s.unknown.Load() == 0 && asked < 10*keys; asked++ {
		next <- fmt.Sprintf("%s:%s:%d", kind, run, asked)
	}
	close(next)
	asking.Wait()
	stop()
	killer.Wait()
	return asked
}

func (s *onceStress) untilAnswered(name string, pool *sql.DB, call func(ctx context.Context, pool *sql.DB, name string) (string, error)) {
	for try := 0; ; try++ {
		answer, err := call(s.t.Context(), pool, name)
		if err == nil {
			s.mu.Lock()
			s.got[name] = append(s.got[name], answer)
			s.mu.Unlock()
			return
		}
		s.unknown.Add(1)
		if !fault.Unknown(err) && !txlock.Retryable(err) || try == 1000 {
			s.t.Errorf("%s: %v", name, err)
			return
		}
	}
}

// answers are those of all who have asked, by key.
func (s *onceStress) answers() map[string][]string {
	for name, answers := range s.got {
		if len(answers) != 20 {
			s.t.Errorf("%s: %d of 20 calls were answered", name, len(answers))
		}
	}
	return s.got
}

// kill kills connections of the pools, one every few milliseconds.
func (s *onceStress) kill(ctx context.Context) {
	for ctx.Err() == nil {
		rows, err := s.db.Admin().QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = ? AND user = ? AND id <> CONNECTION_ID()", s.db.Name(), s.db.Config().User)
		if err != nil {
			continue // the end, or what MySQL answers of a text that is no UTF-8
		}
		var ids []int64
		for rows.Next() {
			var id int64
			if rows.Scan(&id) == nil {
				ids = append(ids, id)
			}
		}
		if rows.Close() == nil && len(ids) > 0 {
			if _, err := s.db.Admin().ExecContext(ctx, fmt.Sprint("KILL ", ids[mathrand.IntN(len(ids))])); err == nil {
				s.killed.Add(1)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
