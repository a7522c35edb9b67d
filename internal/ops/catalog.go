package ops

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// catalog asks the server for its transactions and locks. The two servers have different
// tables for them, which sqlc doesn't know: so these texts are here and not in queries/.
func (l *look) catalog(ctx context.Context) error {
	l.seen, l.faded = nil, make(map[string]bool)
	if err := l.transactions(ctx); err != nil {
		return err
	}
	if l.maria {
		l.unwaited = l.open == nil
		return l.locksOfMariaDB(ctx)
	}
	return l.locksOfMySQL(ctx)
}

// recall brings rows that are locked back into the server's memory, where they have left it, and
// reads the catalog again: a server that lists a lock doesn't read the disk for its row.
func (l *look) recall(ctx context.Context) error {
	if len(l.faded) > 0 && l.recalled.due() {
		began := time.Now()
		for table := range l.faded {
			rows := 0
			if err := l.unless(table, func() error {
				return l.db.QueryRowContext(ctx, rawsql.Look("SELECT COUNT(*) FROM "+table+" FORCE INDEX (PRIMARY)")).Scan(&rows)
			}); err != nil {
				return err
			}
		}
		l.recalled = turned(began)
		for _, again := range []func(context.Context) error{l.moment, l.catalog} {
			if err := again(ctx); err != nil {
				return err
			}
		}
	}
	if len(l.faded) > 0 {
		l.exact = false
		l.gap("some of the rows that are locked are not known, their pages are not in the server's memory", "run it again; if it stays so, increase innodb_buffer_pool_size")
	}
	return nil
}

// transactions reads the open transactions. A server makes its list anew only when nobody has
// read it for 0.1 s: a list that was made for somebody else is read again after a random pause, for a
// while. The pauses grow, or many who look would keep the list old for each other.
func (l *look) transactions(ctx context.Context) error {
	for began := time.Now(); ; {
		fresh, err := l.listed(ctx)
		fix := ""
		if fault.Unreadable(err) {
			fix, err = l.instrumented(ctx)
			fresh = fix == ""
		}
		switch {
		case denied(err):
			what := "how old transactions are, and what other users hold, is not known"
			if l.maria {
				what = "how old transactions are, who waits, and what other users hold, is not known"
			}
			l.gap(what, l.grant("PROCESS ON *.*"))
			return nil
		case err != nil, fresh:
			return err
		case fix != "" && time.Since(began) > patience:
			l.unlist("transactions are not known: a session executes a statement with an emoji or other bytes that utf8mb3 lacks, and MySQL lists none then", fix)
			return nil
		case time.Since(began) > patience:
			l.unlist("the server's list of transactions is old: others read it all the time", "run it again; read information_schema.INNODB_TRX less often than every 0.1 s")
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100*time.Millisecond + rand.N(100*time.Millisecond+time.Since(began))):
		}
		if err := l.moment(ctx); err != nil {
			return err
		}
	}
}

// unlist forgets a list of transactions that isn't of this look: who isn't on it may have begun since.
func (l *look) unlist(what, fix string) {
	l.open, l.detached, l.unlisted = nil, nil, true
	l.gap(what, fix)
}

// patience is for how long a list is looked for that is not older than the look.
const patience = 2 * time.Second

// listed reads the list of transactions in one that is on it, with this statement and its random
// number, if the list was made for it: it is fresh then. Its times are the server's own, whatever
// the session's time zone is. A new row is locked by its transaction without a lock that MariaDB
// counts: such a transaction without a session has modified rows only.
func (l *look) listed(ctx context.Context) (fresh bool, err error) {
	type row struct {
		session    uint64
		ours, made bool
		requested  sql.NullString
		waits      sql.NullFloat64
		age        float64
		statement  sql.NullString
		txn
	}
	var all []row
	err = rawsql.InTx(ctx, l.db, sql.TxOptions{ReadOnly: true}, func(tx *sql.Tx) error {
		for table, key := range map[string]string{"lockstep_leases": "name = ''", "lockstep_locks": "name = ''", "lockstep_centers": "slot = 0"} { // a transaction begins with what it reads
			if err := l.unless(table, func() error {
				_, err := every(ctx, tx, "SELECT token FROM "+table+" WHERE "+key, nil, func(token *uint64) []any { return []any{token} })
				return err
			}); err != nil {
				return err
			}
			if !l.late[table] {
				break
			}
		}
		number := strconv.FormatUint(rand.Uint64()|1<<63, 10)
		all, err = every(ctx, tx, `SELECT trx_mysql_thread_id, trx_mysql_thread_id = CONNECTION_ID(), COALESCE(LOCATE('`+number+`', trx_query), 0) > 0, trx_id, trx_requested_lock_id, trx_rows_locked,
			TIMESTAMPDIFF(MICROSECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', 'SYSTEM')) / 1000000,
			TIMESTAMPDIFF(MICROSECOND, trx_wait_started, CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', 'SYSTEM')) / 1000000,
			LEFT(trx_query, 1024)
			FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id > 0 OR trx_rows_locked > 0 OR trx_rows_modified > 0`, nil, func(r *row) []any {
			return []any{&r.session, &r.ours, &r.made, &r.id, &r.requested, &r.locks, &r.age, &r.waits, &r.statement}
		})
		return err
	})
	if err != nil {
		return false, err
	}
	l.open, l.detached = make(map[uint64]*txn, len(all)), make(map[string]Seconds)
	for _, r := range all {
		if r.ours {
			fresh = r.made
			continue
		}
		if r.session == 0 {
			l.detached[r.id] = Seconds(max(0, r.age))
			continue
		}
		t := r.txn
		t.requested, t.age, t.waits, t.statement = r.requested.String, Seconds(max(0, r.age)), Seconds(max(0, r.waits.Float64)), r.statement.String
		l.open[r.session] = &t
	}
	return fresh, nil
}

// instrumented reads the open transactions from MySQL's performance schema, whose list has no statements.
// It returns how to see them where it can't list all: this user may not read it, or not all sessions are
// instrumented. A transaction without a session has locked a table for one that is gone; when it began
// isn't known.
func (l *look) instrumented(ctx context.Context) (fix string, err error) {
	type row struct {
		session       uint64
		ours, partial bool
		txn
	}
	var all []row
	var gone []string
	err = rawsql.InTx(ctx, l.db, sql.TxOptions{ReadOnly: true}, func(tx *sql.Tx) (err error) {
		all, err = every(ctx, tx, `SELECT t.processlist_id, t.processlist_id = CONNECTION_ID(), EXISTS (SELECT 1 FROM performance_schema.threads o WHERE o.processlist_id IS NOT NULL AND o.instrumented = 'NO'),
			COALESCE(x.timer_wait, 0) / 1000000000000, COALESCE(r.locks, 0)
			FROM performance_schema.events_transactions_current x
			JOIN performance_schema.threads t ON t.thread_id = x.thread_id
			LEFT JOIN (SELECT thread_id, COUNT(*) AS locks FROM performance_schema.data_locks WHERE lock_type = 'RECORD' GROUP BY thread_id) r ON r.thread_id = x.thread_id
			WHERE x.state = 'ACTIVE' AND t.processlist_id IS NOT NULL`, nil, func(r *row) []any {
			return []any{&r.session, &r.ours, &r.partial, &r.age, &r.locks}
		})
		if err != nil {
			return err
		}
		gone, err = every(ctx, tx, `SELECT DISTINCT d.engine_transaction_id FROM performance_schema.data_locks d
			LEFT JOIN performance_schema.threads t ON t.thread_id = d.thread_id
			WHERE d.lock_type = 'TABLE' AND t.processlist_id IS NULL`, nil, func(trx *string) []any { return []any{trx} })
		return err
	})
	switch complete := slices.ContainsFunc(all, func(r row) bool { return r.ours && !r.partial }); {
	case denied(err):
		return l.grant("SELECT ON performance_schema.*") + ", or run it again when that has ended", nil
	case err != nil:
		return "", err
	case !complete:
		return "instrument transactions of all sessions in performance_schema, as by default, or run it again when that has ended", nil
	}
	l.open, l.detached = make(map[uint64]*txn, len(all)), make(map[string]Seconds)
	for _, r := range all {
		if !r.ours {
			t := r.txn
			t.id = "0" // a number isn't known
			l.open[r.session] = &t
		}
	}
	for _, trx := range gone {
		l.detached[trx] = Seconds(l.Taken.Unix()) // as old as can be
	}
	return "", nil
}

// locksOfMariaDB reads the locks that somebody waits for; MariaDB lists no others. A
// transaction that has written nothing has the number 0 there, as all such ones have.
func (l *look) locksOfMariaDB(ctx context.Context) error {
	waiting := make(map[string][]uint64) // by the lock that is requested
	readers := []uint64{}                // that may hold locks, and don't wait
	sessions := make(map[string]uint64)
	for session, t := range l.open {
		sessions[t.id] = session
		switch {
		case t.requested != "":
			waiting[t.requested] = append(waiting[t.requested], session)
		case t.id == "0" && t.locks > 0:
			readers = append(readers, session)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	all, err := every(ctx, l.db, `SELECT lock_id, lock_trx_id, lock_mode, lock_table, lock_index,
		CONCAT_WS(':', lock_space, lock_page, lock_rec), COALESCE(lock_data, '')
		FROM information_schema.INNODB_LOCKS WHERE lock_type = 'RECORD'`, nil, func(r *mariaDBLock) []any {
		return []any{&r.id, &r.trx, &r.mode, &r.table, &r.index, &r.place, &r.data}
	})
	if denied(err) {
		l.unwaited = true
		l.gap("row waits are not known", l.grant("PROCESS ON *.*"))
		return nil
	}
	if err != nil {
		return err
	}
	closed, err := l.closedGaps(ctx, all)
	if err != nil {
		return err
	}
	for _, r := range all {
		database, table := l.tableOf(r.table)
		at, isRow := l.rowOf(database, table, r.index, r.data)
		mode, excludes := modeOf(r.mode)
		if at.ours() && closed[r.id] {
			at, mode, isRow, excludes = at.gap(table), Exclusive, true, true
		}
		if !isRow || !excludes {
			continue
		}
		found := rowLock{Row: at, mode: mode, place: r.place, id: r.id, trx: r.trx}
		for _, session := range waiting[r.id] {
			found.session, found.waiting = session, true
			l.seen = append(l.seen, found)
		}
		found.waiting = false
		l.addHolders(found, sessions, readers, len(waiting[r.id]) > 0)
	}
	return nil
}

// bare drops the quotes of names.
var bare = strings.NewReplacer("`", "", `"`, "")

// tableOf reads the name of a table, whose quotes are those of the session's sql_mode. A name of a database
// may have a dot.
func (l *look) tableOf(name string) (database, table string) {
	name = bare.Replace(name)
	if table, ours := strings.CutPrefix(name, bare.Replace(l.Database)+"."); ours {
		return l.Database, table
	}
	database, table, _ = strings.Cut(name, ".")
	return database, table
}

// addHolders notes who holds a lock of MariaDB's list, unless it is one that is waited for.
func (l *look) addHolders(found rowLock, sessions map[string]uint64, readers []uint64, waitedFor bool) {
	session, known := sessions[found.trx]
	_, found.detached = l.detached[found.trx]
	switch {
	case found.detached:
		l.seen = append(l.seen, found)
	case found.trx == "0": // one of those who only read
		found.unsure = len(readers) > 1
		for _, session := range readers {
			found.session = session
			l.seen = append(l.seen, found)
		}
	case known && !waitedFor:
		found.session = session
		l.seen = append(l.seen, found)
	}
}

// mariaDBLock is a row of INNODB_LOCKS.
type mariaDBLock struct{ id, trx, mode, table, index, place, data string }

// closedGaps returns the locks, by their identifiers, on gaps between rows: those that who inserts a
// row waits for, and those that hold them up.
func (l *look) closedGaps(ctx context.Context, all []mariaDBLock) (map[string]bool, error) {
	closed := make(map[string]bool)
	if !slices.ContainsFunc(all, mariaDBLock.ofGap) {
		return closed, nil
	}
	type pair struct{ waits, holds string }
	pairs, err := every(ctx, l.db, "SELECT requested_lock_id, blocking_lock_id FROM information_schema.INNODB_LOCK_WAITS", nil, func(p *pair) []any { return []any{&p.waits, &p.holds} })
	for _, p := range pairs {
		if slices.ContainsFunc(all, func(r mariaDBLock) bool { return r.id == p.waits && r.ofGap() }) {
			closed[p.waits], closed[p.holds] = true, true
		}
	}
	return closed, err
}

// ofGap tells whether the lock is of the gap before a row only. One that is waited for in such a mode
// is the intention to insert a row.
func (r mariaDBLock) ofGap() bool { return strings.HasSuffix(r.mode, ",GAP") }
