package faults

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// planted are bugs in the statements of leases, by name.
var planted = map[string][]string{ // old, new, old, new ...
	"two owners": {
		"WHEN lockstep_leases.owner <> VALUES(owner) THEN 1", "",
	},
	"same token": {
		"GREATEST(lockstep_leases.token + 1, VALUES(token))", "GREATEST(lockstep_leases.token, 1000000000000000)",
	},
	"token by the clock": {
		"GREATEST(lockstep_leases.token + 1, VALUES(token))", "VALUES(token)",
	},
	"lock token by the clock": {
		"IF(token = ?, token, GREATEST(token + 1,", "IF(token = ?, token, GREATEST(16,",
		"LAST_INSERT_ID(GREATEST(token + 1,", "LAST_INSERT_ID(GREATEST(16,",
	},
	"expiry kept": {
		"LEAST(lockstep_leases.expires_us, VALUES(token) + lockstep_leases.ttl_us)", "lockstep_leases.expires_us",
	},
	"lost release": {
		"IF(lockstep_leases.holds = VALUES(holds), LEAST(", "IF(FALSE, LEAST(",
		"IF(lockstep_leases.holds = VALUES(holds), LEFT(lockstep_leases.holds, 0),", "IF(TRUE, lockstep_leases.holds,",
	},
	"freed too early": {"+ VALUES(ttl_us) > VALUES(token) THEN 3", "+ VALUES(ttl_us) DIV 2 > VALUES(token) THEN 3",
		"LEAST(lockstep_leases.token, VALUES(token)) + VALUES(ttl_us),", "LEAST(lockstep_leases.token, VALUES(token)) + VALUES(ttl_us) DIV 2,"},
	"kept too long": {"LEAST(lockstep_leases.token, VALUES(token)) + VALUES(ttl_us),", "LEAST(lockstep_leases.token, VALUES(token)) + VALUES(ttl_us) * 8,",
		"ttl_us = IF(LAST_INSERT_ID() = 3, VALUES(ttl_us),", "ttl_us = IF(LAST_INSERT_ID() = 3, VALUES(ttl_us) * 8,"}, // else a refusal shortens it
	"not told": {
		"lockstep_leases.asked_us > VALUES(asked_us), 4611686018427387904", "FALSE, 4611686018427387904",
		"cur.asked_us > wanted.told", "FALSE",
	},
	"question kept": {
		"asked_us = IF(LAST_INSERT_ID() > GREATEST(lockstep_leases.token, 15), 0, lockstep_leases.asked_us)", "asked_us = lockstep_leases.asked_us",
		"asked_us = IF(LAST_INSERT_ID() = 1, lockstep_leases.asked_us, 0)", "asked_us = lockstep_leases.asked_us",
		" asked_us = 0, token", " token",
	},
	"one is asked": {
		" FOR UPDATE SKIP LOCKED\nON DUPLICATE KEY UPDATE question", " ORDER BY s.slot LIMIT 1 FOR UPDATE SKIP LOCKED\nON DUPLICATE KEY UPDATE question",
		"CAST(COALESCE(SUM(asked_us", "CAST(0 * COALESCE(SUM(asked_us",
	},
	"nobody who shares is asked": {
		"s.slot >= 0 AND LEFT(s.holds, 1) = ';'", "s.slot = 0 AND LEFT(s.holds, 1) = ';'",
		"AND slot >= 0 AND LEFT(holds, 1) = ';'", "AND slot = 0 AND LEFT(holds, 1) = ';'",
	},
	"all keys are asked": {"AND s.slot >= 0 AND LEFT(s.holds, 1) = ';'", "OR s.name LIKE 'asked:%' AND LEFT(s.holds, 1) = ';'"},
	"guard past the time to live": {"guards = guards + 1 + 0 * LAST_INSERT_ID(token)\nWHERE name = ? AND slot = ? AND owner = ? AND token = ?\n  AND LOCATE(?, holds) > 0 AND expires_us >",
		"guards = guards + 1 + 0 * LAST_INSERT_ID(token)\nWHERE name = ? AND slot = ? AND owner = ? AND token = ?\n  AND LOCATE(?, holds) > 0 AND 2 * expires_us >"},
	"early expiry": {
		"CAST(? AS SIGNED), 0, 0, ?\n", "CAST(? AS SIGNED) DIV 2, 0, 0, ?\n",
		"VALUES(token) + VALUES(ttl_us)", "VALUES(token) + VALUES(ttl_us) DIV 2",
		"NOW(6)) + ttl_us", "NOW(6)) + ttl_us DIV 2",
		"NOW(6)) + lockstep_leases.ttl_us", "NOW(6)) + lockstep_leases.ttl_us DIV 2",
	},
	"no room":                {"CHAR_LENGTH(s.holds) = 0 OR", "CHAR_LENGTH(s.holds) >= 0 OR"},
	"reader beside a writer": {"CHAR_LENGTH(s.holds) = 0 OR", "CHAR_LENGTH(s.holds) >= 0 OR"},
	"writer beside readers":  {"IF(lockstep_leases.used_for = 1 AND", "IF(lockstep_leases.used_for = 2 AND"},
	"intent forgotten": {"s.used_for = 1\n  AND (",
		"s.used_for = 1\n  AND (EXISTS (SELECT 1 FROM lockstep_leases r WHERE r.name = s.name AND r.slot > 0 AND CHAR_LENGTH(r.holds) > 0) OR "},
	"intent without end": {"AND (CHAR_LENGTH(s.holds) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) OR s.owner", "AND (CHAR_LENGTH(s.holds) = 0 OR s.owner"},
	"downgrade with a gap": {"CAST(? AS SIGNED), 0, 0, ?\nFROM lockstep_leases s WHERE s.name = ? AND s.slot = 0 AND s.used_for = 1",
		"CAST(? AS SIGNED) * (CHAR_LENGTH(s.holds) = 0), 0, 0, ?\nFROM lockstep_leases s WHERE s.name = ? AND s.slot = 0 AND s.used_for = 1"},
	"one permit more": {"s.slot BETWEEN 1 AND CAST(", "s.slot BETWEEN 1 AND 1 + CAST("},
	"any number":      {"AND (SELECT g.used_for", "AND 0 <> (SELECT g.used_for", "+ CAST(? AS SIGNED) = 0", "+ CAST(? AS SIGNED) * 0", "AND g.used_for + CAST(", "AND 0 * CAST("},
	"dead permit":     {"AND (CHAR_LENGTH(s.holds) = 0 OR s.expires_us <= UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))\n", "AND CHAR_LENGTH(s.holds) = 0\n"},
}

// notSimple makes the statements that do simple cases leave them to those that have the bug.
var notSimple = []string{
	"WHEN used_for < 0 OR ", "WHEN TRUE OR ", // AcquireNoWait
	"holds = LEFT(holds, 0)\nWHERE name", "holds = LEFT(holds, 0)\nWHERE FALSE AND name", // ReleaseNoWait
}

// Plant returns what rewrites the statements so that they have the bug of that name.
func Plant(bug string) (func(query string) string, error) {
	if len(planted[bug]) == 0 {
		return nil, fmt.Errorf("no bug is called %q", bug)
	}
	return strings.NewReplacer(slices.Concat(planted[bug], notSimple)...).Replace, nil
}

// Rewriter returns a connector that changes the text of every statement.
func Rewriter(c driver.Connector, rewrite func(query string) string) driver.Connector {
	return rewriter{c, rewrite}
}

type rewriter struct {
	driver.Connector
	rewrite func(string) string
}

func (r rewriter) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := connectFull(ctx, r.Connector)
	if err != nil {
		return nil, err
	}
	return rewrittenConn{conn, r.rewrite}, nil
}

// connectFull connects to what can do all that the driver can.
func connectFull(ctx context.Context, c driver.Connector) (Conn, error) {
	conn, err := c.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T lacks a method", conn), conn.Close())
	}
	return full, nil
}

// Conn is what a connection of the driver can do.
type Conn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type rewrittenConn struct {
	Conn
	rewrite func(string) string
}

func (c rewrittenConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.PrepareContext(ctx, c.rewrite(query))
}

func (c rewrittenConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.ExecContext(ctx, c.rewrite(query), args)
}

func (c rewrittenConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(ctx, c.rewrite(query), args)
}
