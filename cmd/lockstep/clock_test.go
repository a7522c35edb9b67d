package main

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestClockOfServer proves that check finds a server whose clock differs, from this machine and
// as a node beside another: one whose processes see 90 seconds more, by libfaketime. The
// situation on the page has the clock of one session, which shows the same.
func TestClockOfServer(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		fast, err := testdb.Start(t.Context(), s.db.Engine(), testdb.Ahead(90*time.Second))
		s.must(err)
		t.Cleanup(func() { s.must(fast.Stop()) })
		node := fast.Fresh(t)
		op := s.operator()
		op.change(grant, need{"SELECT", "locks"})
		op.at(node)
		finding := func(name string, args ...string) ops.Finding {
			t.Helper()
			var out bytes.Buffer // the stage would write other numbers
			run(t.Context(), append([]string{"check", "--json"}, args...), s.getenv, strings.NewReader(""), &out, io.Discard)
			var found findingsForm
			if err := json.Unmarshal(out.Bytes(), &found); err != nil {
				t.Fatalf("%v: %s", err, &out)
			}
			for _, f := range found.Findings {
				if f.Name == name {
					return f
				}
			}
			t.Fatalf("check says nothing of the %s: %+v", name, found)
			return ops.Finding{}
		}
		wants := func(f ops.Finding) {
			t.Helper()
			number := regexp.MustCompile(`is (-?\d+\.\d+) s ahead`).FindStringSubmatch(f.Text)
			if number == nil || f.State != ops.Warn || f.Fix == "" {
				t.Fatalf("%+v", f)
			}
			if ahead, err := strconv.ParseFloat(number[1], 64); err != nil || ahead < 60 || ahead > 120 {
				t.Errorf("%+v", f)
			}
		}
		wants(finding("clock of node 1", "--node", node.Config().Addr))
		s.dsn = node.AdminDSN()
		wants(finding("clock"))
	})
}
