//go:build cluster

package cluster

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

// route is where new connections go, as a name, or an address that moves, does it.
type route struct{ addr atomic.Pointer[string] }

func (r *route) to(server *testdb.Server) {
	addr := server.Config().Addr
	r.addr.Store(&addr)
}

func (r *route) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", *r.addr.Load())
}

// lead has the connections of a client go there.
func (r *route) lead(client *mysql.Config) { client.DialFunc = r.dial }

// TestPromotions has clients on a semi-synchronous pair, whose primary is killed, hangs, is
// cut off from its replica, or becomes read only, as that of a managed service does; its replica is
// promoted then. A primary that was cut off goes on to take what its clients send, and acknowledges
// none of it; one that is read only refuses it, and the pools leave it. What TestFaults promises of
// a cluster holds of the last primary.
func TestPromotions(t *testing.T) {
	if slices.Contains(testdb.Engines(), testdb.MariaDB) {
		promotions(t)
	}
}

func promotions(t *testing.T) {
	p, to := load.NewPair(t), new(route)
	work := load.New(t, p.DB)
	p.SemiSynchronous(t)
	p.Replicated(t)
	to.to(p.Primary.Server)
	clients := load.NewClients(t, 3, p.DB, to.lead)
	work.Run(t, clients, func() {
		faults := make(map[string]int)
		for end := time.Now().Add(load.FaultsLast(t, "CLUSTER_DURATION")); time.Now().Before(end) && !t.Failed(); {
			faults[promotion(t, p, to)]++
			time.Sleep(rand.N(4 * time.Second))
		}
		t.Logf("faults: %v", faults)
	})
	for _, node := range []load.Node{p.Primary, p.Replica} {
		p.Replicated(t)
		work.Check(t, p.DB.At(t, node.Server).Admin())
	}
	work.CheckHolds(t)
}

// promotion makes the primary fail, and promotes its replica.
func promotion(t *testing.T, p *load.Pair, to *route) (kind string) {
	t.Helper()
	kind = []string{"killed", "hung", "cut off", "read only"}[rand.IntN(4)]
	switch kind {
	case "read only":
		p.Primary.Execute(t, "SET GLOBAL read_only = ON")
	case "killed":
		check(t, p.Primary.Kill())
	case "hung":
		check(t, p.Primary.Signal(syscall.SIGSTOP))
	}
	old := p.FailOver(t, to.to)
	if kind == "hung" {
		check(t, old.Signal(syscall.SIGCONT))
	}
	switch kind {
	case "read only":
		left(t, p.DB.At(t, old.Server))
	case "hung", "cut off":
		time.Sleep(rand.N(2 * load.TTL)) // those who are still there are told nothing
	}
	if err := old.Stop(); err != nil { // and its data with it
		t.Fatal(err)
	}
	return kind
}

// left returns when no client has a session any more on a server that refuses writes.
func left(t *testing.T, old *testdb.DB) {
	t.Helper()
	var sessions int
	if !testdb.Await(time.Minute, func() bool {
		err := old.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+old.Engine().Processes()+" WHERE user = ?", old.Config().User).Scan(&sessions)
		check(t, err)
		return sessions == 0
	}) {
		t.Errorf("%d sessions stay on the old primary", sessions)
	}
}
