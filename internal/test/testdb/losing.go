package testdb

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Losing returns a mutator for Config and DSN. Its connections are lost with the first
// packet that choose wants to be lost: on its way to the server, or with the reply if the
// packet arrives.
func Losing(choose func(packet string) (lost, arrives bool)) func(*mysql.Config) {
	return func(cfg *mysql.Config) {
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &losingConn{Conn: conn, choose: choose}, err
		}
	}
}

// LosingCommits does what Losing does with what commits.
func LosingCommits(arrives bool) func(*mysql.Config) {
	return Losing(func(packet string) (bool, bool) { return Commits(packet), arrives })
}

// Commits tells whether a packet commits a transaction: by COMMIT, or by the procedures of
// Optimistic and CommitWith.
func Commits(packet string) bool {
	return strings.Contains(packet, "COMMIT") || strings.Contains(packet, "lockstep_program_") || strings.Contains(packet, "lockstep_compare_") && strings.Contains(packet, ", 1)")
}

type losingConn struct {
	net.Conn
	choose func(packet string) (lost, arrives bool)
	lost   bool
}

func (c *losingConn) Write(packet []byte) (int, error) {
	lost, arrives := c.choose(string(packet))
	if lost && !arrives {
		return len(packet), c.Close()
	}
	c.lost = c.lost || lost
	return c.Conn.Write(packet)
}

func (c *losingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost && err == nil {
		return 0, errors.Join(net.ErrClosed, c.Close())
	}
	return n, err
}
