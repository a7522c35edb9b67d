package ops

import (
	"context"
	"strings"
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
	all, err := every(ctx, l.db, `SELECT DISTINCT m.object_schema, m.object_name, m.lock_type, m.lock_status, COALESCE(t.processlist_id, 0)
		FROM performance_schema.metadata_locks m LEFT JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id
		WHERE m.object_type = 'TABLE' AND (m.object_schema, m.object_name) IN
			(SELECT p.object_schema, p.object_name FROM performance_schema.metadata_locks p WHERE p.object_type = 'TABLE' AND p.lock_status = 'PENDING')`, nil, func(t *tableLock) []any {
		return []any{&t.database, &t.table, &t.mode, &t.status, &t.session}
	})
	if err != nil && !denied(err) {
		return err
	}
	for _, w := range all {
		if w.status == "PENDING" && w.session > 0 {
			l.tableWait(w, all)
		}
	}
	switch {
	case l.maria:
		return l.unlistedTableWaits(ctx)
	case err != nil:
		l.gap("waits for tables are not known", l.grant("SELECT ON performance_schema.*"))
	}
	return nil
}

// tableWait adds a wait. One that only uses the table waits for DDL, also for such as waits itself.
func (l *look) tableWait(w tableLock, all []tableLock) {
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
	l.Waits = append(l.Waits, wait)
}

// unlistedTableWaits finds who waits for a table where the server doesn't list who has it, as
// MariaDB doesn't without its performance schema: any open transaction may.
func (l *look) unlistedTableWaits(ctx context.Context) error {
	type waiting struct {
		session uint64
		waits   float64
	}
	all, err := every(ctx, l.db, "SELECT id, time FROM information_schema.PROCESSLIST WHERE state = 'Waiting for table metadata lock'", nil, func(w *waiting) []any {
		return []any{&w.session, &w.waits}
	})
	if err != nil {
		return err
	}
	listed := make(map[uint64]bool)
	for _, w := range l.Waits {
		listed[w.Session] = true
	}
	stuck := make(map[uint64]bool) // who waits for a table itself isn't the root
	for _, w := range all {
		stuck[w.session] = true
	}
	for _, w := range all {
		if listed[w.session] {
			continue
		}
		wait := Wait{Row: Row{Kind: Table, Table: "that isn't known"}, Mode: Exclusive, Session: w.session, For: Seconds(w.waits), Blockers: []uint64{}, Unsure: true}
		for session := range l.open {
			if !stuck[session] {
				wait.addBlocker(session)
			}
		}
		l.Waits = append(l.Waits, wait)
		l.detail("the table that is waited for, and its holder, are not known", "start the server with performance_schema=ON, and performance-schema-instrument='wait/lock/metadata/sql/mdl=ON'")
	}
	return nil
}
