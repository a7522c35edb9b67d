package testdb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
)

// Parted gives each member of StartGalera, StartGroup and StartTiDB a network of its own, so that Part
// can cut it off from the others while clients reach it. It needs Linux with network
// namespaces, veth and bridge, root, and the program ip, which is installed if it is missing.
// The default is loopback, which is one network for all.
func Parted() Option {
	return func(o *options) { o.parted = true }
}

// Part cuts a member off from the others, whose packets are lost then, as where a cable is
// pulled. Clients reach it still. It needs Parted.
func (s *Server) Part(ctx context.Context) error { return s.attach(ctx, "nomaster") }

// Heal ends Part. The members find each other by themselves, or by Ready.
func (s *Server) Heal(ctx context.Context) error { return s.attach(ctx, "master", bridge) }

func (s *Server) attach(ctx context.Context, to ...string) error {
	if s.External() || s.inst.net == nil {
		return errors.New("testdb: only a member that was started with Parted can be cut off from others")
	}
	return s.inst.net.hub.ip(ctx, append([]string{"link", "set", s.inst.net.port}, to...)...)
}

// network is that of a cluster: the namespace of a bridge, to which each member has a link,
// and for each member one with another link, to this machine.
type network struct {
	hub     *namespace
	members []*attached
	in      int // how many members use it
}

// attached is the network of a member.
type attached struct {
	*namespace
	network *network
	hub     *namespace
	port    string // its link's end at the bridge
	clients string // its address for this machine
	members string // its address for the others
}

const bridge = "bridge"

// hosts returns the network of each member: nil for loopback.
func hosts(ctx context.Context, n int, o options) ([]*attached, error) {
	if !o.parted {
		return make([]*attached, n), nil
	}
	if err := needIP(ctx); err != nil {
		return nil, err
	}
	w := &network{}
	if err := w.build(ctx, n); err != nil {
		return nil, errors.Join(fmt.Errorf("a network for each member: %w", err), w.close())
	}
	return w.members, nil
}

// needIP installs the program ip if it is missing.
func needIP(ctx context.Context) error {
	if len(installed("ip")) > 0 {
		return nil
	}
	if os.Geteuid() != 0 || len(installed("apt-get")) == 0 {
		return errors.New("a network for each member needs the program ip (Debian: iproute2)")
	}
	return aptInstall(ctx, "iproute2")
}

// build makes the namespaces and links. The addresses are those that RFC 2544 keeps for
// tests.
func (w *network) build(ctx context.Context, n int) (err error) {
	if w.hub, err = newNamespace(); err != nil {
		return err
	}
	if err := w.hub.ip(ctx, "link", "add", bridge, "type", "bridge"); err != nil {
		return err
	}
	if err := w.hub.ip(ctx, "link", "set", bridge, "up"); err != nil {
		return err
	}
	subnet := 0
	for i := range n {
		m := &attached{network: w, hub: w.hub, port: fmt.Sprint("member", i), members: fmt.Sprintf("198.19.0.%d", i+1)}
		if m.namespace, err = newNamespace(); err != nil {
			return err
		}
		w.members = append(w.members, m)
		if i == 0 {
			subnet, err = m.freeSubnet(ctx)
		} else {
			err = m.join(ctx, subnet, i)
		}
		if err == nil {
			err = m.link(ctx, subnet, i)
		}
		if err != nil {
			return err
		}
	}
	w.in = n
	return nil
}

// freeSubnet joins the first member to this machine, by a name that no other network has.
func (a *attached) freeSubnet(ctx context.Context) (subnet int, err error) {
	for range 10 {
		subnet = rand.IntN(256)
		if err = a.join(ctx, subnet, 0); err == nil || !strings.Contains(err.Error(), "File exists") {
			break
		}
	}
	return subnet, err
}

// join makes the link of a member to this machine.
func (a *attached) join(ctx context.Context, subnet, i int) error {
	return machine.ip(ctx, "link", "add", linkName(subnet, i), "type", "veth", "peer", "name", "clients", "netns", a.path)
}

// linkName is that of this machine's end.
func linkName(subnet, i int) string { return fmt.Sprintf("lockstep%dm%d", subnet, i) }

// link makes the link of a member to the others, and gives both their addresses.
func (a *attached) link(ctx context.Context, subnet, i int) error {
	a.clients = fmt.Sprintf("198.18.%d.%d", subnet, 4*i+2)
	here := linkName(subnet, i)
	for _, step := range []struct {
		in   *namespace
		args string
	}{
		{machine, fmt.Sprintf("address add 198.18.%d.%d/30 dev %s", subnet, 4*i+1, here)},
		{machine, fmt.Sprintf("link set %s up", here)},
		{a.hub, fmt.Sprintf("link add %s type veth peer name members netns %s", a.port, a.path)},
		{a.hub, fmt.Sprintf("link set %s master %s up", a.port, bridge)},
		{a.namespace, "link set lo up"},
		{a.namespace, fmt.Sprintf("address add %s/30 dev clients", a.clients)},
		{a.namespace, "link set clients up"},
		{a.namespace, fmt.Sprintf("address add %s/24 dev members", a.members)},
		{a.namespace, "link set members up"},
	} {
		if err := step.in.ip(ctx, strings.Fields(step.args)...); err != nil {
			return err
		}
	}
	return nil
}

// leave is what a member does that is removed. The last one takes the network with it.
func (a *attached) leave() error {
	if a.network.in--; a.network.in > 0 {
		return nil
	}
	return a.network.close()
}

// closeNetwork closes the network of a cluster that has not come up.
func closeNetwork(members []*attached) error {
	if len(members) == 0 || members[0] == nil {
		return nil
	}
	return members[0].network.close()
}

// close ends the namespaces, and their links with them.
func (w *network) close() error {
	var err error
	for _, m := range w.members {
		err = errors.Join(err, m.close())
	}
	if w.hub != nil {
		err = errors.Join(err, w.hub.close())
	}
	w.members, w.hub = nil, nil
	return err
}

// machine stands for the network of this machine.
var machine = &namespace{}

// ip runs the program ip in the namespace.
func (n *namespace) ip(ctx context.Context, args ...string) error {
	err := runIn(ctx, n, []string{adminPath()}, installed("ip")[0], args...)
	if err == nil {
		return nil
	}
	why := ""
	for _, c := range []struct{ says, why string }{
		{"Unknown device type", "the kernel lacks the modules veth and bridge"},
		{"Operation not supported", "the kernel lacks the modules veth and bridge"},
		{"Operation not permitted", "it needs root with CAP_NET_ADMIN, which a container may lack"},
	} {
		if strings.Contains(err.Error(), c.says) {
			why = c.why + ": "
		}
	}
	return fmt.Errorf("%sip %s: %w", why, strings.Join(args, " "), err)
}

// address returns where the others reach a member.
func (a *attached) address(port int) string {
	if a == nil {
		return loopback(port)
	}
	return fmt.Sprintf("%s:%d", a.members, port)
}

// host returns the address of a member among the others.
func (a *attached) host() string {
	if a == nil {
		return "127.0.0.1"
	}
	return a.members
}

// bind returns where a member waits for clients.
func (a *attached) bind() string {
	if a == nil {
		return "127.0.0.1"
	}
	return "0.0.0.0" // of its own network
}

// leaving has the network of a member end with its data.
func (i *instance) leaving() {
	if i.net != nil {
		i.discard = i.net.leave
	}
}
