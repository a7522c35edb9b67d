package ops

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

// State is how serious a finding is.
type State string

// The states. With an error locks or leases don't work as they should.
const (
	OK    State = "ok"
	Warn  State = "warn"
	Error State = "error"
)

// Finding is what the doctor says of one subject.
type Finding struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"` // a command, a statement, or what to change
}

// doctor is one call of Check.
type doctor struct {
	*Room
	found     []Finding
	variables map[string]string
}

func (d *doctor) add(name string, state State, fix, format string, args ...any) {
	if state == OK {
		fix = ""
	}
	d.found = append(d.found, Finding{name, state, fmt.Sprintf(format, args...), fix})
}

// Check examines the server, the tables, the privileges of this user and the settings. Call
// it as the user who takes the locks. The nodes are other servers of the same cluster, whose
// clocks are compared. It changes nothing.
func (r *Room) Check(ctx context.Context, nodes ...*sql.DB) ([]Finding, error) {
	d := &doctor{Room: r, variables: make(map[string]string)}
	err := d.check(ctx, nodes)
	switch {
	case fault.Is(err, 1047): // ER_UNKNOWN_COM_ERROR: Galera's, of a node that isn't ready
		d.found = nil
		d.add("node", Error, nodeFix, "it has left the primary component of its cluster during the check, and refuses statements")
	case err != nil:
		return nil, fmt.Errorf("check: %w", err)
	}
	return d.found, nil
}

func (d *doctor) check(ctx context.Context, nodes []*sql.DB) error {
	if err := d.read(ctx); err != nil {
		return err
	}
	if !d.ready() {
		return nil // such a node answers nothing more
	}
	var limit uint64
	if err := d.db.QueryRowContext(ctx, "SELECT @@sql_select_limit").Scan(&limit); err != nil {
		return err
	}
	if limit <= 1e5 {
		d.add("session", Error, "remove sql_select_limit from the data source name and from init_connect", "it shows only %d of the server's variables and counters", len(d.variables))
		return nil
	}
	problem := schema.Check(ctx, d.db)
	switch {
	case fault.Is(problem, 1047):
		return problem
	case errors.Is(problem, schema.ErrEngine):
		d.add("engine", Error, "connect to MySQL or MariaDB itself", "%v", problem)
		return nil // the other subjects are not for such a server
	}
	if err := d.schema(problem); err != nil {
		return err
	}
	examine := []func(context.Context) error{d.session, d.connections, d.growth}
	if !errors.Is(problem, schema.ErrSession) { // on such a session the look would begin no transaction of its own
		examine = append(examine, d.sight)
	}
	for _, examine := range examine {
		if err := examine(ctx); err != nil {
			return err
		}
	}
	return d.clocks(ctx, nodes)
}

// subjects are what package schema examines.
var subjects = []struct {
	name string
	is   error
	good string
	fix  string
}{
	{"version", schema.ErrServer, "new enough", "upgrade the server"},
	{"tables", schema.ErrTable, "all there, as they should be, as far as this user sees: triggers need the privilege TRIGGER", ""},
	{"privileges", schema.ErrPrivilege, "this user may lock", ""},
	{"center rows", schema.ErrCenters, "65,536, if the tables are right", ""},
	{"clock function", schema.ErrSysdateIsNow, "SYSDATE() moves on", "start the server without --sysdate-is-now"},
	{"autocommit", schema.ErrAutocommit, "on", "remove autocommit=0 from the data source name and from init_connect"},
	{"character set", schema.ErrCharset, "one for all", "use charset=utf8mb4 in the data source name, and remove other character sets from it and from init_connect"},
	{"session", schema.ErrSession, "its settings are known, and locks hold with them", "remove the setting from the data source name and from init_connect"},
	{"binary log", schema.ErrBinlog, "off, or of rows", "SET GLOBAL binlog_format = 'ROW', and in the server's configuration"},
	{"cluster", schema.ErrMultiPrimary, "one server takes writes", "send all locking transactions to one node, or retry ErrDeadlock: a person decides"},
	{"proxy", schema.ErrProxy, "none that locks don't hold through was found", "connect to the server itself; or change the proxy as this says and docs/proxies.md: a person decides"},
	{"procedures", schema.ErrProcedures, "as they should be, or not needed", ""},
}

// schema tells what package schema has found.
func (d *doctor) schema(found error) error {
	problems, alone := flat(found), errors.Is(found, schema.ErrSession) // then nothing else was asked
	for _, subject := range subjects {
		var texts []string
		var own []error
		state := Warn
		for _, problem := range problems {
			if !errors.Is(problem, subject.is) {
				continue
			}
			if !schema.Advisory(problem) {
				state = Error
			}
			text, _, _ := strings.Cut(problem.Error(), ": Error ") // the server's words say no more
			texts, own = append(texts, text), append(own, problem)
		}
		problems = slices.DeleteFunc(problems, func(problem error) bool { return errors.Is(problem, subject.is) })
		switch {
		case texts != nil:
			d.add(subject.name, state, cmp.Or(subject.fix, schema.Fix(errors.Join(own...))), "%s", strings.Join(texts, "; "))
		case !alone:
			d.add(subject.name, OK, "", "%s", subject.good)
		}
	}
	return errors.Join(problems...) // the server's or the driver's
}

// flat returns the errors that were joined into one.
func flat(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var texts []string
	for _, one := range joined.Unwrap() {
		texts = append(texts, one.Error())
		all = append(all, flat(one)...)
	}
	if strings.Join(texts, "\n") != err.Error() { // it has a text of its own
		return []error{err}
	}
	return all
}

// read reads the server's variables and counters. SHOW needs no privilege.
func (d *doctor) read(ctx context.Context) error {
	for _, query := range []string{"SHOW VARIABLES", "SHOW GLOBAL STATUS"} {
		if err := d.show(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctor) show(ctx context.Context, query string) (err error) {
	rows, err := d.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		var value sql.NullString
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		d.variables[strings.ToLower(name)] = value.String
	}
	return rows.Err()
}

const nodeFix = "connect to a node of the primary component, or wait until this one has joined it; if no node is in it, SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES' at the one with the newest data"

// ready tells whether a node of Galera takes part in its cluster. One that doesn't refuses all
// statements but SHOW and SET.
func (d *doctor) ready() bool {
	if d.variables["wsrep_on"] != "ON" {
		return true
	}
	ready, status := d.variables["wsrep_ready"], d.variables["wsrep_cluster_status"]
	in := ready == "ON" && status == "Primary"
	state := Error
	if in {
		state = OK
	}
	d.add("node", state, nodeFix, "wsrep_ready is %s, wsrep_cluster_status is %s, wsrep_local_state_comment is %s", ready, status, d.variables["wsrep_local_state_comment"])
	return in
}

func (d *doctor) number(name string) float64 {
	n, _ := strconv.ParseFloat(d.variables[name], 64) // 0 for what the server doesn't have
	return n
}

// session looks at settings that make locks slow, or last.
func (d *doctor) session(context.Context) error {
	level := d.variables["transaction_isolation"]
	if level == "" {
		level = d.variables["tx_isolation"]
	}
	state := OK
	if level == "READ-UNCOMMITTED" {
		state = Warn
	}
	d.add("isolation", state, "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ", "%s by default", level)
	state = OK
	if d.variables["read_only"] != "OFF" && d.variables["read_only"] != "0" {
		state = Error
	}
	d.add("read only", state, "connect to the primary; or, if this is the primary, SET GLOBAL read_only = OFF", "read_only is %s", d.variables["read_only"])
	state = OK
	if d.variables["innodb_deadlock_detect"] == "OFF" {
		state = Warn
	}
	d.add("deadlocks", state, "SET GLOBAL innodb_deadlock_detect = ON", "detection is %s: without it a deadlock lasts for innodb_lock_wait_timeout, %.0f s", orNone(d.variables["innodb_deadlock_detect"]), d.number("innodb_lock_wait_timeout"))
	ends, most, fix := "wait_timeout", d.number("wait_timeout"), "SET GLOBAL wait_timeout = 600, and SetConnMaxIdleTime of the pools below that"
	if _, has := d.variables["idle_transaction_timeout"]; has {
		fix = "SET GLOBAL idle_transaction_timeout = 60"
	}
	if n := d.number("idle_transaction_timeout"); n > 0 && n < most {
		ends, most = "idle_transaction_timeout", n
	}
	if most > 600 {
		d.add("forgotten transactions", Warn, fix, "one that its program forgets keeps its locks for %s, %.0f s", ends, most)
	} else {
		d.add("forgotten transactions", OK, "", "end after %.0f s at most", most)
	}
	return nil
}

func orNone(text string) string {
	if text == "" {
		return "not to be switched"
	}
	return text
}

// connections looks at what is used up for all programs together.
func (d *doctor) connections(context.Context) error {
	for _, c := range []struct{ name, used, most, fix, text string }{
		{"connections", "max_used_connections", "max_connections", "SetMaxOpenConns of all pools together should stay below max_connections; or SET GLOBAL max_connections", "at most %.0f were used of %.0f"},
		{"prepared statements", "prepared_stmt_count", "max_prepared_stmt_count", "interpolateParams=true in the data source names, or SET GLOBAL max_prepared_stmt_count: without room, statements are not prepared", "%.0f are kept of %.0f"},
	} {
		used, most := d.number(c.used), d.number(c.most)
		state := OK
		if most > 0 && used > most*8/10 {
			state = Warn
		}
		d.add(c.name, state, c.fix, c.text, used, most)
	}
	return nil
}

// growth looks at the size of the tables.
func (d *doctor) growth(ctx context.Context) error {
	type size struct {
		name        string
		rows, bytes int64
	}
	all, err := every(ctx, d.db, `SELECT table_name, COALESCE(table_rows, 0), COALESCE(data_length, 0) FROM information_schema.TABLES
		WHERE table_schema = DATABASE() AND table_name LIKE 'lockstep|_%' ESCAPE '|' AND engine = 'InnoDB' ORDER BY table_name`, nil, func(s *size) []any {
		return []any{&s.name, &s.rows, &s.bytes}
	})
	if err != nil {
		return err
	}
	for _, s := range all {
		state := OK
		if s.rows > 1_000_000 {
			state = Warn
		}
		d.add("size of "+s.name, state, "lockstep purge; a Hashed family for keys without bound", "about %d rows, %.1f MB", s.rows, float64(s.bytes)/1e6)
	}
	return nil
}

// sight looks at what this user could see of others.
func (d *doctor) sight(ctx context.Context) error {
	p, err := d.look(ctx, true, nil)
	if errors.Is(err, fault.ErrSchema) || errors.Is(err, fault.ErrPrivilege) {
		return nil // the tables are missing, as was said before
	}
	if errors.Is(err, schema.ErrEngine) {
		d.add("sight", Warn, "SELECT from information_schema.DATA_LOCK_WAITS and CLUSTER_TIDB_TRX", "for people who look: lockstep can't show holders and waiters on this engine")
		return nil
	}
	if err != nil {
		return err
	}
	if len(p.Gaps) == 0 {
		d.add("sight", OK, "", "this user sees all that holds and waits")
	}
	for _, gap := range p.Gaps {
		d.add("sight", Warn, gap.Fix, "for people who look: %s", gap.What)
	}
	return nil
}

// recorders notes what a look would not see because the server's performance schema doesn't record it.
func (l *look) recorders(ctx context.Context) error {
	if !l.try || !l.performance {
		return nil
	}
	off, err := every(ctx, l.db, `SELECT name FROM performance_schema.setup_instruments WHERE name = '`+tableInstrument+`' AND enabled = 'NO'
		UNION ALL SELECT name FROM performance_schema.setup_consumers WHERE name IN (`+statementConsumers+`) AND enabled = 'NO'`, nil, func(name *string) []any { return []any{name} })
	if denied(err) {
		if !l.maria {
			l.detail("what the server records is not known", l.grant("SELECT ON performance_schema.*"))
		}
		return nil
	}
	for _, name := range off {
		if name == tableInstrument || name == "global_instrumentation" {
			l.detail(unlistedTables, l.listing())
		}
		if name != tableInstrument && !l.maria {
			l.detail(unrecorded, recording)
		}
	}
	return err
}

// clocks compares the server's clock with this machine's, and with those of the nodes.
func (d *doctor) clocks(ctx context.Context, nodes []*sql.DB) error {
	ahead, off, err := clock(ctx, d.db)
	if err != nil {
		return err
	}
	state := OK
	if ahead.Abs() > time.Second+off {
		state = Warn
	}
	d.add("clock", state, "synchronise both by NTP; leases and locks use the server's clock only", "the server is %.3f s ahead of this machine, give or take %.3f s", ahead.Seconds(), off.Seconds())
	for i, node := range nodes {
		name := fmt.Sprintf("clock of node %d", i+1)
		other, uncertain, err := clock(ctx, node)
		if err != nil {
			d.add(name, Error, "see that the node runs, at this host and port, and lets this user in", "it doesn't report that: %v", err)
			continue
		}
		between := other - ahead
		state := OK
		if between.Abs() > 100*time.Millisecond+off+uncertain {
			state = Warn
		}
		d.add(name, state, "synchronise the nodes by NTP: after a fail-over leases end by the other clock", "it is %.3f s ahead of the server, give or take %.3f s", between.Seconds(), (off + uncertain).Seconds())
	}
	return nil
}

// clock returns how far a server is ahead of this machine: the best of three readings.
func clock(ctx context.Context, db gen.DBTX) (ahead, off time.Duration, err error) {
	off = math.MaxInt64
	for range 3 {
		began := time.Now()
		read, err := session.Ask(ctx, db)
		if err != nil {
			return 0, 0, err
		}
		if half := time.Since(began) / 2; half < off {
			ahead, off = time.UnixMicro(read.ClockUs).Sub(began.Add(half)), half
		}
	}
	return ahead, off, nil
}
