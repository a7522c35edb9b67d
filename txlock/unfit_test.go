package txlock_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestUnfitSessions: sessions that begin transactions by themselves, convert names or garble replies are refused before anything is locked.
func TestUnfitSessions(t *testing.T) {
	for name, c := range map[string]struct {
		variable, value string
		want            error
	}{
		"autocommit": {"autocommit", "0", schema.ErrAutocommit},
		"utf16":      {"character_set_connection", "utf16", schema.ErrCharset},
		"utf32":      {"collation_connection", "utf32_bin", schema.ErrCharset},
		"latin1":     {"character_set_connection", "latin1", schema.ErrCharset},
		"results":    {"character_set_results", "utf16", schema.ErrCharset},
		"chain":      {"completion_type", "CHAIN", schema.ErrSession},
		"timestamp":  {"timestamp", "1700000000", schema.ErrSession},
	} {
		t.Run(name, func(t *testing.T) { refusesSession(t, c.variable, c.value, c.want) })
	}
}

func refusesSession(t *testing.T, variable, value string, want error) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{false, true} {
			pool, key := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{variable: value} }), named()
			tx := testdb.Got(pool.BeginTx(t.Context(), nil))(t)
			wants(t, "Join", testdb.Err(txlock.Join(t.Context(), tx)), want)
			if guarded {
				wants(t, "Join again", testdb.Err(txlock.Join(t.Context(), tx)), want)
			}
			wants(t, "Rollback", tx.Rollback(), nil)
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, key), want)
			wants(t, "Check", schema.Check(t.Context(), pool), want)

			ctx := limited(t, time.Minute) // else a lease might be waited for
			leases := testdb.Got(lease.NewManager(pool))(t)
			for what, err := range map[string]error{
				"Acquire":        testdb.Err(leases.Acquire(ctx, key)),
				"TryAcquire":     testdb.Err(leases.TryAcquire(ctx, key)),
				"AcquireShared":  testdb.Err(leases.AcquireShared(ctx, key)),
				"Do":             leases.Do(ctx, key, func(context.Context, *lease.Lease) error { return errors.New("was called") }),
				"Acquire, again": testdb.Err(leases.Acquire(ctx, key)),
			} {
				wants(t, what, err, want)
			}
			// Each by a manager of its own, which has asked nothing before.
			for what, call := range map[string]func(m *lease.Manager) error{
				"ForceRelease": func(m *lease.Manager) error { return m.ForceRelease(t.Context(), key) },
				"Resize": func(m *lease.Manager) error {
					s, err := m.Semaphore(key, 2)
					if err == nil {
						_, err = s.Resize(t.Context(), 3)
					}
					return err
				},
				"List":    func(m *lease.Manager) error { return testdb.Err(m.List(t.Context())) },
				"Inspect": func(m *lease.Manager) error { return testdb.Err(m.Inspect(t.Context(), key)) },
				"Purge":   func(m *lease.Manager) error { return testdb.Err(m.Purge(t.Context())) },
			} {
				m := testdb.Got(lease.NewManager(pool))(t)
				wants(t, what, call(m), want)
				wants(t, "Close", m.Close(context.WithoutCancel(t.Context())), nil)
			}
			wants(t, "Close", leases.Close(context.WithoutCancel(t.Context())), nil)
			testdb.ErrorIf(t, rowsOf(t, db, key) != 0 || number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()) != 0,
				"a call that was refused has made a row")
		}

		// By a SET of the session, which a plain pool sees at Join.
		for _, guarded := range []bool{false, true} {
			conn := testdb.Got(newPool(t, db, guarded).Conn(t.Context()))(t)
			exec(t, conn, "SET "+variable+" = "+value)
			tx := testdb.Got(conn.BeginTx(t.Context(), nil))(t)
			scope, err := txlock.Join(t.Context(), tx)
			if err == nil {
				_, err = scope.Lock(t.Context(), named())
			}
			wants(t, "a lock after SET", err, want)
			wants(t, "end", errors.Join(tx.Rollback(), conn.Close()), nil)
		}
	})
}

// TestNilTransaction proves that a nil transaction is no open one, whatever its type.
func TestNilTransaction(t *testing.T) {
	for _, tx := range []txlock.Tx{nil, (*sql.Tx)(nil)} {
		wants(t, "Join", testdb.Err(txlock.Join(t.Context(), tx)), txlock.ErrNoTransaction)
		wants(t, "AssertLocked", txlock.AssertLocked(t.Context(), tx, named()), txlock.ErrNoTransaction)
	}
}

// TestNoRows proves that sessions whose SELECTs show no row are refused by what they are.
func TestNoRows(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "0"} })
			tx, err := pool.BeginTx(t.Context(), nil)
			if err == nil {
				err = errors.Join(testdb.Err(txlock.Join(t.Context(), tx)), tx.Rollback())
			}
			wants(t, fmt.Sprintf("guarded=%t", guarded), err, schema.ErrSession)
		}
	})
}

// TestSelectLimit locks several keys where SELECTs show one row (sql_select_limit), and finds the last of them changed since the snapshot.
func TestSelectLimit(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		lots := []txlock.Key{hashed(), hashed(), hashed()}
		db := testdb.Shared(t, engine).OpenNamed(t, lots[0].Slot(), lots[1].Slot(), lots[2].Slot())
		oneRow := func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "1"} }
		for _, v := range []struct{ guarded, procedures bool }{{true, true}, {true, false}, {false, false}} {
			if v.guarded && !v.procedures && db.Engine() == testdb.MySQL {
				db.DropProcedures(t)
			}
			for _, keys := range [][]txlock.Key{{named(), named(), named()}, lots} {
				pool := newPool(t, db, v.guarded, oneRow)
				slices.SortFunc(keys, func(a, b txlock.Key) int { // as LockAll does
					if a.Hashed() {
						return cmp.Compare(a.Slot(), b.Slot())
					}
					return cmp.Compare(a.String(), b.String())
				})
				wants(t, "Ensure", txlock.Ensure(t.Context(), pool, keys...), nil)
				s := begin(t, pool, nil)
				wants(t, "LockAll", testdb.Err(s.LockAll(t.Context(), keys...)), nil)
				holders, err := txlock.Holders(t.Context(), pool, keys...)
				testdb.ErrorIf(t, err != nil || len(holders) != len(keys), "Holders: %d of %d keys, %v", len(holders), len(keys), err)
				wants(t, "Ensure of keys that are locked", txlock.Ensure(t.Context(), pool, keys...), nil)
				s.commit(t)

				s = begin(t, pool, nil)
				number(t, s.tx, "SELECT COUNT(*) FROM lockstep_locks")
				committed(t, db, keys[2])
				scope, err := txlock.Join(t.Context(), s.tx) // which knows of a read
				wants(t, "Join", err, nil)
				_, err = scope.LockAll(t.Context(), keys...)
				wants(t, fmt.Sprintf("guarded=%t, procedures=%t: LockAll after the last key has changed", v.guarded, v.procedures), err, txlock.ErrStaleSnapshot)
				wants(t, "Rollback", s.tx.Rollback(), nil)
			}
		}
	})
}

// TestMissingPrivileges: a user who may only read is told what to grant, and that the transaction goes on.
func TestMissingPrivileges(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := ungranted(t, engine)
		for _, table := range []string{"locks", "centers", "leases"} {
			for _, host := range []string{"%", "localhost"} {
				db.Exec(t, fmt.Sprintf("GRANT SELECT ON lockstep_%s TO '%s'@'%s'", table, db.Config().User, host))
			}
		}
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			denied := func(what, table string, err error) {
				t.Helper()
				wants(t, what, err, txlock.ErrPrivilege)
				testdb.ErrorIf(t, err != nil && (!strings.Contains(err.Error(), " ON "+table+" TO '"+db.Config().User+"'@'") || !strings.Contains(err.Error(), "GRANT SELECT, INSERT, UPDATE")),
					"%s doesn't name the cure: %v", what, err)
			}
			s := begin(t, pool, nil)
			limited := s.WaitAtMost(time.Second)
			denied("Lock", "lockstep_locks", testdb.Err(s.Lock(t.Context(), named())))
			denied("Lock of a hashed key", "lockstep_centers", testdb.Err(s.Lock(t.Context(), hashed())))
			denied("LockAll", "lockstep_locks", testdb.Err(s.LockAll(t.Context(), named(), named())))
			denied("RLock", "lockstep_locks", testdb.Err(s.RLock(t.Context(), named())))
			denied("TryLock", "lockstep_locks", testdb.Err(s.TryLock(t.Context(), named())))
			denied("WaitAtMost", "lockstep_locks", testdb.Err(limited.Lock(t.Context(), named())))
			denied("CompareAndBump", "lockstep_locks", s.CompareAndBump(t.Context(), named(), 0))
			denied("Once", "lockstep_once", testdb.Err(s.Once(t.Context(), named())))
			wants(t, "Verify", s.Verify(t.Context()), nil)
			s.commit(t)
			denied("Ensure", "lockstep_locks", txlock.Ensure(t.Context(), pool, named()))
			db.Exec(t, "REPLACE INTO lockstep_locks VALUES ('long ago', 1, '-', 0, 1)")
			denied("Clean", "lockstep_locks", testdb.Err(txlock.Purge(t.Context(), pool, time.Hour)))

			leases := testdb.Got(lease.NewManager(pool))(t)
			denied("Acquire", "lockstep_leases", testdb.Err(leases.Acquire(t.Context(), named())))
			wants(t, "Close", leases.Close(context.WithoutCancel(t.Context())), nil)
		}
	})
}

// TestOtherDriver: a driver with errors of its own is told what is needed, one of go-sql-driver isn't.
func TestOtherDriver(t *testing.T) {
	t.Parallel()
	const needs = "github.com/go-sql-driver/mysql, which lockstep needs"
	for _, c := range []struct {
		reply error
		told  bool
	}{
		{errors.New("ERROR 1568 (25001): Transaction characteristics can't be changed while a transaction is in progress"), true},
		{&mysql.MySQLError{Number: 1317, Message: "Query execution was interrupted"}, false},
		{mysql.ErrInvalidConn, false},
	} {
		db, mock, err := sqlmock.New()
		noError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		mock.ExpectBegin()
		mock.ExpectExec("SET TRANSACTION READ WRITE").WillReturnError(c.reply)
		tx := testdb.Got(db.BeginTx(t.Context(), nil))(t)
		_, err = txlock.Join(t.Context(), tx)
		testdb.ErrorIf(t, !errors.Is(err, c.reply) || strings.Contains(err.Error(), needs) != c.told, "Join: %v, told=%t", err, c.told)
	}
}

// TestServerSettings runs on a server whose settings no other test may have.
func TestServerSettings(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--innodb-rollback-on-timeout=ON")).OpenNamed(t)
		rollsBackOnTimeout(t, db)
		startsWithoutAutocommit(t, db)
		if engine == testdb.MySQL {
			limitWhileUsersAreChanged(t, db)
		}
		isReadOnly(t, db)
	})
}

// rollsBackOnTimeout: where a wait that ends rolls back, a try of a known key leaves the transaction alive, or says that it is over.
func rollsBackOnTimeout(t *testing.T, db *testdb.DB) {
	t.Helper()
	fresh, known := apart(t, db), named()
	committed(t, db, known)
	for _, key := range []txlock.Key{fresh, known} {
		holder(t, db, key)
		s := begin(t, newPool(t, db, true), nil)
		_, err := s.LockAny(t.Context(), key)
		wants(t, "LockAny", err, txlock.ErrBusy)
		verify := s.Verify(t.Context())
		if key == known {
			wants(t, "Verify", verify, nil)
		}
		testdb.Equal(t, "Verify says that it is doomed, as LockAny", errors.Is(verify, txlock.ErrTxDoomed), errors.Is(err, txlock.ErrTxDoomed))
	}
}

// startsWithoutAutocommit: the setting is found where it is that of init_connect, of which no client is told.
func startsWithoutAutocommit(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "SET GLOBAL init_connect = 'SET autocommit = 0'")
	defer db.Exec(t, "SET GLOBAL init_connect = ''")
	for _, guarded := range []bool{false, true} {
		pool := newPool(t, db, guarded)
		tx := testdb.Got(pool.BeginTx(t.Context(), nil))(t)
		wants(t, "Join", testdb.Err(txlock.Join(t.Context(), tx)), schema.ErrAutocommit)
		wants(t, "Rollback", tx.Rollback(), nil)
		wants(t, "Check", schema.Check(t.Context(), pool), schema.ErrAutocommit)
	}
}

// isReadOnly asks a replica, which takes no writes of the application's.
func isReadOnly(t *testing.T, db *testdb.DB) {
	t.Helper()
	old := named()
	before := committed(t, db, old)
	exec(t, db.Admin(), "INSERT INTO lockstep_locks VALUES ('long ago', 1, '-', 0, 1)")
	variable := map[testdb.Engine]string{testdb.MariaDB: "read_only", testdb.MySQL: "super_read_only"}[db.Engine()]
	db.Exec(t, "SET GLOBAL "+variable+" = ON")
	defer func() { db.Exec(t, "SET GLOBAL "+variable+" = OFF") }() // so that the database can be dropped

	for _, guarded := range []bool{false, true} {
		pool := newPool(t, db, guarded)
		wants(t, "Ensure", txlock.Ensure(t.Context(), pool, named()), txlock.ErrReadOnly)
		wants(t, "Ensure of what is there", txlock.Ensure(t.Context(), pool, old), nil)
		wants(t, "Purge", testdb.Err(txlock.Purge(t.Context(), pool, 1)), txlock.ErrReadOnly)
		wants(t, "Holders", testdb.Err(txlock.Holders(t.Context(), pool, old)), nil)
		s := begin(t, pool, nil)
		wants(t, "Once", testdb.Err(s.Once(t.Context(), named())), txlock.ErrReadOnly)
		s.refuses(t, old, txlock.ErrReadOnly, "Lock", "LockAll")
		s.refuses(t, hashed(), txlock.ErrReadOnly, "Lock")
		grant, err := s.RLock(t.Context(), old)
		wants(t, "RLock", err, nil)
		testdb.Equal(t, "the token of the shared grant, after an exclusive one", grant.Token(), before.Token())
		s.commit(t)
	}
}

// limitWhileUsersAreChanged: MySQL says by other numbers that a limit is over while a user is changed.
func limitWhileUsersAreChanged(t *testing.T, db *testdb.DB) {
	key := named()
	committed(t, db, key)
	holder(t, db, key) // of a free one the limit would not matter
	changing, cancel := context.WithCancel(t.Context())
	var changes sync.WaitGroup
	defer changes.Wait()
	defer cancel()
	for range 2 {
		changes.Go(func() {
			for changing.Err() == nil {
				if _, err := db.Admin().ExecContext(context.WithoutCancel(changing), "FLUSH PRIVILEGES"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pools := []*sql.DB{impatient(t, db, true), impatient(t, db, false)}
	seen := make(map[uint16]int)
	for i, end := 0, time.Now().Add(time.Minute); seen[3547] == 0 || seen[1142] == 0; i++ {
		testdb.FatalIf(t, time.Now().After(end), "the numbers of %d tries were %v, want 3547 and 1142", i, seen)
		s := inTx(t, pools[i%2], txlock.NothingRead())
		_, err := s.WaitAtMost(time.Millisecond).Lock(t.Context(), key)
		if server := new(mysql.MySQLError); errors.As(err, &server) {
			seen[server.Number]++
		}
		if err != nil {
			wants(t, "WaitAtMost while users are changed", err, txlock.ErrWaitTimeout)
			wants(t, "Verify", s.Verify(t.Context()), nil)
		}
		s.commit(t)
	}
	t.Logf("ended by the limit: %v", seen)
}
