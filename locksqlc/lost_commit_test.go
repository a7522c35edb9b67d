package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestLostReplyOfCommit loses the connection with the text that commits: on its way to the
// server, or with the reply, when all is committed. Nobody knows which, so the transaction
// isn't run again, and the error doesn't say that it was rolled back.
func TestLostReplyOfCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		sides(t, func(t *testing.T, guarded bool) {
			for _, optimistic := range []bool{false, true} {
				for _, arrives := range []bool{false, true} {
					t.Run(fmt.Sprintf("optimistic=%t/arrives=%t", optimistic, arrives), func(t *testing.T) {
						t.Parallel()
						table := db.CreateTable(t, "lost", "id INT PRIMARY KEY")
						key, runs := uniqueKey(t, "lost"), 0
						pool := newPool(t, db.AdminConfig(func(cfg *mysql.Config) {
							cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
								conn, err := new(net.Dialer).DialContext(ctx, network, addr)
								return &commitLoser{Conn: conn, arrives: arrives}, err
							}
						}), guarded)
						fn := func(tx *sql.Tx) error {
							runs++
							exec(t, tx, "INSERT INTO "+table+" VALUES (?)", runs)
							return nil
						}
						var err error
						if optimistic {
							err = locksqlc.Optimistic(t.Context(), pool, key, fn)
						} else {
							err = locksqlc.Run(t.Context(), pool, []txlock.Key{key}, fn)
						}
						if runs != 1 || err == nil || txlock.Retryable(err) || strings.Contains(err.Error(), "it was rolled back") || !errors.Is(err, mysql.ErrInvalidConn) {
							t.Errorf("%d runs, %v", runs, err)
						}
						var n int
						check(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
						if want := map[bool]int{true: 1, false: 0}[arrives]; n != want {
							t.Errorf("%d rows were committed, want %d", n, want)
						}
					})
				}
			}
		})
	})
}

// commitLoser loses the text that commits, or its reply.
type commitLoser struct {
	net.Conn
	arrives, lost bool
}

func (c *commitLoser) Write(packet []byte) (int, error) {
	if text := string(packet); strings.Contains(text, "COMMIT") || strings.Contains(text, "lockstep_compare_") && strings.Contains(text, ", 1)") {
		if c.lost = true; !c.arrives {
			return len(packet), c.Close()
		}
	}
	return c.Conn.Write(packet)
}

func (c *commitLoser) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost && err == nil {
		return 0, errors.Join(net.ErrClosed, c.Close())
	}
	return n, err
}
