package schema

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// table is what one CREATE TABLE statement of the DDL says.
type table struct {
	name    string
	columns []column
	primary string
}

// column is a column as the DDL has it, for example "BIGINT NOT NULL DEFAULT 0", and as the
// server describes it, "bigint not null".
type column struct {
	name, ddl, kind string
	byDefault       bool // it has a default
}

var (
	createTable = regexp.MustCompile(`^CREATE TABLE IF NOT EXISTS (\w+)`)
	createCol   = regexp.MustCompile(`(?m)^  ([a-z]\w*) +(.*),$`)
	createKey   = regexp.MustCompile(`PRIMARY KEY \(([^)]+)\)`)
	collation   = regexp.MustCompile(`^(.*) character set \w+ collate (\w+) not null$`)
	intWidth    = regexp.MustCompile(`int\(\d+\)`)
	blanks      = regexp.MustCompile(` +`)
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
			ddl := blanks.ReplaceAllString(c[2], " ")
			kind, _, byDefault := strings.Cut(strings.ToLower(ddl), " default ")
			kind = collation.ReplaceAllString(kind, "$1 not null collate $2")
			t.columns = append(t.columns, column{c[1], ddl, kind, byDefault})
		}
		all = append(all, t)
	}
	return all, nil
}

// seen is what the server says about itself, lockstep's tables and its procedures, by name.
type seen struct {
	engine     rawsql.Engine
	user       string // quoted for GRANT
	database   string
	tables     map[string]*seenTable
	procedures map[string]sql.NullString // the bodies, NULL if the user may not see them
}

type seenTable struct {
	kind, engine string
	columns      map[string]seenColumn
	keys         map[string][]string // columns of each unique key, with the length of a prefix
	triggers     []string
	constraints  []string // beside the keys, as "CHECK name"
	constrained  bool     // the server lists the table's constraints to this user
}

type seenColumn struct {
	kind, privileges string
	byDefault        bool // INSERT may leave it out
}

// lookAt has one SELECT for each part of a table, with ? for the name. A condition on the
// name makes the server open this table only, however many the database has. CAST, since
// UNION doesn't take the different collations of information_schema. No literal is ”, which
// MariaDB may take for NULL.
var lookAt = []string{
	"SELECT 'table', CAST(table_name AS CHAR), CAST(table_type AS CHAR), CAST(COALESCE(engine, 'none') AS CHAR), ' ' FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?",
	"SELECT 'column', CAST(table_name AS CHAR), CAST(column_name AS CHAR), CAST(CONCAT(column_type, IF(is_nullable = 'NO', ' not null', ' '), IF(collation_name IS NULL, ' ', CONCAT(' collate ', collation_name)), ' ', extra) AS CHAR)," +
		" CAST(CONCAT(privileges, IF(is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%GENERATED%', ',no default', ' ')) AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?",
	"SELECT 'key', CAST(table_name AS CHAR), CAST(index_name AS CHAR), CAST(CONCAT(column_name, IF(sub_part IS NULL, ' ', CONCAT('(', sub_part, ')'))) AS CHAR), CAST(seq_in_index AS CHAR) FROM information_schema.statistics WHERE non_unique = 0 AND table_schema = DATABASE() AND table_name = ?",
	"SELECT 'constraint', CAST(table_name AS CHAR), CAST(constraint_name AS CHAR), CAST(constraint_type AS CHAR), ' ' FROM information_schema.table_constraints WHERE table_schema = DATABASE() AND table_name = ?",
	"SELECT 'trigger', CAST(event_object_table AS CHAR), CAST(trigger_name AS CHAR), ' ', ' ' FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table = ?",
}

// lookBeside has what belongs to no table. The limit counts instead of the session's
// sql_select_limit.
const lookBeside = "SELECT 'procedure', ' ', CAST(routine_name AS CHAR), CAST(routine_definition AS CHAR), ' ' FROM information_schema.routines WHERE routine_schema = DATABASE() AND routine_name LIKE 'lockstep%'" +
	" UNION ALL SELECT 'server', ' ', CAST(@@version AS CHAR), CAST(CURRENT_USER() AS CHAR), CAST(COALESCE(DATABASE(), ' ') AS CHAR) LIMIT 100000"

// querier is a *sql.DB or a *sql.Conn.
type querier interface {
	Queryer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// look reads all of that by one statement.
func look(ctx context.Context, db querier, tables []table) (_ *seen, err error) {
	var parts []string
	for _, t := range tables {
		for _, part := range lookAt {
			parts = append(parts, strings.Replace(part, "?", "'"+t.name+"'", 1))
		}
	}
	rows, err := db.QueryContext(ctx, rawsql.Big(strings.Join(append(parts, lookBeside), " UNION ALL ")))
	if err != nil {
		return nil, fmt.Errorf("schema: inspect tables: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	s := &seen{tables: make(map[string]*seenTable), procedures: make(map[string]sql.NullString)}
	var read [][5]sql.NullString
	for rows.Next() {
		var r [5]sql.NullString
		if err := rows.Scan(&r[0], &r[1], &r[2], &r[3], &r[4]); err != nil {
			return nil, fmt.Errorf("schema: inspect tables: %w", err)
		}
		read = append(read, r)
	}
	slices.SortStableFunc(read, func(a, b [5]sql.NullString) int { return cmp.Compare(a[4].String, b[4].String) }) // the columns of a key
	for _, r := range read {
		s.add(r[0].String, strings.ToLower(r[1].String), r[2].String, r[3], r[4].String)
	}
	maps.DeleteFunc(s.tables, func(_ string, t *seenTable) bool { return t.kind == "" }) // one that was made meanwhile
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for name, t := range s.tables {
		// MariaDB 10.11.18 lists constraints, that of the primary key too, only to users with
		// privileges on the whole database.
		if !t.constrained && len(t.columns) > 0 && strings.EqualFold(t.kind, "BASE TABLE") {
			var ddl string
			if err := db.QueryRowContext(ctx, "SHOW CREATE TABLE "+name).Scan(new(string), &ddl); err != nil {
				return nil, fmt.Errorf("schema: inspect the constraints of %s: %w", name, err)
			}
			t.constraints = constraintsOf(ddl)
		}
	}
	return s, nil
}

// ddlToken is a text, a name, or what begins a constraint.
var ddlToken = regexp.MustCompile("'(?:[^'\\\\]|\\\\.)*'|`((?:[^`]|``)+)`|\\b(CHECK|FOREIGN KEY)\\b")

// constraintsOf returns the constraints that SHOW CREATE TABLE shows. One in the definition of a
// column has the name of the column.
func constraintsOf(ddl string) (found []string) {
	name := ""
	for _, token := range ddlToken.FindAllStringSubmatch(ddl, -1) {
		switch {
		case token[2] != "":
			found = append(found, token[2]+" "+name)
		case token[1] != "":
			name = token[1]
		}
	}
	return found
}

// add takes one row of look.
func (s *seen) add(what, table, name string, detail sql.NullString, more string) {
	t := s.tables[table]
	if t == nil {
		t = &seenTable{columns: make(map[string]seenColumn), keys: make(map[string][]string)}
	}
	switch what {
	case "server":
		s.engine, s.user, s.database = rawsql.EngineOf(name), quoted(detail.String), more
		return
	case "procedure":
		s.procedures[name] = detail
		return
	case "table":
		t.kind, t.engine = name, detail.String
	case "column":
		kind := strings.Join(strings.Fields(intWidth.ReplaceAllString(strings.ToLower(detail.String), "int")), " ")
		t.columns[strings.ToLower(name)] = seenColumn{kind, more, !strings.Contains(more, ",no default")}
	case "key":
		t.keys[name] = append(t.keys[name], strings.ToLower(strings.TrimSpace(detail.String)))
	case "constraint":
		t.constrained = true
		if detail.String != "PRIMARY KEY" && detail.String != "UNIQUE" {
			t.constraints = append(t.constraints, detail.String+" "+name)
		}
	case "trigger":
		t.triggers = append(t.triggers, name)
	}
	s.tables[table] = t
}

// finding is a problem with what mends it.
type finding struct {
	error
	fix string
}

func (f finding) Unwrap() error { return f.error }

// install is the command that makes what is missing.
const install = "lockstep install"

func mended(fix, format string, args ...any) error {
	return finding{fmt.Errorf(format, args...), fix}
}

// Fix returns the fixes for an error of Check, Install or InstallViews, as statements and commands
// separated by semicolons, or the empty string if there is none. They are in the order of the findings,
// each once, and lockstep install follows them, because it refuses tables that are wrong. Behind it are
// the GRANTs on tables that may be missing, because servers refuse those. What a person must decide
// first stands behind a colon after a statement.
func Fix(err error) string {
	var before, after []string // lockstep install
	installs := false
	for _, f := range findings(err) {
		to := &before
		for fix := range strings.SplitSeq(f.fix, "; ") {
			switch {
			case fix == install:
				installs, to = true, &after
			case !slices.Contains(*to, fix):
				*to = append(*to, fix)
			}
		}
	}
	if installs {
		before = append(before, install)
	}
	return strings.Join(append(before, after...), "; ")
}

// findings returns the findings that an error wraps or joins, in their order.
func findings(err error) (all []finding) {
	switch e := err.(type) { //nolint:errorlint // each of the joined errors counts
	case finding:
		return []finding{e}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, findings(one)...)
		}
	case interface{ Unwrap() error }:
		return findings(e.Unwrap())
	}
	return all
}

// grant writes the GRANT of privileges on a table to the user of the session.
func (s *seen) grant(privileges []string, table string) string {
	return fmt.Sprintf("GRANT %s ON `%s`.%s TO %s", strings.Join(privileges, ", "), s.database, table, s.user)
}

// compare says what is wrong with a table, or nil.
func (s *seen) compare(t table) error {
	found := s.tables[t.name]
	switch {
	case found == nil:
		return mended(install, "%w: %s is missing in this database, or this user may not see it: run schema.Install or the DDL in schema.FS, and grant %s on it", ErrTable, t.name, strings.Join(needs(t.name), ", "))
	case strings.EqualFold(found.kind, "VIEW"):
		return mended("DROP VIEW "+t.name+"; "+install, "%w: %s is a view, and a lock through a view isn't always the lock of its table: DROP VIEW %s, then run schema.Install; or use a DSN with the database that has the table", ErrTable, t.name, t.name)
	case strings.EqualFold(found.kind, "SYSTEM VERSIONED"):
		return mended("ALTER TABLE "+t.name+" DROP SYSTEM VERSIONING", "%w: %s is of the kind %s, and should be an ordinary table: ALTER TABLE %s DROP SYSTEM VERSIONING", ErrTable, t.name, found.kind, t.name)
	case !strings.EqualFold(found.kind, "BASE TABLE"):
		return mended("make it an ordinary table, or drop it; "+install, "%w: %s is of the kind %s, and should be an ordinary table: make it one again, or drop it and run schema.Install", ErrTable, t.name, found.kind)
	case !strings.EqualFold(found.engine, "InnoDB"):
		return mended("ALTER TABLE "+t.name+" ENGINE = InnoDB", "%w: %s has the engine %s, which has no row locks: ALTER TABLE %s ENGINE = InnoDB", ErrTable, t.name, found.engine, t.name)
	case len(found.columns) == 0:
		grant := s.grant(needs(t.name), t.name)
		return mended(grant, "%w on %s, whose columns this user may not see: %s", ErrPrivilege, t.name, grant)
	}
	if err := t.compareColumns(found.columns); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(found.keys)) {
		if key != "PRIMARY" {
			return mended("ALTER TABLE "+t.name+" DROP INDEX "+key, "%w: %s has another unique key, %s (%s), by which rows of different keys collide: ALTER TABLE %s DROP INDEX %s", ErrTable, t.name, key, strings.Join(found.keys[key], ","), t.name, key)
		}
	}
	if primary := strings.Join(found.keys["PRIMARY"], ","); primary != t.primary {
		fix := fmt.Sprintf("ALTER TABLE %s %sADD PRIMARY KEY (%s)", t.name, map[bool]string{true: "DROP PRIMARY KEY, "}[primary != ""], t.primary)
		return mended(fix, "%w: the primary key of %s is (%s) and should be (%s): without it a lock would lock its neighbours: %s", ErrTable, t.name, primary, t.primary, fix)
	}
	if found.constraints != nil {
		slices.Sort(found.constraints)
		var drops []string
		for _, constraint := range slices.Compact(found.constraints) {
			name := constraint[strings.LastIndexByte(constraint, ' ')+1:]
			drop := "DROP CONSTRAINT " + name
			for _, c := range t.columns {
				if s.engine == rawsql.MariaDB && c.name == name { // it may be in the definition of the column
					drop = fmt.Sprintf("DROP CONSTRAINT IF EXISTS %s, MODIFY %s %s", name, name, c.ddl)
				}
			}
			drops = append(drops, drop)
		}
		return mended("ALTER TABLE "+t.name+" "+strings.Join(drops, ", "), "%w: %s has constraints that aren't lockstep's, by which its statements fail or lock other rows: %s: drop them", ErrTable, t.name, strings.Join(found.constraints, ", "))
	}
	if found.triggers != nil {
		slices.Sort(found.triggers)
		return mended("DROP TRIGGER "+strings.Join(found.triggers, "; DROP TRIGGER ")+": a person decides what collects instead what it collected, an observer for example", "%w: %s has the trigger %s, and a trigger makes the server forget the token that a lock or lease is answered with: DROP TRIGGER, and collect what happened by an observer", ErrTable, t.name, strings.Join(found.triggers, ", "))
	}
	return nil
}

// compareColumns says what is wrong with a column, or nil.
func (t table) compareColumns(found map[string]seenColumn) error {
	others := maps.Clone(found)
	for _, c := range t.columns {
		got, exists := found[c.name]
		delete(others, c.name)
		switch {
		case !exists:
			fix := fmt.Sprintf("ALTER TABLE %s ADD %s %s", t.name, c.name, c.ddl)
			return mended(fix, "%w: column %s.%s is missing, or this user may not see it: %s", ErrTable, t.name, c.name, fix)
		case got.kind != c.kind:
			fix := fmt.Sprintf("ALTER TABLE %s MODIFY %s %s", t.name, c.name, c.ddl)
			return mended(fix, "%w: column %s.%s is %s and should be %s: %s", ErrTable, t.name, c.name, got.kind, c.kind, fix)
		case c.byDefault && !got.byDefault:
			fix := fmt.Sprintf("ALTER TABLE %s MODIFY %s %s", t.name, c.name, c.ddl)
			return mended(fix, "%w: column %s.%s has no default: %s", ErrTable, t.name, c.name, fix)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if !others[name].byDefault {
			fix := fmt.Sprintf("ALTER TABLE %s DROP COLUMN %s", t.name, name)
			return mended(fix+": a person decides whether to drop it or to give it a default", "%w: column %s.%s is not lockstep's, and has no default, so that no row can be inserted: give it one, or %s", ErrTable, t.name, name, fix)
		}
	}
	return nil
}
