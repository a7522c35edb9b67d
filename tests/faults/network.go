// Package faults makes what stands between a pool and its server bad: the network,
// and the text of the statements.
package faults

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Network is a way to a server that can be made bad.
type Network struct {
	Dials atomic.Int64 // attempts to connect by Dial

	proxy *toxiproxy.Proxy
	addr  string // where it listens

	mu     sync.Mutex
	conns  map[*conn]struct{} // the client's ends of Dial
	direct string             // where Dial connects to once it was healed
	delay  time.Duration      // the longest of a packet
	quiet  time.Time          // when nothing is on its way any more
}

// NewNetwork puts a network before the server at an address, which lets everything
// through.
func NewNetwork(upstream string) (*Network, error) {
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n := &Network{
		proxy: toxiproxy.NewProxy(api, "network", "127.0.0.1:0", upstream),
		conns: make(map[*conn]struct{}),
	}
	if err := n.Up(); err != nil {
		return nil, err
	}
	n.addr = n.proxy.Listen
	return n, nil
}

// Addr is where it listens, for clients that don't use Dial.
func (n *Network) Addr() string { return n.addr }

// Close ends the proxy when everything has arrived: it leaves goroutines behind
// otherwise, and can't be asked.
func (n *Network) Close() {
	n.Heal()
	time.Sleep(time.Until(n.quiet))
	n.proxy.Stop()
}

// Up lets connections through, as at the beginning.
func (n *Network) Up() error { return n.proxy.Start() }

// Down closes all connections and refuses new ones.
func (n *Network) Down() { n.proxy.Stop() }

// Slow delays every packet of a direction ("upstream" or "downstream") from now on,
// by a random time in between.
func (n *Network) Slow(stream string, least, most time.Duration) error {
	n.delay = max(n.delay, most)
	return n.spoil("latency", stream, map[string]any{
		"latency": (least + most).Milliseconds() / 2, "jitter": (most - least).Milliseconds() / 2,
	})
}

// Hang swallows every packet from now on. Connections stay, and new ones are
// accepted.
func (n *Network) Hang() error {
	return n.spoil("timeout", "upstream", map[string]any{"timeout": 0})
}

// spoil makes the network bad.
func (n *Network) spoil(kind, stream string, attributes map[string]any) error {
	text, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	if err != nil {
		return err
	}
	_, err = n.proxy.Toxics.AddToxicJson(strings.NewReader(string(text)))
	return err
}

// Mend ends Slow and Hang. What was delayed arrives; connections that hung break.
func (n *Network) Mend(ctx context.Context) { n.proxy.Toxics.ResetToxics(ctx) }

// Heal makes new connections of Dial go straight to the server. Those that are there
// break, and what they carry arrives late.
func (n *Network) Heal() {
	n.mu.Lock()
	if n.direct == "" {
		n.direct, n.quiet = n.proxy.Upstream, time.Now().Add(2*n.delay) // a packet, and the answer to it
	}
	n.mu.Unlock()
	n.Cut(1)
}

// Cut breaks a part of the connections of Dial, as the client sees it. What it has
// sent arrives nevertheless.
func (n *Network) Cut(part float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if rand.Float64() < part {
			_ = c.TCPConn.Close() // the driver closes it again
		}
	}
}

// Dial is the driver's way to the server.
func (n *Network) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.Dials.Add(1)
	n.mu.Lock()
	addr := n.direct
	n.mu.Unlock()
	if addr == "" {
		addr = n.addr
	}
	dialed, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{dialed.(*net.TCPConn), n}
	n.mu.Lock()
	n.conns[c] = struct{}{}
	n.mu.Unlock()
	return c, nil
}

// conn is a connection that can be cut.
type conn struct {
	*net.TCPConn
	n *Network
}

func (c *conn) Close() error {
	defer func() {
		c.n.mu.Lock()
		delete(c.n.conns, c)
		c.n.mu.Unlock()
	}()
	return c.TCPConn.Close()
}
