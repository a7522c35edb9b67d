package ops_test

import (
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestStatementThatIsNoText proves that a look answers while a session executes a statement whose
// bytes are no text, which MySQL refuses to list.
func TestStatementThatIsNoText(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		db.Exec(t, "INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES ('bytes', 1, '-', 0, 1)")
		holder, err := db.Connect(t).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.ExecContext(t.Context(), "UPDATE lockstep_locks SET owner = 'x' WHERE name = 'bytes'"); err != nil {
			t.Fatal(err)
		}
		waiter := db.Connect(t)
		waited := make(chan error, 1)
		go func() {
			_, err := waiter.ExecContext(t.Context(), "UPDATE lockstep_locks SET owner = _binary'\xd3\x04\xfd\xe1\x1d' WHERE name = 'bytes'")
			waited <- err
		}()
		if !testdb.Await(time.Minute, func() bool {
			waiting, _ := db.RowLocks(t)
			return len(waiting) > 0
		}) {
			t.Fatal("the statement doesn't wait")
		}
		if _, err := ops.New(db.Admin()).Look(t.Context()); err != nil {
			t.Errorf("a look while a statement is no text: %v", err)
		}
		if err := holder.Rollback(); err != nil {
			t.Error(err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	}, withArgs()) // others read the list, too
}
