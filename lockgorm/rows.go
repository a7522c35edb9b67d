package lockgorm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/retry"
	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// atMostRows is the default of AtMostRows.
const atMostRows = 1000

// AtMostRows limits how many rows an update or delete may select by its conditions, each of which
// is read and locked. The default is 1,000; db.Use returns txlock.ErrInvalidOption for less than one.
// One that selects more fails with txlock.ErrInvalidKey.
func AtMostRows(n int) Option { return func(p *Plugin) { p.most = n } }

// lockRows locks the records that the conditions of an update or delete select, and returns them
// as they are under the locks, and how they were selected: no other transaction changes the rows
// until the end.
//
// Their keys are read first, without a lock and outside of the transaction's snapshot, then
// locked, and the rows are read again, with theirs. If more have come, a transaction of the
// statement's own takes their keys if these are free, and else begins again, so that no row is
// locked while a key is waited for; the program's locks them late.
func (p *Plugin) lockRows(db *gorm.DB) (rows []reflect.Value, find *selection, err error) {
	if len(db.Statement.Schema.PrimaryFields) == 0 {
		return nil, nil, unidentified(db.Statement, "its model has no primary key")
	}
	own := stateOf(db.Statement).own != nil
	if find, err = p.selectionOf(db, own); err != nil {
		return nil, nil, err
	}
	rows, err = p.beside(db, find, own)
	pause, came := retry.Pauses(time.Millisecond), 0 // how often more have come
	for tries := 0; err == nil; tries++ {
		if err = enterOwn(db); err == nil {
			rows, err = p.lockAndRead(db, find, rows, own && came < 5)
		}
		switch late := errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrStaleSnapshot); {
		case err == nil:
			return rows, find, find.finds(db, rows)
		case own && tries < 20 && (late || txlock.Retryable(err)):
			if late {
				came++
			}
			if came >= 5 {
				rows = nil // they keep coming: from now on rows are locked before keys, and no more can come
			}
			leaveOwn(db)
			err = pause(db.Statement.Context)
		}
	}
	return nil, nil, err
}

// lockAndRead locks the keys of rows that were read, reads all again, and locks the keys of those
// that have come since; or only tries to, so that it waits for none under the locks of rows. It
// returns what it has read last.
func (p *Plugin) lockAndRead(db *gorm.DB, find *selection, read []reflect.Value, try bool) (rows []reflect.Value, err error) {
	wanted, err := p.keysOfRows(db, read)
	if err == nil && len(wanted) > 0 {
		err = lockWrite(db, wanted)
	}
	if err != nil {
		return read, err
	}
	if rows, err = find.on(db, senderOf(db.Statement), "SELECT ", " FOR UPDATE"); err != nil {
		return read, err
	}
	late, err := p.keysOfRows(db, rows)
	if err != nil {
		return rows, err
	}
	late = slices.DeleteFunc(late, func(key txlock.Key) bool { return slices.Contains(wanted, key) })
	if !try && len(late) > 0 {
		return rows, lockWrite(db, late)
	}
	if len(late) == 0 {
		return rows, nil
	}
	scope, err := scopeFor(db, late...)
	for _, key := range late {
		if err == nil {
			_, err = scope.TryLock(db.Statement.Context, key)
		}
	}
	return rows, err
}

func (p *Plugin) keysOfRows(db *gorm.DB, rows []reflect.Value) ([]txlock.Key, error) {
	keys, err := p.keysOfAll(db, rows, false)
	if err != nil {
		err = fmt.Errorf("the keys of the rows of %s that this statement selects: %w", db.Statement.Table, err)
	}
	return keys, err
}

// besideWait limits how long a connection beside a transaction is waited for.
const besideWait = 200 * time.Millisecond

// beside reads the rows outside of a transaction: on its pool, if the statement's own has not
// begun; else on another connection. If that can't be it reads in the transaction, which may fix
// its snapshot: then a lock that somebody has held since is refused with ErrStaleSnapshot.
func (p *Plugin) beside(db *gorm.DB, s *selection, own bool) ([]reflect.Value, error) {
	if pool, err := db.DB(); err == nil && !own && pool.Stats().MaxOpenConnections != 1 {
		if rows, err := p.onOther(db, s, pool); err == nil {
			return rows, nil
		}
	}
	return s.on(db, senderOf(db.Statement), "SELECT ", "")
}

// briefly are beginnings of a SELECT that doesn't wait for who changes the table, and may wait
// for the transaction itself: of MariaDB and of MySQL.
var briefly = []string{"SET STATEMENT lock_wait_timeout = 1 FOR SELECT ", "SELECT /*+ SET_VAR(lock_wait_timeout = 1) */ "}

// onOther reads the rows on another connection of a pool, if one is free soon.
func (p *Plugin) onOther(db *gorm.DB, s *selection, pool *sql.DB) (rows []reflect.Value, err error) {
	ctx, cancel := context.WithTimeout(db.Statement.Context, besideWait)
	defer cancel()
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if !p.isMySQL.Load() {
		rows, err = s.on(db, conn, briefly[0], "")
		if !isServers(err, 1064) { // ER_PARSE_ERROR
			return rows, err
		}
	}
	rows, err = s.on(db, conn, briefly[1], "")
	p.isMySQL.Store(err == nil)
	return rows, err
}

// hint lets an UPDATE find its rows by the primary key: MariaDB may read, and lock, all rows of a
// small table. A view, or a table without that key, can't be read so.
func (p *Plugin) hint(db *gorm.DB, rows []reflect.Value) error {
	stmt := db.Statement
	update := stmt.Clauses["UPDATE"]
	if len(rows) == 0 || update.AfterExpression != nil || isDelete(stmt) {
		return nil
	}
	table := tableText(stmt)
	has, known := p.primary.Load(table)
	if !known {
		_, err := senderOf(stmt).ExecContext(stmt.Context, "SELECT 1 FROM "+table+" FORCE INDEX (PRIMARY) LIMIT 0")
		if err != nil && !isServers(err, 1176) { // ER_KEY_DOES_NOT_EXITS
			return err
		}
		has = err == nil
		p.primary.Store(table, has)
	}
	if has == true {
		before := update
		stateOf(stmt).atEnd(func() { stmt.Clauses["UPDATE"] = before })
		update.AfterExpression = clause.Expr{SQL: "FORCE INDEX (PRIMARY)"}
		stmt.Clauses["UPDATE"] = update
	}
	return nil
}

func isServers(err error, number uint16) bool {
	var server *driver.MySQLError
	return errors.As(err, &server) && server.Number == number
}

// selection is the SELECT that finds the rows of an update or delete.
type selection struct {
	text string
	args []any
	most int
	by   *gorm.Statement // as it was built for it
}

// isOf reports whether a statement, to which hooks may have added something, selects no other rows:
// more conditions than those of the selection narrow it, if AND joins them and no LIMIT chooses
// among the rows.
func (s *selection) isOf(stmt *gorm.Statement, or bool) bool {
	for _, name := range []string{"ORDER BY", "LIMIT"} {
		if !reflect.DeepEqual(s.by.Clauses[name].Expression, stmt.Clauses[name].Expression) {
			return false
		}
	}
	before := whereOf(s.by)
	_, limited := stmt.Clauses["LIMIT"]
	return areKept(before, stmt) && (len(before.Exprs) == len(whereOf(stmt).Exprs) || !or && !limited)
}

// areKept reports whether a statement still has conditions, among others perhaps.
func areKept(conditions clause.Where, stmt *gorm.Statement) bool {
	kept := 0
	for _, condition := range whereOf(stmt).Exprs {
		if kept < len(conditions.Exprs) && reflect.DeepEqual(conditions.Exprs[kept], condition) {
			kept++
		}
	}
	return kept == len(conditions.Exprs)
}

// whereOf returns the conditions of a statement.
func whereOf(stmt *gorm.Statement) clause.Where {
	where, _ := stmt.Clauses["WHERE"].Expression.(clause.Where)
	return where
}

// selectionOf returns how to read the rows that an update or delete changes: by the conditions of
// the statement as GORM builds it, of copies of its models, in which GORM sets what it builds.
func (p *Plugin) selectionOf(db *gorm.DB, own bool) (*selection, error) {
	stmt := db.Statement
	dry := db.Session(&gorm.Session{DryRun: true, Context: stmt.Context, Logger: logger.Discard}) // with a context it has a statement of its own
	dry.Statement.BuildClauses, dry.Statement.ConnPool = stmt.BuildClauses, stmt.ConnPool
	copyModels(dry.Statement)
	build := db.Callback().Update().Get("gorm:update")
	if isDelete(stmt) {
		build = db.Callback().Delete().Get("gorm:delete")
	}
	if build(dry); dry.Error == nil && dry.Statement.SQL.Len() == 0 { // nothing is set, unless a hook does it
		dry.Statement.AddClause(clause.Set{{Column: clause.PrimaryColumn, Value: 0}})
		build(dry)
	}
	if dry.Error != nil {
		if errors.Is(dry.Error, gorm.ErrMissingWhereClause) && hooksBefore(stmt) {
			return nil, fmt.Errorf("%w: %w", unidentified(stmt, "it has no condition before its hooks run"), dry.Error)
		}
		return nil, dry.Error
	}
	text := dry.Statement.SQL.String()
	words, closed := sqltext.Closed(text)
	if !closed {
		return nil, unidentified(stmt, "its text has a comment, quotes or parentheses that it doesn't close, or a backslash in quotes: give values as arguments")
	}
	if n := sqltext.Marks(text); n != len(dry.Statement.Vars) {
		return nil, unidentified(stmt, fmt.Sprintf("it has %d question marks for %d values", n, len(dry.Statement.Vars)))
	}
	head, _ := sqltext.Cut(text, "WHERE", "ORDER", "LIMIT", "RETURNING")
	conditions, _ := sqltext.Cut(text[len(head):], "RETURNING")
	if why := whyUnreadable(conditions, own); why != "" {
		return nil, unidentified(stmt, why)
	}
	columns := "*"
	if isTagged(stmt.Schema) {
		columns = stmt.Quote(clause.Column{Table: clause.CurrentTable, Name: stmt.Schema.PrimaryFieldDBNames[0]})
	}
	s := &selection{text: columns + " FROM " + tableText(stmt) + " " + conditions, most: p.most, args: dry.Statement.Vars[sqltext.Marks(head):], by: dry.Statement}
	if !slices.Contains(words, "LIMIT") {
		s.text += fmt.Sprintf(" LIMIT %d", s.most+1)
	}
	return s, nil
}

// hooksBefore reports whether a hook of the program runs before the statement, and may change it.
func hooksBefore(stmt *gorm.Statement) bool {
	s := stmt.Schema
	return !stmt.SkipHooks && (isDelete(stmt) && s.BeforeDelete || !isDelete(stmt) && (s.BeforeSave || s.BeforeUpdate))
}

// isDelete reports whether a statement deletes, be it softly, by an UPDATE.
func isDelete(stmt *gorm.Statement) bool { return slices.Contains(stmt.BuildClauses, "DELETE") }

// copyModels gives a statement copies of its models.
func copyModels(stmt *gorm.Statement) {
	of, dest := stmt.ReflectValue, reflect.ValueOf(stmt.Dest)
	for dest.Kind() == reflect.Pointer {
		dest = dest.Elem()
	}
	if !of.CanAddr() {
		return
	}
	copied := reflect.New(of.Type()).Elem()
	copied.Set(of)
	if of.Kind() == reflect.Slice {
		copied.Set(reflect.MakeSlice(of.Type(), of.Len(), of.Len()))
		for i := range of.Len() {
			if element := of.Index(i); element.Kind() == reflect.Pointer && !element.IsNil() {
				copied.Index(i).Set(reflect.New(element.Type().Elem()))
				copied.Index(i).Elem().Set(element.Elem())
			} else {
				copied.Index(i).Set(element)
			}
		}
	}
	stmt.ReflectValue = copied
	if dest == of {
		if stmt.Model == stmt.Dest {
			stmt.Model = copied.Addr().Interface()
		}
		stmt.Dest = copied.Addr().Interface()
	}
}

// whyUnreadable returns why conditions may select other rows in another session or at another
// moment, or "". A locking read sees the latest rows, but its subqueries those of the snapshot,
// which only a transaction of the statement's own makes behind its locks.
func whyUnreadable(conditions string, own bool) string {
	switch {
	case strings.Contains(sqltext.Unquoted(conditions), "@"):
		return "its conditions have a variable"
	case !own && hasSubquery(conditions):
		return "its conditions have a subquery, which in a transaction of the program may see old rows"
	}
	for _, name := range sqltext.Calls(conditions) {
		if !slices.Contains(pure, name) {
			return fmt.Sprintf("its conditions call %s, and it isn't known that this selects the same rows in another session", name)
		}
	}
	return ""
}

// pure are the words before a parenthesis of which it is known that they select the same rows in
// each session, but for the time, of which the statement itself makes sure.
var pure = strings.Fields("IN AND OR XOR NOT LIKE BETWEEN WHEN THEN ELSE IS DIV MOD REGEXP RLIKE BINARY ALL INTERVAL AGAINST MATCH " +
	"ABS CEIL CEILING FLOOR ROUND TRUNCATE SIGN POW POWER SQRT GREATEST LEAST COALESCE IFNULL NULLIF IF ISNULL " +
	"CHAR_LENGTH CHARACTER_LENGTH LENGTH OCTET_LENGTH LOWER LCASE UPPER UCASE TRIM LTRIM RTRIM CONCAT CONCAT_WS LEFT RIGHT " +
	"SUBSTR SUBSTRING SUBSTRING_INDEX MID REPLACE REVERSE LPAD RPAD LOCATE POSITION INSTR FIND_IN_SET FIELD ELT HEX UNHEX MD5 SHA1 SHA2 CRC32 ASCII ORD CHAR " +
	"CAST CONVERT BIN CONV DATE TIME YEAR QUARTER MONTH WEEK DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY HOUR MINUTE SECOND MICROSECOND LAST_DAY " +
	"DATE_ADD DATE_SUB ADDDATE SUBDATE DATEDIFF TIMESTAMPDIFF TIMESTAMPADD DATE_FORMAT STR_TO_DATE EXTRACT TIMESTAMP MAKEDATE " +
	"NOW CURRENT_TIMESTAMP CURDATE CURRENT_DATE CURTIME CURRENT_TIME UTC_TIMESTAMP UTC_DATE UNIX_TIMESTAMP FROM_UNIXTIME LOCALTIME LOCALTIMESTAMP " +
	"SELECT FROM JOIN ON USING WHERE HAVING BY UNION EXISTS ANY SOME COUNT SUM AVG MIN MAX CASE ROW OF DISTINCT " +
	"JSON_EXTRACT JSON_UNQUOTE JSON_VALUE JSON_CONTAINS JSON_CONTAINS_PATH JSON_LENGTH JSON_SEARCH JSON_OVERLAPS JSON_TYPE JSON_VALID JSON_ARRAY JSON_OBJECT JSON_KEYS JSON_DEPTH JSON_QUOTE INET_ATON INET_NTOA INET6_ATON INET6_NTOA UUID_TO_BIN BIN_TO_UUID REGEXP_LIKE REGEXP_SUBSTR REGEXP_INSTR REGEXP_REPLACE STRCMP TO_DAYS TO_SECONDS TIME_TO_SEC SEC_TO_TIME TIMEDIFF YEARWEEK WEEKOFYEAR FORMAT REPEAT SPACE BIT_COUNT EXP LN LOG LOG2 LOG10")

// on reads the rows on a connection, in a transaction or by a pool.
func (s *selection) on(db *gorm.DB, pool gorm.ConnPool, before, behind string) (rows []reflect.Value, err error) {
	stmt := db.Statement
	found, err := pool.QueryContext(stmt.Context, before+s.text+behind, s.args...)
	if err != nil {
		return nil, err
	}
	tx := db.Session(&gorm.Session{NewDB: true})
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		row := reflect.New(stmt.Schema.ModelType)
		if err := tx.ScanRows(found, row.Interface()); err != nil {
			return nil, fmt.Errorf("%w: a row that this statement on %s selects can't be read into its model, which names its keys: %w", txlock.ErrInvalidKey, stmt.Table, err)
		}
		rows = append(rows, row.Elem())
	}
	if err = errors.Join(found.Err(), found.Close()); err != nil {
		return nil, err
	}
	if len(rows) > s.most {
		return nil, fmt.Errorf("%w: the conditions of this statement on %s select more than %d rows, each of which would be locked: write them in parts, by Limit or FindInBatches, increase lockgorm.AtMostRows, or name one key for all by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, s.most)
	}
	for _, row := range rows {
		hook, ok := row.Addr().Interface().(callbacks.AfterFindInterface)
		if ok && !isTagged(stmt.Schema) { // LockKeys sees a row as Find gives it
			if err := hook.AfterFind(tx); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

// finds refuses rows that their primary keys don't find again, such as those of a serializer that
// writes them otherwise than they were stored: the write would leave them out.
func (s *selection) finds(db *gorm.DB, rows []reflect.Value) (err error) {
	stmt := db.Statement
	certain := func(key *schema.Field) bool {
		kind := key.IndirectFieldType.Kind()
		return (kind >= reflect.Int && kind <= reflect.Uint64 || kind == reflect.String) &&
			key.Serializer == nil && !converts(reflect.PointerTo(key.IndirectFieldType))
	}
	if len(rows) == 0 || !slices.ContainsFunc(stmt.Schema.PrimaryFields, func(key *schema.Field) bool { return !certain(key) }) {
		return nil
	}
	where := scratchOf(stmt)
	rowsOf(stmt, rows, nil, nil).Build(where)
	var found int
	text := "SELECT COUNT(*) FROM " + tableText(stmt) + " WHERE " + where.SQL.String() + " FOR UPDATE"
	if err := senderOf(stmt).QueryRowContext(stmt.Context, text, where.Vars...).Scan(&found); err != nil {
		return err
	}
	if found != len(rows) {
		return unidentified(stmt, fmt.Sprintf("%d of its %d rows are not found by their primary keys as the model writes them", len(rows)-found, len(rows)))
	}
	return nil
}
