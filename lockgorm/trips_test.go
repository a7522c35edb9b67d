package lockgorm_test

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// counting is a pool that can use a number of connections, and counts its round trips.
func (e *env) counting(t *testing.T, connections int) (*gorm.DB, *testdb.Trips) {
	t.Helper()
	trips, count := testdb.CountTrips(t)
	db := e.openDSN(t, e.DSN(count, func(c *driver.Config) { c.InterpolateParams = true }))
	poolOf(t, db).SetMaxOpenConns(connections)
	return db, trips
}

// TestTrips counts round trips: a transaction with a lock has no more of them than the same transaction without, for which MySQL needs procedures.
func TestTrips(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, trips := e.counting(t, 1)
		key, table := newKey(), "`"+e.names.TableName("Note")+"`"
		noError(t, txlock.Ensure(t.Context(), poolOf(t, db), key))
		write := func(tx *gorm.DB) error { return tx.Create(&Note{N: 1}).Error }
		one := func(run func() error) int {
			noError(t, run()) // what a process asks a server once
			before := trips.Count()
			noError(t, run())
			return trips.Count() - before
		}
		without, begin := one(func() error { return db.Transaction(write) }), 0
		if e.Engine() == testdb.MySQL && testdb.WithoutProcedures() {
			begin = 1
		}
		committed := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
		got := [...]int{
			one(func() error { return lockgorm.Transaction(db, []txlock.Key{key}, write) }),
			one(func() error { return lockgorm.Transaction(db, []txlock.Key{key}, write, committed) }), // which sends the level, too
			one(func() error { return lockgorm.Optimistic(db, key, write) }),                           // which compares the version before COMMIT
			one(func() error { return db.Transaction(func(*gorm.DB) error { return nil }) }),
		}
		want := [...]int{without + begin, without + 2*begin, without + 2*begin, 0}
		testdb.Equal(t, "Transaction, at READ COMMITTED, Optimistic, and without statements", got, want)
		noError(t, db.Use(lockgorm.New()))
		note := Note{ID: newID(), N: 100}
		noError(t, db.Create(&note).Error)
		for name, sell := range map[string]func(tx *gorm.DB) error{
			"models": func(tx *gorm.DB) error {
				var n Note
				if err := tx.Clauses(lockgorm.On(key)).First(&n, note.ID).Error; err != nil {
					return err
				}
				noError(t, lockgorm.AssertLocked(tx, key)) // by the read
				return tx.Model(&n).Clauses(lockgorm.On(lockgorm.NoLock...), lockgorm.CommitWith(1)).Update("n", n.N-1).Error
			},
			"Raw and Exec": func(tx *gorm.DB) error {
				var n int64
				if err := tx.Clauses(lockgorm.On(key)).Raw("SELECT n FROM "+table+" WHERE id = ?", note.ID).Scan(&n).Error; err != nil {
					return err
				}
				return tx.Clauses(lockgorm.CommitWith(1)).Exec("UPDATE "+table+" SET n = ? WHERE id = ?", n-1, note.ID).Error
			},
		} {
			got := one(func() error { return lockgorm.Transaction(db, nil, sell) })
			testdb.ErrorIf(t, got != 2 && begin == 0, "%s: %d round trips, want 2", name, got)
		}
		e.wantRows(t, "two writes each", 1, "Note", "id = ? AND n = 96", note.ID)
		wantError(t, "no row", lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			return tx.Clauses(lockgorm.CommitWith(1)).Where("id = -1").Delete(&Note{}).Error
		}), txlock.ErrRows)
	})
}

// TestTripsOfConditions: updates whose rows are known have one round trip for the lock, which BEGIN may share, and others two more.
func TestTripsOfConditions(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		plain, tripsOfPlain := e.counting(t, 2)
		db, trips := e.counting(t, 2)
		noError(t, db.Use(lockgorm.New()))
		// Both are opened before, which a busy machine may not do while the rows are read beside a transaction.
		one, other := testdb.Got(poolOf(t, db).Conn(t.Context()))(t), testdb.Got(poolOf(t, db).Conn(t.Context()))(t)
		noError(t, errors.Join(one.Close(), other.Close()))
		id := newID()
		noError(t, db.Create([]*Parcel{{ID: id, N: id}, {ID: id + 1, N: id}}).Error)
		second := func(write func(tx *gorm.DB) error) func(db *gorm.DB) error {
			return func(db *gorm.DB) error {
				return db.Transaction(func(tx *gorm.DB) error { return errors.Join(tx.Exec("DO 1").Error, write(tx)) })
			}
		}
		added := func(what string, write func(tx *gorm.DB) error, want int) {
			t.Helper()
			var took [2]int
			for i, db := range []*gorm.DB{plain, db} {
				for range 3 { // what a process asks a server once, or prepares at the second time
					before := trips.Count() + tripsOfPlain.Count()
					noError(t, write(db))
					took[i] = trips.Count() + tripsOfPlain.Count() - before
				}
			}
			testdb.Equal(t, what+": more round trips than without the plugin", took[1]-took[0], want)
		}
		without := e.Engine() == testdb.MySQL && testdb.WithoutProcedures()
		for what, c := range map[string]struct{ rows, keys int }{"id = ?": {0, 1}, "id IN (?, 77)": {0, 2}, "n = ?": {2, 2}, "n = - ?": {2, 0}} {
			write := func(tx *gorm.DB) error {
				return tx.Model(&Parcel{}).Where(what, id).Update("n", gorm.Expr("n + 0")).Error
			}
			locks, begun := 0, min(1, c.keys)
			if without && c.keys > 0 { // a statement for each key, and two for what the transaction has seen
				locks, begun = c.keys, c.keys+2
			}
			added(what, write, c.rows+locks)
			added(what+", in a transaction", second(write), c.rows+begun)
		}
	})
}

// Audited has a hook that runs after its writes.
type Audited struct {
	ID int64
	N  int64
}

// AfterSave would be called behind the COMMIT.
func (*Audited) AfterSave(*gorm.DB) error { return errors.New("behind the commit") }

// TestCommitWithRefused: a write isn't the last of its transaction where GORM or the plugin sends more behind it.
func TestCommitWithRefused(t *testing.T) {
	eachGuarded(t, []string{"Order", "Item", "Note"}, func(t *testing.T, e *env) {
		e.names.tables["Audited"] = e.names.tables["Note"]
		db := e.openPlugin(t)
		order := Order{ID: newID(), Name: "a"}
		noError(t, db.Create(&order).Error)
		last, in := lockgorm.CommitWith(1), func(fn func(tx *gorm.DB) error) error { return lockgorm.Transaction(db, nil, fn) }
		for name, write := range map[string]func(tx *gorm.DB) error{
			"a hook":                func(tx *gorm.DB) error { return tx.Clauses(last).Create(&Audited{N: 1}).Error },
			"a hook of an update":   func(tx *gorm.DB) error { return tx.Clauses(last).Model(&Audited{ID: 1}).Update("n", 2).Error },
			"associations":          func(tx *gorm.DB) error { return tx.Clauses(last).Model(&order).Update("n", 2).Error },
			"associations of a new": func(tx *gorm.DB) error { return tx.Clauses(last).Create(&Order{ID: newID()}).Error },
			"a query":               func(tx *gorm.DB) error { return tx.Clauses(last).First(&order, order.ID).Error },
			"a row":                 func(tx *gorm.DB) error { return tx.Clauses(last).Raw("SELECT 1").Row().Err() },
		} {
			wantCure(t, fmt.Errorf("%s: %w", name, in(write)), txlock.ErrInvalidOption, "CommitWith")
		}
		wantError(t, "Optimistic", lockgorm.Optimistic(db, newKey(), func(tx *gorm.DB) error { return tx.Clauses(last).Create(&Note{N: 1}).Error }), txlock.ErrInvalidOption)
		for name, nested := range outermost {
			inner := func(tx *gorm.DB) error {
				return nested(tx, newKey(), func(tx *gorm.DB) error {
					return tx.Clauses(last).Exec("INSERT INTO `" + e.names.TableName("Note") + "` (n) VALUES (1)").Error
				})
			}
			wantError(t, name+" in Transaction", in(inner), txlock.ErrInvalidOption)
			wantError(t, name+" in a transaction", db.Transaction(inner), txlock.ErrInvalidOption)
		}
		save := func(tx *gorm.DB) error {
			return tx.Clauses(lockgorm.CommitWith(txlock.AnyRows)).Save(&Note{ID: newID(), N: 1}).Error
		}
		wantError(t, "Save", in(save), txlock.ErrInvalidOption)
		for name, session := range map[string]gorm.Session{"": {}, "SkipDefaultTransaction": {SkipDefaultTransaction: true}, "DisableNestedTransaction": {DisableNestedTransaction: true}} {
			err := in(func(tx *gorm.DB) error {
				notes := []Note{{ID: newID(), N: 1}, {ID: newID(), N: 2}, {ID: newID(), N: 3}}
				return tx.Session(&session).Clauses(lockgorm.CommitWith(txlock.AnyRows)).CreateInBatches(notes, 2).Error
			})
			if name != "" || err == nil { // GORM's savepoint is refused then
				wantError(t, "CreateInBatches "+name, err, txlock.ErrInvalidOption)
			}
		}
		e.wantRows(t, "rows", 0, "Note", "n > 0")
		note := Note{ID: newID()}
		noError(t, db.Create(&note).Error)
		noError(t, in(func(tx *gorm.DB) error {
			return tx.Clauses(last).Omit(clause.Associations).Model(&order).Update("n", 3).Error
		}))
		noError(t, in(func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{SkipHooks: true}).Clauses(last).Model(&Audited{ID: note.ID}).Update("n", 4).Error
		}))
		e.wantRows(t, "orders", 1, "Order", "n = 3")
		errBehind := errors.New("behind")
		err := in(func(tx *gorm.DB) error {
			noError(t, tx.Clauses(last).Model(&note).Update("n", 9).Error)
			return errBehind
		})
		n := e.count(t, "Note", "n = 9")
		testdb.ErrorIf(t, n != 1 || !errors.Is(err, errBehind) || !strings.Contains(err.Error(), "by CommitWith"), "%d rows, %v", n, err)
	})
}

func scopeOf(t *testing.T, tx *gorm.DB) *txlock.Scope {
	t.Helper()
	return testdb.Got(lockgorm.Join(tx))(t)
}

var (
	errInner       = errors.New("the inner block fails")
	errNoSavepoint = &driver.MySQLError{Number: 1305, Message: "the savepoint does not exist"}
)

// nested opens pools that differ in what a nested transaction does.
func nested(t *testing.T, e *env) map[string]*gorm.DB {
	return map[string]*gorm.DB{
		"savepoints":          e.open(t),
		"prepared savepoints": e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }),
		"none":                e.open(t, func(cfg *gorm.Config) { cfg.DisableNestedTransaction = true }),
	}
}

// TestWaitForItself writes by the outer db inside of Transaction, and begins another one. A plain pool waits: see txlock's TestWaitOnAPlainPool.
func TestWaitForItself(t *testing.T) {
	eachGuarded(t, []string{"Order"}, withPlugin(func(t *testing.T, _ *env, db *gorm.DB) {
		id := newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		write := func(db *gorm.DB) error { return db.Model(&Order{ID: id}).Update("n", 1).Error }
		for what, call := range map[string]func() error{
			"a write":     func() error { return write(db) },
			"Transaction": func() error { return lockgorm.Transaction(db, orders.Keys(id), write) },
		} {
			err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { return errors.Join(write(tx), call()) })
			held := new(txlock.HeldError)
			testdb.ErrorIf(t, !errors.Is(err, txlock.ErrWaitTimeout) || !errors.As(err, &held) || !held.Here, "%s: %v", what, err)
			wantFailure(t, what, err, "would wait for itself")
		}
		noError(t, write(db))
	}))
}

// send sends a statement in a transaction that is not prepared: servers prepare no SAVEPOINT.
func send(t *testing.T, tx *gorm.DB, text string) {
	t.Helper()
	pool := testdb.Got(lockgorm.SQLTx(tx))(t)
	noError(t, testdb.Err(pool.ExecContext(tx.Statement.Context, text)))
}

// TestNestedNotUndone: what a nested transaction has done whose ROLLBACK TO fails, and is swallowed, doesn't stay, and the outcome is told.
func TestNestedNotUndone(t *testing.T) {
	// loses is what a nested transaction does whose savepoint is gone when it fails.
	loses := func(t *testing.T, end func() error) func(tx *gorm.DB) error {
		return func(tx *gorm.DB) error {
			if err := tx.Create(&Note{N: 7}).Error; err != nil {
				return err
			}
			send(t, tx, "RELEASE SAVEPOINT here")
			return end()
		}
	}
	fails := func() error { return errInner }
	panics := func() error { panic(errInner) }
	// caught calls a nested transaction, and swallows what it fails by.
	caught := func(call func() error) (err error) {
		defer func() {
			p := recover()
			if err, ok := p.(error); p != nil && (!ok || !errors.Is(err, errInner)) {
				panic(p)
			}
		}()
		if err = call(); errors.Is(err, errInner) {
			return nil
		}
		return fmt.Errorf("the nested transaction: %w", err)
	}
	blocks := map[string]func(t *testing.T, tx *gorm.DB) error{
		"released": func(t *testing.T, tx *gorm.DB) error { return tx.Transaction(loses(t, fails)) },
		"rolled back": func(t *testing.T, tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error {
				send(t, tx, "ROLLBACK TO here")
				return errors.Join(tx.Create(&Note{N: 7}).Error, errInner)
			})
		},
		"panic":          func(t *testing.T, tx *gorm.DB) error { return tx.Transaction(loses(t, panics)) },
		"another handle": func(t *testing.T, tx *gorm.DB) error { return tx.WithContext(t.Context()).Transaction(loses(t, fails)) },
		"nested in nested": func(t *testing.T, tx *gorm.DB) error {
			return cmp.Or(tx.Transaction(func(tx *gorm.DB) error {
				return caught(func() error { return tx.Transaction(loses(t, fails)) })
			}), errInner)
		},
		"lockgorm.Transaction": func(t *testing.T, tx *gorm.DB) error { return lockgorm.Transaction(tx, nil, loses(t, fails)) },
	}
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for _, other := range []bool{false, true} {
			db := e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt, cfg.TranslateError = other, other })
			for name, block := range blocks {
				key := e.ensured(t)
				fn := func(tx *gorm.DB) error {
					send(t, tx, "SAVEPOINT here")
					return caught(func() error { return block(t, tx) })
				}
				for by, run := range outermost {
					if err := run(db, key, fn); !errors.Is(err, errNoSavepoint) || txlock.Retryable(err) {
						t.Errorf("%s, %s: %v, want %v, which is not retried", by, name, err, errNoSavepoint)
					}
				}
				e.wantRows(t, name+": rows that were to be undone were committed", 0, "Note", "n = 7")
			}
		}
	})
}

// TestErrorOfTheHandle: a transaction whose handle has an error is rolled back: with it GORM's Commit commits, and returns that error.
func TestErrorOfTheHandle(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, fail := range map[string]func(tx *gorm.DB){
			"AddError":  func(tx *gorm.DB) { _ = tx.AddError(errInner) },
			"SavePoint": func(tx *gorm.DB) { _ = tx.SavePoint("a a") },
		} {
			err := lockgorm.Transaction(e.open(t), nil, func(tx *gorm.DB) error {
				noError(t, tx.Create(&Note{N: 1}).Error)
				fail(tx)
				return nil
			})
			wantFailure(t, name, err)
			e.wantRows(t, name, 0, "Note", "n = 1")
		}
	})
}

// TestCommitWithNotUndone: a write doesn't commit what a nested transaction before it couldn't undo, whether the clause or the method of the scope
// says that it is the last; and a nested Transaction whose savepoint undoes that fails, and leaves the outer one as it is.
func TestCommitWithNotUndone(t *testing.T) {
	eachGuarded(t, []string{"Note"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, last := range []func(tx *gorm.DB) *gorm.DB{
			func(tx *gorm.DB) *gorm.DB { return tx.Clauses(lockgorm.CommitWith(1)) },
			func(tx *gorm.DB) *gorm.DB { return tx.WithContext(scopeOf(t, tx).CommitWith(tx.Statement.Context, 1)) },
		} {
			note := &Note{N: 1}
			noError(t, db.Create(note).Error)
			fails := func(tx *gorm.DB) error {
				send(t, tx, "RELEASE SAVEPOINT here")
				return errors.Join(tx.Create(&Note{N: 7}).Error, errInner)
			}
			err := lockgorm.Transaction(db, []txlock.Key{e.ensured(t)}, func(tx *gorm.DB) error {
				send(t, tx, "SAVEPOINT here")
				wantError(t, "the nested transaction", tx.WithContext(t.Context()).Transaction(fails), errInner)
				return last(tx).Model(note).Update("n", 2).Error
			})
			wantError(t, "CommitWith", err, errNoSavepoint)
			e.wantRows(t, "what was to be undone, or the last write, was committed", 0, "Note", "n <> 1")
			noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { // what a nested Transaction undoes concerns nobody
				for end, want := range map[error]error{errInner: errInner, nil: errNoSavepoint} {
					wantError(t, "the nested Transaction", lockgorm.Transaction(tx, nil, func(tx *gorm.DB) error {
						send(t, tx, "SAVEPOINT here")
						wantError(t, "the innermost", tx.Transaction(fails), errInner)
						return end
					}), want)
				}
				return last(tx).Model(note).Update("n", 2).Error
			}))
			e.wantRows(t, "the last write was not committed", 1, "Note", "n = 2")
			e.wantRows(t, "what a nested Transaction was to undo was committed", 0, "Note", "n = 7")
			noError(t, db.Model(note).Update("n", 1).Error)
		}
	}))
}

// deadlock makes one statement of tx the victim of a deadlock, and returns its error. It needs the table of Note.
func (e *env) deadlock(t *testing.T, tx *gorm.DB) error {
	t.Helper()
	table := e.names.tables["Note"]
	rival := testdb.Got(e.Admin().BeginTx(t.Context(), nil))(t)
	defer func() { _ = rival.Rollback() }()
	var first, last int64
	for i := range 20 {
		result := testdb.Got(e.Admin().ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)"))(t)
		last = testdb.Got(result.LastInsertId())(t)
		if i == 0 {
			first = last
		}
		noError(t, testdb.Err(rival.ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")))
	}
	noError(t, testdb.Err(rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", last)))
	waited := e.Waiting(t, testdb.ConnID(t, tx.Statement.ConnPool), func() error {
		return tx.Exec("UPDATE "+table+" SET n = n + 2 WHERE id IN (?, ?) ORDER BY id", first, last).Error
	})
	noError(t, testdb.Err(rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", first)))
	err := <-waited
	testdb.ErrorIf(t, err == nil, "there was no deadlock")
	return err
}

// skipInner leaves out the error by which a test rolls back.
func skipInner(err error) error {
	if errors.Is(err, errInner) {
		return nil
	}
	return err
}
