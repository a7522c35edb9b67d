package ops_test

import (
	"context"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestStatementOfWaiters proves that what somebody waits with is shown whatever comments stand
// before it.
func TestStatementOfWaiters(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := db.Connect(t), txlock.Named("ops:said")
		_, err := begin(t, pool).Lock(t.Context(), key)
		must(t, err)
		for text, want := range map[string]string{
			"/* name: Peek */ SELECT token FROM lockstep_locks WHERE name = 'ops:said' FOR UPDATE":         "lockstep Peek",
			"-- name: Peek :one\nSELECT token FROM lockstep_locks WHERE name = 'ops:said' FOR UPDATE":      "lockstep Peek",
			"/* trace 7 */\nSELECT token FROM lockstep_locks\n WHERE name = 'ops:said' FOR UPDATE":         "SELECT token FROM lockstep_locks WHERE name = 'ops:said' FOR UPDATE",
			"-- of a wrapper\n# and\n/* name: Peek :one */SELECT 1 FROM lockstep_locks LOCK IN SHARE MODE": "lockstep Peek",
		} {
			conn, err := pool.Conn(t.Context())
			must(t, err)
			var id int64
			must(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = conn.ExecContext(ctx, text) // ends with its context
			}()
			db.WaitForLockWait(t, id)
			shown := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool {
				return p.Sessions[uint64(id)].Statement != ""
			})
			if s := shown.Sessions[uint64(id)]; s.Statement != want {
				t.Errorf("%q is shown as %q, not %q", text, s.Statement, want)
			}
			cancel()
			<-done
			_ = conn.Close() // its session may be gone
		}
	}, testdb.Open)
}
