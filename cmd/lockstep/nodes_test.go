package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestNodes proves that check compares the clocks of other servers, and that one that can't
// be reached is an error among the other findings.
func TestNodes(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		op := s.operator()
		op.change(grant, need{"SELECT", "locks"})
		args := []string{"check"}
		for _, other := range testdb.Engines() {
			node := s.db
			if other != s.db.Engine() {
				node = testdb.Fresh(t, other)
				op.at(node)
			}
			args = append(args, "--node", node.Config().Addr)
		}
		var found findingsForm
		s.answer(trouble, &found, append(args, "--node", "127.0.0.1:1")...)
		findings := make(map[string]ops.Finding)
		for _, f := range found.Findings {
			findings[f.Name] = f
		}
		for i := range testdb.Engines() {
			if f := findings[fmt.Sprintf("clock of node %d", i+1)]; f.State != ops.OK || !strings.Contains(f.Text, "s ahead of the server, give or take") {
				t.Errorf("node %d: %+v", i+1, f)
			}
		}
		away := findings[fmt.Sprintf("clock of node %d", len(testdb.Engines())+1)]
		if away.State != ops.Error || !strings.Contains(away.Text, "refused") || !strings.Contains(away.Fix, "see that the node runs") {
			t.Errorf("the node that is away: %+v", away)
		}
	})
}

// TestServerErrors proves that what keeps the command from its server is said in a sentence,
// which has no password.
func TestServerErrors(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		op := s.operator()
		op.change(grant, need{"SELECT", "once"})
		for _, c := range []struct {
			name   string
			change func(*mysql.Config)
			args   []string
			says   string
		}{
			{"another password", func(c *mysql.Config) { c.Passwd += "-no" }, []string{"once"}, "the server doesn't let this user in: is the password right"},
			{"no password", func(c *mysql.Config) { c.Passwd = "" }, []string{"once"}, "the server doesn't let this user in"},
			{"another database", func(c *mysql.Config) { c.DBName += "_no" }, []string{"once"}, "the database can't be used: is its name right"},
			{"another port", func(c *mysql.Config) { c.Addr = "127.0.0.1:1" }, []string{"once"}, "the server can't be reached: is it running"},
			{"no time", func(*mysql.Config) {}, []string{"once", "--timeout", "1ns"}, "there was no answer within 1ns: --timeout"},
		} {
			s.dsn = s.db.DSN(func(config *mysql.Config) {
				config.User, config.Passwd = op.name, op.password
				c.change(config)
			})
			output, code := s.call(c.args...)
			if code != trouble || !strings.Contains(output, c.says) || strings.Contains(output, "Error 1") || strings.Contains(output, op.password) {
				t.Errorf("%s: lockstep %v returns %d, and prints:\n%s", c.name, c.args, code, output)
			}
		}
	})
}
