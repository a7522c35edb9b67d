//go:build cluster

package cluster

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

// TestNodes proves that the faults are faults: a node that was killed is not to be
// reached, one that hangs doesn't answer, one that is cut off answers and hears nothing
// of the others, which go on, and all have in the end what was written meanwhile.
func TestNodes(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "written", "id INT PRIMARY KEY")
		written := func(node int, within time.Duration) (n int, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			err = db.At(t, nodes[node]).Admin().QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table).Scan(&n)
			return n, err
		}
		check(t, nodes[2].Kill())
		db.Exec(t, "INSERT INTO "+table+" VALUES (1)")
		if n, err := written(2, time.Second); err == nil {
			t.Errorf("a node that was killed answers: %d", n)
		}
		check(t, nodes[2].Restart(t.Context()))
		caughtUp(t, db.At(t, nodes[2]))
		if n, err := written(2, callLimit); n != 1 || err != nil {
			t.Errorf("a node that has come back has %d rows, %v, want 1", n, err)
		}
		check(t, nodes[1].Signal(syscall.SIGSTOP))
		db.Exec(t, "INSERT INTO "+table+" VALUES (2)")
		if n, err := written(1, time.Second); err == nil {
			t.Errorf("a node that hangs answers: %d", n)
		}
		check(t, nodes[1].Signal(syscall.SIGCONT))
		caughtUp(t, db.At(t, nodes[1]))
		if n, err := written(1, callLimit); n != 2 || err != nil {
			t.Errorf("a node that goes on has %d rows, %v, want 2", n, err)
		}
		part(t, nodes[0])
		there := db.At(t, nodes[1])
		there.Exec(t, "INSERT INTO "+table+" VALUES (3)") // when the others have put it out
		if err := load.Administrator(t, nodes[0], callLimit).PingContext(t.Context()); err != nil {
			t.Errorf("a node that is cut off doesn't answer: %v", err)
		}
		if n, err := written(0, time.Second); err == nil && n == 3 {
			t.Error("a node that is cut off has what was written after that")
		}
		heal(t, nodes[0])
		caughtUp(t, db)
		if n, err := written(0, callLimit); n != 3 || err != nil {
			t.Errorf("a node that was cut off has %d rows, %v, want 3", n, err)
		}
	})
}

// TestSavepoints proves that the nodes, which have a binary log, don't get what was
// rolled back to a savepoint. Without one MariaDB 10.11.14 sends it to the others.
func TestSavepoints(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "kept", "id INT PRIMARY KEY")
		tx, err := db.Admin().BeginTx(t.Context(), nil)
		check(t, err)
		defer func() { _ = tx.Rollback() }()
		for _, statement := range []string{
			"SELECT COUNT(*) FROM " + table, "SAVEPOINT s", "INSERT INTO " + table + " VALUES (1)",
			"ROLLBACK TO SAVEPOINT s", "INSERT INTO " + table + " VALUES (2)",
		} {
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		check(t, tx.Commit())
		for i, node := range nodes {
			var ids string
			if err := caughtUp(t, db.At(t, node)).QueryRow("SELECT GROUP_CONCAT(id) FROM " + table).Scan(&ids); err != nil || ids != "2" {
				t.Errorf("node %d has the rows %q, %v, want 2 alone", i, ids, err)
			}
		}
	})
}
