//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestCheckOfNodes proves that lockstep check warns of several primaries, and compares the
// clocks of the nodes.
func TestCheckOfNodes(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		found, err := ops.New(db.Connect(t)).Check(t.Context(), db.At(t, nodes[1]).Admin(), db.At(t, nodes[2]).Admin())
		check(t, err)
		states := make(map[string]ops.State)
		for _, f := range found {
			states[f.Name] = f.State
		}
		for name, want := range map[string]ops.State{"cluster": ops.Warn, "tables": ops.OK, "clock of node 1": ops.OK, "clock of node 2": ops.OK} {
			if states[name] != want {
				t.Errorf("%s is %q, want %q, of %+v", name, states[name], want, found)
			}
		}
	})
}

// TestRemediesOfGalera does what check says of a node of Galera that is in no primary component: it
// connects to one that is, waits until the node has joined it, and where there is none, makes one at
// the node that is left. Check finds the node right afterwards. What to send to which node is a
// person's decision, which it says.
func TestRemediesOfGalera(t *testing.T) {
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		return // Galera is MariaDB's
	}
	nodes := cluster(t, testdb.MariaDB)
	db := nodes[0].Open(t)
	finding := func(node *testdb.Server, subject string) (ops.Finding, error) {
		found, err := ops.New(db.At(t, node).Admin()).Check(t.Context())
		i := slices.IndexFunc(found, func(f ops.Finding) bool { return f.Name == subject })
		if err == nil && i < 0 {
			err = fmt.Errorf("check says nothing of the %s: %+v", subject, found)
		}
		if err != nil {
			return ops.Finding{}, err
		}
		return found[i], nil
	}
	until := func(node *testdb.Server, want ops.State) ops.Finding {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			f, err := finding(node, "node")
			if err == nil && f.State == want {
				return f
			}
			if time.Now().After(deadline) {
				t.Fatalf("check says %+v, %v, want %s", f, err, want)
			}
		}
	}
	until(nodes[0], ops.OK)
	if f, err := finding(nodes[0], "cluster"); err != nil || f.State != ops.Warn || !strings.Contains(f.Fix, "send all locking transactions to one node") || !strings.Contains(f.Fix, "a person decides") {
		t.Errorf("of several primaries check says %+v, %v", f, err)
	}

	part(t, nodes[2])
	if f := until(nodes[2], ops.Error); !strings.Contains(f.Fix, "connect to a node of the primary component, or wait until this one has joined it") {
		t.Errorf("of a node that is cut off check says %+v", f)
	}
	until(nodes[0], ops.OK)
	heal(t, nodes[2])
	until(nodes[2], ops.OK)

	caughtUp(t, db)
	check(t, errors.Join(nodes[1].Kill(), nodes[2].Kill()))
	f := until(nodes[0], ops.Error)
	statement := regexp.MustCompile(`SET GLOBAL wsrep_provider_options = '[^']*'`).FindString(f.Fix)
	if _, err := db.Admin().ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%q of %+v: %v", statement, f, err)
	}
	until(nodes[0], ops.OK)
	for _, node := range nodes[1:] {
		if err := node.Restart(t.Context()); err != nil {
			t.Fatalf("rejoin: %v", err)
		}
		until(node, ops.OK)
	}
}
