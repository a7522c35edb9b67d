package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// soon is more than anything here needs on a busy machine.
const soon = 2 * time.Minute

// answers notes the grants and refusals that it is told of.
type answers struct {
	mu     sync.Mutex
	events []txlock.Event
}

func (a *answers) observe(_ context.Context, e txlock.Event) {
	if e.Kind != txlock.Granted && e.Kind != txlock.Refused {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
}

// to returns the last answer to a call for a key.
func (a *answers) to(key txlock.Key) (last txlock.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range slices.Backward(a.events) {
		if e.Key == key {
			return e
		}
	}
	return last
}

// slowPool is a pool whose transactions tell of slow waits.
func slowPool(t *testing.T, db *testdb.DB, guarded bool, slow time.Duration, looks *sql.DB, told txlock.Observer, mutators ...func(*mysql.Config)) naming {
	t.Helper()
	base := testdb.Got(mysql.NewConnector(db.Config(mutators...)))(t)
	n := naming{options: []txlock.JoinOption{txlock.NothingRead()}}
	if guarded {
		n.pool = sql.OpenDB(locksqlc.Connector(base, txlock.NameHolders(looks), txlock.SlowWait(slow), txlock.Observe(told)))
	} else {
		n.pool = sql.OpenDB(base)
		n.options = append(n.options, txlock.NameHolders(looks), txlock.SlowWait(slow), txlock.Observe(told))
	}
	t.Cleanup(func() { _ = n.pool.Close() })
	return n
}

// aLook is how long a look is waited for. A busy machine may let its limit pass before it connects: then there is none, and the wait is tried again.
const aLook = 5 * time.Second

// slowly lets a call wait for a holder until somebody has looked, and returns its error.
func slowly(t *testing.T, holder *session, looks *sql.DB, l *lookout, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	testdb.Await(aLook, func() bool { return l.connects.Load() > 0 && looks.Stats().InUse == 0 || len(done) > 0 })
	holder.commit(t)
	return <-done
}

// waits are the calls that wait for a holder.
var waits = map[string]verb{
	"Lock": verbs["Lock"], "RLock": verbs["RLock"], "LockAll": verbs["LockAll"], "CompareAndBump": verbs["CompareAndBump of 7"],
	"WaitAtMost Lock": verbs["Lock"].within(soon), "LockAll, shared": verbs["LockAll, shared"].within(soon),
}

// TestSlowWaitsNameTheHolder: the observer is told for whom a slow wait was, of that key only, and the look leaves the transaction as it was.
func TestSlowWaitsNameTheHolder(t *testing.T) {
	onKindsAndPools(t, func(t *testing.T, db *testdb.DB, kind string, newKey func() txlock.Key, guarded bool) {
		for i, name := range slices.Sorted(maps.Keys(waits)) {
			wait := waits[name]
			if !testdb.Meet(i, kind == "hashed", guarded) {
				continue
			}
			key := newKey()
			committed(t, db, another(key))
			var told *answers
			var holder *session
			for begun := time.Now(); time.Since(begun) < 5*time.Minute; { // a look may end with the wait, or with its limit
				t.Run(name, func(t *testing.T) { // whose pools are closed then
					looks, l := looksOn(t, db, nil)
					told = new(answers)
					s := slowPool(t, db, guarded, 10*time.Millisecond, looks, told.observe).begin(t)
					holder = till(t, db, key)
					wants(t, name, slowly(t, holder, looks, l, func() error { return testdb.Err(wait(s.Scope, t.Context(), key)) }), nil)
					testdb.Equal(t, "rows that the transaction sees of what was committed since", s.seesNew(t, db), 1)
					wants(t, "Verify", s.Verify(t.Context()), nil)
					s.commit(t)
					testdb.Equal(t, "looks that are left", testdb.InUse(looks), 0)
				})
				if t.Failed() || told.to(key).Held != nil {
					break
				}
			}
			if t.Failed() {
				return
			}
			if held := told.to(key).Held; held == nil {
				t.Fatalf("%s: nobody is named", name)
			} else {
				holder.names(t, fmt.Errorf("%q: %w", key, held), key)
			}
			testdb.Equal(t, name+": who is said to have had what was free", told.to(another(key)).Held, nil)
		}
	})
}

// TestSlowWaitIsAskedFor: nobody looks during a short wait or a try, without names or observer; a look costs the connection no round trip.
func TestSlowWaitIsAskedFor(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		for _, guarded := range []bool{false, true} {
			trips := make(map[string]int)
			for name, c := range map[string]struct {
				slow  time.Duration
				named bool
				told  txlock.Observer
				looks int64
			}{
				"slow":        {time.Millisecond, true, new(answers).observe, 1},
				"short":       {time.Hour, true, new(answers).observe, 0},
				"none":        {0, true, new(answers).observe, 0},
				"negative":    {-time.Second, true, new(answers).observe, 0},
				"no names":    {time.Millisecond, false, new(answers).observe, 0},
				"no observer": {time.Millisecond, true, nil, 0},
			} {
				var n int64
				for begun := time.Now(); time.Since(begun) < soon; {
					looks, l := looksOn(t, db, nil)
					given := map[bool]*sql.DB{true: looks}[c.named]
					trip, count := testdb.CountTrips(t)
					s := slowPool(t, db, guarded, c.slow, given, c.told, count).begin(t)
					holder, id := till(t, db, key), testdb.ConnID(t, s.tx)
					done := db.Waiting(t, id, func() error { return testdb.Err(s.Lock(t.Context(), key)) })
					testdb.Await(aLook, func() bool { return l.connects.Load() >= c.looks })
					holder.commit(t)
					wants(t, name, <-done, nil)
					s.commit(t)
					trips[name] = trip.Count()
					if n = l.connects.Load(); n >= c.looks {
						break
					}
				}
				testdb.Equal(t, name+": looks", n, c.looks)
			}
			testdb.Equal(t, "round trips", trips["slow"], trips["none"])
		}
		looks, l := looksOn(t, db, nil)
		told := new(answers)
		s := slowPool(t, db, true, time.Nanosecond, looks, told.observe).begin(t)
		wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), key)), nil)
		s.commit(t)
		testdb.Equal(t, "looks during a try", l.connects.Load(), 0)
	})
}

// TestSlowWaitLooksInVain: a look that fails or hangs changes no wait, and leaves nothing. It runs alone: it counts goroutines.
func TestSlowWaitLooksInVain(t *testing.T) { //nolint:paralleltest // see above
	for _, engine := range testdb.Engines() {
		db := testdb.Open(t, engine)
		for name, look := range map[string]func(ctx context.Context) error{
			"fails": func(context.Context) error { return errors.New("no connection today") },
			"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			var looked bool
			for begun := time.Now(); !looked && time.Since(begun) < soon; {
				key := named()
				holder := till(t, db, key)
				before := goleak.IgnoreCurrent()
				looks, l := looksOn(t, db, look)
				told := new(answers)
				pool := slowPool(t, db, true, time.Millisecond, looks, told.observe)
				s := pool.begin(t)
				done := make(chan error, 1)
				go func() { done <- testdb.Err(s.Lock(t.Context(), key)) }()
				looked = testdb.Await(aLook, func() bool { return l.connects.Load() > 0 })
				holder.commit(t)
				wants(t, name, <-done, nil)
				wants(t, "Verify", s.Verify(t.Context()), nil)
				s.commit(t)
				testdb.Equal(t, "what a look has seen that "+name, told.to(key).Held, nil)
				wants(t, "Close", errors.Join(looks.Close(), pool.pool.Close()), nil)
				wants(t, name, goleak.Find(before), nil)
			}
			testdb.ErrorIf(t, !looked, "nobody looks")
		}
	}
}

// TestSlowWaitOfARefusal: a slow wait that is refused, and one that its context ends, tell the observer who was in the way.
func TestSlowWaitOfARefusal(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, c := range map[string]struct {
			want error
			wait func(s *session, key txlock.Key) error
		}{
			"limit": {txlock.ErrWaitTimeout, func(s *session, key txlock.Key) error {
				return testdb.Err(s.WaitAtMost(time.Second).Lock(t.Context(), key))
			}},
			"context": {context.DeadlineExceeded, func(s *session, key txlock.Key) error { return testdb.Err(s.Lock(limited(t, time.Second), key)) }},
		} {
			key := named()
			holder := till(t, db, key)
			var e txlock.Event
			testdb.Await(soon, func() bool {
				looks, _ := looksOn(t, db, nil)
				told := new(answers)
				s := slowPool(t, db, true, 10*time.Millisecond, looks, told.observe).begin(t)
				wants(t, name, c.wait(s, key), c.want)
				_ = s.tx.Rollback()
				e = told.to(key)
				return e.Held != nil
			})
			wants(t, name, e.Err, c.want)
			testdb.FatalIf(t, e.Held == nil, "%s: nobody is named", name)
			holder.names(t, fmt.Errorf("%q: %w", key, e.Held), key)
		}
	})
}

// holders asks for the holders on pools of its own with one connection, at whatever level.
func holders(t *testing.T, db *testdb.DB, keys ...txlock.Key) (all []txlock.Holder) {
	t.Helper()
	for i, level := range []string{"READ-UNCOMMITTED", "REPEATABLE-READ"} {
		pool := newPool(t, db, false, func(cfg *mysql.Config) {
			cfg.Params = map[string]string{db.Engine().LevelVariable(): "'" + level + "'"}
		})
		pool.SetMaxOpenConns(1)
		found := testdb.Got(txlock.Holders(t.Context(), pool, keys...))(t)
		testdb.ErrorIf(t, i > 0 && !slices.Equal(found, all), "at %s the holders are %+v, at another level %+v", level, found, all)
		all = found
	}
	return all
}

// holds demands that h is the holder of a grant.
func (s *session) holds(t *testing.T, h txlock.Holder, grant txlock.Grant) {
	t.Helper()
	testdb.ErrorIf(t, h.Key != grant.Key() || h.Token != grant.Token() || h.Session != uint64(s.id),
		"the holder is %+v, want %+v on connection %d", h, grant, s.id)
	age := time.Since(h.Locked)
	testdb.ErrorIf(t, age < -time.Minute || age > time.Minute, "it was locked %v ago", age)
}

func TestHolders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		fresh, old, lot, ensured, free, never := named(), named(), hashed(), named(), named(), named()
		committed(t, db, old)
		committed(t, db, free)
		noError(t, txlock.Ensure(t.Context(), db.Admin(), ensured))
		for _, guarded := range []bool{false, true} {
			s := begin(t, newPool(t, db, guarded), nil)
			grants := testdb.Got(s.LockAll(txlock.WithLabel(t.Context(), "till 7"), lot, old, fresh, ensured))(t)
			all := holders(t, db, free, lot, never, old, fresh, ensured, lot)
			testdb.FatalIf(t, len(all) != 5, "%d holders: %+v", len(all), all)
			for i, h := range all {
				s.holds(t, h, grants[i%4]) // the last is the first again
				testdb.Equal(t, "the label", h.Label, "till 7")
			}
			other := neighbour(lot) // another key of the same center lock
			all = holders(t, db, other)
			testdb.ErrorIf(t, len(all) != 1 || all[0].Key != other || all[0].Session != uint64(s.id), "the holders of its neighbour: %+v", all)
			wants(t, "Rollback", s.tx.Rollback(), nil)
			testdb.Equal(t, "holders after the rollback", len(holders(t, db, lot, old, fresh, ensured)), 0)
		}
		for _, key := range []txlock.Key{old, lot} { // a waiter is none, and nobody waits for it
			s, waiter := holder(t, db, key), begin(t, newPool(t, db, true), nil)
			answered := db.Waiting(t, waiter.id, func() error { return testdb.Err(waiter.Lock(t.Context(), key)) })
			for _, session := range []*session{s, waiter} {
				all := holders(t, db, key)
				testdb.ErrorIf(t, len(all) != 1 || all[0].Session != uint64(session.id), "holders %+v, want the one on connection %d alone", all, session.id)
				if session == s {
					s.commit(t)
					wants(t, "the waiter", <-answered, nil)
				}
			}
			waiter.commit(t)
			testdb.Equal(t, "holders after the commit", len(holders(t, db, key)), 0)
		}
	})
}

func TestOwner(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		host := testdb.Got(os.Hostname())(t)
		for owner, want := range map[string]string{
			"": host + "/" + strconv.Itoa(os.Getpid()), "Kasse für Zürich": "Kasse für Zürich",
			strings.Repeat("o", 300): strings.Repeat("o", 80), strings.Repeat("o", 79) + "ü": strings.Repeat("o", 79),
		} {
			for _, key := range []txlock.Key{named(), hashed()} {
				s := begin(t, newPool(t, db, true), nil)
				noError(t, testdb.Err(s.Lock(txlock.WithLabel(t.Context(), owner), key)))
				all := holders(t, db, key)
				testdb.ErrorIf(t, len(all) != 1 || all[0].Label != want, "the owner %q is shown as %+v", owner, all)
			}
		}
	})
}

// questions counts the statements that a session has sent, by the server's own count.
func questions(t *testing.T, tx *sql.Tx) (n int64) {
	t.Helper()
	noError(t, tx.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(new(string), &n))
	return n
}

// TestAssertLocked asserts locks that are held, and not, shared, undone and over, without a statement.
func TestAssertLocked(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ctx, key, shared := t.Context(), named(), named()
		s := begin(t, newPool(t, db, true), nil)
		wants(t, "before the lock", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		noError(t, testdb.Err(s.RLock(ctx, shared)))
		exec(t, s.tx, "SAVEPOINT before_lock")
		s.lock(t, key)
		before := questions(t, s.tx)
		const times = 20
		for range times {
			wants(t, "under the lock", txlock.AssertLocked(ctx, s.tx, key), nil)
			wants(t, "shared by an exclusive one", txlock.AssertRLocked(ctx, s.tx, key), nil)
			wants(t, "shared", txlock.AssertRLocked(ctx, s.tx, shared), nil)
			wants(t, "exclusively by a shared one", txlock.AssertLocked(ctx, s.tx, shared), txlock.ErrNotHeld)
		}
		sent := questions(t, s.tx) - before
		testdb.ErrorIf(t, sent >= times, "%d assertions have sent %d statements", 4*times, sent)
		wants(t, "of a zero key", txlock.AssertLocked(ctx, s.tx, txlock.Key{}), txlock.ErrInvalidKey)
		wants(t, "of no transaction", txlock.AssertLocked(ctx, nil, key), txlock.ErrNoTransaction)

		rows := testdb.Got(s.tx.QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2"))(t)
		rows.Next()
		wants(t, "while rows are open", txlock.AssertLocked(ctx, s.tx, key), nil)
		noError(t, errors.Join(rows.Err(), rows.Close()))

		exec(t, s.tx, "ROLLBACK TO SAVEPOINT before_lock")
		wants(t, "after a rollback to a savepoint", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		s.lock(t, key)
		wants(t, "locked again", txlock.AssertLocked(ctx, s.tx, key), nil)
		s.commit(t)
		wants(t, "after the commit", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNoTransaction)
		s = begin(t, newPool(t, db, true), nil)
		s.lock(t, key)
		exec(t, s.tx, "COMMIT")
		wants(t, "after a COMMIT as text", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrTxDoomed)

		s = begin(t, newPool(t, db, false), nil) // on which nobody knows
		s.lock(t, key)
		testdb.Fails(t, "on a plain pool", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld.Error(), "not guarded")
		wants(t, "the transaction after it", s.Verify(ctx), nil)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wants(t, "under a context that has ended", txlock.AssertLocked(ended, s.tx, key), context.Canceled)
		s.commit(t)
		wants(t, "after the commit of a plain pool", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNoTransaction)
	})
}
