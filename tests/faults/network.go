// Package faults makes what stands between a pool and its server bad: the network,
// and the text of the statements.
package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime/pprof"
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

	api      *toxiproxy.ApiServer
	proxy    *toxiproxy.Proxy
	addr     string // where it listens
	upstream string
	limit    time.Duration // of what waits for the proxy

	mu     sync.Mutex
	conns  map[*conn]struct{} // the client's ends of Dial
	direct string             // where Dial connects to once it was healed
	delay  time.Duration      // the longest of a packet
	quiet  time.Time          // when nothing is on its way any more
}

// NewNetwork puts a network before the server at an address, which lets everything
// through.
func NewNetwork(upstream string) (*Network, error) {
	n := &Network{
		api:      toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
		addr:     "127.0.0.1:0",
		upstream: upstream,
		limit:    time.Minute,
		conns:    make(map[*conn]struct{}),
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
func (n *Network) Close() error {
	n.Heal()
	time.Sleep(time.Until(n.quiet))
	return n.Down()
}

// Up lets connections through, as at the beginning: after Down nothing is slow or hangs.
// It is another proxy, since one that is mended after Down waits for ever: for whoever
// delivers what was delayed to a connection that nobody reads any more.
func (n *Network) Up() error {
	proxy := toxiproxy.NewProxy(n.api, "network", n.addr, n.upstream)
	if err := proxy.Start(); err != nil {
		return err
	}
	n.proxy = proxy
	return nil
}

// Down closes all connections and refuses new ones.
func (n *Network) Down() error {
	return n.inTime("Down", func() error {
		n.proxy.Stop()
		return nil
	})
}

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
	return n.inTime(kind, func() error {
		_, err := n.proxy.Toxics.AddToxicJson(bytes.NewReader(text))
		return err
	})
}

// Mend ends Slow and Hang. What was delayed arrives; connections that hung break.
func (n *Network) Mend() error {
	return n.inTime("Mend", func() error {
		n.proxy.Toxics.ResetToxics(context.Background()) // by which it logs
		return nil
	})
}

// inTime does what waits for connections of the proxy, and tells where it hangs if it does.
func (n *Network) inTime(what string, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(n.limit):
		return fmt.Errorf("%s: the proxy hangs for %v:\n%s", what, n.limit, proxyStacks())
	}
}

// proxyStacks are the goroutines that are in the proxy.
func proxyStacks() string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // a buffer takes everything
	var inside []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "toxiproxy") {
			inside = append(inside, stack)
		}
	}
	return strings.Join(inside, "\n\n")
}

// Heal makes new connections of Dial go straight to the server. Those that are there
// break, and what they carry arrives late.
func (n *Network) Heal() {
	n.mu.Lock()
	if n.direct == "" {
		n.direct, n.quiet = n.upstream, time.Now().Add(2*n.delay) // a packet, and the answer to it
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
	defer n.mu.Unlock()
	if n.direct != "" && n.direct != addr {
		return nil, errors.Join(errors.New("the network was healed meanwhile"), c.TCPConn.Close())
	}
	n.conns[c] = struct{}{}
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
