//go:build proxies

package proxies

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

// proxy stands between clients and servers.
type proxy interface {
	// lead has a client go there.
	lead(client *mysql.Config)
	// to has new connections go to the primary, and cuts those that are there. The standby, which
	// may be nil, is for a proxy that tries it, too, where the primary can't be reached.
	to(t *testing.T, primary, standby *testdb.Server)
}

// onProxies runs a test behind each. start starts one before a server.
func onProxies(t *testing.T, test func(t *testing.T, start func(t *testing.T, server *testdb.Server) proxy)) {
	for name, start := range map[string]func(*testing.T, *testdb.Server) proxy{"HAProxy": newHAProxy, "MySQL Router": newRouter} {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

// TestFailOver has a proxy before a semi-synchronous pair of MariaDB, whose primary is
// killed, or hangs, under the load of locks, versions, leases and jobs; the replica is promoted
// and the proxy sent there. Nothing that was acknowledged is lost, nothing is done twice, no two
// leases overlap and no token falls.
func TestFailOver(t *testing.T) {
	if slices.Contains(testdb.Engines(), testdb.MariaDB) {
		onProxies(t, failOver)
	}
}

func failOver(t *testing.T, start func(*testing.T, *testdb.Server) proxy) {
	p := load.NewPair(t)
	work := load.New(t, p.DB)
	p.SemiSynchronous(t)
	p.Replicated(t)
	before := start(t, p.Primary.Server)
	before.to(t, p.Primary.Server, p.Replica.Server)
	work.Run(t, load.NewClients(t, 3, p.DB, before.lead), func() {
		faults := make(map[string]int)
		for end := time.Now().Add(load.FaultsLast(t, "PROXY_DURATION")); time.Now().Before(end) && !t.Failed(); {
			time.Sleep(time.Second + rand.N(3*time.Second))
			kind := "killed"
			if rand.IntN(2) == 0 {
				kind = "hung"
				check(t, p.Primary.Signal(syscall.SIGSTOP))
			} else if err := p.Primary.Kill(); err != nil {
				t.Fatal(err)
			}
			faults[kind]++
			old := p.FailOver(t, func(primary *testdb.Server) { before.to(t, primary, nil) })
			check(t, old.Stop())
			before.to(t, p.Primary.Server, p.Replica.Server)
		}
		t.Logf("faults: %v", faults)
	})
	for _, node := range []load.Node{p.Primary, p.Replica} {
		p.Replicated(t)
		work.Check(t, p.DB.At(t, node.Server).Admin())
	}
	work.CheckHolds(t)
}

// TestRestart has a proxy before one server, which is killed under load and comes back.
func TestRestart(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			onProxies(t, func(t *testing.T, start func(*testing.T, *testdb.Server) proxy) {
				restart(t, testdb.Dedicated(t, engine), start)
			})
		})
	}
}

func restart(t *testing.T, server *testdb.Server, start func(*testing.T, *testdb.Server) proxy) {
	db := server.Open(t)
	work := load.New(t, db)
	clients := load.NewClients(t, 3, db, start(t, server).lead)
	work.Run(t, clients, func() {
		kills := 0
		for end := time.Now().Add(load.FaultsLast(t, "PROXY_DURATION") / 2); time.Now().Before(end) && !t.Failed(); kills++ {
			time.Sleep(time.Second + rand.N(3*time.Second))
			check(t, server.Kill())
			check(t, server.Restart(t.Context()))
		}
		t.Logf("killed %d times", kills)
		load.Connected(t, load.Pools(clients)...)
	})
	work.Check(t, db.Admin())
	work.CheckHolds(t)
}
