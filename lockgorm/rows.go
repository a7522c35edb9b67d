package lockgorm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/retry"
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
