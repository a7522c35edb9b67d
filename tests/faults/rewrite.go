package faults

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// planted are bugs in the statements of leases, by name.
var planted = map[string][]string{ // old, new, old, new ...
	"two owners": {
		"AND s.slot = ? AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))\n", "AND s.slot = ?\n",
		"AND slot = ? AND (CHAR_LENGTH(holders) = 0 OR expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))\n", "AND slot = ?\n",
	},
	"same token": {
		"GREATEST(lockstep_leases.token + 1, VALUES(token))", "GREATEST(lockstep_leases.token, 1000000000000000)",
		"GREATEST(s.token + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))", "GREATEST(s.token, 1000000000000000)",
		"LAST_INSERT_ID(GREATEST(token + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))) + used", "LAST_INSERT_ID(GREATEST(token, 1000000000000000) + used",
		"asked_us = 0, token = GREATEST(token + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))", "asked_us = 0, token = GREATEST(token, 1000000000000000)",
	},
	"token by the clock": {
		"GREATEST(lockstep_leases.token + 1, VALUES(token))", "VALUES(token)",
		"GREATEST(s.token + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))", "UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))",
		"LAST_INSERT_ID(GREATEST(token + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))) + used", "LAST_INSERT_ID(UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + used",
		"asked_us = 0, token = GREATEST(token + 1, UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))", "asked_us = 0, token = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))",
	},
	"lock token by the clock": {
		"IF(token = ?, token, GREATEST(token + 1,", "IF(token = ?, token, GREATEST(16,",
		"LAST_INSERT_ID(GREATEST(token + 1,", "LAST_INSERT_ID(GREATEST(16,",
	},
	"expiry kept": {
		"expires_us = VALUES(expires_us), used_for =", "expires_us = GREATEST(lockstep_leases.expires_us, VALUES(expires_us)), used_for =",
	},
	"lost release": {
		"expires_us = VALUES(expires_us), holders = LEFT(lockstep_leases.holders, 0)", "holders = lockstep_leases.holders",
		"expires_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)), holders = LEFT(holders, 0)", "holders = holders",
	},
	"freed too early": {
		"expires_us = VALUES(expires_us), used_for =", "expires_us = VALUES(expires_us) - IF(LOCATE(',', VALUES(holders)) = 1, VALUES(ttl_us) DIV 2, 0), used_for =",
	},
	"kept too long": {
		"expires_us = VALUES(expires_us), used_for =", "expires_us = VALUES(expires_us) + IF(LOCATE(',', VALUES(holders)) = 1, VALUES(ttl_us) * 7, 0), used_for =",
		"token = VALUES(token),\n  ttl_us = VALUES(ttl_us)", "token = VALUES(token),\n  ttl_us = VALUES(ttl_us) * IF(LOCATE(',', VALUES(holders)) = 1, 8, 1)", // else a refusal shortens it
	},
	"not told": {
		"LAST_INSERT_ID(1 + (lockstep_leases.asked_us > VALUES(asked_us)))", "LAST_INSERT_ID(1 + 0 * lockstep_leases.asked_us)",
		"cur.asked_us > wanted.told", "FALSE",
	},
	"question kept": {
		"label = VALUES(label), asked_us = 0", "label = VALUES(label), asked_us = lockstep_leases.asked_us",
		"VALUES(token), 0, lockstep_leases.asked_us)", "VALUES(token), lockstep_leases.asked_us, lockstep_leases.asked_us)",
		" asked_us = 0, token", " token",
	},
	"one is asked": {
		"AND CHAR_LENGTH(holders) > 0 ORDER BY slot LIMIT 9223372036854775807", "AND CHAR_LENGTH(holders) > 0 ORDER BY slot LIMIT 1",
	},
	"nobody who shares is asked": {
		"AND CHAR_LENGTH(holders) > 0 ORDER BY slot LIMIT", "AND CHAR_LENGTH(holders) > 0 AND (slot = 0 OR expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))) ORDER BY slot LIMIT",
	},
	"all keys are asked": { // the version and the token find the row
		"WHERE name = ? AND slot >= ? AND", "WHERE (name = ? OR name LIKE 'asked:%') AND slot >= ? AND",
		"WHERE s.name = ? AND s.slot = ? AND s.version", "WHERE (s.name = ? OR s.name LIKE 'asked:%') AND s.slot = ? AND s.version",
	},
	"guard past the time to live": {
		"guards = guards + 1\nWHERE name = ? AND slot = ? AND owner = ? AND token = ?\n  AND LOCATE(?, holders) > 0 AND expires_us >",
		"guards = guards + 1\nWHERE name = ? AND slot = ? AND owner = ? AND token = ?\n  AND LOCATE(?, holders) > 0 AND 2 * expires_us >",
	},
	"early expiry": {
		"CAST(? AS SIGNED), 0, 0, ?\n", "CAST(? AS SIGNED) DIV 2, 0, 0, ?\n",
		"expires_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + CAST(? AS SIGNED),\n", "expires_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + CAST(? AS SIGNED) DIV 2,\n",
		"VALUES(token) + VALUES(ttl_us)", "VALUES(token) + VALUES(ttl_us) DIV 2",
		"VALUES(token) + lockstep_leases.ttl_us", "VALUES(token) + lockstep_leases.ttl_us DIV 2",
		"UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + s.ttl_us", "UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + s.ttl_us DIV 2",
	},
	"no room":                {"\n  AND (CHAR_LENGTH(s.holders) = 0 OR", "\n  AND (CHAR_LENGTH(s.holders) >= 0 OR"},
	"reader beside a writer": {"\n  AND (CHAR_LENGTH(s.holders) = 0 OR", "\n  AND (CHAR_LENGTH(s.holders) >= 0 OR"},
	"writer beside readers":  {"+ lockstep_leases.used_for * 4611686018427387904", "", "+ used_for * 4611686018427387904", ""},
	"intent forgotten": {"s.used_for = 1\n  AND (",
		"s.used_for = 1\n  AND (EXISTS (SELECT 1 FROM lockstep_leases r WHERE r.name = s.name AND r.slot > 0 AND CHAR_LENGTH(r.holders) > 0) OR "},
	"intent without end": {"AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) OR s.owner", "AND (CHAR_LENGTH(s.holders) = 0 OR s.owner"},
	"downgrade with a gap": {"CAST(? AS SIGNED), 0, 0, ?\nFROM lockstep_leases s WHERE s.name = ? AND s.slot = 0 AND s.used_for = 1",
		"CAST(? AS SIGNED) * (CHAR_LENGTH(s.holders) = 0), 0, 0, ?\nFROM lockstep_leases s WHERE s.name = ? AND s.slot = 0 AND s.used_for = 1"},
	"one permit more": {"s.slot BETWEEN 1 AND CAST(", "s.slot BETWEEN 1 AND 1 + CAST("},
	"any number":      {"AND (SELECT g.used_for", "AND 0 <> (SELECT g.used_for", "+ CAST(? AS SIGNED) = 0", "+ CAST(? AS SIGNED) * 0", "AND g.used_for + CAST(", "AND 0 * CAST("},
	"dead permit":     {"AND (CHAR_LENGTH(s.holders) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))\n", "AND CHAR_LENGTH(s.holders) = 0\n"},
}

// Plant returns what rewrites the statements so that they have the bug of that name.
func Plant(bug string) (func(query string) string, error) {
	if len(planted[bug]) == 0 {
		return nil, fmt.Errorf("no bug is called %q", bug)
	}
	return strings.NewReplacer(planted[bug]...).Replace, nil
}

// Rewriter returns a connector that changes the text of every statement.
func Rewriter(c driver.Connector, rewrite func(query string) string) driver.Connector {
	return testdb.Wrapped(c, func(conn testdb.Conn) driver.Conn { return testdb.Edited{Conn: conn, Edit: rewrite} })
}
