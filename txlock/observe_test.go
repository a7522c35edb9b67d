package txlock_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// recorder is an observer that writes down what it is told.
type recorder struct {
	mu     sync.Mutex
	events []string
	odd    []string // what no event may look like
	asked  int      // and not answered
	last   error    // of the last event

	deadlock bool // is why a transaction was doomed or is run again
}

func (r *recorder) note(what string, e txlock.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadlock = r.deadlock || (what == "doomed" || what == "retried") && errors.Is(e.Err, txlock.ErrDeadlock)
	switch {
	case e.Once && e.Again:
		what = "repeated"
	case e.Once:
		what += " once"
	case e.Again:
		what += " again"
	}
	if strings.HasPrefix(what, "granted") || strings.HasPrefix(what, "refused") || what == "repeated" {
		r.asked--
	}
	r.events, r.last = append(r.events, what+" "+e.Key.String()), e.Err
	if e.Lease || e.Took < 0 || e.Took > time.Minute || (err == nil) != (e.Err == nil) || err != nil && !errors.Is(e.Err, err) {
		r.odd = append(r.odd, fmt.Sprintf("%s %+v", what, e))
	}
}

func (r *recorder) observe(_ context.Context, e txlock.Event) {
	switch e.Kind {
	case txlock.Requested:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked++
	case txlock.Doomed:
		if errors.Is(e.Err, txlock.ErrUnknownOutcome) {
			r.note("unknown", e, txlock.ErrUnknownOutcome)
		} else {
			r.note("doomed", e, txlock.ErrTxDoomed)
		}
	case txlock.Lost:
		r.note("lost", e, txlock.ErrTxDoomed)
	case txlock.Granted, txlock.Renewed, txlock.Released:
		r.note(string(e.Kind), e, nil)
	default:
		r.note(string(e.Kind), e, e.Err)
	}
}

func (r *recorder) wants(t *testing.T, events ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	testdb.ErrorIf(t, !slices.Equal(r.events, events), "observed %q, want %q", r.events, events)
	testdb.Equal(t, "calls that are asked and not answered", r.asked, 0)
	testdb.Equal(t, "odd events", strings.Join(r.odd, "; "), "")
	r.events = nil
}

func (r *recorder) wantsInAnyOrder(t *testing.T, events ...string) {
	t.Helper()
	slices.Sort(r.events)
	slices.Sort(events)
	r.wants(t, events...)
}

// TestObservePool: an observer is told once of grants, refusals, ends and losses, whatever has undone or sent the lock.
func TestObservePool(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db)
		a, b, held := named(), named(), named()
		holder(t, db, held)

		s := begin(t, pool, nil)
		s.lock(t, a)
		s.lock(t, a) // held already: no news
		wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), held)), txlock.ErrBusy)
		noError(t, testdb.Err(s.RLock(t.Context(), b)))
		r.wants(t, "granted "+a.String(), "refused "+held.String(), "granted "+b.String())
		s.commit(t)
		r.wantsInAnyOrder(t, "released "+a.String(), "released "+b.String())

		s = begin(t, pool, nil)
		for _, query := range []string{"SAVEPOINT before_it", "ROLLBACK TO SAVEPOINT before_it"} {
			exec(t, s.tx, query)
			s.lock(t, a)
		}
		s.commit(t)
		r.wants(t, "granted "+a.String(), "granted again "+a.String(), "released "+a.String())

		s = inTx(t, pool)
		ctx := s.LockWith(t.Context(), a)
		_, err := s.tx.ExecContext(ctx, "DO ?", struct{}{})
		testdb.ErrorIf(t, err == nil, "a struct is an argument")
		r.wants(t)
		noError(t, testdb.Err(s.tx.ExecContext(ctx, "DO 1")))
		s.commit(t)
		r.wants(t, "granted "+a.String(), "released "+a.String())

		for _, locks := range []bool{true, false} {
			s = begin(t, pool, nil)
			events := []string{"refused " + b.String(), "doomed " + b.String()}
			if locks {
				noError(t, testdb.Err(s.LockAll(t.Context(), a)))
				events = []string{"granted " + a.String(), events[0], "lost " + a.String(), events[1]}
			}
			db.Kill(t, s.id)
			_, err := s.Lock(t.Context(), b)
			testdb.FatalIf(t, err == nil, "a killed connection locks")
			_ = s.tx.Rollback() // of a connection that is gone
			r.wants(t, events...)
		}

		s = begin(t, pool, nil)
		s.lock(t, a)
		exec(t, s.tx, "COMMIT")
		wants(t, "Commit", s.tx.Commit(), txlock.ErrTxDoomed)
		r.wants(t, "granted "+a.String(), "lost "+a.String(), "doomed "+a.String())

		pool, r = observed(t, db, testdb.LosingCommits(true))
		s = begin(t, pool, nil)
		s.lock(t, a)
		wants(t, "Commit", s.tx.Commit(), txlock.ErrUnknownOutcome)
		r.wants(t, "granted "+a.String(), "released "+a.String(), "unknown "+a.String())
	})
}

// On a plain pool the observer of Join is told of grants and refusals, also of optimistic ones.
func TestObserveJoin(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		a, held := named(), named()
		holder(t, db, held)
		r := new(recorder)
		s := inTx(t, newPool(t, db, false), txlock.Observe(r.observe), txlock.NothingRead())
		s.lock(t, a)
		wants(t, "TryLock", testdb.Err(s.TryLock(t.Context(), held)), txlock.ErrBusy)
		r.wants(t, "granted "+a.String(), "refused "+held.String())
		wants(t, "LockAll", testdb.Err(s.WaitAtMost(time.Second).LockAll(t.Context(), a, held)), txlock.ErrWaitTimeout)
		r.wantsInAnyOrder(t, "refused "+a.String(), "refused "+held.String())
		s.lock(t, a) // a plain pool asks the server
		r.wants(t, "granted again "+a.String())
		b := named()
		wants(t, "a version of nobody", s.CompareAndBump(t.Context(), b, 0), nil)
		r.wants(t, "granted "+b.String())
		wants(t, "another version", s.CompareAndBump(t.Context(), b, 1), txlock.ErrConflict)
		wants(t, "what is told", r.last, txlock.ErrConflict)
		r.wants(t, "refused "+b.String())
	})
}

// observed is a guarded pool and its observer.
func observed(t *testing.T, db *testdb.DB, mutators ...func(*mysql.Config)) (*sql.DB, *recorder) {
	t.Helper()
	return observedBy(t, db, nil, mutators...)
}

// observedBy is observed, with another observer behind that.
func observedBy(t *testing.T, db *testdb.DB, other txlock.Observer, mutators ...func(*mysql.Config)) (*sql.DB, *recorder) {
	t.Helper()
	r := new(recorder)
	base := testdb.Got(mysql.NewConnector(db.Config(mutators...)))(t)
	pool := sql.OpenDB(locksqlc.Connector(base, txlock.Observe(txlock.MultiObserver(r.observe, other))))
	t.Cleanup(func() { _ = pool.Close() })
	return pool, r
}

// A lock whose transaction ends by its context, before the program has the grant, ends for the observer too, and is in nobody's way.
func TestObserveEndBeforeGrant(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		var pool *sql.DB
		ctx, cancel := context.WithCancel(t.Context())
		var r *recorder
		pool, r = observedBy(t, db, func(_ context.Context, e txlock.Event) {
			if e.Kind == txlock.Granted {
				cancel()
				for pool.Stats().InUse > 0 { // until database/sql has rolled back
					testdb.Refresh()
				}
			}
		})
		tx := testdb.Got(pool.BeginTx(ctx, nil))(t)
		s := testdb.Got(txlock.Join(t.Context(), tx))(t)
		a := named()
		noError(t, testdb.Err(s.Lock(t.Context(), a)))
		r.wants(t, "granted "+a.String(), "released "+a.String())
	})
}

// An observer that ends its goroutine, as one does that panics, leaves no transaction open and no
// connection in use; and a lock that it was told of ends.
func TestObserverEndsItsGoroutine(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, in := range []txlock.Kind{txlock.Released, txlock.Lost, txlock.Granted, txlock.Refused} {
			pool, r := observedBy(t, db, func(_ context.Context, e txlock.Event) {
				if e.Kind == in {
					runtime.Goexit()
				}
			}, impatience)
			for name, ends := range map[string]func(*sql.Tx) error{"Commit": (*sql.Tx).Commit, "Rollback": (*sql.Tx).Rollback} {
				s, a := inTx(t, pool), named()
				committed(t, db, a)
				if in == txlock.Refused {
					holder(t, db, a)
				}
				_, err := s.tx.ExecContext(s.LockWith(t.Context(), a), "DO 1")
				within := in == txlock.Granted || in == txlock.Refused
				testdb.ErrorIf(t, (err != nil) != within, "%s, %s: the statement returns %v", in, name, err)
				if in == txlock.Lost {
					exec(t, s.tx, "COMMIT")
				}
				err = ends(s.tx)
				testdb.ErrorIf(t, (err != nil) != (in == txlock.Lost && name == "Commit"), "%s, %s: %v", in, name, err)
				testdb.Equal(t, fmt.Sprintf("connections in use behind %s, %s", in, name), testdb.InUse(pool), 0)
				testdb.ErrorIf(t, in == txlock.Granted && !slices.Contains(r.events, "released "+a.String()),
					"%s: a lock that was granted has no end: %q", name, r.events)
				if in != txlock.Refused {
					holder(t, db, a).commit(t)
				}
			}
			testdb.Equal(t, string(in)+": calls that are asked and not answered", r.asked, 0)
		}
	})
}

// The observer is told of calls of Once, which of them are repeats, and of transactions that are run again.
func TestObserveRun(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, r := observed(t, db)
		a, o := named(), named()
		for _, want := range []string{"granted once ", "repeated "} {
			calls := 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{a}, func(tx *sql.Tx) error {
				calls++
				s := testdb.Got(locksqlc.Join(t.Context(), tx))(t)
				noError(t, testdb.Err(s.Once(t.Context(), o)))
				if calls == 1 {
					return &mysql.MySQLError{Number: 1213}
				}
				return nil
			})
			testdb.FatalIf(t, err != nil || calls != 2, "Run: %v, %d calls", err, calls)
			try := []string{"granted " + a.String(), want + o.String(), "released " + a.String()}
			testdb.ErrorIf(t, !r.deadlock, "the observer doesn't know of the deadlock")
			r.wants(t, slices.Concat(try, []string{"retried " + a.String()}, try)...)
		}
		fresh := named()
		begin(t, pool, nil).once(t, fresh, true)
		waits := begin(t, pool, nil)
		wants(t, "Once of what is asked for", testdb.Err(waits.WaitAtMost(time.Second).Once(t.Context(), fresh)), txlock.ErrWaitTimeout)
		r.wants(t, "granted once "+fresh.String(), "refused once "+fresh.String())
	})
}

// TestSlogObserver: one line an event: a loss and what is slow as a warning, all else as debug, by levels that can be set.
func TestSlogObserver(t *testing.T) {
	t.Parallel()
	type event = txlock.Event
	// says demands a line, or none: its level, what has happened in two words, and the attributes behind the key.
	says := func(want string, kind txlock.Kind, e event, options ...txlock.SlogOption) {
		t.Helper()
		e.Kind, e.Key = kind, txlock.Named("order:42")
		for _, least := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelError} {
			var out bytes.Buffer
			txlock.SlogObserver(newLog(&out, least), options...)(t.Context(), e)
			var level slog.Level
			line := ""
			if words := strings.SplitN(want+" ", " ", 4); want != "" {
				noError(t, level.UnmarshalText([]byte(words[0])))
				line = strings.TrimSpace(fmt.Sprintf(`level=%s msg="%s %s" key=order:42 %s`, level, words[1], words[2], words[3])) + "\n"
			}
			if level < least {
				line = ""
			}
			testdb.Equal(t, fmt.Sprintf("what it writes of a %s from %v on", kind, least), out.String(), line)
		}
	}
	late, web := errors.New("late"), &txlock.HeldError{
		Owner: "web-4", Label: "a b", Session: 7, Since: time.Date(2026, 5, 4, 3, 2, 1, 0, time.FixedZone("", 3600)),
	}
	says("DEBUG lease granted took=1.5ms token=7 owner=web-3", txlock.Granted, event{Lease: true, Token: 7, Owner: "web-3", Took: 1500 * time.Microsecond})
	says("DEBUG lock granted took=1s shared=true", txlock.Granted, event{Shared: true, Took: time.Second})
	says("DEBUG lease refused took=1s owner=web-3 error=late", txlock.Refused, event{Lease: true, Owner: "web-3", Took: time.Second, Err: late})
	says("DEBUG lease waited took=1m0s", txlock.Waited, event{Lease: true, Took: time.Minute})
	says(`DEBUG lock granted took=1m0s holder.owner=web-4 holder.label="a b" holder.session=7 holder.since=2026-05-04T02:02:01.000Z`,
		txlock.Granted, event{Took: time.Minute, Held: web})
	says("DEBUG lease refused holder.session=7 error=late", txlock.Refused, event{Lease: true, Held: &txlock.HeldError{Session: 7}, Err: late})
	says("DEBUG lease renewed took=20s token=7", txlock.Renewed, event{Lease: true, Token: 7, Took: 20 * time.Second})
	says("WARN lease lost took=1h0m0s token=7 error=late", txlock.Lost, event{Lease: true, Token: 7, Took: time.Hour, Err: late})
	says("WARN lock lost took=1h0m0s error=late", txlock.Lost, event{Took: time.Hour, Err: late})
	says("DEBUG lease released took=1h0m0s token=7", txlock.Released, event{Lease: true, Token: 7, Took: time.Hour})
	says("DEBUG once granted again=true", txlock.Granted, event{Once: true, Again: true})
	says("DEBUG transaction doomed error=late", txlock.Doomed, event{Err: late})
	says("DEBUG transaction retried error=late", txlock.Retried, event{Err: late})
	second, slow, levels := event{Lease: true, Took: time.Second}, txlock.SlogThreshold(time.Second), txlock.SlogLevels(slog.LevelError, slog.LevelInfo)
	says("", txlock.Requested, second)
	for kind, what := range map[txlock.Kind]string{txlock.Granted: "granted", txlock.Refused: "refused", txlock.Waited: "waited", txlock.Released: "released"} {
		says("WARN lease "+what+" took=1s", kind, second, slow)
	}
	says("DEBUG lease renewed took=1s", txlock.Renewed, second, slow) // no hold
	says("DEBUG lease granted took=999.999999ms", txlock.Granted, event{Lease: true, Took: time.Second - 1}, slow)
	says("DEBUG lease granted took=1s", txlock.Granted, second, txlock.SlogThreshold(0))
	says("INFO lease granted took=1s", txlock.Granted, second, levels)
	says("ERROR lease lost took=1s", txlock.Lost, second, levels)
	says("ERROR lease granted took=1s", txlock.Granted, second, levels, slow)
}

// TestMultiObserver proves that all observers are told, in their order, even if one of them panics, which goes on.
func TestMultiObserver(t *testing.T) {
	t.Parallel()
	o := txlock.MultiObserver(nil, nil)
	testdb.ErrorIf(t, o != nil, "there is an observer of none")
	var told []string
	note := func(who string) txlock.Observer {
		return func(_ context.Context, e txlock.Event) { told = append(told, who+" "+string(e.Kind)) }
	}
	func() {
		defer func() { testdb.Equal[any](t, "recovered", recover(), "the observer") }()
		broken := func(context.Context, txlock.Event) { panic("the observer") }
		txlock.MultiObserver(note("first"), nil, broken, note("last"))(t.Context(), txlock.Event{Kind: txlock.Granted})
	}()
	testdb.Equal(t, "who is told", strings.Join(told, ", "), "first granted, last granted")
}

// newLog is a log from a level on, without the time.
func newLog(out *bytes.Buffer, least slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: least, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// TestSlogObserverHandsOnContext: a handler gets the context of the call, in which logs find the request that an event belongs to.
func TestSlogObserverHandsOnContext(t *testing.T) {
	t.Parallel()
	for _, kind := range []txlock.Kind{txlock.Granted, txlock.Lost, txlock.Doomed} {
		h, ctx := new(contextHandler), txlock.WithLabel(t.Context(), "r-17")
		txlock.SlogObserver(slog.New(h))(ctx, txlock.Event{Kind: kind, Key: txlock.Named("a")})
		under := slices.Compact(h.under)
		testdb.ErrorIf(t, len(h.under) < 2 || !slices.Equal(under, []context.Context{ctx}), "%s: the handler was called under %v", kind, under)
	}
}

// contextHandler notes the contexts that it is called under.
type contextHandler struct {
	slog.Handler
	under []context.Context
}

func (h *contextHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	h.under = append(h.under, ctx)
	return true
}

func (h *contextHandler) Handle(ctx context.Context, _ slog.Record) error {
	h.under = append(h.under, ctx)
	return nil
}
