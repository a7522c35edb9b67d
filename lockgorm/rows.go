package lockgorm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// atMostRows is the default of AtMostRows.
const atMostRows = 1000

// AtMostRows limits how many rows an update or delete may select by its conditions, each of which
// is read and locked. The default is 1,000. One that selects more fails with txlock.ErrInvalidKey.
func AtMostRows(n int) Option { return func(p *Plugin) { p.most = n } }

// lockRows locks the records that the conditions of an update or delete select, and returns them
// as they are under the locks, and the conditions: no other transaction changes the rows until
// the end.
//
// Their keys are read first, without a lock and outside of the transaction's snapshot, then
// locked, and the rows are read again, with theirs. If more have come, a transaction of the
// statement's own begins again, so that no row is locked while a key is waited for; the
// program's locks them late.
func (p *Plugin) lockRows(db *gorm.DB) (rows []reflect.Value, when string, err error) {
	own := hasOwn(db)
	find, err := p.selectionOf(db, own)
	if err != nil {
		return nil, "", err
	}
	if own {
		defer settleOwn(db)
		leaveOwn(db)
	}
	rows, err = find.beside(db, own)
	var wanted, all []txlock.Key
	for tries := 0; err == nil; tries++ {
		if own {
			err = enterOwn(db)
		}
		if err == nil && tries == 0 {
			wanted, err = p.keysOfAll(db, rows)
			all = wanted
		}
		if err == nil && len(wanted) > 0 {
			err = lockWrite(db, wanted)
		}
		if err == nil {
			if rows, err = find.on(db, db.Statement.ConnPool, true); err == nil {
				all, err = p.keysOfAll(db, rows)
			}
		}
		late := slices.DeleteFunc(slices.Clone(all), func(key txlock.Key) bool { return slices.Contains(wanted, key) })
		again := own && tries < 10
		if err == nil && again {
			err = tryAll(db, late)
		} else if err == nil && len(late) > 0 {
			err = lockWrite(db, late)
		}
		switch {
		case err == nil:
			return rows, find.when, nil
		case again && (txlock.Retryable(err) || errors.Is(err, txlock.ErrBusy)):
			wanted, err = all, nil
			leaveOwn(db)
			time.Sleep(rand.N(time.Millisecond << min(tries, 6)))
		}
	}
	return nil, "", err
}

// tryAll locks keys of rows that are locked already, and so waits for none.
func tryAll(db *gorm.DB, keys []txlock.Key) error {
	for _, key := range keys {
		if _, err := TryLock(db, key); err != nil {
			return err
		}
	}
	return nil
}

// selection is the SELECT that finds the rows of an update or delete.
type selection struct {
	text string
	when string // its conditions
	args []any
	most int
}

// selectionOf returns how to read the rows that an update or delete changes: by the conditions of
// the statement as GORM builds it.
func (p *Plugin) selectionOf(db *gorm.DB, own bool) (*selection, error) {
	stmt := db.Statement
	dry := db.Session(&gorm.Session{DryRun: true, SkipHooks: true, Logger: logger.Discard})
	dry.Statement.BuildClauses, dry.Statement.ConnPool = stmt.BuildClauses, stmt.ConnPool
	build := db.Callback().Update().Get("gorm:update")
	if slices.Contains(stmt.BuildClauses, "DELETE") {
		build = db.Callback().Delete().Get("gorm:delete")
	}
	if build(dry); dry.Error != nil {
		return nil, dry.Error
	}
	text := dry.Statement.SQL.String()
	words, closed := sqltext.Closed(text)
	switch {
	case text == "": // nothing is set
		return &selection{}, nil
	case !closed || strings.Count(text, "?") != len(dry.Statement.Vars):
		return nil, unidentified(stmt, "its text has a comment, quotes or parentheses that it doesn't close, a backslash in quotes, or a ? that stands for no value: give values as arguments")
	}
	head, conditions := sqltext.Cut(text, "WHERE")
	conditions, _ = sqltext.Cut(conditions, "RETURNING")
	if why := whyUnreadable(conditions, own); why != "" {
		return nil, unidentified(stmt, why)
	}
	columns := "*"
	if isTagged(stmt.Schema) {
		columns = stmt.Quote(clause.Column{Table: clause.CurrentTable, Name: stmt.Schema.PrimaryFieldDBNames[0]})
	}
	when, _ := conditionsOf(dry.Statement)
	s := &selection{when: when, text: "SELECT " + columns + " FROM " + tableText(stmt), most: p.most, args: dry.Statement.Vars[strings.Count(head, "?"):]}
	if s.most <= 0 {
		s.most = atMostRows
	}
	if strings.TrimSpace(conditions) != "" {
		s.text += " WHERE" + conditions
	}
	if !slices.Contains(words, "LIMIT") {
		s.text += fmt.Sprintf(" LIMIT %d", s.most+1)
	}
	return s, nil
}

// whyUnreadable returns why conditions may select other rows in another session or at another
// moment, or "". A locking read sees the latest rows, but its subqueries those of the snapshot,
// which only a transaction of the statement's own makes behind its locks.
func whyUnreadable(conditions string, own bool) string {
	switch {
	case strings.Contains(conditions, "@"):
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
	"SELECT FROM JOIN ON USING WHERE HAVING BY UNION EXISTS ANY SOME COUNT SUM AVG MIN MAX " +
	"JSON_EXTRACT JSON_UNQUOTE JSON_VALUE JSON_CONTAINS JSON_CONTAINS_PATH JSON_LENGTH JSON_SEARCH JSON_OVERLAPS JSON_TYPE JSON_VALID INET_ATON INET_NTOA")

// on reads the rows on a connection, in a transaction or by a pool.
func (s *selection) on(db *gorm.DB, pool gorm.ConnPool, lock bool) (rows []reflect.Value, err error) {
	if s.text == "" {
		return nil, nil
	}
	stmt, text := db.Statement, s.text
	if lock {
		text += " FOR UPDATE"
	}
	found, err := pool.QueryContext(stmt.Context, text, s.args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Close()) }() // also if a Scanner panics
	for found.Next() {
		row := reflect.New(stmt.Schema.ModelType)
		if err := db.Session(&gorm.Session{NewDB: true}).ScanRows(found, row.Interface()); err != nil {
			return nil, err
		}
		rows = append(rows, row.Elem())
	}
	if err = found.Err(); err == nil && len(rows) > s.most {
		err = fmt.Errorf("%w: the conditions of this statement on %s select more than %d rows, each of which would be locked: write them in parts, by Limit or FindInBatches, raise lockgorm.AtMostRows, or name one key for all by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, s.most)
	}
	return rows, err
}

// besideWait limits how long a connection beside a transaction is waited for.
const besideWait = 200 * time.Millisecond

// beside reads the rows outside of a transaction: on its pool, if the statement's own has not
// begun; else on another connection. If that can't be it reads in the transaction, which may fix
// its snapshot: then a lock that somebody has held since is refused with ErrStaleSnapshot.
func (s *selection) beside(db *gorm.DB, own bool) ([]reflect.Value, error) {
	if own {
		return s.on(db, db.Statement.ConnPool, false)
	}
	if pool, err := db.DB(); err == nil {
		if rows, err := s.onOther(db, pool); err == nil {
			return rows, nil
		}
	}
	return s.on(db, db.Statement.ConnPool, false)
}

// onOther reads the rows on another connection of a pool, if one is free soon.
func (s *selection) onOther(db *gorm.DB, pool *sql.DB) (rows []reflect.Value, err error) {
	ctx, cancel := context.WithTimeout(db.Statement.Context, besideWait)
	defer cancel()
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return s.on(db, conn, false)
}

// byPrimaryKey is the index hint of an UPDATE whose rows are known.
type byPrimaryKey struct{}

// Build writes the hint.
func (byPrimaryKey) Build(text clause.Builder) { _, _ = text.WriteString("FORCE INDEX (PRIMARY)") }

// hint lets an UPDATE find its rows by the primary key: MariaDB may read, and lock, all rows of a
// small table. A view, or a table without that key, can't be read so.
func (p *Plugin) hint(db *gorm.DB, rows []reflect.Value) error {
	stmt := db.Statement
	update := stmt.Clauses["UPDATE"]
	if len(rows) == 0 || update.AfterExpression != nil {
		return nil
	}
	table := tableText(stmt)
	has, known := p.primary.Load(table)
	if !known {
		found, err := stmt.ConnPool.QueryContext(stmt.Context, "SELECT 1 FROM "+table+" FORCE INDEX (PRIMARY) LIMIT 0")
		if err == nil {
			err = found.Close()
		}
		var server *driver.MySQLError
		if has = err == nil; err != nil && !(errors.As(err, &server) && server.Number == 1176) { // ER_KEY_DOES_NOT_EXITS
			return err
		}
		p.primary.Store(table, has)
	}
	if has == true {
		update.AfterExpression = byPrimaryKey{}
		stmt.Clauses["UPDATE"] = update
	}
	return nil
}

// tableText returns the table of a statement as GORM writes it, with its alias.
func tableText(stmt *gorm.Statement) string {
	text := scratchOf(stmt)
	if stmt.TableExpr != nil {
		stmt.TableExpr.Build(text)
	} else {
		text.WriteQuoted(clause.Table{Name: clause.CurrentTable})
	}
	return text.SQL.String()
}
