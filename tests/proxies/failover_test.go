//go:build proxies

package proxies

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

// throughHAProxy makes clients that know nothing but the proxy.
func throughHAProxy(t *testing.T, h *haproxy, db *testdb.DB) (clients []*load.Client) {
	t.Helper()
	for i := range 3 {
		cfg := db.Config()
		cfg.Addr = h.addr
		clients = append(clients, load.NewClient(t, i, cfg))
	}
	return clients
}

// TestHAProxyFailOver has HAProxy before a semi-synchronous pair of MariaDB, whose primary is
// killed, or hangs, under the load of locks, versions, leases and jobs; the replica is promoted
// and HAProxy sent there. Nothing that was acknowledged is lost, nothing is done twice, no two
// leases overlap and no token falls.
func TestHAProxyFailOver(t *testing.T) {
	for _, engine := range testdb.Engines() {
		if engine == testdb.MariaDB {
			haproxyFailOver(t)
		}
	}
}

func haproxyFailOver(t *testing.T) {
	p := load.NewPair(t)
	work := load.New(t, p.DB)
	p.SemiSynchronous(t)
	p.Replicated(t)
	h := startHAProxy(t, p.Primary.Server, time.Minute)
	work.Run(t, throughHAProxy(t, h, p.DB), func() {
		faults := make(map[string]int)
		for end := time.Now().Add(load.FaultsLast(t, "PROXY_DURATION")); time.Now().Before(end) && !t.Failed(); {
			time.Sleep(time.Second + rand.N(3*time.Second))
			kind := "killed"
			if rand.IntN(2) == 0 {
				kind = "hung"
				if err := p.Primary.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			} else if err := p.Primary.Kill(); err != nil {
				t.Fatal(err)
			}
			faults[kind]++
			if err := p.FailOver(t, func(primary *testdb.Server) { h.to(t, primary) }).Stop(); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("faults: %v", faults)
	})
	for _, node := range []load.Node{p.Primary, p.Replica} {
		p.Replicated(t)
		work.Check(t, p.DB.At(t, node.Server).Admin())
	}
	work.CheckHolds(t)
}

// TestHAProxyRestart has HAProxy before one server, which is killed under load and comes back.
func TestHAProxyRestart(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			server := testdb.Dedicated(t, engine)
			db := server.Open(t)
			work := load.New(t, db)
			h := startHAProxy(t, server, time.Minute)
			work.Run(t, throughHAProxy(t, h, db), func() {
				kills := 0
				for end := time.Now().Add(load.FaultsLast(t, "PROXY_DURATION") / 2); time.Now().Before(end) && !t.Failed(); kills++ {
					time.Sleep(time.Second + rand.N(3*time.Second))
					if err := server.Kill(); err != nil {
						t.Fatal(err)
					}
					if err := server.Restart(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				t.Logf("killed %d times", kills)
			})
			work.Check(t, db.Admin())
			work.CheckHolds(t)
		})
	}
}
