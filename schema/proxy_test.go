package schema_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/schema"
)

var (
	errSyntax    = &mysql.MySQLError{Number: 1064, Message: "You have an error in your SQL syntax"}
	errArguments = &mysql.MySQLError{Number: 1318, Message: "Incorrect number of arguments"}
)

// TestCheckFindsProxies plays proxies. Those that the statements really go through are in
// module tests.
func TestCheckFindsProxies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		played
		says string
	}{
		"none":                   {played{numbers: [4]int{1, 2, 3, 4}}, ""},
		"another session at all": {played{numbers: [4]int{1, 2, 3, 4}, sessions: [4]int{0, 1, 1, 0}}, "reach several sessions"},
		"reads go elsewhere":     {played{numbers: [4]int{1, 2, 30, 4}, sessions: [4]int{0, 0, 1, 0}}, "reach several sessions"},
		"the next transaction":   {played{numbers: [4]int{1, 2, 3, 4}, sessions: [4]int{0, 0, 0, 1}}, "reach several sessions"},
		"a cache":                {played{numbers: [4]int{1, 2, 3, 1}}, "answered from a cache"},
		"a reset":                {played{numbers: [4]int{1, 2, 3, 4}, savepoint: errSyntax}, "a transaction that does nothing has failed"},
		"no comments":            {played{version: "9.7.4", numbers: [4]int{1, 2, 3, 4}, ignored: 1}, "removes comments"},
		"a router that shares":   {played{version: "9.7.4", numbers: [4]int{1, 2, 3, 4}, shares: true}, "gives sessions to other clients"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := play(t, c.steps()); c.says == "" {
				demand(t, err, nil)
			} else {
				demand(t, err, schema.ErrProxy, c.says)
			}
		})
	}
}
