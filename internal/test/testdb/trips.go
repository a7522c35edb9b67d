package testdb

import (
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// Trips counts the round trips of a pool to its server: the commands that the client
// sends and waits for.
type Trips struct {
	mu   sync.Mutex
	sent []string
}

// Count returns how many there were so far.
func (t *Trips) Count() int { return len(t.Since(0)) }

// Since returns the beginnings of the commands that were sent after the first n.
func (t *Trips) Since(n int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sent[n:])
}

// CountTrips returns a counter, and a mutator for Config and DSN that makes it count. The
// server must be one of TCP.
func CountTrips(tb testing.TB) (*Trips, func(*mysql.Config)) {
	tb.Helper()
	t := new(Trips)
	return t, Dialled(tb, func(conn *net.TCPConn) net.Conn { return &tripConn{TCPConn: conn, trips: t} })
}

// tripConn counts the commands that are written to a connection. The driver also asks it
// for the socket, to see whether the server has closed that.
type tripConn struct {
	*net.TCPConn
	trips *Trips
}

// Commands that the server doesn't answer.
const comQuit, comStmtClose = 0x01, 0x19

// Write counts a packet that begins a command: its number is 0 (MySQL internals, "MySQL
// Packets"). The driver writes a packet in one call.
func (c *tripConn) Write(b []byte) (int, error) {
	if len(b) > 4 && b[3] == 0 && b[4] != comQuit && b[4] != comStmtClose {
		c.trips.mu.Lock()
		c.trips.sent = append(c.trips.sent, string(b[4:min(len(b), 300)]))
		c.trips.mu.Unlock()
	}
	return c.TCPConn.Write(b)
}
