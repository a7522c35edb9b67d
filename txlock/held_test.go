package txlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// lookout is the connector of a pool that NameHolders looks on.
type lookout struct {
	driver.Connector
	before   func(ctx context.Context) error // it connects
	connects atomic.Int64
}

func (l *lookout) Connect(ctx context.Context) (driver.Conn, error) {
	l.connects.Add(1)
	if l.before != nil {
		if err := l.before(ctx); err != nil {
			return nil, err
		}
	}
	return l.Connector.Connect(ctx)
}

// looksOn returns a pool of one connection that NameHolders looks on.
func looksOn(t *testing.T, db *testdb.DB, before func(ctx context.Context) error) (*sql.DB, *lookout) {
	t.Helper()
	base := testdb.Got(mysql.NewConnector(db.Config()))(t)
	l := &lookout{Connector: base, before: before}
	pool := sql.OpenDB(l)
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = pool.Close() })
	return pool, l
}

// naming is an impatient pool whose transactions name holders.
type naming struct {
	pool    *sql.DB
	options []txlock.JoinOption
}

func namingPool(t *testing.T, db *testdb.DB, guarded bool, looks *sql.DB, mutators ...func(*mysql.Config)) naming {
	t.Helper()
	return slowPool(t, db, guarded, 0, looks, nil, append(mutators, impatience)...)
}

// begin begins a transaction in which nothing is sent yet.
func (n naming) begin(t *testing.T) *session {
	t.Helper()
	return inTx(t, n.pool, n.options...)
}

// till holds a key that was committed before, under a label, on a plain pool: of a guarded one this program would know it without a look.
func till(t *testing.T, db *testdb.DB, key txlock.Key) *session {
	t.Helper()
	committed(t, db, key)
	s := begin(t, newPool(t, db, false), nil)
	s.begun = time.Now()
	noError(t, testdb.Err(s.Lock(txlock.WithLabel(t.Context(), "till 7"), key)))
	return s
}

// names demands that an error names who holds a key.
func (s *session) names(t *testing.T, err error, key txlock.Key) {
	t.Helper()
	var held *txlock.HeldError
	switch {
	case !errors.As(err, &held):
		t.Errorf("%v doesn't name the holder", err)
	case held.Key != key || held.Label != "till 7" || held.Session != uint64(s.id) || held.Owner != "":
		t.Errorf("%v names %+v, want the holder of %v in session %d", err, held, key, s.id)
	case !strings.Contains(err.Error(), fmt.Sprintf("%q", key)):
		t.Errorf("%v doesn't name the key", err)
	case held.Since.Before(s.begun.Add(-time.Minute)) || time.Until(held.Since) > time.Minute:
		t.Errorf("held since %v", held.Since)
	case !strings.Contains(err.Error(), fmt.Sprintf(`owner "till 7" had it since %s in session %d`, held.Since.UTC().Format("2006-01-02T15:04:05.000Z"), s.id)):
		t.Errorf("the text is %q", err)
	}
}

// untilNamed repeats a call that is refused until its error names a holder: on a busy machine a look may be over before it was answered.
func untilNamed(t *testing.T, want error, call func() error) (err error) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < soon; {
		err = call()
		wants(t, "the refusal", err, want)
		if held := new(txlock.HeldError); t.Failed() || errors.As(err, &held) {
			break
		}
	}
	return err
}

// namesNobody demands that an error names no holder.
func namesNobody(t *testing.T, what string, err error) {
	t.Helper()
	var held *txlock.HeldError
	testdb.ErrorIf(t, errors.As(err, &held), "%s: %v names %+v", what, err, held)
}

// refusals are the calls that a holder refuses.
var refusals = map[string]struct {
	want error
	call verb
}{
	"Lock": {txlock.ErrWaitTimeout, verbs["Lock"]}, "TryLock": {txlock.ErrBusy, verbs["TryLock"]}, "TryRLock": {txlock.ErrBusy, verbs["TryRLock"]},
	"LockAny": {txlock.ErrBusy, verbs["LockAny"]}, "LockAll": {txlock.ErrWaitTimeout, verbs["LockAll"]},
	"WaitAtMost Lock":    {txlock.ErrWaitTimeout, verbs["Lock"].within(20 * time.Millisecond)},
	"WaitAtMost RLock":   {txlock.ErrWaitTimeout, verbs["RLock"].within(20 * time.Millisecond)},
	"WaitAtMost LockAll": {txlock.ErrWaitTimeout, verbs["LockAll"].within(20 * time.Millisecond)},
	"LockAll, shared":    {txlock.ErrWaitTimeout, verbs["LockAll, shared"].within(20 * time.Millisecond)},
	"CompareAndBump":     {txlock.ErrWaitTimeout, verbs["CompareAndBump of 7"].within(20 * time.Millisecond)},
}

// onKindsAndPools runs a test with keys of both kinds, on guarded and plain pools.
func onKindsAndPools(t *testing.T, test func(t *testing.T, db *testdb.DB, kind string, newKey func() txlock.Key, guarded bool)) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for kind, newKey := range map[string]func() txlock.Key{"named": named, "hashed": hashed} {
			for _, guarded := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/guarded=%t", kind, guarded), func(t *testing.T) {
					t.Parallel()
					test(t, db, kind, newKey, guarded)
				})
			}
		}
	})
}

// TestRefusalsNameTheHolder: each refusal names the holder, to the observer too, and the look leaves the transaction and its snapshot as they were.
func TestRefusalsNameTheHolder(t *testing.T) {
	onKindsAndPools(t, func(t *testing.T, db *testdb.DB, kind string, newKey func() txlock.Key, guarded bool) {
		looks, _ := looksOn(t, db, nil)
		told := new(answers)
		pool := slowPool(t, db, guarded, 0, looks, told.observe, impatience)
		key := newKey()
		holder := till(t, db, key)
		committed(t, db, another(key))
		for i, name := range slices.Sorted(maps.Keys(refusals)) {
			verb := refusals[name]
			if !testdb.Meet(i, kind == "hashed", guarded) {
				continue
			}
			var s *session
			err := untilNamed(t, verb.want, func() error {
				if s != nil {
					s.commit(t)
				}
				s = pool.begin(t)
				return testdb.Err(verb.call(s.Scope, t.Context(), key))
			})
			holder.names(t, err, key)
			if name != "LockAny" { // who looks once, behind its tries
				holder.names(t, told.to(key).Err, key)
			}
			// MariaDB may answer so to an UPDATE of a hashed key: then the lock itself has read.
			hasRead := strings.Contains(err.Error(), "the server interrupted the statement")
			n := s.seesNew(t, db)
			testdb.ErrorIf(t, n != 1 && !hasRead, "the transaction sees %d rows of what was committed since", n)
			wants(t, "Verify", s.Verify(t.Context()), nil)
			if t.Failed() {
				t.Fatal(name)
			}
			s.commit(t)
		}
		if guarded { // on a plain pool only Join has the option
			holder.names(t, untilNamed(t, txlock.ErrBusy, func() error {
				return locksqlc.TryDo(t.Context(), pool.pool, key, func(context.Context) error { return nil })
			}), key)
		}
	})
}

// seesNew commits a row, and counts it in the transaction.
func (s *session) seesNew(t *testing.T, db *testdb.DB) int64 {
	t.Helper()
	fresh := named().String()
	exec(t, db.Admin(), "INSERT INTO lockstep_locks VALUES (?, 0, '-', 0, 0)", fresh)
	return number(t, s.tx, "SELECT COUNT(*) FROM lockstep_locks WHERE name = ?", fresh)
}

// TestNobodyIsNamed: a refusal is what it is where a look finds nobody, has no connection or isn't allowed.
func TestNobodyIsNamed(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, c := range map[string]struct {
			of     *testdb.DB
			looks  func(t *testing.T, key txlock.Key, holder *session, looks *sql.DB) // before the try
			before func(holder *session) error                                        // of the look
		}{
			"the holder has ended": {db, nil, func(holder *session) error { return holder.tx.Commit() }},
			"a reader": {db, func(t *testing.T, key txlock.Key, holder *session, _ *sql.DB) {
				holder.commit(t)
				wants(t, "RLock", testdb.Err(begin(t, newPool(t, db, false), nil).RLock(t.Context(), key)), nil)
			}, nil},
			"no connection": {db, func(t *testing.T, _ txlock.Key, _ *session, looks *sql.DB) {
				testdb.Taken(t, looks)
			}, nil},
			"no privilege": {ungranted(t, db.Engine()), func(t *testing.T, key txlock.Key, _ *session, looks *sql.DB) {
				wants(t, "Holders", testdb.Err(txlock.Holders(t.Context(), looks, key)), txlock.ErrPrivilege)
			}, nil},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key := named()
				holder := till(t, db, key)
				looks, l := looksOn(t, c.of, func(context.Context) error {
					if c.before == nil {
						return nil
					}
					return c.before(holder)
				})
				if c.looks != nil {
					c.looks(t, key, holder, looks)
				}
				waits, s := looks.Stats().WaitCount, namingPool(t, db, true, looks).begin(t)
				_, err := s.TryLock(t.Context(), key)
				wants(t, "TryLock", err, txlock.ErrBusy)
				namesNobody(t, "TryLock", err)
				testdb.Equal(t, "it says that a privilege is missing", errors.Is(err, txlock.ErrPrivilege), false)
				wants(t, "Verify", s.Verify(t.Context()), nil)
				exact := c.before != nil || name == "no connection" // others may come too late, or connect again
				if n, made := looks.Stats().WaitCount, l.connects.Load(); n != waits || exact && made != 1 || name == "no privilege" && made == 0 {
					t.Errorf("the look has waited for a connection %d times, and %d were made", n-waits, made)
				}
				if c.before != nil {
					wants(t, "TryLock of what is free now", testdb.Err(s.TryLock(t.Context(), key)), nil)
				}
				s.commit(t)
			})
		}
	})
}

// TestNamesCostNothingWithoutARefusal: locks that are granted are not looked up, and a refusal costs the transaction's connection no round trip.
func TestNamesCostNothingWithoutARefusal(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key, free := named(), named()
		till(t, db, key)
		committed(t, db, free)
		for _, guarded := range []bool{false, true} {
			looks, l := looksOn(t, db, nil)
			var spent []int
			for i, given := range []*sql.DB{nil, looks} {
				trips, count := testdb.CountTrips(t)
				s := namingPool(t, db, guarded, given, count).begin(t)
				wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), free)), nil)
				wants(t, "LockAny", testdb.Err(s.LockAny(t.Context(), key, free)), nil)
				testdb.Equal(t, "looks at what is free", l.connects.Load(), 0)
				wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), key)), txlock.ErrBusy)
				s.commit(t)
				testdb.Equal(t, "looks", l.connects.Load(), int64(i))
				spent = append(spent, trips.Count())
			}
			testdb.Equal(t, fmt.Sprintf("round trips, guarded=%t, beside those without names", guarded), spent[1], spent[0])
		}
	})
}

// TestHeldErrorIsALine proves that what others have written can't look like lines of a log.
func TestHeldErrorIsALine(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.FixedZone("", 3600))
	for want, err := range map[string]*txlock.HeldError{
		`owner "a\nb" (c\nd "e") had it since 2026-05-04T02:02:01.000Z in session 7`: {Owner: "a\nb", Label: "c\nd \"e\"", Since: at, Session: 7},
		`owner "web-3/4711" had it`:                           {Owner: "web-3/4711"},
		`an open transaction of session 7 has its row locked`: {Session: 7},
	} {
		testdb.Equal(t, "the text", strings.ReplaceAll(err.Error(), `\"`, `"`), want)
	}
}

// TestWaitersShareALook: many who are refused at once send one look at a time for a key, and leave nothing of it.
func TestWaitersShareALook(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		till(t, db, key)
		var now, most atomic.Int64
		looks, _ := looksOn(t, db, func(ctx context.Context) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		})
		looks.SetMaxOpenConns(0)
		pool := namingPool(t, db, true, looks)
		var all sync.WaitGroup
		for range 20 {
			s := pool.begin(t)
			all.Go(func() {
				_, err := s.TryLock(t.Context(), key)
				wants(t, "TryLock", err, txlock.ErrBusy)
				namesNobody(t, "TryLock", err)
			})
		}
		all.Wait()
		testdb.Equal(t, "looks at once", most.Load(), 1)
		testdb.Equal(t, "looks that are left", testdb.InUse(looks), 0)
	})
}

// ofItself reports whether an error says that a call would wait for itself.
func ofItself(err error) bool {
	var held *txlock.HeldError
	return errors.Is(err, txlock.ErrWaitTimeout) && !txlock.Retryable(err) && errors.As(err, &held) && held.Here && held.Session > 0 &&
		strings.Contains(err.Error(), "would wait for itself")
}

// TestWaitForItself: a call inside of a transaction's function that would wait for that transaction is refused before it waits.
func TestWaitForItself(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		ctx, hashed := t.Context(), txlock.NewFamily[int64]("own", txlock.Hashed())
		for _, key := range []txlock.Key{named(), hashed.Key(time.Now().UnixNano())} {
			nested := func(keys ...txlock.Key) error {
				return locksqlc.Run(ctx, pool, keys, func(*sql.Tx) error { return nil })
			}
			nothing := func(context.Context) error { return nil }
			calls := map[string]func() error{
				"Run":        func() error { return nested(key) },
				"Run shared": func() error { return nested(txlock.Shared(key)) },
				"Run of two": func() error { return nested(key, named()) },
				"Do":         func() error { return locksqlc.Do(ctx, pool, key, nothing) },
				"Optimistic": func() error { return locksqlc.Optimistic(ctx, pool, key, func(*sql.Tx) error { return nil }) },
				"WaitAtMost": func() error {
					return lockIn(ctx, pool, func(s *txlock.Scope) error { return testdb.Err(s.WaitAtMost(time.Hour).Lock(ctx, key)) })
				},
				"RLock": func() error {
					return lockIn(ctx, pool, func(s *txlock.Scope) error { return testdb.Err(s.RLock(ctx, key)) })
				},
				"two in a row": func() error {
					return locksqlc.Run(ctx, pool, []txlock.Key{named()}, func(*sql.Tx) error { return nested(key) })
				},
			}
			for what, call := range calls {
				for outer, err := range map[string]error{
					"Run": locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return call() }),
					"Do":  locksqlc.Do(ctx, pool, key, func(context.Context) error { return call() }),
				} {
					testdb.ErrorIf(t, !ofItself(err), "%s inside of %s: %v", what, outer, err)
				}
			}
			shared := []txlock.Key{txlock.Shared(key)}
			wants(t, "shared in shared", locksqlc.Run(ctx, pool, shared, func(*sql.Tx) error { return nested(shared...) }), nil)
			err := locksqlc.Run(ctx, pool, shared, func(*sql.Tx) error { return errors.Join(nested(shared...), nested(key)) })
			testdb.ErrorIf(t, !ofItself(err), "exclusive in shared, behind another one that shared: %v", err)
			wants(t, "another key", locksqlc.Run(ctx, pool, shared, func(*sql.Tx) error { return nested(named()) }), nil)
			wants(t, "afterwards", nested(key), nil)
			testdb.Equal(t, "transactions that are over and remembered", txlock.Remembered(key), 0)
		}
	})
}

// TestWaitOnAPlainPool: a plain pool waits for its own transaction, and then says that this program has the key.
func TestWaitOnAPlainPool(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := impatient(t, db, false), t.Context(), named()
		committed(t, db, key)
		nested := func() error { return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }
		err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nested() })
		var held *txlock.HeldError
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrWaitTimeout) || !errors.As(err, &held) || !held.Here || ofItself(err), "Run inside of Run: %v", err)
		wants(t, "Run that is over on the server", locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			return errors.Join(tx.Rollback(), nested(), errNoUse)
		}), errNoUse)
		testdb.Equal(t, "transactions that are over and remembered", txlock.Remembered(key), 0)
		of := txlock.Named(key.String() + "z") // LockAll comes to it last
		begin(t, newPool(t, db, true), nil).lock(t, of)
		err = locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			again, err := locksqlc.Join(ctx, tx)
			return errors.Join(err, testdb.Err(again.LockAll(ctx, key, of)))
		})
		testdb.ErrorIf(t, !errors.As(err, &held) || held.Key != of, "LockAll of the own key and another's: %v", err)
	})
}

// lockIn runs a transaction that locks by its Scope.
func lockIn(ctx context.Context, pool *sql.DB, lock func(s *txlock.Scope) error) error {
	return locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
		s, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		return lock(s)
	})
}

// TestNoWaitForWhatIsOver: a call inside of a transaction that the server has rolled back, or that has rolled back to before its lock, isn't refused.
func TestNoWaitForWhatIsOver(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := newPool(t, db, true), t.Context(), named()
		wants(t, "Ensure", txlock.Ensure(ctx, pool, key), nil)
		nested := func() error { return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }
		err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			var session uint64
			wants(t, "the session", tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&session), nil)
			db.Exec(t, fmt.Sprintf("KILL %d", session))
			_, err := tx.ExecContext(ctx, "DO 1")
			for err == nil { // it may be a moment before the server ends it
				_, err = tx.ExecContext(ctx, "DO 1")
			}
			if err := nested(); ofItself(err) { // or the server still rolls back
				t.Error(err)
			}
			return errNoUse
		})
		wants(t, "Run", err, errNoUse)
		wants(t, "Run", locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
			wants(t, "SAVEPOINT", testdb.Err(tx.ExecContext(ctx, "SAVEPOINT early")), nil)
			s, err := locksqlc.Join(ctx, tx)
			wants(t, "Join", err, nil)
			wants(t, "Lock", testdb.Err(s.Lock(ctx, key)), nil)
			wants(t, "ROLLBACK TO", testdb.Err(tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT early")), nil)
			if err := nested(); ofItself(err) { // the server keeps some locks even so
				t.Error(err)
			}
			return nil
		}), nil)
	})
}

var errNoUse = errors.New("of no use")

// TestOnceWaitsForItself proves it of a key of Once, which no lock excludes.
func TestOnceWaitsForItself(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := newPool(t, db, true), t.Context(), named()
		once := func(then func() error) error {
			return lockIn(ctx, pool, func(s *txlock.Scope) error {
				if first, err := s.Once(ctx, key); err != nil || !first {
					return errors.Join(err, errors.New("not the first"))
				}
				return then()
			})
		}
		err := once(func() error { return once(nil) })
		testdb.ErrorIf(t, !ofItself(err), "Once: %v", err)
		wants(t, "a lock of that key", once(func() error { return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }), nil)
		testdb.Equal(t, "transactions that are over and remembered", txlock.Remembered(key), 0)
	})
}

// TestWaitForThisProgram: a wait for another goroutine's transaction is none for itself, and its refusal says that it is of this program.
func TestWaitForThisProgram(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx, key := newPool(t, db, true), t.Context(), named()
		refusals := map[string]func(s *txlock.Scope) error{
			"TryLock": func(s *txlock.Scope) error { return testdb.Err(s.TryLock(ctx, key)) },
			"Lock":    func(s *txlock.Scope) error { return testdb.Err(s.WaitAtMost(10*time.Millisecond).Lock(ctx, key)) },
			"LockAll": func(s *txlock.Scope) error {
				return testdb.Err(s.WaitAtMost(10*time.Millisecond).LockAll(ctx, named(), key))
			},
			"LockAny":            func(s *txlock.Scope) error { return testdb.Err(s.LockAny(ctx, key)) },
			"RLock of exclusive": func(s *txlock.Scope) error { return testdb.Err(s.WaitAtMost(10*time.Millisecond).RLock(ctx, key)) },
		}
		for what, refusal := range refusals {
			wants(t, what, locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error {
				refused := make(chan error)
				go func() { refused <- lockIn(ctx, pool, refusal) }()
				err := <-refused
				var held *txlock.HeldError
				testdb.ErrorIf(t, !errors.As(err, &held) || !held.Here || held.Key.String() != key.String() || !strings.Contains(err.Error(), "of this program") || ofItself(err),
					"%s: %v", what, err)
				return nil
			}), nil)
		}
		granted, waits := make(chan error), locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil })
		wants(t, "Run", waits, nil)
		wants(t, "a goroutine that goes on", locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error {
			go func() { granted <- locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }) }()
			return nil
		}), nil)
		wants(t, "the goroutine", <-granted, nil)
	})
}
