package schema

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// The findings of Check; distinguish them with errors.Is.
var (
	// ErrEngine is returned when the server speaks the protocol of MySQL but doesn't behave as MySQL
	// and MariaDB do, or something in between changes its replies. Locks would fail there without an
	// error. txlock.Join, leases, jobs, elections and Install return it, too, before they lock or write
	// anything. On TiDB and Vitess, where Install and Check work, only transactions of a guarded pool
	// have locks, versions and Once, and leases are exclusive; what else they lack returns it.
	ErrEngine = session.ErrEngine
	// ErrServer is returned when the server is older than MariaDB 10.6 or MySQL 8.0, and so has no
	// SKIP LOCKED, or doesn't report its version.
	ErrServer = errors.New("schema: server too old or unknown")
	// ErrTable is returned when a table is missing, is a view or has triggers, or when its
	// kind, engine, columns, keys or constraints differ from the DDL.
	ErrTable = errors.New("schema: wrong table")
	// ErrCenters is returned when lockstep_centers doesn't have exactly the
	// slots 0 to 65,535.
	ErrCenters = errors.New("schema: wrong center rows")
	// ErrSysdateIsNow is returned when the server runs with --sysdate-is-now: then a statement can't
	// know how long it has waited, so tokens may decrease.
	ErrSysdateIsNow = errors.New("schema: server runs with sysdate-is-now")
	// ErrSession is returned when locks don't hold on sessions because of a setting, by the DSN,
	// init_connect or a SET: its text names the setting and the fix. ErrAutocommit and ErrCharset
	// match it. So do the settings completion_type, with which a transaction may be open after
	// COMMIT, timestamp, with which NOW() stands still, and modes and isolation levels that this
	// version of lockstep doesn't know, and for Check sessions with read-only transactions, whose
	// locks return txlock.ErrReadOnly.
	// txlock.Join and leases return it, too, and on a guarded pool the calls that lock: it is also
	// the error of a session whose database has changed since it was opened.
	ErrSession = session.ErrSession
	// ErrAutocommit is returned when sessions have autocommit = 0. The server then begins a new
	// transaction as soon as one has ended, so neither the end nor the release of the locks is
	// noticed, and writes of a lease are never committed.
	ErrAutocommit = session.ErrAutocommit
	// ErrCharset is returned when sessions have a character_set_connection that differs
	// from their character_set_client: the server would convert the names of keys, and
	// other sessions would lock other names for the same keys. txlock.Join and leases
	// return it, too.
	ErrCharset = session.ErrCharset
	// ErrBinlog is returned when sessions write statements instead of rows to the server's binary
	// log. A replica executes the statements of locks at other times, so its tokens and leases
	// differ from the server's, and tokens decrease after a fail-over to it. At READ COMMITTED the
	// server refuses such statements (error 1665).
	// https://dev.mysql.com/doc/refman/8.4/en/replication-rbr-safe-unsafe.html
	ErrBinlog = errors.New("schema: the binary log has statements")
	// ErrMultiPrimary is returned when the server belongs to a cluster that accepts writes on
	// several nodes. It is a warning; see Check.
	ErrMultiPrimary = errors.New("schema: multi-primary cluster")
)

// Check checks the tables and the server of db, and returns all that is wrong, joined into one
// error: ErrServer, ErrTable, ErrPrivilege, ErrCenters, ErrSysdateIsNow, ErrBinlog,
// ErrMultiPrimary, ErrProcedures and ErrProxy, each with the fix. ErrEngine and ErrSession are
// returned alone, because nothing else can be checked then. Call it as the user of the program,
// because it checks the privileges of that user. It finds triggers only as a user with the
// privilege TRIGGER.
//
// Check changes nothing. At the end, unless the pool allows only one connection or a second one goes
// to another server, it inserts a row into lockstep_locks on a second connection, reads it on the
// first and deletes it, to determine when the server takes the snapshot of a transaction: if BEGIN
// does, it returns ErrEngine, and on TiDB if BEGIN doesn't.
//
// Two findings are advice, for which [Advisory] returns true. ErrProcedures: without the
// procedures, a lock on MySQL doesn't share the round trip of BEGIN, and locks after a read
// take more than one. A pool that has found them missing doesn't use them until the
// program restarts. ErrMultiPrimary: exclusive locks work on such a cluster, but they exclude
// only at the commit. Several transactions may run under one lock, and all but one of them fail
// with ErrDeadlock, at the latest when they commit. Calls that can't work there return it
// themselves: RLock, locksqlc.Do, and shared leases.
//
// If nothing is wrong, Check sends about 25 statements and takes about 30 ms, so a readiness probe
// may call it.
func Check(ctx context.Context, db *sql.DB) (err error) {
	if ctx == nil {
		return errors.New("schema: Check needs a context, got nil")
	}
	if db == nil {
		return errors.New("schema: Check needs a *sql.DB, got nil")
	}
	tables, err := expected()
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("schema: connect: %w", session.NotUnderstood(err))
	}
	c := &checking{conn: conn, wanted: tables}
	defer func() { err = errors.Join(err, closed(conn.Close())) }()
	var found []error
	for _, check := range []func(context.Context) (problem, err error){c.session, c.proxy, c.server, c.tables, c.binlog, c.procedures, c.cluster} {
		problem, err := check(ctx)
		if err != nil {
			return err
		}
		found = append(found, problem)
	}
	problem := errors.Join(found...)
	for _, other := range []error{ErrTable, ErrPrivilege, ErrProxy} {
		if errors.Is(problem, other) {
			return problem // what is asked last would find this again
		}
	}
	return errors.Join(append(found, checkTransactions(ctx, db, conn, rawsql.EngineOf(c.version)))...)
}

// Advisory reports whether an error of Check is only advice: locks work, and a program may start.
// It returns false for nil.
func Advisory(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each of the joined errors counts
	case advice:
		return true
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(one error) bool { return !Advisory(one) })
	case interface{ Unwrap() error }:
		return Advisory(e.Unwrap())
	}
	return false
}

// advice marks a finding with which locks hold.
type advice struct{ error }

func (a advice) Unwrap() error { return a.error }

// checking is one call of Check.
type checking struct {
	conn   *sql.Conn
	wanted []table

	version      string
	variables    map[string]string // of the session: some that are asked for at once
	slept, moved int64

	seen *seen
}

// readFacts has no @, for which ProxySQL would leave the session with its client. SYSDATE
// moves on while a statement runs, unless it is an alias of NOW by --sysdate-is-now, which no
// variable shows.
const readFacts = plainRead + ", SLEEP(0.01), TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"

// server finds one that is too old or doesn't say how old it is, and --sysdate-is-now. Before
// its version, MariaDB 10 may say 5.5.5-.
func (c *checking) server(context.Context) (problem, err error) {
	var found []error
	text := c.version
	engine := rawsql.EngineOf(text)
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(text, "5.5.5-"), "%d.%d", &major, &minor); n < 2 {
		return nil, fmt.Errorf("%w: it reports version %q, which lockstep can't parse: set the server's own", ErrServer, text)
	} else if major*100+minor < engine.Least {
		found = append(found, fmt.Errorf("%w: it is %s %s, and lockstep needs at least %s %d.%d, for SKIP LOCKED: upgrade the server", ErrServer, engine.Name, text, engine.Name, engine.Least/100, engine.Least%100))
	}
	if c.moved == 0 {
		found = append(found, fmt.Errorf("%w: the tokens of waiters may decrease: start the server without --sysdate-is-now", ErrSysdateIsNow))
	}
	return errors.Join(found...), nil
}

// tables compares the tables with the DDL, looks for privileges on those that are right or that the
// user doesn't see, and if all is right, counts the center rows.
func (c *checking) tables(ctx context.Context) (problem, err error) {
	if c.seen, err = look(ctx, c.conn, c.wanted); err != nil {
		return nil, err
	}
	var found []error
	var usable []table
	for _, t := range c.wanted {
		problem := c.seen.compare(t)
		found = append(found, problem)
		if problem == nil || c.seen.tables[t.name] == nil {
			usable = append(usable, t)
		}
	}
	problem, err = c.privileges(ctx, usable)
	if err != nil {
		return nil, err
	}
	if problem := errors.Join(append(found, problem)...); problem != nil {
		return problem, nil
	}
	return checkCenters(ctx, c.conn)
}

func checkCenters(ctx context.Context, db Queryer) (problem, err error) {
	var n int
	var last sql.NullInt64
	if err := db.QueryRowContext(ctx, rawsql.Big("SELECT COUNT(*), MAX(slot) FROM lockstep_centers")).Scan(&n, &last); err != nil {
		return nil, fmt.Errorf("schema: count the center rows: %w", err)
	}
	if n != Centers || last.Int64 != Centers-1 {
		return mended(fmt.Sprintf("DELETE FROM lockstep_centers WHERE slot > %d; %s", Centers-1, install), "%w: lockstep_centers has %d rows up to slot %d, and should have %d, one for each slot from 0: DELETE those above %d, and run schema.Install again", ErrCenters, n, last.Int64, Centers, Centers-1), nil
	}
	return nil, nil
}

// session finds a session, or an engine, on which no lock would hold: what else that answers
// says nothing.
func (c *checking) session(ctx context.Context) (problem, err error) {
	facts, err := askSession(ctx, c.conn)
	c.version = facts.Version
	if err := cmp.Or(err, facts.Unfit); err != nil {
		return nil, err
	}
	names := []string{"binlog_format", "log_bin", "transaction_read_only", "tx_read_only"}
	c.variables = make(map[string]string)
	err = c.readVariables(ctx, names...)
	cut := c.variables["transaction_read_only"]+c.variables["tx_read_only"] == "" // by sql_select_limit, which counts for SHOW
	for i := 0; err == nil && cut && i < len(names); i++ {
		err = c.readVariables(ctx, names[i])
	}
	if err != nil {
		return nil, fmt.Errorf("schema: read the session: %w", err)
	}
	for _, name := range []string{"transaction_read_only", "tx_read_only"} {
		if c.variables[name] == "ON" {
			return nil, fmt.Errorf("%w: it has %s = ON, and a lock is a write: remove that from the data source name and from init_connect, and don't SET it", ErrSession, name)
		}
	}
	return nil, nil
}

// readVariables reads variables that not every server has.
func (c *checking) readVariables(ctx context.Context, names ...string) (err error) {
	rows, err := c.conn.QueryContext(ctx, "SHOW VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "', '")+"')")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		c.variables[name] = value
	}
	return rows.Err()
}

// binlog finds a binary log of statements. A server that doesn't know its variables has none.
func (c *checking) binlog(context.Context) (problem, err error) {
	if c.variables["log_bin"] != "ON" || c.variables["binlog_format"] != "STATEMENT" {
		return nil, nil
	}
	const fix = "SET GLOBAL binlog_format = 'ROW'"
	return mended(fix, "%w: replicas get other tokens than this server: %s, and reconnect", ErrBinlog, fix), nil
}

func (c *checking) cluster(ctx context.Context) (problem, err error) {
	if problem, err = checkCluster(ctx, c.conn); problem != nil {
		problem = advice{problem}
	}
	return problem, err
}

// A Queryer is a *sql.DB, *sql.Conn or *sql.Tx.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// CheckCluster returns ErrMultiPrimary if the server is a node of a multi-primary cluster, as
// Check does, and the errors of the driver. In a transaction it takes no snapshot.
func CheckCluster(ctx context.Context, db Queryer) error {
	if ctx == nil {
		return errors.New("schema: CheckCluster needs a context, got nil")
	}
	if pool, ok := db.(*sql.DB); db == nil || ok && pool == nil {
		return errors.New("schema: CheckCluster needs a *sql.DB, *sql.Conn or *sql.Tx, got nil")
	}
	problem, err := checkCluster(ctx, db)
	return errors.Join(problem, err)
}

// ClusterQuery finds Galera (wsrep_on) and a multi-primary Group Replication. A single primary
// returns no row.
const ClusterQuery = `SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'
	OR Variable_name = 'group_replication_single_primary_mode' AND Value = 'OFF'`

func checkCluster(ctx context.Context, db Queryer) (problem, err error) {
	var name, value string
	err = db.QueryRowContext(ctx, ClusterQuery).Scan(&name, &value)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("schema: detect a cluster: %w", err)
	}
	return fmt.Errorf("%w: %s is %s: exclusive locks exclude at COMMIT and not before, shared locks don't exclude writers on other nodes: send all locking transactions to one node, or be ready to retry ErrDeadlock from every statement and from Commit", ErrMultiPrimary, name, value), nil
}
