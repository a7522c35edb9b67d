package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/dca00107/lockstep/internal/session"
)

// The findings of Check; tell them apart by errors.Is.
var (
	// ErrServer is returned when the server is older than MariaDB 10.6 or MySQL 8.0, and
	// so doesn't know SKIP LOCKED.
	ErrServer = errors.New("schema: server too old")
	// ErrTable is returned when a table is missing, is a view or has triggers, or when its
	// engine, columns or primary key differ from the DDL.
	ErrTable = errors.New("schema: wrong table")
	// ErrCenters is returned when lockstep_centers doesn't have exactly 65,536 rows.
	ErrCenters = errors.New("schema: wrong center rows")
	// ErrSysdateIsNow is returned when the server runs with --sysdate-is-now, under which
	// a statement can't tell how long it has waited, so that tokens may go back.
	ErrSysdateIsNow = errors.New("schema: server runs with sysdate-is-now")
	// ErrSession is returned when locks don't hold on sessions because of a setting, by the
	// DSN, init_connect or a SET: its text names the setting and the cure. ErrAutocommit and
	// ErrCharset match it. So do the settings completion_type, with which a transaction may be
	// open behind COMMIT, and modes and isolation levels that this version of lockstep doesn't
	// know. txlock.Join and leases return it, too, and on a guarded pool the calls that lock: it
	// is also the error of a session that has chosen another database than it was opened with.
	ErrSession = session.ErrSession
	// ErrAutocommit is returned when sessions have autocommit = 0. The server then begins a
	// new transaction as soon as one has ended, so that nobody sees the end, nor that the
	// locks are free, and what a lease writes is never committed.
	ErrAutocommit = session.ErrAutocommit
	// ErrCharset is returned when sessions have a character_set_connection that differs
	// from their character_set_client: the server would convert the names of keys, and
	// other sessions would lock other names for the same keys. It is also returned for a
	// character_set_results in which the server's replies can't be read, utf16 for example.
	ErrCharset = session.ErrCharset
	// ErrMultiPrimary is returned when the server belongs to a cluster that takes writes
	// on several nodes. It is a warning; see Check.
	ErrMultiPrimary = errors.New("schema: multi-primary cluster")
)

// Check looks at the tables and the server of db, and returns all that is wrong, joined
// into one error: ErrServer, ErrTable, ErrPrivilege, ErrCenters, ErrSysdateIsNow,
// ErrSession, ErrBinlog, ErrMultiPrimary, ErrProcedures and ErrProxy, each with
// a sentence on the remedy. It changes nothing. Call it as the user who will take locks: it tries the
// privileges of that user by EXPLAIN. Triggers are found as a user with the privilege TRIGGER.
//
// ErrProcedures is not a fault: without the procedures, a lock on MySQL doesn't share the
// round trip of BEGIN, and locks after a read take more than one. A pool that has found out
// that they are missing does without until the program is started again.
//
// ErrMultiPrimary is not a fault: exclusive locks work on such a cluster, but they
// exclude only at the commit. Several transactions may run under one lock, and all but
// one of them fail with ErrDeadlock, at the latest when they commit. A program that
// expects this may ignore ErrMultiPrimary. Calls that can't work there return it
// themselves: RLock, locksqlc.Do, and shared leases.
func Check(ctx context.Context, db *sql.DB) error {
	if db == nil {
		return errors.New("schema: Check needs a *sql.DB, got nil")
	}
	unfit, err := checkSession(ctx, db)
	if err != nil {
		return err
	}
	found := []error{unfit}
	for _, check := range []func(context.Context, *sql.DB) (problem, err error){
		checkVersion,
		checkTables,
		checkClock,
		checkBinlog,
		checkProcedures,
		func(ctx context.Context, db *sql.DB) (error, error) { return checkCluster(ctx, db) },
		checkProxy,
	} {
		problem, err := check(ctx, db)
		switch {
		case err != nil && unfit != nil:
			return errors.Join(found...) // such a session can't be asked for more
		case err != nil:
			return err
		}
		found = append(found, problem)
	}
	return errors.Join(found...)
}

// checkVersion finds a server that is known to be too old. If the version can't be read,
// the other checks decide. Before its version, MariaDB 10 may say 5.5.5-.
func checkVersion(ctx context.Context, db *sql.DB) (problem, err error) {
	text, err := versionOf(ctx, db)
	if err != nil {
		return nil, err
	}
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(text, "5.5.5-"), "%d.%d", &major, &minor); n < 2 {
		return nil, nil
	}
	product, least := "MySQL", 8_00
	if strings.Contains(text, "MariaDB") {
		product, least = "MariaDB", 10_06
	}
	if major*100+minor < least {
		return fmt.Errorf("%w: it is %s %s, and lockstep needs %s %d.%d at least, for SKIP LOCKED: upgrade the server", ErrServer, product, text, product, least/100, least%100), nil
	}
	return nil, nil
}

// versionOf asks the server for its version.
func versionOf(ctx context.Context, db *sql.DB) (version string, err error) {
	if err = db.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&version); err != nil {
		return "", fmt.Errorf("schema: look at the server's version: %w", err)
	}
	return version, nil
}

// table is what one CREATE TABLE statement of the DDL says.
type table struct {
	name    string
	columns []column
	primary string
}

type column struct{ name, kind string }

var (
	createTable = regexp.MustCompile(`^CREATE TABLE IF NOT EXISTS (\w+)`)
	createCol   = regexp.MustCompile(`(?m)^  (\w+) +(BIGINT UNSIGNED|BIGINT|INT UNSIGNED|LONGBLOB|(?:VAR)?BINARY\(\d+\)|VARCHAR\(\d+\))`)
	createKey   = regexp.MustCompile(`PRIMARY KEY \(([^)]+)\)`)
	intWidth    = regexp.MustCompile(`int\(\d+\)`)
)

// expected reads the tables from the DDL, so that they are written once.
func expected() ([]table, error) {
	statements, err := Statements()
	if err != nil {
		return nil, err
	}
	var all []table
	for _, s := range statements {
		name := createTable.FindStringSubmatch(s)
		if name == nil {
			continue
		}
		t := table{name: name[1], primary: strings.ReplaceAll(createKey.FindStringSubmatch(s)[1], " ", "")}
		for _, c := range createCol.FindAllStringSubmatch(s, -1) {
			t.columns = append(t.columns, column{name: c[1], kind: strings.ToLower(c[2])})
		}
		all = append(all, t)
	}
	return all, nil
}

// checkTables compares the tables with the DDL, and if all are right, counts the center
// rows.
func checkTables(ctx context.Context, db *sql.DB) (problem, err error) {
	tables, err := expected()
	if err != nil {
		return nil, err
	}
	var found []error
	for _, t := range tables {
		problem, err := checkTable(ctx, db, t)
		if err != nil {
			return nil, err
		}
		if problem == nil {
			problem, err = checkPrivileges(ctx, db, t)
			if err != nil {
				return nil, err
			}
		}
		found = append(found, problem)
	}
	if problem := errors.Join(found...); problem != nil {
		return problem, nil
	}
	return checkCenters(ctx, db)
}

// checkTable compares one table with the DDL.
func checkTable(ctx context.Context, db *sql.DB, t table) (problem, err error) {
	var kind string
	var engine sql.NullString
	err = db.QueryRowContext(ctx, `SELECT table_type, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?`, t.name).Scan(&kind, &engine)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: %s is missing in this database, or this user may not see it: run schema.Install or the DDL in schema.FS, and grant %s on it", ErrTable, t.name, strings.Join(needs(t.name), ", ")), nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema: look at %s: %w", t.name, err)
	}
	if strings.EqualFold(kind, "VIEW") {
		return fmt.Errorf("%w: %s is a view, and a lock through a view is not the lock of its table for everybody: DROP VIEW %s, then run schema.Install; or use a DSN with the database that has the table", ErrTable, t.name, t.name), nil
	}
	if !strings.EqualFold(engine.String, "InnoDB") {
		return fmt.Errorf("%w: %s has the engine %s, which has no row locks: ALTER TABLE %s ENGINE = InnoDB", ErrTable, t.name, engine.String, t.name), nil
	}
	kinds, err := columnsOf(ctx, db, t.name)
	if err != nil {
		return nil, err
	}
	for _, c := range t.columns {
		if got := kinds[c.name]; got != c.kind+" not null" {
			if got == "" {
				got = "missing"
			}
			return fmt.Errorf("%w: column %s.%s is %s and should be %s not null: create the table anew by the DDL in schema.FS, or alter the column", ErrTable, t.name, c.name, got, c.kind), nil
		}
	}
	var primary sql.NullString
	err = db.QueryRowContext(ctx, `SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics
		WHERE table_schema = DATABASE() AND table_name = ? AND index_name = 'PRIMARY'`, t.name).Scan(&primary)
	if err != nil {
		return nil, fmt.Errorf("schema: look at the primary key of %s: %w", t.name, err)
	}
	if primary.String != t.primary {
		return fmt.Errorf("%w: the primary key of %s is (%s) and should be (%s): without it a lock would lock its neighbours", ErrTable, t.name, primary.String, t.primary), nil
	}
	return checkTriggers(ctx, db, t.name)
}

// checkTriggers finds triggers, of which a user without the privilege TRIGGER sees none.
func checkTriggers(ctx context.Context, db *sql.DB, table string) (problem, err error) {
	var names sql.NullString
	err = db.QueryRowContext(ctx, `SELECT GROUP_CONCAT(trigger_name ORDER BY trigger_name SEPARATOR ', ') FROM information_schema.triggers
		WHERE event_object_schema = DATABASE() AND event_object_table = ?`, table).Scan(&names)
	if err != nil {
		return nil, fmt.Errorf("schema: look at the triggers of %s: %w", table, err)
	}
	if names.String != "" {
		problem = fmt.Errorf("%w: %s has the trigger %s, and a trigger makes the server forget the token that a lock or lease is answered with: DROP TRIGGER, and collect what happened by an observer", ErrTable, table, names.String)
	}
	return problem, nil
}

// columnsOf returns the type of each column, for example "bigint unsigned not null",
// without the display widths that only some servers return. The limit counts in place of the
// session's sql_select_limit.
func columnsOf(ctx context.Context, db *sql.DB, name string) (_ map[string]string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT column_name, column_type, is_nullable FROM information_schema.columns
		WHERE table_schema = DATABASE() AND table_name = ? LIMIT 1000`, name)
	if err != nil {
		return nil, fmt.Errorf("schema: look at the columns of %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	kinds := make(map[string]string)
	for rows.Next() {
		var column, kind, nullable string
		if err := rows.Scan(&column, &kind, &nullable); err != nil {
			return nil, fmt.Errorf("schema: look at the columns of %s: %w", name, err)
		}
		kind = intWidth.ReplaceAllString(strings.ToLower(kind), "int")
		if nullable == "NO" {
			kind += " not null"
		}
		kinds[column] = kind
	}
	return kinds, rows.Err()
}

func checkCenters(ctx context.Context, db *sql.DB) (problem, err error) {
	var n int
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*) FROM lockstep_centers`).Scan(&n); err != nil {
		return nil, fmt.Errorf("schema: count the center rows: %w", err)
	}
	if n != Centers {
		return fmt.Errorf("%w: lockstep_centers has %d rows and should have %d: run schema.Install again", ErrCenters, n, Centers), nil
	}
	return nil, nil
}

// checkClock finds --sysdate-is-now, which no system variable shows: SYSDATE moves on
// while a statement runs, unless it is an alias of NOW.
func checkClock(ctx context.Context, db *sql.DB) (problem, err error) {
	var slept, moved int64
	err = db.QueryRowContext(ctx, `SELECT SLEEP(0.01), TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))`).Scan(&slept, &moved)
	if err != nil {
		return nil, fmt.Errorf("schema: look at the server's clock: %w", err)
	}
	if moved == 0 {
		return fmt.Errorf("%w: the tokens of waiters may go back: start the server without --sysdate-is-now", ErrSysdateIsNow), nil
	}
	return nil, nil
}

// checkSession finds sessions on which no lock would hold.
func checkSession(ctx context.Context, db *sql.DB) (problem, err error) {
	facts, err := session.Ask(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("schema: look at the session: %w", err)
	}
	return facts.Unfit, nil
}

// Queryer is a *sql.DB, *sql.Conn or *sql.Tx.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// CheckCluster is the part of Check that looks for a multi-primary cluster. It returns
// ErrMultiPrimary for a node of one, and the errors of the driver. In a transaction it
// takes no snapshot.
func CheckCluster(ctx context.Context, db Queryer) error {
	if pool, ok := db.(*sql.DB); db == nil || ok && pool == nil {
		return errors.New("schema: CheckCluster needs a *sql.DB, *sql.Conn or *sql.Tx, got nil")
	}
	problem, err := checkCluster(ctx, db)
	return errors.Join(problem, err)
}

// ClusterQuery finds Galera (wsrep_on) and a Group Replication with several primaries. A
// single primary returns no row.
const ClusterQuery = `SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'
	OR Variable_name = 'group_replication_single_primary_mode' AND Value = 'OFF'`

func checkCluster(ctx context.Context, db Queryer) (problem, err error) {
	var name, value string
	err = db.QueryRowContext(ctx, ClusterQuery).Scan(&name, &value)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("schema: look for a cluster: %w", err)
	}
	return fmt.Errorf("%w: %s is %s: exclusive locks exclude at COMMIT and not before, shared locks don't exclude writers on other nodes: send all locking transactions to one node, or be ready to retry ErrDeadlock from every statement and from Commit", ErrMultiPrimary, name, value), nil
}
