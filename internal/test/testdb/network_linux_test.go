//go:build cluster

package testdb

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// TestNetwork proves that a member that is cut off reaches no other and is reached by none,
// while clients reach all and the others reach each other, that all is as before when it is
// connected again, and that members that are gone leave no link behind.
func TestNetwork(t *testing.T) {
	t.Parallel()
	const port = 3306
	members, err := hosts(t.Context(), 3, options{parted: true})
	check(t, err)
	closed := false
	defer func() {
		if !closed {
			_ = closeNetwork(members)
		}
	}()
	var listeners []net.Listener
	for _, m := range members {
		var l net.Listener
		m.in(func() { l, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", m.bind(), port)) })
		check(t, err)
		defer func() { _ = l.Close() }()
		listeners = append(listeners, l)
	}
	dial := func(in *namespace, addr string, within time.Duration) (err error) {
		in.in(func() {
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp4", addr, within); err == nil {
				err = conn.Close()
			}
		})
		return err
	}
	connected := func(when string, cut int) {
		t.Helper()
		for i, from := range members {
			if err := dial(machine, fmt.Sprintf("%s:%d", from.clients, port), waitTimeout); err != nil {
				t.Errorf("%s: a client doesn't reach member %d: %v", when, i, err)
			}
			for j, to := range members {
				apart, within := i != j && (i == cut || j == cut), waitTimeout
				if apart {
					within = time.Second
				}
				if err := dial(from.namespace, to.address(port), within); (err != nil) != apart {
					t.Errorf("%s: from member %d to %d: %v", when, i, j, err)
				}
			}
		}
	}
	s := &Server{inst: &instance{net: members[1]}}
	connected("at first", -1)
	check(t, s.Part(t.Context()))
	connected("cut off", 1)
	check(t, s.Heal(t.Context()))
	connected("connected again", -1)

	var links []string
	for _, m := range members {
		links = append(links, linkTo(t, m.clients))
	}
	for _, l := range listeners { // a socket keeps its network
		_ = l.Close()
	}
	closed = true
	check(t, closeNetwork(members))
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) { // the kernel has a queue for what it removes
		left := 0
		for _, name := range links {
			if _, err := net.InterfaceByName(name); err == nil {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d links of %v are left", left, links)
		}
	}
}

// linkTo is the name of this machine's link to a member.
func linkTo(t *testing.T, client string) string {
	t.Helper()
	links, err := net.Interfaces()
	check(t, err)
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil {
			continue // it has gone meanwhile
		}
		for _, addr := range addrs {
			if _, block, err := net.ParseCIDR(addr.String()); err == nil && block.Contains(net.ParseIP(client)) && strings.HasPrefix(link.Name, "lockstep") {
				return link.Name
			}
		}
	}
	t.Fatalf("no link leads to %s", client)
	return ""
}
