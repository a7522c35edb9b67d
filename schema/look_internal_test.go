package schema

import (
	"errors"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// TestConstraintsOf reads the constraints from DDL as the servers show it, and nothing else for one.
func TestConstraintsOf(t *testing.T) {
	t.Parallel()
	for ddl, want := range map[string][]string{
		"CREATE TABLE `t` (\n  `a` int(11) NOT NULL,\n  PRIMARY KEY (`a`)\n) ENGINE=InnoDB":                                           nil,
		"CREATE TABLE `t` (\n  `a` int(11) NOT NULL CHECK (`a` < 5),\n  PRIMARY KEY (`a`),\n  CONSTRAINT `a` CHECK (`a` < 6)\n)":      {"CHECK a", "CHECK a"},
		"CREATE TABLE `t` (\n  `a` int(11),\n  KEY `b` (`a`),\n  CONSTRAINT `to other` FOREIGN KEY (`a`) REFERENCES `o` (`CHECK`)\n)": {"FOREIGN KEY to other"},
		"CREATE TABLE `t` (\n  `CHECK` int(11) DEFAULT 'it''s \\' CHECK (1)' COMMENT 'FOREIGN KEY',\n  `recheck``CHECK` int(11)\n)":   nil,
	} {
		if got := constraintsOf(ddl); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", ddl, got, want)
		}
	}
}

// TestSessionsOfAGateway: statements of one connection may reach several sessions of Vitess, and of nothing else.
func TestSessionsOfAGateway(t *testing.T) {
	t.Parallel()
	w := witness{sessions: []uint64{1, 2}, ids: []string{"a", "b"}}
	if err := w.problem(rawsql.Vitess); err != nil {
		t.Error(err)
	}
	if err := w.problem(rawsql.MySQL); !errors.Is(err, ErrProxy) {
		t.Errorf("%v, want ErrProxy", err)
	}
}
