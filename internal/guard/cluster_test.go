package guard

import (
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// TestRefusedByTheGroup proves that a refused COMMIT is known to be rolled back only where
// the member is in a view of the group that was known before it was sent.
func TestRefusedByTheGroup(t *testing.T) {
	t.Parallel()
	refused := &mysql.MySQLError{Number: 3101, Message: "refused"}
	denied := &mysql.MySQLError{Number: 1142, Message: "no privilege"}
	base, pool := newStub(t, false)
	for i, c := range []struct {
		view   string // "" of one that is no member
		answer error  // to the question
		commit error
		known  bool // that it is rolled back
		asks   bool
	}{
		{view: "1:3"},
		{view: "1:3", commit: refused, asks: true},
		{view: "1:3", commit: refused, asks: true, known: true},
		{view: "1:3", commit: refused, asks: true, known: true},
		{view: "1:3", commit: deadlock},
		{view: "1:3", commit: errDead},
		{view: "1:4", commit: refused, asks: true}, // somebody has left, or has joined
		{view: "1:4", commit: refused, asks: true, known: true},
		{view: "", commit: refused, asks: true},
		{view: "1:4", commit: refused, answer: denied, asks: true},
		{view: "1:6", commit: refused, asks: true}, // it has come back
	} {
		base.mu.Lock()
		base.view, base.sent = c.view, nil
		base.answers["commit"], base.answers[rawsql.GroupView] = c.commit, c.answer
		base.mu.Unlock()
		err := begun(t, pool).Commit()
		if !errors.Is(err, c.commit) || errors.Is(err, fault.ErrDeadlock) != c.known {
			t.Errorf("%d: Commit: %v, want it known: %t", i, err, c.known)
		}
		if asked := base.has(rawsql.GroupView); asked != c.asks {
			t.Errorf("%d: the server was asked: %t", i, asked)
		}
	}
	if n := base.connections(); n != 6 { // the first, and one after each of five that nobody knows the end of
		t.Errorf("%d connections", n)
	}
}

// TestRefusedTooLate proves that a refusal says nothing that comes as late as that of a member
// which leaves the group.
func TestRefusedTooLate(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	base.view = "1:3"
	check(t, connect(t, pool).Raw(func(driverConn any) error {
		guarded, known := driverConn.(*conn), "1:3"
		for late, rolledBack := range map[time.Duration]bool{0: true, groupPatience + time.Second: false} {
			s := sending{guarded, &known, time.Now().Add(-late)}
			if err := s.outcome(&mysql.MySQLError{Number: 3101}); errors.Is(err, fault.ErrDeadlock) != rolledBack {
				t.Errorf("after %v: %v", late, err)
			}
		}
		return nil
	}))
}

// TestAbortWhilePreparing has a Galera node end a transaction with locks while it
// prepares a statement, without saying so: the statement must not be executed. Other
// cases answer the guard's question in other ways.
func TestAbortWhilePreparing(t *testing.T) {
	t.Parallel()
	notReady := &mysql.MySQLError{Number: 1047, Message: "not prepared for application use"}
	for _, c := range []struct {
		name, galera string
		holds        bool
		probe        error
		want         error
		asks, doomed bool
	}{
		{name: "ended", galera: "ON", holds: true, want: fault.ErrTxDoomed, asks: true, doomed: true},
		{name: "open", galera: "ON", holds: true, probe: inside, asks: true},
		{name: "told by the question", galera: "ON", holds: true, probe: deadlock, want: fault.ErrTxDoomed, asks: true, doomed: true},
		{name: "no answer to the question", galera: "ON", holds: true, probe: notReady, want: notReady, asks: true},
		{name: "without locks", galera: "ON"},
		{name: "not on a cluster", galera: "OFF", holds: true},
		{name: "no Galera in the server", holds: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base, pool := newStub(t, false)
			base.galera = c.galera
			base.will(rawsql.Probe, c.probe)
			tx := begin(t, pool)
			txState, _, _ := Ask(t.Context(), tx)
			if c.holds {
				txState.Hold()
			}
			isError(t, "the statement", second(tx.ExecContext(t.Context(), "INSERT", 6)), c.want)
			if executed := base.has("execute INSERT[6]"); executed != (c.want == nil) {
				t.Errorf("it was executed: %t", executed)
			}
			if !base.has("close INSERT") {
				t.Error("the statement is left open on the server")
			}
			if asked := base.has(rawsql.Probe); asked != c.asks {
				t.Errorf("the server was asked: %t, want %t", asked, c.asks)
			}
			if doomed := txState.Err() != nil; doomed != c.doomed {
				t.Errorf("the transaction is doomed: %v, want %t", txState.Err(), c.doomed)
			}
		})
	}
}
