package tests

import (
	"strings"
	"testing"
)

// planted are bugs in the statements, by name.
var planted = map[string][]string{ // old, new, old, new ...
	"two owners": {"WHEN lockstep_leases.owner <> VALUES(owner) THEN LAST_INSERT_ID(1)", ""},
	"same token": {"GREATEST(lockstep_leases.token + 1, VALUES(token))", "GREATEST(lockstep_leases.token, 1000000000000000)"},
	"lost release": {
		"expires_us = IF(LAST_INSERT_ID() <> 1 AND", "expires_us = IF(LAST_INSERT_ID() = 1 AND",
		"holds = CASE WHEN LAST_INSERT_ID() = 1 THEN lockstep_leases.holds", "holds = CASE WHEN LAST_INSERT_ID() >= 1 THEN lockstep_leases.holds",
	},
	"guard past the time to live": {"SET guards = guards + 1 + 0 * LAST_INSERT_ID(token)\nWHERE name = ? AND slot = ? AND owner = ? AND token = ?\n  AND LOCATE(?, holds) > 0 AND expires_us >",
		"SET guards = guards + 1 + 0 * LAST_INSERT_ID(token)\nWHERE name = ? AND slot = ? AND owner = ? AND token = ?\n  AND LOCATE(?, holds) > 0 AND 2 * expires_us >"},
	"no room":                {"CHAR_LENGTH(s.holds) = 0 OR", "CHAR_LENGTH(s.holds) >= 0 OR"},
	"reader beside a writer": {"CHAR_LENGTH(s.holds) = 0 OR", "CHAR_LENGTH(s.holds) >= 0 OR"},
	"writer beside readers":  {"IF(lockstep_leases.intent_us = 1 AND", "IF(lockstep_leases.intent_us = 2 AND"},
	"intent forgotten": {"s.intent_us = 1\n  AND (",
		"s.intent_us = 1\n  AND (EXISTS (SELECT 1 FROM lockstep_leases r WHERE r.name = s.name AND r.slot > 0 AND CHAR_LENGTH(r.holds) > 0) OR "},
	"intent without end": {"AND (CHAR_LENGTH(s.holds) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) OR s.owner", "AND (CHAR_LENGTH(s.holds) = 0 OR s.owner"},
	"downgrade with a gap": {"CAST(? AS SIGNED), 0, 0\nFROM lockstep_leases s WHERE s.name = ? AND s.slot = 0 AND s.intent_us = 1",
		"CAST(? AS SIGNED) * (CHAR_LENGTH(s.holds) = 0), 0, 0\nFROM lockstep_leases s WHERE s.name = ? AND s.slot = 0 AND s.intent_us = 1"},
	"one permit more": {"s.slot BETWEEN 1 AND CAST(? AS SIGNED)", "s.slot BETWEEN 1 AND CAST(? AS SIGNED) + 1"},
	"any number":      {"AND (SELECT g.intent_us", "AND 0 <> (SELECT g.intent_us", "+ CAST(? AS SIGNED) = 0", "+ CAST(? AS SIGNED) * 0"},
	"dead permit":     {"AND (CHAR_LENGTH(s.holds) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))\n", "AND CHAR_LENGTH(s.holds) = 0\n"},
}

// plant returns what rewrites the statements.
func plant(t *testing.T, bug string) func(string) string {
	t.Helper()
	if len(planted[bug]) == 0 {
		t.Fatalf("no bug is called %q", bug)
	}
	return strings.NewReplacer(planted[bug]...).Replace
}
