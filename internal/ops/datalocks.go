package ops

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
)

// unperformed is what a look doesn't know without MySQL's performance schema.
const (
	unperformed   = "row waits, shared locks, programs, last statements and how long sessions are idle are not known"
	performanceOn = "start the server with performance_schema=ON"
)

// locksOfMySQL reads all locks on lockstep's rows, and those of others that somebody waits
// for.
func (l *look) locksOfMySQL(ctx context.Context) error {
	all, sessions, err := l.dataLocks(ctx)
	switch l.unwaited = !l.performance || denied(err); {
	case !l.performance:
		l.gap(unperformed, performanceOn)
		return nil
	case l.unwaited:
		l.gap(unperformed, l.grant("SELECT ON performance_schema.*"))
		return nil
	case err != nil:
		return err
	}
	l.exact = len(l.detached) == 0                // a row that a transaction has made is locked without a lock in this list
	byTrx := make(map[string]uint64, len(l.open)) // also those of whose thread the server keeps nothing
	for session, t := range l.open {
		byTrx[t.id] = session
	}
	// A lock on a row that a transaction has made is listed with the thread of who has asked
	// for it; locks on tables are always listed with their own.
	owners := make(map[uint64]uint64)
	for _, r := range all {
		if r.kind == table {
			owners[r.trx] = r.thread
		}
	}
	gaps := make(map[string]bool) // which are waited for
	for _, r := range all {
		gaps[r.place()] = gaps[r.place()] || r.inserts() && r.status == waiting && l.ours(r)
	}
	for _, r := range all {
		trx := strconv.FormatUint(r.trx, 10)
		_, detached := l.detached[trx]
		session := cmp.Or(sessions[owners[r.trx]], byTrx[trx])
		if detached {
			session = 0
		}
		if (session > 0 || detached) && r.kind != table {
			l.add(r, rowLock{session: session, detached: detached, waiting: r.status == waiting, place: r.place(), id: r.id, trx: trx}, gaps[r.place()])
		}
	}
	return nil
}

// dataLocks reads these locks, and which thread is which session. This user may lack a privilege on some of the
// tables only.
func (l *look) dataLocks(ctx context.Context) (all []mysqlLock, sessions map[uint64]uint64, err error) {
	scan := func(r *mysqlLock) []any {
		return []any{&r.id, &r.trx, &r.thread, &r.kind, &r.database, &r.table, &r.index, &r.mode, &r.status, &r.data}
	}
	const columns = `engine_lock_id, engine_transaction_id, COALESCE(thread_id, 0), lock_type, COALESCE(object_schema, ''), COALESCE(object_name, ''), COALESCE(index_name, ''), COALESCE(lock_mode, ''), lock_status,
		COALESCE(lock_data, '')
		FROM performance_schema.data_locks`
	all, err = every(ctx, l.db, "SELECT "+columns+` WHERE (lock_type = 'TABLE' OR object_schema = DATABASE() AND object_name LIKE 'lockstep|_%' ESCAPE '|' OR lock_status = 'WAITING')`, nil, scan)
	if err != nil || len(all) == 0 && !l.try {
		return nil, nil, err
	}
	elsewhere, err := l.blockingElsewhere(ctx, columns, all, scan)
	if err != nil {
		return nil, nil, err
	}
	type thread struct{ id, session uint64 }
	threads, err := every(ctx, l.db, "SELECT thread_id, processlist_id FROM performance_schema.threads WHERE processlist_id IS NOT NULL", nil, func(t *thread) []any {
		return []any{&t.id, &t.session}
	})
	sessions = make(map[uint64]uint64, len(threads))
	for _, t := range threads {
		sessions[t.id] = t.session
	}
	return append(all, elsewhere...), sessions, err
}

// blockingElsewhere returns the locks on rows of other tables that are waited for.
func (l *look) blockingElsewhere(ctx context.Context, columns string, all []mysqlLock, scan func(*mysqlLock) []any) (blocking []mysqlLock, err error) {
	var waits []any
	for _, r := range all {
		if r.kind != table && r.status == waiting && !l.ours(r) {
			waits = append(waits, r.id)
		}
	}
	if l.try {
		waits = append(waits, "") // no lock's
	}
	for part := range slices.Chunk(waits, chunk) {
		found, err := every(ctx, l.db, "SELECT DISTINCT "+columns+` WHERE lock_status = 'GRANTED'
			AND NOT (object_schema = DATABASE() AND object_name LIKE 'lockstep|_%' ESCAPE '|')
			AND engine_lock_id IN (SELECT w.blocking_engine_lock_id FROM performance_schema.data_lock_waits w
				WHERE w.requesting_engine_lock_id IN (?`+strings.Repeat(",?", len(part)-1)+`))`, part, scan)
		if err != nil {
			return nil, err
		}
		blocking = append(blocking, found...)
	}
	return blocking, nil
}

const table = "TABLE"

// mysqlLock is a row of data_locks.
type mysqlLock struct {
	trx, thread                                          uint64
	id, kind, database, table, index, mode, status, data string
}

const waiting = "WAITING"

// place returns what the identifiers of all locks on a row have in common: space, page and
// number of the record, before the last part, which differs as the first ones do.
func (r mysqlLock) place() string {
	parts := strings.Split(r.id, ":")
	return strings.Join(parts[max(0, len(parts)-4):max(0, len(parts)-1)], ":")
}

func (l *look) ours(r mysqlLock) bool {
	return r.database == l.Database && strings.HasPrefix(r.table, "lockstep_")
}

// inserts tells whether the lock is the intention to insert a row.
func (r mysqlLock) inserts() bool { return strings.Contains(r.mode, "INSERT_INTENTION") }

// add notes a lock: that on a row, and that on the gap before it, if the gap is waited for.
func (l *look) add(r mysqlLock, s rowLock, gap bool) {
	at, isRow := l.rowOf(r.database, r.table, r.index, r.data)
	mode, excludes := modeOf(r.mode)
	if at.Kind == Other && !excludes { // somebody waits for the gap between two rows
		mode, excludes = Exclusive, true
	}
	if s.Row, s.mode = at, mode; isRow && excludes {
		l.seen = append(l.seen, s)
	}
	if gap && !strings.Contains(r.mode, "REC_NOT_GAP") && r.inserts() == s.waiting {
		s.Row, s.mode = at.gap(r.table), Exclusive
		l.seen = append(l.seen, s)
	}
}
