package memstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var must = leasetest.Must

var ctx = context.Background()

const (
	key = "job"
	ttl = 10 * time.Second
)

var leaseRow = store.Row{Key: key}

// hold is the n-th hold of a process, which is a letter.
func hold(process string, n int) string {
	return "." + strings.Repeat(process, store.HoldBegins-1) + fmt.Sprintf("%014d", n)
}

func ask(owner, hold string) store.Ask { return askOf(leaseRow, owner, hold) }

func askOf(at store.Row, owner, hold string) store.Ask {
	return store.Ask{Row: at, Owner: owner, Hold: hold, TTL: ttl, NotAfter: store.Never}
}

// in runs a test in a bubble, on a server with the row of a lease.
func in(t *testing.T, test func(t *testing.T, db *memstore.Server, s *memstore.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := memstore.New()
		s := db.Store()
		must(t, s.Make(ctx, leaseRow))
		test(t, db, s)
	})
}

// want compares an answer and its error, which is to be nil, with what is wanted.
func want[T comparable](t *testing.T, wanted T) func(got T, err error) {
	t.Helper()
	return func(got T, err error) {
		t.Helper()
		if err != nil || got != wanted {
			t.Fatalf("got %+v and error %v, want %+v", got, err, wanted)
		}
	}
}

func wantErr(t *testing.T, err, wanted error) {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Fatalf("got error %v, want %v", err, wanted)
	}
}

// take takes what is asked for, which is granted, and returns what may be claimed of it.
func take(t *testing.T, x store.Session, a store.Ask) store.Claim {
	t.Helper()
	answer, err := x.Take(ctx, a)
	if err != nil || answer.Reply != store.Done {
		t.Fatalf("Take(%+v): %+v, error %v", a, answer, err)
	}
	return store.Claim{Row: store.Row{Key: a.Key, Slot: answer.Slot}, Owner: a.Owner, Hold: a.Hold, Token: answer.Token}
}

func now() uint64 { return uint64(time.Now().UnixMicro()) }

func sharedBy(a store.Answer, err error) (bool, error) { return a.Shared, err }

func TestReaders(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		reader := func(slot int64, owner, hold string) store.Ask {
			return askOf(store.Row{Key: key, Slot: slot}, owner, hold)
		}
		one, two := reader(5000, "a", hold("a", 1)), reader(5001, "b", hold("b", 1))
		want(t, store.Answer{Slot: 5000})(s.Take(ctx, one)) // nobody has said that it is shared
		want(t, store.Shared)(s.Use(ctx, key, store.Shared))
		late := one
		late.NotAfter = s.Now() - 1e6
		want(t, store.Answer{Slot: 5000})(s.Take(ctx, late))
		claim := take(t, s, one)
		want(t, store.Answer{Reply: store.Refused, Slot: 5000})(s.Take(ctx, one)) // it is held
		time.Sleep(time.Second)
		take(t, s, two)
		want(t, store.Readers{Held: 2, Left: ttl})(s.Readers(ctx, key))
		s.SetFault(func(_ context.Context, _ string, _ store.Row, call func() error) error {
			return errors.Join(call(), context.Canceled)
		})
		if n, err := s.Readers(ctx, key); err == nil || n != (store.Readers{}) {
			t.Fatalf("an answer that is lost is %+v, %v", n, err)
		}
		s.Up()
		want(t, "b")(s.ReaderAmong(ctx, key, []string{"x", "b"}, two.Hold[:store.HoldBegins]))
		want(t, "")(s.ReaderAmong(ctx, key, []string{"b"}, one.Hold[:store.HoldBegins]))
		seen, err := s.Places(ctx, key)
		if must(t, err); !slices.Equal(seen, []store.Place{
			{Slot: 5000, Owner: "a", Held: true, Done: int64(claim.Token)}, {Slot: 5001, Owner: "b", Held: true, Done: int64(now())},
		}) {
			t.Fatalf("the readers are %v", seen)
		}

		want(t, true)(sharedBy(s.Take(ctx, ask("w", hold("w", 1)))))
		want(t, store.Answer{Slot: 5002})(s.Take(ctx, reader(5002, "c", hold("c", 1)))) // a writer has the entry row
		own := take(t, s, reader(5002, "w", hold("w", 2)))                              // its owner may read as well
		want(t, store.Done)(s.Release(ctx, own.Row, own.Hold))
		want(t, store.Done)(s.Release(ctx, leaseRow, hold("w", 1)))

		time.Sleep(ttl - time.Second)
		want(t, store.Readers{Held: 2, Expired: 1, Left: time.Second})(s.Readers(ctx, key))
		want(t, "")(s.ReaderAmong(ctx, key, []string{"a"}, one.Hold[:store.HoldBegins])) // its time is over
		must(t, s.Reap(ctx, key))
		want(t, store.Stored{Exists: true, Token: claim.Token})(s.Stored(ctx, one.Row))
		want(t, store.Readers{Held: 1, Left: time.Second})(s.Readers(ctx, key))
		want(t, store.Refused)(s.Guard(ctx, claim))
		if again := take(t, s, one); again.Token != now() {
			t.Fatalf("the token of a place that is used again is %d", again.Token)
		}
		want(t, store.Done)(s.Release(ctx, one.Row, one.Hold))
		time.Sleep(ttl + time.Microsecond)
		want(t, store.Readers{Held: 1, Expired: 1, Left: -ttl + time.Second - time.Microsecond, Idle: 2})(s.Readers(ctx, key))
		tx := s.Begin()
		must(t, include(tx, s, func(in *store.In) error { return in.Make(ctx, one.Row) }))
		must(t, s.Sweep(ctx, key)) // but for what is locked
		must(t, tx.Rollback())
		want(t, store.Readers{Held: 1, Expired: 1, Left: -ttl + time.Second - time.Microsecond, Idle: 1})(s.Readers(ctx, key))
		must(t, s.Sweep(ctx, key))
		want(t, store.Readers{Held: 1, Expired: 1, Left: -ttl + time.Second - time.Microsecond})(s.Readers(ctx, key))
	})
}

// TestStores proves what a store says of itself.
func TestStores(t *testing.T) {
	db := memstore.New()
	a, b, other := db.Store(), db.Store(), memstore.New().Store()
	if a.Identity() != b.Identity() || a.Identity() == other.Identity() {
		t.Fatal("the identity is not that of the server")
	}
	if before := a.Now(); before <= 0 || b.Now() < before || b.Now() > math.MaxInt64/2 {
		t.Fatalf("now is %d", before)
	}
	if a.Full() || !a.MayTurn() || a.SharesLeases(ctx) != nil || a.Reserve(ctx) != nil || a.Close() != nil {
		t.Fatal("a store in memory lacks something")
	}
	a.Settle(func() bool { return true })
	must(t, a.Make(ctx, leaseRow)) // it goes on after Close
}

func include(tx txlock.Tx, s store.Store, send func(in *store.In) error) error {
	j, err := s.Join(ctx, tx)
	if err != nil {
		return err
	}
	return j.Include(ctx, "use", txlock.Named(key), func(_ context.Context, in *store.In) error { return send(in) })
}

// makes makes the queue row where it is missing.
func makes(s *memstore.Store) func() error {
	at := store.Row{Key: key, Slot: store.QueueSlot}
	return func() error {
		if seen, err := s.Look(ctx, at); seen.Exists || err != nil {
			return err
		}
		return s.Make(ctx, at)
	}
}

// guard guards a claim in a transaction, and wants a reply or an error.
func guard(t *testing.T, tx txlock.Tx, s store.Store, c store.Claim) error {
	t.Helper()
	return include(tx, s, func(in *store.In) error {
		reply, err := in.Guard(ctx, c)
		if err == nil && reply != store.Done {
			t.Errorf("Guard: %v", reply)
		}
		return err
	})
}

// TestSnapshot proves what a transaction sees that has read before others wrote.
func TestSnapshot(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		readsAs := func(tx *memstore.Tx, token uint64) {
			t.Helper()
			must(t, include(tx, s, func(in *store.In) error {
				seen, err := in.Stored(in.Reading, leaseRow)
				if seen.Token != token {
					t.Errorf("it sees token %d, want %d", seen.Token, token)
				}
				return err
			}))
		}
		unchanged := func(tx *memstore.Tx, wanted error) {
			t.Helper()
			err := include(tx, s, func(in *store.In) error { return in.UnchangedSinceSnapshot(ctx, key) })
			if !errors.Is(err, wanted) {
				t.Errorf("got error %v, want %v", err, wanted)
			}
			must(t, tx.Rollback())
		}
		old, fresh, committed := s.Begin(), s.Begin(), s.BeginReadCommitted()
		old.Read()
		committed.Read()
		claim := take(t, s, ask("a", hold("a", 1)))
		readsAs(old, 0)
		readsAs(fresh, claim.Token)
		readsAs(committed, claim.Token)
		unchanged(old, txlock.ErrStaleSnapshot)
		unchanged(fresh, nil)
		unchanged(committed, nil)

		renewed, used := s.Begin(), s.Begin()
		renewed.Read()
		time.Sleep(time.Second)
		want(t, store.Done)(s.Renew(ctx, claim))
		unchanged(renewed, txlock.ErrStaleSnapshot) // somebody was there
		used.Read()
		want(t, store.Shared)(s.Use(ctx, key, store.Shared))
		unchanged(used, nil)

		want(t, store.Done)(s.Force(ctx, leaseRow, 0))
		take(t, s, ask("a", hold("a", 3)))
		for _, change := range []func(){
			func() { take(t, s, ask("a", hold("a", 4))) },
			func() {
				_, err := s.Raise(ctx, store.Claim{Row: leaseRow, Owner: "a", Hold: hold("a", 3), Token: 1 << 60})
				must(t, err)
			},
		} {
			before := s.Begin()
			before.Read()
			change() // at the same moment
			unchanged(before, txlock.ErrStaleSnapshot)
		}
		want(t, store.Done)(s.Force(ctx, leaseRow, 0))
		readers, swept := s.Begin(), s.Begin()
		readers.Read()
		place := take(t, s, askOf(store.Row{Key: key, Slot: 5000}, "a", hold("a", 2)))
		shows := func(tx *memstore.Tx, wanted map[int64]int64) {
			t.Helper()
			must(t, include(tx, s, func(in *store.In) error {
				done, err := in.DoneInSnapshot(ctx, key, []int64{place.Slot})
				if !maps.Equal(done, wanted) {
					t.Errorf("the snapshot shows %v, want %v", done, wanted)
				}
				return err
			}))
		}
		shows(readers, nil)
		unchanged(readers, nil) // the reader has a row of its own
		swept.Read()
		shows(swept, map[int64]int64{place.Slot: int64(place.Token)})
		want(t, store.Done)(s.Release(ctx, place.Row, place.Hold))
		time.Sleep(2 * ttl)
		must(t, s.Sweep(ctx, key))
		unchanged(swept, txlock.ErrStaleSnapshot) // the row of the reader is gone

		own := s.Begin() // sees what it has written itself, and counts it as seen
		own.Read()
		must(t, include(own, s, func(in *store.In) error {
			if !in.Snapshot {
				t.Error("there is a snapshot, and nobody says so")
			}
			token := take(t, in, ask("b", hold("b", 1))).Token
			seen, err := in.Stored(ctx, leaseRow)
			if seen.Token != token {
				t.Errorf("it sees %+v, and has taken token %d", seen, token)
			}
			return err
		}))
		unchanged(own, nil)
	})
}

func TestDeadlock(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		one := take(t, s, ask("a", hold("a", 1)))
		must(t, s.Make(ctx, store.Row{Key: "other"}))
		two := take(t, s, askOf(store.Row{Key: "other"}, "a", hold("a", 2)))
		first, second := s.Begin(), s.Begin()
		must(t, guard(t, first, s, one))
		must(t, guard(t, second, s, two))
		done := make(chan error, 1)
		go func() { done <- guard(t, first, s, two) }()
		synctest.Wait()
		err := guard(t, second, s, one)
		if !errors.Is(err, txlock.ErrDeadlock) || !txlock.Retryable(err) || fault.Unknown(err) {
			t.Fatalf("the victim is told %v", err)
		}
		must(t, <-done)
		wantErr(t, second.Commit(), txlock.ErrTxDoomed)
		must(t, first.Commit())
	})
}

func TestJoin(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		_, err := s.Join(ctx, nil)
		wantErr(t, err, txlock.ErrNoTransaction)
		_, err = s.Join(ctx, (*sql.Tx)(nil))
		wantErr(t, err, txlock.ErrNoTransaction)
		tx := s.Begin()
		j, err := s.Join(ctx, tx)
		must(t, err)
		wantErr(t, j.Include(ctx, "guard", txlock.Named(""), nil), txlock.ErrInvalidKey)
		for _, c := range []struct{ fences, fenced, fails bool }{{}, {fences: true, fails: true}, {fences: true}, {fenced: true}} {
			err := include(tx, db.Store(), func(in *store.In) error {
				if in.Snapshot || in.Fenced != c.fenced || in.ID == 0 || in.Reading == nil {
					t.Errorf("it is told %+v", in)
				}
				in.Fence = c.fences
				if c.fails {
					return txlock.ErrLost
				}
				_, err := in.Guard(ctx, claim)
				return err
			})
			if (err != nil) != c.fails || err != nil && !errors.Is(err, txlock.ErrLost) {
				t.Fatal(err)
			}
		}
		must(t, tx.Commit())
		_, err = s.Join(ctx, tx)
		wantErr(t, err, txlock.ErrNoTransaction)
	})
}

// TestAwaitWaiting proves that it ends with its context, outside of synctest too.
func TestAwaitWaiting(t *testing.T) {
	db := memstore.New()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	wantErr(t, db.AwaitWaiting(ended, key, 1), context.Canceled)
	s := db.Store()
	first, err := s.Turn(ctx, key, "a", "", makes(s))
	must(t, err)
	done := make(chan error, 1)
	go func() {
		second, err := s.Turn(ctx, key, "b", "", makes(s))
		if err == nil {
			second.Leave()
		}
		done <- err
	}()
	must(t, db.AwaitWaiting(ctx, key, 1))
	first.Leave()
	must(t, <-done)
	_, err = s.Look(ended, leaseRow)
	wantErr(t, err, context.Canceled)
}

func TestBlockers(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		reads := s.Begin()
		must(t, include(reads, s, func(in *store.In) error { return in.Make(ctx, leaseRow) }))
		shows := func(what, key string, wanted ...store.Blocker) {
			t.Helper()
			blockers, err := s.Blockers(ctx, key)
			if must(t, err); !slices.Equal(blockers, wanted) {
				t.Fatalf("%s: the blockers are %+v, want %+v", what, blockers, wanted)
			}
		}
		shows("locked only", key)
		must(t, include(reads, s, func(in *store.In) error {
			a, err := in.Take(ctx, ask("b", hold("b", 1)))
			if a.Reply != store.Refused {
				t.Errorf("Take: %+v", a)
			}
			return err
		}))
		shows("refused", key)
		must(t, include(reads, s, func(in *store.In) error {
			want(t, store.Done)(in.Guard(ctx, claim))
			want(t, store.Done)(in.Release(ctx, leaseRow, claim.Hold))
			return nil
		}))
		shows("released", key)
		must(t, reads.Rollback())
		tx := s.Begin()
		var session uint64
		must(t, include(tx, s, func(in *store.In) error {
			session = in.ID
			_, err := in.Guard(ctx, claim)
			return err
		}))
		time.Sleep(ttl + time.Second)
		wanted := store.Blocker{Written: store.Written{Token: claim.Token, Guards: 1, Session: session}, Over: time.Second}
		shows("expired", key, wanted)
		shows("another key", "other")
		stale := wanted
		stale.Guards = 2
		must(t, s.End(ctx, key, stale)) // which is not open
		must(t, s.End(ctx, "other", wanted))
		must(t, include(tx, s, func(*store.In) error { return nil }))
		must(t, s.End(ctx, key, wanted))
		err := include(tx, s, func(*store.In) error { return nil })
		if !errors.Is(err, driver.ErrBadConn) || !errors.Is(err, txlock.ErrTxDoomed) {
			t.Fatalf("a session that was ended says %v", err)
		}
	})
}

// TestEndOfAWait proves that a transaction whose session is ended while it waits leaves the
// queue, and keeps nothing locked.
func TestEndOfAWait(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		want(t, store.Shared)(s.Use(ctx, key, store.Shared))
		reader := take(t, s, askOf(store.Row{Key: key, Slot: 5000}, "a", hold("a", 2)))
		holder, tx := s.Begin(), s.Begin()
		must(t, guard(t, holder, s, claim))
		must(t, guard(t, tx, s, reader))
		done := make(chan error, 1)
		go func() { done <- guard(t, tx, s, claim) }()
		synctest.Wait()
		blockers, err := s.Blockers(ctx, key)
		must(t, err)
		for _, b := range blockers {
			if b.Slot == reader.Slot {
				must(t, s.End(ctx, key, b))
			}
		}
		wantErr(t, <-done, txlock.ErrTxDoomed)
		want(t, store.Done)(s.Release(ctx, reader.Row, reader.Hold))
		must(t, tx.Rollback())
		must(t, holder.Commit())
		want(t, store.Done)(s.Release(ctx, leaseRow, claim.Hold)) // nobody is left in the queue
	})
}
