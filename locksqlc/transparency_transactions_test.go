package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Scenarios of transactions, connections, errors and cancellation.

// serverErrors compares errors of the server, which must not be wrapped: GORM's Translate
// asserts their type directly.
func serverErrors(s *side) {
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (1, 1)")
	tx := s.begin(nil)
	for _, on := range []executor{s.db, tx} {
		for _, query := range []string{
			"INSERT INTO " + s.table + " VALUES (1, 1)", "INSERT INTO " + s.table + " VALUES (1)", "INSERT INTO " + s.table + " (id) VALUES (5)",
			"SELECT * FROM missing_table", "SELECT FROM WHERE", "ROLLBACK TO SAVEPOINT missing", "SELECT missing FROM " + s.table,
			"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'own', MYSQL_ERRNO = 30001", "KILL 999999999", "CALL missing()",
		} {
			s.exec(on, query)
			_, err := on.ExecContext(s.ctx, query)
			server, ok := err.(*mysql.MySQLError) //nolint:errorlint // what is tested
			s.note("is a *mysql.MySQLError itself: %t", ok)
			if ok {
				s.note("%d %s", server.Number, server.SQLState)
			}
		}
	}
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (2, 2)")
	s.error("commit", tx.Commit())
	s.error("commit again", tx.Commit())
	s.error("rollback after commit", tx.Rollback())
	s.exec(tx, "SELECT 1")
	s.error("no row", s.db.QueryRowContext(s.ctx, "SELECT id FROM "+s.table+" WHERE id = 77").Scan(new(int)))
	s.error("wrong type", s.db.QueryRowContext(s.ctx, "SELECT 'x'").Scan(new(int)))
	s.error("wrong number", s.db.QueryRowContext(s.ctx, "SELECT 1, 2").Scan(new(int)))
	s.query("SELECT * FROM " + s.table)
}

func transactions(s *side) {
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx := s.begin(nil)
		s.exec(tx, "INSERT INTO "+s.table+" VALUES (1, 1), (2, 2) ON DUPLICATE KEY UPDATE v = v + 1")
		s.exec(tx, "UPDATE "+s.table+" SET v = v")
		s.exec(tx, "SAVEPOINT a")
		s.exec(tx, "DELETE FROM "+s.table)
		s.exec(tx, "ROLLBACK TO SAVEPOINT a")
		s.exec(tx, "RELEASE SAVEPOINT a")
		s.rows(tx.QueryContext(s.ctx, "SELECT * FROM "+s.table))
		s.rows(tx.QueryContext(s.ctx, "SELECT * FROM "+s.table+" WHERE id=?", 1))
		s.error("end", end(tx))
	}
	tx := s.begin(&sql.TxOptions{ReadOnly: true})
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (3, 3)")
	s.error("rollback", tx.Rollback())
	ctx, cancel := context.WithCancel(s.ctx)
	tx, err := s.db.BeginTx(ctx, nil)
	s.must("begin", err)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (4, 4)")
	cancel()
	s.note("commit after the end of the context is refused: %t", tx.Commit() != nil)
	conn := takeConn(s, s.db)
	tx, err = conn.BeginTx(s.ctx, nil)
	s.must("begin on a connection", err)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (5, 5)")
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (6, 6)") // within the transaction
	s.error("rollback", tx.Rollback())
	s.exec(conn, "SET autocommit = 0")
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (7, 7)")
	s.exec(conn, "ROLLBACK")
	s.exec(conn, "SET autocommit = 1")
	s.error("close", conn.Close())
	s.query("SELECT * FROM " + s.table + " WHERE id > 2")
}

// isolationLevels tells the levels apart by what they read of another session.
func isolationLevels(s *side) {
	other := newPool(s, s.server.AdminConfig(), false)
	for level := sql.LevelDefault; level <= sql.LevelLinearizable; level++ {
		exec(s, s.server.Admin(), "DELETE FROM "+s.table)
		exec(s, s.server.Admin(), "INSERT INTO "+s.table+" VALUES (1, 1)")
		tx, err := s.db.BeginTx(s.ctx, &sql.TxOptions{Isolation: level})
		s.error(level.String(), err)
		if err != nil {
			continue
		}
		read := func() { s.note("sees %d", count(s, tx, "SELECT SUM(v) FROM "+s.table)) }
		read()
		writer := begin(s, other)
		_, err = writer.ExecContext(s.ctx, "SELECT v FROM "+s.table+" FOR UPDATE NOWAIT")
		s.note("the row is locked by a plain read: %t", err != nil)
		if err == nil {
			exec(s, writer, "UPDATE "+s.table+" SET v = 2")
			read()
			check(s, writer.Commit())
			read()
		} else if err := writer.Rollback(); err != nil {
			s.Error(err)
		}
		s.error("commit", tx.Commit())
		tx = s.begin(nil) // the level was for one transaction only
		s.rows(tx.QueryContext(s.ctx, "SELECT v FROM "+s.table))
		s.error("rollback", tx.Rollback())
	}
}

func textTransactions(s *side) {
	conn := takeConn(s, s.db)
	for _, text := range []string{
		"BEGIN", "INSERT INTO " + s.table + " VALUES (1, 1)", "ROLLBACK", "START TRANSACTION", "INSERT INTO " + s.table + " VALUES (2, 2)",
		"COMMIT AND CHAIN", "INSERT INTO " + s.table + " VALUES (3, 3)", "ROLLBACK AND CHAIN", "INSERT INTO " + s.table + " VALUES (4, 4)", "COMMIT",
		"COMMIT", "ROLLBACK", "BEGIN", "BEGIN; INSERT INTO " + s.table + " VALUES (5, 5); COMMIT; BEGIN", "SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO a", "COMMIT",
		"BEGIN", "COMMIT NONSENSE", "INSERT INTO " + s.table + " VALUES (6, 6)", "ROLLBACK",
		"XA START '" + s.table + "'", "INSERT INTO " + s.table + " VALUES (7, 7)", "XA END '" + s.table + "'", "XA ROLLBACK '" + s.table + "'",
		"SET TRANSACTION READ ONLY", "BEGIN", "INSERT INTO " + s.table + " VALUES (8, 8)", "SET TRANSACTION READ WRITE", "COMMIT", "SET TRANSACTION READ WRITE",
	} {
		s.exec(conn, text)
	}
	s.rows(conn.QueryContext(s.ctx, "SELECT * FROM "+s.table))
	s.error("close", conn.Close())
}

// cancelledQuery cancels a query that would run for long. The connection is dropped.
func cancelledQuery(s *side) {
	s.db.SetMaxOpenConns(1)
	s.query("SELECT 1") // the connection is open: the limit is for the statements
	limit := 50 * time.Millisecond
	for _, query := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return second(s.db.ExecContext(ctx, "DO SLEEP(30)")) },
		func(ctx context.Context) error { return s.db.QueryRowContext(ctx, "SELECT SLEEP(30)").Scan(new(int)) },
		func(ctx context.Context) error {
			return s.db.QueryRowContext(ctx, "SELECT ?, SLEEP(30)", 1).Scan(new(int), new(int))
		},
		func(context.Context) error {
			tx := s.begin(nil)                                  // this may take longer than the limit of the statement
			ctx, cancel := context.WithTimeout(s.ctx, 20*limit) // and the limit must not end before the statement is sent
			defer cancel()
			_, err := tx.ExecContext(ctx, "DO SLEEP(30)")
			return errors.Join(err, tx.Rollback())
		},
	} {
		ctx, cancel := context.WithTimeout(s.ctx, limit)
		begun := time.Now()
		err := query(ctx)
		cancel()
		s.error("cancelled", err)
		s.note("promptly %t", time.Since(begun) < 25*time.Second)
		s.query("SELECT 1") // on another connection: the pool's only one was dropped
	}
}

func endedContexts(s *side) {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	s.error("exec", second(s.db.ExecContext(ctx, "INSERT INTO "+s.table+" VALUES (1, 1)")))
	s.error("query", s.db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)))
	s.error("prepare", second(s.db.PrepareContext(ctx, "SELECT 1")))
	s.error("begin", second(s.db.BeginTx(ctx, nil)))
	conn := takeConn(s, s.db)
	s.error("begin on a connection", second(conn.BeginTx(ctx, nil)))
	s.error("close", conn.Close())
	s.error("ping", s.db.PingContext(ctx))
	tx := s.begin(nil)
	s.exec(tx, "INSERT INTO "+s.table+" VALUES (2, 2)")
	s.error("exec in a transaction", second(tx.ExecContext(ctx, "INSERT INTO "+s.table+" VALUES (3, 3)")))
	s.error("query in a transaction", tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)))
	s.error("commit", tx.Commit())
	s.query("SELECT * FROM " + s.table)
}

// rowsLeftOpen sends a statement while rows are read, which breaks the connection
// on any pool, unless the driver has read them all.
func rowsLeftOpen(s *side) {
	s.exec(s.db, "INSERT INTO "+s.table+" VALUES (1, 1), (2, 2)")
	tx := s.begin(nil)
	rows, err := tx.QueryContext(s.ctx, "SELECT a.id, REPEAT('x', 9000) FROM "+s.table+" a, "+s.table+" b, "+s.table+" c")
	s.must("query", err)
	s.note("a row: %t", rows.Next())
	s.error("a statement meanwhile", second(tx.ExecContext(s.ctx, "SET @a = 1")))
	s.note("closed: %t", rows.Close() == nil)
	_, err = tx.ExecContext(s.ctx, "SET @a = 1")
	s.note("a statement after it is refused: %t", err != nil)
	s.note("commit is refused: %t", tx.Commit() != nil)
	s.query("SELECT * FROM " + s.table)
}

func rawConnection(s *side) {
	conn := takeConn(s, s.db)
	s.error("raw", conn.Raw(func(driverConn any) error {
		result, err := driverConn.(driver.Execer).Exec( //nolint:staticcheck // go-sql-driver documents this way
			"INSERT INTO "+s.table+" VALUES (1, 1), (2, 2); UPDATE "+s.table+" SET v = 7; DELETE FROM "+s.table+" WHERE id = 1", nil)
		s.error("exec", err)
		all, ok := result.(mysql.Result)
		s.note("a mysql.Result: %t", ok)
		if ok {
			s.note("%v %v", all.AllRowsAffected(), all.AllLastInsertIds())
		}
		_, err = driverConn.(driver.Execer).Exec("INSERT INTO "+s.table+" VALUES (?, ?)", []driver.Value{int64(5), int64(5)}) //nolint:staticcheck // likewise
		s.error("exec with arguments", err)
		rows, err := driverConn.(driver.Queryer).Query("SELECT id, v FROM "+s.table, nil) //nolint:staticcheck // likewise
		s.error("query", err)
		if err == nil {
			s.note("%v", rows.Columns())
			s.error("close", rows.Close())
		}
		s.error("ping", driverConn.(driver.Pinger).Ping(s.ctx))
		s.error("reset", driverConn.(driver.SessionResetter).ResetSession(s.ctx))
		s.note("valid: %t", driverConn.(driver.Validator).IsValid())
		value := driver.NamedValue{Ordinal: 1, Value: uint64(1 << 63)}
		s.error("check", driverConn.(driver.NamedValueChecker).CheckNamedValue(&value))
		s.note("%T %v", value.Value, value.Value)
		stmt, err := driverConn.(driver.Conn).Prepare("SELECT ?, ?")
		s.error("prepare", err)
		if err == nil {
			s.note("%d arguments", stmt.NumInput())
			s.error("close", stmt.Close())
		}
		tx, err := driverConn.(driver.Conn).Begin() //nolint:staticcheck // likewise
		s.error("begin", err)
		if err == nil {
			s.error("rollback", tx.Rollback())
		}
		return errors.New("of the function")
	}))
	s.exec(conn, "INSERT INTO "+s.table+" VALUES (6, 6)")
	s.error("discard", conn.Raw(func(any) error { return driver.ErrBadConn }))
	s.error("after it", conn.PingContext(s.ctx))
	s.note("open %d", s.db.Stats().OpenConnections)
	s.query("SELECT * FROM " + s.table)
}
