package faults

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// echo is a server that sends everything back, behind a network.
func echo(t *testing.T) *Network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn) // until the network breaks
				_ = conn.Close()
			}()
		}
	}()
	n, err := NewNetwork(listener.Addr().String())
	fatal(t, err)
	return n
}

// wire is a connection through a network.
type wire struct {
	*testing.T
	net.Conn
}

func dial(t *testing.T, n *Network) wire {
	t.Helper()
	conn, err := n.Dial(t.Context(), "", "")
	fatal(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return wire{t, conn}
}

func (w wire) send() {
	w.Helper()
	if _, err := w.Write([]byte("a")); err != nil {
		w.Fatal(err)
	}
}

// comes tells whether something comes within a time, and the error if the connection broke.
func (w wire) comes(within time.Duration) (came bool, broke error) {
	w.Helper()
	if err := w.SetReadDeadline(time.Now().Add(within)); err != nil {
		w.Fatal(err)
	}
	n, err := w.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n == 1, err
}

// passes checks that what is sent comes back.
func (w wire) passes() {
	w.Helper()
	w.send()
	w.arrives()
}

func (w wire) arrives() {
	w.Helper()
	if came, err := w.comes(time.Minute); !came {
		w.Fatalf("nothing comes: %v", err)
	}
}

// waits checks that what is sent doesn't come back.
func (w wire) waits() {
	w.Helper()
	w.send()
	if came, err := w.comes(50 * time.Millisecond); came || err != nil {
		w.Fatalf("came %t: %v", came, err)
	}
}

// TestNetwork proves that a network is as bad as was asked for, and good again when that
// is ended.
func TestNetwork(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(t *testing.T, n *Network, w wire){
		"slow": func(t *testing.T, n *Network, w wire) {
			fatal(t, n.Slow("downstream", time.Hour, time.Hour))
			w.waits()
			fatal(t, n.Mend())
			w.arrives()
			w.passes()
		},
		"slow and down": func(t *testing.T, n *Network, w wire) {
			fatal(t, n.Slow("upstream", 100*time.Millisecond, 200*time.Millisecond))
			fatal(t, n.Slow("downstream", 100*time.Millisecond, 200*time.Millisecond))
			w.send()
			fatal(t, n.Down())
			if came, err := w.comes(time.Minute); err == nil {
				t.Errorf("it is not broken, came %t", came)
			}
			if _, err := n.Dial(t.Context(), "", ""); err == nil {
				t.Error("a new connection is accepted")
			}
			fatal(t, n.Up())
			if bad := n.proxy.Toxics.GetToxicArray(); len(bad) > 0 {
				t.Errorf("it is still bad: %v", bad)
			}
			dial(t, n).passes()
		},
		"hung": func(t *testing.T, n *Network, w wire) {
			fatal(t, n.Hang())
			w.waits()
			dial(t, n).waits()
			fatal(t, n.Mend())
			if came, err := w.comes(time.Minute); err == nil {
				t.Errorf("it is not broken, came %t", came)
			}
			dial(t, n).passes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := echo(t)
			w := dial(t, n)
			w.passes()
			play(t, n, w)
			fatal(t, n.Down())
		})
	}
}

// TestNetworkHangs proves that where the proxy doesn't come to an end the error says where.
func TestNetworkHangs(t *testing.T) {
	t.Parallel()
	n := echo(t)
	n.limit = 100 * time.Millisecond
	n.proxy.Toxics.Lock()
	for what, err := range map[string]error{"Mend": n.Mend(), "timeout": n.Hang()} {
		if err == nil || !strings.HasPrefix(err.Error(), what+": the proxy hangs for 100ms:") || !strings.Contains(err.Error(), "ToxicCollection") {
			t.Errorf("%s: %v", what, err)
		}
	}
	n.proxy.Toxics.Unlock()
	n.limit = time.Minute
	fatal(t, n.Down())
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
