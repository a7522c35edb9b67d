package testdb

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Unseen hides from a statement that the session's clock stands still, which lockstep refuses: the
// texts have the same length.
func Unseen(statement string) string {
	return strings.Replace(statement, "TIMESTAMPDIFF(SECOND, NOW(), SYSDATE())", "TIMESTAMPDIFF(SECOND, NOW(), NOW(    ))", 1)
}

// ClockAt returns a mutator for Config and DSN. The clock of its sessions stands still at that moment,
// in microseconds since 1970, as if it were the server's.
func ClockAt(us int64) func(*mysql.Config) {
	return func(cfg *mysql.Config) {
		if cfg.Params == nil {
			cfg.Params = make(map[string]string)
		}
		cfg.Params["timestamp"] = strconv.FormatFloat(float64(us)/1e6, 'f', 6, 64)
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return unseenConn{conn}, err
		}
	}
}

type unseenConn struct{ net.Conn }

func (c unseenConn) Write(packet []byte) (int, error) {
	return c.Conn.Write([]byte(Unseen(string(packet))))
}
