package ops

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/fault"
)

// describe reads what the server knows of the sessions that hold something or wait.
func (l *look) describe(ctx context.Context) error {
	wanted := make(map[uint64]bool)
	for _, lock := range l.Locks {
		wanted[lock.Session] = true
	}
	for _, lease := range l.Leases {
		wanted[lease.Session] = true
	}
	for _, w := range l.Waits {
		wanted[w.Session] = true
		for _, blocker := range w.Blockers {
			wanted[blocker] = true
		}
	}
	delete(wanted, 0)
	for id := range wanted {
		s := Session{ID: id}
		if l.open == nil {
			s.TxAge = unknown
		}
		if t := l.open[id]; t != nil {
			s.InTx, s.TxAge, s.RowLocks, s.Statement = true, t.age, t.locks, statement(t.statement)
		}
		l.Sessions[id] = s
	}
	l.addTransactions()
	defer l.order()
	if len(wanted) == 0 && !l.try {
		return nil
	}
	err := l.processes(ctx)
	if err == nil {
		err = l.addPrograms(ctx)
	}
	l.precise()
	l.dropUnlikely()
	return err
}

// addTransactions notes that who holds a row or waits for it is in a transaction: the
// server's list of them may be a moment old.
func (l *look) addTransactions() {
	note := func(session uint64, age Seconds) {
		if s, known := l.Sessions[session]; known {
			s.InTx, s.TxAge = true, max(s.TxAge, age)
			l.Sessions[session] = s
		}
	}
	for _, lock := range l.Locks {
		note(lock.Session, lock.Held)
	}
	for _, w := range l.Waits {
		note(w.Session, w.For)
		for _, blocker := range w.Blockers {
			if !w.Unsure {
				note(blocker, 0)
			}
		}
	}
}

// process is a session as the server tells of it.
type process struct {
	id                                        uint64
	user, host, database, command, state, sql sql.NullString
	busy                                      sql.NullFloat64
	ended                                     bool
}

// processes reads the list of sessions: on MySQL from the performance schema, which has
// the last statement, too, and doesn't stumble over a text that is no UTF-8.
func (l *look) processes(ctx context.Context) error {
	scan := func(p *process) []any {
		return []any{&p.id, &p.user, &p.host, &p.database, &p.command, &p.state, &p.busy, &p.sql, &p.ended}
	}
	busy := "COALESCE(NULLIF(time_ms, 0) / 1000, time)"
	if !l.maria {
		busy = "IF(command = 'Sleep', NULL, time)" // which counts from the begin of the last statement
	}
	if !l.maria && l.performance {
		all, err := every(ctx, l.db, recorded+l.ids()+")", nil, scan)
		if !denied(err) {
			l.fill(all)
			if slices.ContainsFunc(all, func(p process) bool { return p.command.String == "Sleep" && !p.busy.Valid }) {
				l.detail(unrecorded, recording)
			}
			if err == nil {
				err = l.addOwnStatements(ctx)
			}
			return err
		}
		l.detail(unperformed, l.grant("SELECT ON performance_schema.*"))
	}
	all, err := every(ctx, l.db, `SELECT id, user, host, db, command, state, `+busy+`, LEFT(info, 1024), 0
		FROM information_schema.PROCESSLIST WHERE id IN (`+l.ids()+`)`, nil, scan)
	if fault.Unreadable(err) {
		return nil // the gap stands
	}
	l.fill(all)
	return err
}

// recorded reads sessions from MySQL's performance schema. It counts how long one is idle from the end of
// its last statement until now, which is where this statement is. What was recorded before the recording was
// switched off, perhaps for a while only, is left out: a session is idle for no longer than since its last
// statement began, which is known in whole seconds.
const recorded = `SELECT t.processlist_id, t.processlist_user, t.processlist_host, t.processlist_db, t.processlist_command, t.processlist_state,
		IF(t.processlist_command = 'Sleep', n.at - CAST(s.timer_end AS SIGNED), COALESCE(s.timer_wait, t.processlist_time * 1000000000000)) / 1000000000000,
		COALESCE(LEFT(s.sql_text, 1024), t.processlist_info), s.end_event_id IS NOT NULL
		FROM performance_schema.threads t
		LEFT JOIN (SELECT CAST(o.timer_end AS SIGNED) AS at FROM performance_schema.threads u
			JOIN performance_schema.events_statements_current o ON o.thread_id = u.thread_id AND o.nesting_event_level = 0
			WHERE u.processlist_id = CONNECTION_ID()) n ON TRUE
		LEFT JOIN performance_schema.events_statements_current s ON s.thread_id = t.thread_id AND s.nesting_event_level = 0 AND t.instrumented = 'YES'
			AND IF(t.processlist_command = 'Sleep', s.end_event_id IS NOT NULL AND n.at - CAST(s.timer_end AS SIGNED) < (t.processlist_time + 2) * 1000000000000, s.end_event_id IS NULL)
			AND NOT EXISTS (SELECT 1 FROM performance_schema.setup_consumers WHERE enabled = 'NO' AND name IN (` + statementConsumers + `))
		WHERE t.processlist_id IN (`

// statementConsumers are what MySQL records statements with.
const statementConsumers = "'global_instrumentation', 'thread_instrumentation', 'events_statements_current'"

// histories is of how many sessions at most a look reads what they have executed before.
const histories = 100

// addOwnStatements shows of idle sessions the last statement of the program, where one of lockstep's
// came after it in the same transaction. MySQL keeps the last ten of a session.
func (l *look) addOwnStatements(ctx context.Context) error {
	var among []uint64
	for id, s := range l.Sessions {
		if s.Idle() && s.For.Known() && ownStatement(s.Statement) { // else later ones may not be recorded
			among = append(among, id)
		}
	}
	if len(among) == 0 {
		return nil
	}
	slices.SortFunc(among, func(a, b uint64) int { return cmp.Compare(l.Sessions[b].TxAge, l.Sessions[a].TxAge) })
	type said struct {
		id   uint64
		text string
	}
	all, err := every(ctx, l.db, `SELECT t.processlist_id, LEFT(h.sql_text, 1024)
		FROM performance_schema.threads t
		JOIN performance_schema.events_transactions_current x ON x.thread_id = t.thread_id AND x.state = 'ACTIVE'
		JOIN performance_schema.events_statements_history h ON h.thread_id = t.thread_id AND h.nesting_event_level = 0 AND h.timer_start >= x.timer_start
		WHERE t.processlist_id IN (`+list(among[:min(len(among), histories)])+`) AND h.sql_text IS NOT NULL
		ORDER BY h.event_id DESC`, nil, func(s *said) []any { return []any{&s.id, &s.text} })
	if denied(err) {
		return nil // noted before
	}
	for _, h := range all {
		s := l.Sessions[h.id]
		if text := statement(h.text); ownStatement(s.Statement) && !ownStatement(text) {
			s.Statement = text
			l.Sessions[h.id] = s
		}
	}
	return err
}

func (l *look) ids() string {
	ids := make([]uint64, 0, len(l.Sessions))
	for id := range l.Sessions {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		ids = append(ids, 0) // which no session has
	}
	return list(ids)
}

func (l *look) fill(all []process) {
	for _, p := range all {
		s := l.Sessions[p.id]
		s.User, s.Host, s.Database, s.Command, s.State = p.user.String, p.host.String, p.database.String, p.command.String, p.state.String
		if s.For = Seconds(max(0, p.busy.Float64)); !p.busy.Valid {
			s.For = unknown
		}
		if p.sql.Valid || s.Idle() { // what was read of the transaction may be a moment old
			s.Statement, s.Last = statement(p.sql.String), p.ended || s.Idle()
		}
		l.Sessions[p.id] = s
	}
}

const unrecorded = "last statements, and how long sessions are idle, are not known"

// recording says how MySQL records statements.
const recording = "record the statements of all sessions in performance_schema, as by default: UPDATE performance_schema.setup_consumers SET enabled = 'YES' WHERE name IN (" + statementConsumers + "), and in threads instrumented"

// addPrograms tells of the programs by their connection attributes, which it asks for if it
// meets a new session.
func (l *look) addPrograms(ctx context.Context) error {
	old, fresh := l.programs, len(l.Sessions) == 0
	l.programs = make(map[uint64]string, len(l.Sessions))
	for id := range l.Sessions {
		program, known := old[id]
		l.programs[id], fresh = program, fresh || !known
	}
	if fresh {
		if err := l.readPrograms(ctx); err != nil {
			return err
		}
	}
	for id, s := range l.Sessions {
		s.Program = l.programs[id]
		l.Sessions[id] = s
	}
	if l.blind.What != "" {
		l.detail(l.blind.What, l.blind.Fix)
	}
	return nil
}

// readPrograms reads the connection attributes, which MariaDB has only where its performance
// schema is on.
func (l *look) readPrograms(ctx context.Context) error {
	type attributes struct {
		id                uint64
		name, client, pid sql.NullString
	}
	all, err := every(ctx, l.db, `SELECT processlist_id, MAX(IF(attr_name = 'program_name', attr_value, NULL)),
		MAX(IF(attr_name = '_client_name', attr_value, NULL)), MAX(IF(attr_name = '_pid', attr_value, NULL))
		FROM performance_schema.session_connect_attrs WHERE processlist_id IN (`+l.ids()+`) GROUP BY processlist_id`, nil, func(a *attributes) []any {
		return []any{&a.id, &a.name, &a.client, &a.pid}
	})
	l.blind = Gap{}
	switch {
	case denied(err) && l.maria:
		l.blind = Gap{What: "programs are not known", Fix: "start the server with performance_schema=ON, and " + l.grant("SELECT ON performance_schema.*")}
		return nil
	case denied(err):
		l.blind = Gap{What: "programs are not known", Fix: l.grant("SELECT ON performance_schema.*")}
		return nil
	case err != nil:
		return err
	}
	for _, a := range all {
		program := cmp.Or(a.name.String, a.client.String)
		if a.pid.Valid {
			program = strings.TrimSpace(program + " (pid " + a.pid.String + ")")
		}
		l.programs[a.id] = program
	}
	if !l.performance {
		l.blind = Gap{What: "programs are not known", Fix: performanceOn}
	}
	return nil
}

// precise sets how long a session has waited, where the server tells that of its
// statement more exactly than in whole seconds.
func (l *look) precise() {
	for i := range l.Waits {
		w := &l.Waits[i]
		s := l.Sessions[w.Session]
		if later := s.For - w.For; !s.Idle() && s.For > 0 && later > -2 && later < 2 { // else its statement has done something before
			w.For = s.For
		}
	}
	l.agree()
}

// agree makes ages agree that were read one after the other: since it has been idle, a session has neither
// begun its transaction nor locked anything.
func (l *look) agree() {
	for id, s := range l.Sessions {
		if s.Idle() && s.InTx && s.For.Known() {
			s.TxAge = max(s.TxAge, s.For)
			l.Sessions[id] = s
		}
	}
	for i := range l.Locks {
		lock := &l.Locks[i]
		if s := l.Sessions[lock.Session]; s.Idle() && s.For.Known() && !lock.Unsure {
			lock.Held = max(lock.Held, s.For)
		}
	}
}

// dropUnlikely removes those who may hold a row from where it isn't sure who does, if they
// use another database and others don't.
func (l *look) dropUnlikely() {
	if l.unlisted { // others than those who are seen may hold it
		return
	}
	likely := make(map[Row]int)
	for _, lock := range l.Locks {
		if lock.Unsure && l.Sessions[lock.Session].Database == l.Database {
			likely[lock.Row]++
		}
	}
	l.Locks = slices.DeleteFunc(l.Locks, func(lock Lock) bool {
		return lock.Unsure && likely[lock.Row] > 0 && l.Sessions[lock.Session].Database != l.Database
	})
	for i := range l.Locks {
		l.Locks[i].Unsure = l.Locks[i].Unsure && likely[l.Locks[i].Row] != 1
	}
	for i := range l.Waits {
		w := &l.Waits[i]
		stranger := func(id uint64) bool { return l.Sessions[id].Database != l.Database }
		if likely := slices.DeleteFunc(slices.Clone(w.Blockers), stranger); w.Unsure && w.Kind != Table && len(likely) > 0 {
			w.Blockers, w.Unsure = likely, len(likely) > 1
		}
	}
}
