package testdb

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// Wire has the texts that the clients of a pool have sent, as they were before they were
// rewritten.
type Wire struct {
	mu    sync.Mutex
	texts []string
}

// Sent returns the texts so far.
func (w *Wire) Sent() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.texts)
}

func (w *Wire) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// Rewritten returns a mutator for Config and DSN by which the texts of statements are rewritten
// on their way to the server, below the driver, and what was sent. So a server answers as
// another one would. The server must be one of TCP.
func Rewritten(tb testing.TB, rewrite func(text string) string) (*Wire, func(*mysql.Config)) {
	tb.Helper()
	w := new(Wire)
	return w, Dialled(tb, func(conn *net.TCPConn) net.Conn { return &rewritingConn{TCPConn: conn, wire: w, rewrite: rewrite} })
}

// Dialled returns a mutator for Config and DSN by which the driver uses what wrap makes of each connection
// that it dials. The server must be one of TCP.
func Dialled(tb testing.TB, wrap func(*net.TCPConn) net.Conn) func(*mysql.Config) {
	tb.Helper()
	network := "dialled-" + randomHex(6)
	mysql.RegisterDialContext(network, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return wrap(conn.(*net.TCPConn)), nil
	})
	tb.Cleanup(func() { mysql.DeregisterDialContext(network) })
	return func(c *mysql.Config) { c.Net = network }
}

// rewritingConn rewrites statements. The driver also asks it for the socket, to see whether the
// server has closed that.
type rewritingConn struct {
	*net.TCPConn
	wire    *Wire
	rewrite func(text string) string
}

// The commands that have a text.
const comQuery, comStmtPrepare = 0x03, 0x16

// Write rewrites a packet of such a command. The driver writes a packet in one call.
func (c *rewritingConn) Write(b []byte) (int, error) {
	if len(b) < 6 || b[3] != 0 || b[4] != comQuery && b[4] != comStmtPrepare {
		return c.TCPConn.Write(b)
	}
	text := string(b[5:])
	c.wire.add(text)
	packet := append([]byte{0, 0, 0, 0, b[4]}, c.rewrite(text)...)
	n := len(packet) - 4
	packet[0], packet[1], packet[2] = byte(n), byte(n>>8), byte(n>>16)
	if _, err := c.TCPConn.Write(packet); err != nil {
		return 0, err
	}
	return len(b), nil
}
