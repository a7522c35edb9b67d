package lockgorm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// atMostRows is the default of AtMostRows.
const atMostRows = 1000

// AtMostRows limits how many rows an update or delete may select by its conditions, each of which
// is read and locked. The default is 1,000. One that selects more fails with txlock.ErrInvalidKey.
func AtMostRows(n int) Option { return func(p *Plugin) { p.most = n } }

// lockRows locks the records that the conditions of an update or delete select, and returns them
// as they are under the locks: no other transaction changes them until the end.
//
// Their keys are read first, without a lock and outside of the transaction's snapshot, then
// locked, and the rows are read again, with theirs. If more have come, a transaction of the
// statement's own begins again, so that no row is locked while a key is waited for; the
// program's locks them late.
func (p *Plugin) lockRows(db *gorm.DB, given []reflect.Value) ([]reflect.Value, error) {
	find, err := p.selection(db, given)
	if err != nil {
		return nil, err
	}
	own := hasOwn(db)
	if own {
		leaveOwn(db)
	}
	rows, err := find.beside(db, own)
	if err != nil {
		return nil, err
	}
	wanted, err := p.keysOfAll(db, rows)
	for tries := 0; err == nil; tries++ {
		var late []txlock.Key // of rows that have come since the keys were read
		if own {
			err = enterOwn(db)
		}
		if err == nil && len(wanted) > 0 {
			err = lockWrite(db, wanted)
		}
		if err == nil {
			if rows, err = find.on(db, db.Statement.ConnPool, true); err == nil {
				late, err = p.keysOfAll(db, rows)
			}
		}
		late = slices.DeleteFunc(late, func(key txlock.Key) bool { return slices.Contains(wanted, key) })
		switch again := own && tries < 10; {
		case err == nil && len(late) == 0:
			return rows, nil
		case err == nil && !again:
			return rows, lockWrite(db, late)
		case err == nil || again && txlock.Retryable(err):
			wanted, err = slices.Concat(wanted, late), nil
			leaveOwn(db)
			time.Sleep(rand.N(time.Millisecond << min(tries, 6)))
		}
	}
	return nil, err
}

// selection is the SELECT that finds the rows of an update or delete.
type selection struct {
	most  int
	query func() *gorm.DB
}

// selection returns how to read the rows that a statement selects, or why that isn't certain.
func (p *Plugin) selection(db *gorm.DB, given []reflect.Value) (*selection, error) {
	stmt := db.Statement
	why, or := whyNotClosed(stmt)
	conditions, ok := conditionsOf(stmt)
	partly := slices.ContainsFunc(given, func(model reflect.Value) bool { return hasPartOfID(stmt, model) })
	if partly && len(given) > 1 {
		return nil, unidentified(stmt, "a model of it has no primary key")
	}
	switch {
	case why != "":
		return nil, unidentified(stmt, why)
	case conditions.SQL == "" && !partly && !stmt.AllowGlobalUpdate:
		return nil, gorm.ErrMissingWhereClause
	case or && partly:
		return nil, unidentified(stmt, joinedByOr)
	case !ok:
		return nil, unidentified(stmt, "its conditions have a ? that stands for no value: give values as arguments")
	}
	if why := whyUnreadable(conditions.SQL); why != "" {
		return nil, unidentified(stmt, "its conditions "+why)
	}
	order := scratchOf(stmt)
	if by, ok := stmt.Clauses["ORDER BY"]; ok {
		by.Build(order)
	}
	if why := whyUnreadable(order.SQL.String()); why != "" {
		return nil, unidentified(stmt, "its order "+why)
	}
	s := &selection{most: p.most}
	if s.most <= 0 {
		s.most = atMostRows
	}
	limit := s.most + 1
	if l, ok := stmt.Clauses["LIMIT"].Expression.(clause.Limit); ok && l.Limit != nil {
		limit = min(limit, *l.Limit)
	}
	s.query = func() *gorm.DB {
		q := db.Session(&gorm.Session{NewDB: true, DryRun: true, SkipHooks: true}).Model(reflect.New(stmt.Schema.ModelType).Interface())
		q.Statement.Table, q.Statement.TableExpr, q.Statement.Unscoped = stmt.Table, stmt.TableExpr, stmt.Unscoped
		if conditions.SQL != "" {
			q = q.Clauses(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "(" + conditions.SQL + ")", Vars: conditions.Vars}}})
		}
		for _, model := range given { // GORM adds what there is of a primary key
			for _, key := range stmt.Schema.PrimaryFields {
				if id, zero := key.ValueOf(stmt.Context, model); !zero {
					q = q.Where(clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: key.DBName}, Value: id})
				}
			}
		}
		if by, ok := stmt.Clauses["ORDER BY"]; ok {
			q.Statement.Clauses["ORDER BY"] = by
		}
		if isTagged(stmt.Schema) {
			q = q.Select(stmt.Schema.PrimaryFieldDBNames)
		}
		return q.Limit(limit)
	}
	return s, nil
}

// hasPartOfID tells whether a model has a part of its primary key.
func hasPartOfID(stmt *gorm.Statement, model reflect.Value) bool {
	return slices.ContainsFunc(stmt.Schema.PrimaryFields, func(key *schema.Field) bool {
		_, zero := key.ValueOf(stmt.Context, model)
		return !zero
	})
}

// whyUnreadable returns why a text isn't certain to select the same rows in a SELECT, or "".
func whyUnreadable(text string) string {
	if _, closed := sqltext.Closed(text); !closed {
		return "have a comment, or quotes or parentheses that they don't close, or a backslash in quotes: give values as arguments"
	}
	words := sqltext.Words(text, len(text))
	if strings.Contains(text, ":=") || slices.ContainsFunc(words, func(w string) bool {
		return slices.Contains([]string{"SELECT", "TABLE", "VALUES", "WITH", "UNION", "INTO", "PROCEDURE", "FOR", "LOCK"}, w)
	}) {
		return "have a subquery or set a variable"
	}
	return ""
}

// on reads the rows on a connection, in a transaction or by a pool.
func (s *selection) on(db *gorm.DB, pool gorm.ConnPool, lock bool) (rows []reflect.Value, err error) {
	stmt, q := db.Statement, s.query()
	if lock {
		q = q.Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate})
	}
	if q = q.Find(reflect.New(reflect.SliceOf(stmt.Schema.ModelType)).Interface()); q.Error != nil {
		return nil, q.Error
	}
	found, err := pool.QueryContext(stmt.Context, q.Statement.SQL.String(), q.Statement.Vars...)
	if err != nil {
		return nil, err
	}
	for err == nil && found.Next() {
		row := reflect.New(stmt.Schema.ModelType)
		err = db.Session(&gorm.Session{NewDB: true}).ScanRows(found, row.Interface())
		rows = append(rows, row.Elem())
	}
	if err = errors.Join(err, found.Err(), found.Close()); err == nil && len(rows) > s.most {
		err = fmt.Errorf("%w: the conditions of this statement on %s select more than %d rows, each of which would be locked: write them in parts, by Limit or FindInBatches, raise lockgorm.AtMostRows, or name one key for all by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, s.most)
	}
	return rows, err
}

// besideWait limits how long a connection beside a transaction is waited for.
const besideWait = 200 * time.Millisecond

// beside reads the rows outside of a transaction: on its pool, if the statement's own has not
// begun; else on another connection. If there is none it reads in the transaction, which may fix
// its snapshot: then a lock that somebody has held since is refused with ErrStaleSnapshot.
func (s *selection) beside(db *gorm.DB, own bool) ([]reflect.Value, error) {
	if own {
		return s.on(db, db.Statement.ConnPool, false)
	}
	if pool, err := db.DB(); err == nil {
		ctx, cancel := context.WithTimeout(db.Statement.Context, besideWait)
		defer cancel()
		if conn, err := pool.Conn(ctx); err == nil {
			rows, err := s.on(db, conn, false)
			return rows, errors.Join(err, conn.Close())
		}
	}
	return s.on(db, db.Statement.ConnPool, false)
}
