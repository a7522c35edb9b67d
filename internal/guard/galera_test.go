package guard

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

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
