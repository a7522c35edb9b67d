package ops

import (
	"context"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
)

// tableLock is a lock on the definition of a table: DDL waits for all who use the table in a
// transaction, and who uses it next waits for the DDL.
type tableLock struct {
	database, table, mode, status string
	session                       uint64
}

// strong tells whether the lock excludes those of statements that read or write rows.
func (t tableLock) strong() bool {
	return t.mode == "EXCLUSIVE" || strings.HasPrefix(t.mode, "SHARED_NO_") || t.mode == "SHARED_READ_ONLY"
}

// tableLocks finds who waits for the definition of a table, and for whom. Without DISTINCT MySQL
// returns a lock again and again when several tables are waited for: it takes the performance schema
// for sorted (EXPLAIN: LooseScan).
func (l *look) tableLocks(ctx context.Context) error {
	before, err := l.stuck(ctx)
	if err != nil {
		return err
	}
	all, err := every(ctx, l.db, `SELECT DISTINCT m.object_schema, m.object_name, m.lock_type, m.lock_status, COALESCE(t.processlist_id, 0)
		FROM performance_schema.metadata_locks m LEFT JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id
		WHERE m.object_type = 'TABLE' AND (m.object_schema, m.object_name) IN
			(SELECT p.object_schema, p.object_name FROM performance_schema.metadata_locks p WHERE p.object_type = 'TABLE' AND p.lock_status = 'PENDING')`, nil, func(t *tableLock) []any {
		return []any{&t.database, &t.table, &t.mode, &t.status, &t.session}
	})
	if err != nil && !denied(err) {
		return err
	}
	fix := l.listing()
	if denied(err) && !l.maria && l.performance {
		fix = l.grant("SELECT ON performance_schema.*")
		l.gap("waits for tables are not known", fix)
	}
	for _, w := range all {
		if w.status != "PENDING" || w.session == 0 {
			continue
		}
		wait := l.tableWait(w, all)
		l.Waits = append(l.Waits, wait)
		if _, waits := before[w.session]; waits && len(wait.Blockers) == 0 && !wait.Detached {
			l.detail(unlistedTables, fix)
		}
		delete(before, w.session)
	}
	if len(before) == 0 {
		return nil
	}
	return l.unlistedTableWaits(ctx, before, fix)
}

// tableWait returns a wait. One that only uses the table waits for DDL, also for such as waits itself.
func (l *look) tableWait(w tableLock, all []tableLock) Wait {
	wait := Wait{Row: Row{Kind: Table, Table: w.database + "." + w.table}, Mode: Shared, Session: w.session, Blockers: []uint64{}}
	if w.database == l.Database {
		wait.Table = w.table
	}
	if w.strong() {
		wait.Mode = Exclusive
	}
	for _, status := range []string{"GRANTED", "PENDING"} {
		for _, b := range all {
			same := b.database == w.database && b.table == w.table && b.session != w.session && b.status == status
			switch {
			case !same || !b.strong() && (!w.strong() || status == "PENDING"):
			case b.session == 0: // its transaction is prepared, and has none
				wait.Detached = true
			default:
				wait.addBlocker(b.session)
			}
		}
		if wait.Queued = status == "PENDING" && len(wait.Blockers) > 0; len(wait.Blockers) > 0 || wait.Detached {
			break
		}
	}
	return wait
}

// stuck returns the sessions that wait for a table, by their states, and for how long.
func (l *look) stuck(ctx context.Context) (map[uint64]Seconds, error) {
	type waiting struct {
		session uint64
		waits   float64
	}
	scan := func(w *waiting) []any { return []any{&w.session, &w.waits} }
	const state = " = 'Waiting for table metadata lock'"
	const list = "SELECT id, time FROM information_schema.PROCESSLIST WHERE state" + state
	query := list
	if !l.maria && l.performance { // where it has no texts to stumble over
		query = "SELECT processlist_id, COALESCE(processlist_time, 0) FROM performance_schema.threads WHERE processlist_id > 0 AND processlist_state" + state
	}
	all, err := every(ctx, l.db, query, nil, scan)
	if denied(err) {
		all, err = every(ctx, l.db, list, nil, scan)
	}
	if fault.Unreadable(err) {
		return nil, nil // the gap stands
	}
	sessions := make(map[uint64]Seconds, len(all))
	for _, w := range all {
		sessions[w.session] = Seconds(w.waits)
	}
	return sessions, err
}

// unlistedTableWaits adds the waits of those who have been waiting for a table since before the server's
// list was read, which has them not: it has none where they aren't recorded. Any open transaction may hold
// the table.
func (l *look) unlistedTableWaits(ctx context.Context, before map[uint64]Seconds, fix string) error {
	still, err := l.stuck(ctx)
	if err != nil {
		return err
	}
	for session := range before {
		waits, stuck := still[session]
		if !stuck {
			continue
		}
		wait := Wait{Row: Row{Kind: Table, Table: "that isn't known"}, Mode: Exclusive, Session: session, For: waits, Blockers: []uint64{}, Unsure: true}
		for session := range l.open {
			if _, stuck := still[session]; !stuck { // who waits for a table itself isn't the root
				wait.addBlocker(session)
			}
		}
		l.Waits = append(l.Waits, wait)
		l.detail(unlistedTables, fix)
	}
	return nil
}

// tableInstrument is what the performance schema records locks on tables with.
const tableInstrument = "wait/lock/metadata/sql/mdl"

const unlistedTables = "the table that is waited for, and its holder, are not known"

// listing says how the server lists locks on tables.
func (l *look) listing() string {
	switch {
	case l.maria:
		return performanceOn + ", and performance-schema-instrument='" + tableInstrument + "=ON'"
	case !l.performance:
		return performanceOn
	}
	return "UPDATE performance_schema.setup_instruments SET enabled = 'YES' WHERE name = '" + tableInstrument + "', as by default, for the locks from then on"
}
