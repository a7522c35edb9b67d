// Package proxy puts a distance between a client and a server: each direction takes
// half of a round trip. It counts round trips, commands and deadlocks on the way.
package proxy

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Counts is what has gone through a proxy since it was started.
type Counts struct {
	Trips     int64         // times that a client has sent and then been answered
	Commands  int64         // as the protocol counts them
	Deadlocks int64         // refusals because of a deadlock
	Answering time.Duration // from what clients have sent to the beginnings of the answers
}

// Minus returns what has been added since.
func (c Counts) Minus(before Counts) Counts {
	return Counts{c.Trips - before.Trips, c.Commands - before.Commands, c.Deadlocks - before.Deadlocks, c.Answering - before.Answering}
}

// Plus returns the sum.
func (c Counts) Plus(other Counts) Counts {
	return Counts{c.Trips + other.Trips, c.Commands + other.Commands, c.Deadlocks + other.Deadlocks, c.Answering + other.Answering}
}

// Proxy is a listening proxy.
type Proxy struct {
	listener        net.Listener
	network, target string
	half            time.Duration
	protocol        Protocol

	trips, commands, deadlocks, answering atomic.Int64

	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	open    map[net.Conn]struct{}
}

// Start listens on a port of its own, for clients of the target.
func Start(network, target string, roundTrip time.Duration, protocol Protocol) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		listener: listener, network: network, target: target, half: roundTrip / 2, protocol: protocol,
		open: make(map[net.Conn]struct{}),
	}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Counts returns what has gone through until now.
func (p *Proxy) Counts() Counts {
	return Counts{p.trips.Load(), p.commands.Load(), p.deadlocks.Load(), time.Duration(p.answering.Load())}
}

// Close ends all connections, and returns when nothing runs any more. It may be called
// again.
func (p *Proxy) Close() error {
	p.mu.Lock()
	var err error
	if !p.closed {
		err = p.listener.Close()
	}
	p.closed = true
	for conn := range p.open {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// serve connects a client with the server until one of them ends.
func (p *Proxy) serve(client net.Conn) {
	defer p.forget(client)
	if !p.keep(client) {
		return
	}
	server, err := net.Dial(p.network, p.target)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.keep(server) {
		return
	}
	c := &conversation{proxy: p}
	requests := &direction{from: client, to: server, half: p.half, came: c.asked(p.protocol.fromClient())}
	answers := &direction{from: server, to: client, half: p.half, came: c.refused(p.protocol.fromServer()), goes: c.answered}
	var both sync.WaitGroup
	both.Go(requests.run)
	both.Go(answers.run)
	both.Wait()
}

// keep notes a connection for Close. It returns false where that was called already.
func (p *Proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[conn] = struct{}{}
	return !p.closed
}

func (p *Proxy) forget(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
	_ = conn.Close()
}

// conversation counts the round trips of a connection.
type conversation struct {
	proxy *Proxy
	mu    sync.Mutex
	since time.Time // zero while the client has asked nothing
}

func (c *conversation) asked(commands meter) func([]byte) {
	return func(p []byte) {
		c.proxy.commands.Add(commands.count(p))
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.since.IsZero() {
			c.since = time.Now()
			c.proxy.trips.Add(1)
		}
	}
}

func (c *conversation) refused(deadlocks meter) func([]byte) {
	return func(p []byte) { c.proxy.deadlocks.Add(deadlocks.count(p)) }
}

func (c *conversation) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.since.IsZero() {
		c.proxy.answering.Add(int64(time.Since(c.since)))
		c.since = time.Time{}
	}
}

// direction carries what one side sends to the other.
type direction struct {
	from, to net.Conn
	half     time.Duration
	came     func(p []byte)
	goes     func() // may be nil
}

// chunk is under way until it is due.
type chunk struct {
	data []byte
	due  time.Time
}

// run ends both connections when one of them ends.
func (d *direction) run() {
	defer func() { _, _ = d.from.Close(), d.to.Close() }()
	if d.half == 0 {
		_ = d.read(d.send)
		return
	}
	underWay := make(chan chunk, 1024)
	var delivery sync.WaitGroup
	delivery.Go(func() {
		_ = d.deliver(underWay)
		_ = d.from.Close()
		for range underWay { // nothing blocks who reads still
		}
	})
	_ = d.read(func(p []byte) error {
		underWay <- chunk{append([]byte(nil), p...), time.Now().Add(d.half)}
		return nil
	})
	close(underWay)
	delivery.Wait()
}

// read hands on what comes, until the connection ends.
func (d *direction) read(hand func(p []byte) error) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := d.from.Read(buffer)
		if n > 0 {
			d.came(buffer[:n])
			if err := hand(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (d *direction) send(p []byte) error {
	if d.goes != nil {
		d.goes()
	}
	_, err := d.to.Write(p)
	return err
}

// deliver sends each chunk when it is due.
func (d *direction) deliver(underWay <-chan chunk) (err error) {
	sleep, err := newSleeper()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sleep.close()) }()
	for c := range underWay {
		if err := sleep.until(c.due); err != nil {
			return err
		}
		if err := d.send(c.data); err != nil {
			return err
		}
	}
	return nil
}
