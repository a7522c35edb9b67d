package ops

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// grant is what a row tells of its last grant.
type grant struct {
	token   uint64
	owner   string
	session uint64
	locked  time.Time
	tx      string // the number of the transaction that holds it, if it had one when it was listed
	before  uint64 // the token of the grant before
	// detached: the transaction has no session any more. unsure: that isn't known.
	detached, unsure bool
}

// held returns the locks that transactions hold: those that the server lists, and where it
// doesn't list all, those that the rows tell of. The row of an exclusive lock has a token
// that is not committed. What was seen before of a transaction that is still open isn't
// read again.
func (l *look) held(ctx context.Context) ([]Lock, error) {
	candidates := make(map[Row]bool)
	for _, s := range l.seen {
		candidates[s.Row] = true
	}
	if !l.exact {
		scanned, err := l.scan(ctx)
		if err != nil {
			return nil, err
		}
		for _, row := range scanned {
			candidates[row] = true
		}
	}
	known, err := l.uncommittedGrants(ctx, candidates)
	if err != nil {
		return nil, err
	}
	l.known = known
	if err := l.settle(ctx, known); err != nil {
		return nil, err
	}
	var locks []Lock
	for _, s := range l.seen {
		if !s.waiting && s.Kind != Other && s.Kind != Between && s.Kind != Queue {
			locks = append(locks, Lock{Row: s.Row, Mode: s.mode, Session: s.session, Detached: s.detached, Unsure: s.unsure})
		}
	}
	return l.granted(locks, known), nil
}

// uncommittedGrants returns the grants of the rows that are not committed.
func (l *look) uncommittedGrants(ctx context.Context, candidates map[Row]bool) (map[Row]grant, error) {
	known := l.unchanged(candidates)
	for row := range known {
		delete(candidates, row)
	}
	now, committed, err := writtenAndCommitted(ctx, l, func(tx *sql.Tx) (map[Row]grant, error) { return l.grants(ctx, tx, candidates) })
	if err != nil {
		return nil, err
	}
	for row, g := range now {
		last := committed[row]
		if !last.locked.Before(l.Taken) {
			if g.token < last.token {
				last.before = g.token
			}
			l.changing[row] = last
		}
		if g.token <= last.token || g.session == 0 {
			continue
		}
		if t := l.open[g.session]; t != nil && numbered(t.id) {
			g.tx = t.id
		} else if t == nil && len(l.detached) > 0 && g.locked.Before(l.Taken) { // before the transactions were listed
			g.session, g.detached = 0, true
		}
		g.before, g.unsure = last.token, l.unlisted
		known[row] = g
	}
	return known, nil
}

// unchanged returns what was known at the last look of candidates, and can't have changed since.
func (l *look) unchanged(candidates map[Row]bool) map[Row]grant {
	known := make(map[Row]grant)
	for row, g := range l.known {
		changed := slices.ContainsFunc(l.seen, func(s rowLock) bool { return s.Row == row && (s.session == g.session) == s.waiting && !s.unsure })
		if t := l.open[g.session]; candidates[row] && !changed && t != nil && t.id == g.tx {
			known[row] = g
		}
	}
	return known
}

// granted adds to the locks what their rows tell.
func (l *look) granted(locks []Lock, known map[Row]grant) []Lock {
	type place struct {
		Row
		session uint64
	}
	found := make(map[place]int)
	locks = slices.Clone(locks)
	once := locks[:0]
	for _, lock := range locks { // a row may have several locks of one session
		at := place{lock.Row, lock.Session}
		if i, twice := found[at]; twice {
			if lock.Mode == Exclusive {
				once[i].Mode = Exclusive
			}
			continue
		}
		found[at] = len(once)
		once = append(once, lock)
	}
	locks = once
	for row, g := range known {
		i, listed := found[place{row, g.session}]
		if !listed {
			i = len(locks)
			locks = append(locks, Lock{Row: row, Session: g.session, Detached: g.detached, Unsure: g.unsure})
		}
		lock := &locks[i]
		lock.Mode, lock.Owner, lock.Token, lock.Before, lock.Since = Exclusive, g.owner, g.token, g.before, g.locked.UTC()
	}
	for _, s := range l.seen { // a key that changes hands all the time has no holder at times
		if g, changing := l.changing[s.Row]; changing && s.waiting && !slices.ContainsFunc(locks, func(lock Lock) bool { return lock.Row == s.Row }) {
			locks = append(locks, Lock{Row: s.Row, Mode: Exclusive, Owner: g.owner, Token: g.token, Before: g.before, Since: g.locked.UTC()})
		}
	}
	for i := range locks {
		lock := &locks[i]
		switch t := l.open[lock.Session]; {
		case !lock.Since.IsZero():
			lock.Held = l.since(lock.Since)
		case t != nil:
			lock.Held = t.age
		case l.open == nil || lock.Detached:
			lock.Held = unknown
		}
		_, lock.Changing = l.changing[lock.Row]
		if lock.Kind == Hashed {
			lock.Keys = l.keys[lock.Slot]
		}
	}
	return locks
}

// unless reads a table, unless it didn't answer in time before: that is a gap, and no error.
func (l *look) unless(table string, read func() error) error {
	if l.late[table] {
		return nil
	}
	err := read()
	if Late(err) {
		l.late[table] = true
		e := late{table, err}
		l.gap(e.Error(), e.fix())
		return nil
	}
	return err
}

// late is the error of a table that didn't answer in time.
type late struct {
	table string
	error
}

func (e late) Error() string {
	return e.table + " can't be read: the server waits with it behind DDL, or takes too long"
}

func (e late) Unwrap() error { return e.error }

func (e late) fix() string { return "end what delays " + e.table + ", see waits, and run it again" }

// explained says what was done, and of which table an error is that hasn't answered in time.
func explained(what, table string, err error) error {
	if e := (late{table, err}); Late(err) {
		err = fmt.Errorf("%w: %s", e, e.fix())
	}
	return fault.Explain(what, err)
}

// Late tells whether a statement of a look has waited too long for its table, or has taken too long.
func Late(err error) bool { return fault.Is(err, 1205, 1969, 3024) } // ER_LOCK_WAIT_TIMEOUT, ER_STATEMENT_TIMEOUT, ER_QUERY_TIMEOUT

func (l *look) uncommitted(ctx context.Context, read func(tx *sql.Tx) error) error {
	return rawsql.InTx(ctx, l.db, sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true}, read)
}

// writtenAndCommitted reads what is written, and then what is committed, whatever the level of the session.
func writtenAndCommitted[T any](ctx context.Context, l *look, read func(tx *sql.Tx) (T, error)) (written, committed T, err error) {
	if err = l.uncommitted(ctx, func(tx *sql.Tx) (err error) { written, err = read(tx); return err }); err != nil {
		return written, committed, err
	}
	err = rawsql.InTx(ctx, l.db, sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true}, func(tx *sql.Tx) (err error) {
		committed, err = read(tx)
		return err
	})
	return written, committed, err
}

// grants reads the rows of locks, as db sees them.
func (l *look) grants(ctx context.Context, db gen.DBTX, rows map[Row]bool) (map[Row]grant, error) {
	var names [][]byte
	var slots []uint32
	for row := range rows {
		switch row.Kind {
		case Named:
			names = append(names, []byte(row.Key))
		case Hashed:
			slots = append(slots, uint32(row.Slot))
		}
	}
	all := make(map[Row]grant)
	for part := range slices.Chunk(names, chunk) {
		var found []gen.NamedHoldersRow
		if err := l.unless("lockstep_locks", func() (err error) {
			found, err = queries.NamedHolders(ctx, rawsql.Looking(db), part)
			return err
		}); err != nil {
			return nil, err
		}
		for _, r := range found {
			all[Row{Kind: Named, Key: string(r.Name)}] = grant{token: r.Token, owner: r.Owner, session: r.ConnID, locked: time.UnixMicro(r.LockedUs)}
		}
	}
	for part := range slices.Chunk(slots, chunk) {
		var found []gen.CenterHoldersRow
		if err := l.unless("lockstep_centers", func() (err error) {
			found, err = queries.CenterHolders(ctx, rawsql.Looking(db), part)
			return err
		}); err != nil {
			return nil, err
		}
		for _, r := range found {
			all[Row{Kind: Hashed, Slot: int64(r.Slot)}] = grant{token: r.Token, owner: r.Owner, session: r.ConnID, locked: time.UnixMicro(r.LockedUs)}
		}
	}
	return all, nil
}

const (
	chunk    = 900 // the limit of those queries
	sessions = 500 // in one list: MariaDB makes a subquery of 1,000, which some versions answer with too few rows
	share    = 300 // of the time, a scan takes one part in so many
)

// turn is when tables were read from end to end last.
type turn struct {
	ended time.Time
	took  time.Duration
}

// due tells whether that may be done again.
func (t turn) due() bool {
	return t.ended.IsZero() || time.Since(t.ended) >= min(share*t.took, time.Minute)
}

func turned(began time.Time) turn { return turn{time.Now(), time.Since(began)} }

// scan is what the last scan of the tables has found.
type scan struct {
	rows []Row
	turn
}

// scan returns the rows that may be locked exclusively: those whose last grant was to a
// session with an open transaction, since that began, or where there are transactions without a
// session, to one that is gone. It reads the tables from end to end, unless that was done a moment
// ago.
func (l *look) scan(ctx context.Context) ([]Row, error) {
	among, since, err := l.suspects(ctx)
	if err != nil {
		return nil, err
	}
	if len(among) == 0 && len(l.detached) == 0 {
		return nil, nil
	}
	if !l.scanned.due() {
		l.LocksAge = seconds(time.Since(l.scanned.ended))
		return l.scanned.rows, nil
	}
	began := time.Now()
	var rows []Row
	err = l.uncommitted(ctx, func(tx *sql.Tx) error {
		conditions, err := l.grantees(ctx, tx, among)
		if err != nil {
			return err
		}
		for _, these := range conditions {
			where := fmt.Sprintf(" WHERE locked_us >= %d AND %s", since, these)
			var names, slots []Row
			if err := l.unless("lockstep_locks", func() (err error) {
				names, err = every(ctx, tx, "SELECT name FROM lockstep_locks"+where, nil, func(r *Row) []any { return []any{&r.Key} })
				return err
			}); err != nil {
				return err
			}
			if err := l.unless("lockstep_centers", func() (err error) {
				slots, err = every(ctx, tx, "SELECT slot FROM lockstep_centers"+where, nil, func(r *Row) []any { return []any{&r.Slot} })
				return err
			}); err != nil {
				return err
			}
			for i := range names {
				names[i].Kind = Named
			}
			for i := range slots {
				slots[i].Kind = Hashed
			}
			rows = append(append(rows, names...), slots...)
		}
		return nil
	})
	l.scanned = scan{rows, turned(began)}
	return rows, err
}

// grantees returns conditions for the rows whose last grant was to one of the sessions, or to one
// that is gone, if a transaction without a session may hold them.
func (l *look) grantees(ctx context.Context, db querier, among []uint64) (conditions []string, err error) {
	for part := range slices.Chunk(among, sessions) {
		conditions = append(conditions, "conn_id IN ("+list(part)+")")
	}
	if len(l.detached) == 0 {
		return conditions, nil
	}
	all, err := connected(ctx, db)
	return append(conditions, "conn_id NOT IN ("+list(all)+")"), err
}

// suspects returns the sessions that may hold locks, and since when, in microseconds: those
// with an open transaction, or if that isn't known, all that this user may see.
func (l *look) suspects(ctx context.Context) (among []uint64, since int64, err error) {
	if l.open == nil {
		among, err = connected(ctx, l.db)
		return among, math.MinInt64, err
	}
	oldest := Seconds(0)
	for session, t := range l.open {
		among, oldest = append(among, session), max(oldest, t.age)
	}
	for _, age := range l.detached {
		oldest = max(oldest, age)
	}
	return among, l.Taken.UnixMicro() - int64(float64(oldest)*1e6) - time.Second.Microseconds(), nil // the server tells whole seconds
}

// connected returns the sessions that this user may see.
func connected(ctx context.Context, db querier) (all []uint64, err error) {
	one := func(id *uint64) []any { return []any{id} }
	if all, err = every(ctx, db, "SELECT id FROM information_schema.PROCESSLIST", nil, one); fault.Unreadable(err) {
		all, err = every(ctx, db, "SELECT processlist_id FROM performance_schema.threads WHERE processlist_id IS NOT NULL", nil, one)
		if denied(err) {
			return nil, nil // that transactions are not known is a gap
		}
	}
	return all, err
}

// list writes numbers for IN.
func list(numbers []uint64) string {
	var b strings.Builder
	for i, n := range numbers {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(n, 10))
	}
	return b.String()
}
