package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// beyondUTF8MB3 proves that a look shows the same while a session executes a statement whose text MySQL
// can't list, with an emoji and bytes that aren't text: who holds what, prepared transactions too, who
// waits for whom and for how long, at once, and by times that agree with each other.
func beyondUTF8MB3(t *testing.T, db *testdb.DB) {
	if db.Engine() != testdb.MySQL {
		return // MariaDB lists the transactions
	}
	stock := db.CreateTable(t, "stock", "id INT PRIMARY KEY, n VARBINARY(255)")
	db.Exec(t, "INSERT INTO "+stock+" VALUES (1, '')")
	pool, shared, prepared := db.Connect(t), txlock.Named("shared"), txlock.Named("prepared")
	must(t, txlock.Ensure(t.Context(), pool, txlock.Named("hot"), shared, prepared))
	detach(t, db, pool, prepared)
	for _, statement := range []string{"CREATE USER 'few'@'%' IDENTIFIED BY 'few'", "GRANT PROCESS ON *.* TO 'few'@'%'", "GRANT SELECT ON `" + db.Name() + "`.* TO 'few'@'%'"} {
		db.Exec(t, statement) // now: it waits for statements that wait
	}
	few, err := sql.Open("mysql", db.DSN(func(c *mysql.Config) { c.User, c.Passwd = "few", "few" }))
	must(t, err)
	t.Cleanup(func() { _ = few.Close() })
	reader, scope := beginTx(t, pool)
	must(t, second(scope.RLock(t.Context(), shared)))
	first, _ := beginTx(t, pool)
	must(t, second(first.ExecContext(t.Context(), "UPDATE "+stock+" SET n = 'x' WHERE id = 1")))
	second, scope := beginTx(t, pool)
	lock(t, scope, "hot")
	root, middle := uint64(testdb.ConnID(t, first)), uint64(testdb.ConnID(t, second))
	db.KeepWaiting(t, second, func(ctx context.Context) error {
		_, err := second.ExecContext(ctx, "UPDATE "+stock+" SET /* 🚚 */ n = CONCAT('𠀋', _binary'\xd3\x04\xfd\xe1\x1d') WHERE id = 1")
		return err
	})
	third := uint64(waiting(t, db, pool, txlock.Named("hot")))
	time.Sleep(time.Second)
	took := time.Hour
	p := lookUntil(t, timed{ops.New(db.Admin()), &took}, func(p *ops.Picture) bool { return len(p.Waits) == 2 })
	if took >= 2*time.Second { // in which it would have looked again
		t.Errorf("it takes %v", took)
	}
	if slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool { return g.Hides }) {
		t.Errorf("not seen is %v", p.Gaps)
	}
	tree := p.Tree()
	if len(tree) != 1 || tree[0].Kind != ops.Other || flat(tree) != fmt.Sprintf("[%d](%d hot[%[2]d](%d ))", root, middle, third) {
		t.Errorf("the tree is %s", flat(tree))
	}
	for _, w := range p.Waits {
		if s := p.Sessions[w.Session]; w.For < 1 || !s.InTx || s.TxAge < w.For-1 || s.TxAge > w.For+30 {
			t.Errorf("session %d waits %s in a transaction of %s", w.Session, w.For, s.TxAge)
		}
	}
	for _, l := range p.Locks {
		is := l.Key == "prepared" && l.Detached || l.Key == "hot" && l.Held >= 1 && l.Session == middle ||
			l.Key == "shared" && l.Mode == ops.Shared && l.Held > 1 && l.Session == uint64(testdb.ConnID(t, reader))
		if !is || l.Unsure {
			t.Errorf("a lock is %#v", l)
		}
	}
	if s := p.Sessions[middle]; s.RowLocks < 1 || len(p.Locks) < 2 {
		t.Errorf("the second session is %+v, beside the locks %v", s, p.Locks)
	}
	if p := blind(t, few, "GRANT SELECT ON performance_schema.* TO 'few'@'%'"); len(p.Locks)+len(p.Waits) > 0 {
		t.Errorf("the locks are %#v, and the waits %+v", p.Locks, p.Waits)
	}
	db.Exec(t, fmt.Sprintf("UPDATE performance_schema.threads SET instrumented = 'NO' WHERE processlist_id = %d", root))
	p = blind(t, db.Admin(), "instrument transactions of all sessions")
	if i := slices.IndexFunc(p.Locks, func(l ops.Lock) bool { return l.Key == "hot" }); i < 0 || p.Locks[i].Held < 1 || p.Sessions[middle].Age() != "-" || p.Sessions[third].Age() != "-" {
		t.Errorf("the locks are %#v, of %+v", p.Locks, p.Sessions)
	}
}

// blind looks while MySQL lists no transactions, and its performance schema can't take the place of the
// list. It checks that the gap says so, and how it could.
func blind(t *testing.T, pool *sql.DB, fix string) *ops.Picture {
	t.Helper()
	p, err := ops.New(pool).Look(t.Context())
	must(t, err)
	if !slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool {
		return g.Hides && g.Denied == strings.Contains(fix, "GRANT") && strings.Contains(g.What, "an emoji") && strings.Contains(g.Fix, fix)
	}) {
		t.Errorf("not seen is %v", p.Gaps)
	}
	return p
}

// TestUnknownTransactions proves that no number is shown for what isn't known: who may not read the
// server's list of transactions sees neither how old one is nor, of a shared lock, for how long it is held.
func TestUnknownTransactions(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := db.Connect(t), txlock.Named("hot")
		must(t, txlock.Ensure(t.Context(), pool, key))
		tx, scope := beginTx(t, pool)
		lock(t, scope, key.String())
		p := lookUntil(t, ops.New(pool), func(p *ops.Picture) bool { return len(p.Locks) == 1 })
		s := p.Sessions[uint64(testdb.ConnID(t, tx))]
		text, err := json.Marshal(s)
		must(t, err)
		if !s.InTx || s.Age() != "-" || !strings.Contains(string(text), `"transaction_s":null`) || !p.Locks[0].Held.Known() {
			t.Errorf("without PROCESS the session is %s, and the lock %#v", text, p.Locks[0])
		}
		if db.Engine() == testdb.MySQL { // an account that reads its locks, and not its transactions
			scope := begin(t, pool)
			must(t, txlock.Ensure(t.Context(), pool, txlock.Named("shared")))
			must(t, second(scope.RLock(t.Context(), txlock.Named("shared"))))
			account := "'" + db.Config().User + "'@'%'"
			db.Exec(t, "GRANT SELECT ON performance_schema.* TO "+account)
			p := lookUntil(t, ops.New(pool), func(p *ops.Picture) bool { return len(p.Locks) == 2 })
			if l := p.Locks[1]; l.Mode != ops.Shared || l.Held.String() != "-" {
				t.Errorf("the shared lock is %#v", l)
			}
		}
	})
}

// timed is a Room that notes how long its last look has taken.
type timed struct {
	*ops.Room
	took *time.Duration
}

// Look looks.
func (r timed) Look(ctx context.Context, keys ...string) (*ops.Picture, error) {
	began := time.Now()
	p, err := r.Room.Look(ctx, keys...)
	*r.took = min(*r.took, time.Since(began)) // of all looks
	return p, err
}
