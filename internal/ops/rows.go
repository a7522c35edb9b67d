package ops

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/schema"
)

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// every reads all rows of a query. No query of this package is cut off by the session's
// sql_select_limit: each has a LIMIT of its own.
func every[T any](ctx context.Context, db querier, query string, args []any, scan func(row *T) []any) (all []T, err error) {
	rows, err := db.QueryContext(ctx, rawsql.Look(query)+" LIMIT 1000000", args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var one T
		if err := rows.Scan(scan(&one)...); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// denied tells whether the user lacks a privilege, or the server the table.
func denied(err error) bool {
	_, missing := schema.MissingPrivilege(err)
	return missing || fault.Is(err, 1109, 1146) // ER_UNKNOWN_TABLE, ER_NO_SUCH_TABLE
}

// gap notes that there may be what is not shown.
func (l *look) gap(what, fix string) { l.notSeen(what, fix, true) }

// detail notes what is not known of what is shown.
func (l *look) detail(what, fix string) { l.notSeen(what, fix, false) }

// notSeen notes a gap, once.
func (l *look) notSeen(what, fix string, hides bool) {
	for _, g := range l.Gaps {
		if g.Fix == fix {
			return
		}
	}
	l.Gaps = append(l.Gaps, Gap{what, fix, hides, strings.Contains(fix, "GRANT ")})
}

func (l *look) grant(privilege string) string { return "GRANT " + privilege + " TO " + l.grantee }

// rowOf returns which row a lock is on, by the names of table and index and the primary
// key as InnoDB writes it: 0x6F726465723A3432, -1. It returns false for what is no row, and for
// one that InnoDB doesn't tell: that is noted for recall.
func (l *look) rowOf(database, table, index, data string) (Row, bool) {
	other := Row{Kind: Other, Table: database + "." + table + " (" + index + ")"}
	if database == l.Database {
		other.Table = table + " (" + index + ")"
	}
	if database != l.Database || index != "PRIMARY" {
		return other, true
	}
	kind, ours := map[string]Kind{
		"lockstep_locks": Named, "lockstep_centers": Hashed, "lockstep_leases": LeaseRow, "lockstep_once": Once, "lockstep_jobs": Job,
	}[table]
	if !ours {
		return other, true
	}
	if data == "" {
		l.faded[table] = true
		return Row{}, false
	}
	key, slot, _ := strings.Cut(data, ", ")
	if kind == Hashed {
		key, slot = "", key
	}
	row := Row{Kind: kind}
	name, err := hex.DecodeString(strings.TrimPrefix(key, "0x"))
	if err != nil || key == "" && kind != Hashed {
		return Row{Kind: kind}, false // the end of the table
	}
	row.Key = string(name)
	if slot != "" {
		if row.Slot, err = strconv.ParseInt(slot, 10, 64); err != nil {
			return Row{}, false
		}
	}
	if kind == LeaseRow && row.Slot < 0 {
		row.Kind = Queue
	}
	return row, true
}

// ours tells whether the row is of a table of lockstep.
func (r Row) ours() bool { return r.Kind != "" && r.Kind != Other }

// gap returns the gap before the row.
func (r Row) gap(table string) Row {
	key := r.Key
	if r.Kind == Hashed {
		key = r.String()
	}
	return Row{Kind: Between, Key: key, Table: table}
}

// modeOf reads a lock mode: X, S, X,REC_NOT_GAP. It returns false for a lock that excludes
// nobody from a row.
func modeOf(text string) (Mode, bool) {
	mode, rest, _ := strings.Cut(text, ",")
	if strings.Contains(rest, "INSERT_INTENTION") || rest == "GAP" {
		return "", false
	}
	switch mode {
	case "X":
		return Exclusive, true
	case "S":
		return Shared, true
	}
	return "", false
}
