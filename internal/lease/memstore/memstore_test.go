package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func ask(owner, hold string) store.Ask {
	return store.Ask{Row: leaseRow, Owner: owner, Hold: hold, TTL: ttl, NotAfter: store.Never}
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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

// TestClockSetBack proves that a refusal cuts an expiry that is too far ahead.
func TestClockSetBack(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		take(t, s, ask("a", hold("a", 1)))
		db.SetClock(-time.Hour)
		glance, err := s.Look(ctx, leaseRow)
		must(t, err)
		if glance.Left != time.Hour+ttl || glance.Held() {
			t.Fatalf("the row shows %+v", glance)
		}
		want(t, store.Answer{Reply: store.Refused})(s.Take(ctx, ask("b", hold("b", 1))))
		glance, err = s.Look(ctx, leaseRow)
		if must(t, err); glance.Left != ttl || !glance.Held() {
			t.Fatalf("the row shows %+v", glance)
		}
	})
}

func TestNotAfter(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		must(t, s.Ready(ctx))
		q := ask("a", hold("a", 1))
		q.NotAfter = s.Now().Add(time.Second)
		db.SetClock(2 * time.Second)
		must(t, s.Ready(ctx)) // it was read within the minute
		a, err := s.Take(ctx, q)
		if must(t, err); a.Reply != store.Late {
			t.Fatalf("after the clock was set forward: %+v", a)
		}
		must(t, s.ReadClock(ctx))
		take(t, s, q)
		want(t, store.Done)(s.Force(ctx, leaseRow))
		time.Sleep(time.Second + time.Microsecond)
		a, err = s.Take(ctx, q)
		if must(t, err); a.Reply != store.Late {
			t.Fatalf("too late: %+v", a)
		}
		db.SetClock(time.Hour)
		time.Sleep(time.Minute)
		must(t, s.Ready(ctx)) // reads it again
		q.NotAfter = s.Now()
		take(t, s, q)
	})
}

func TestInTurn(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		q := ask("a", hold("a", 1))
		q.InTurn = true
		want(t, store.Answer{})(s.Take(ctx, q)) // there is no queue row
		must(t, s.Make(ctx, store.Row{Key: key, Slot: store.QueueSlot}))
		want(t, store.Done)(s.Release(ctx, leaseRow, take(t, s, q).Hold))
		turn, err := s.Turn(ctx, key, "b", "", makes(s))
		must(t, err)
		want(t, store.Answer{})(s.Take(ctx, q))
		turn.Leave()
		take(t, s, q)
	})
}

func TestRelease(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		take(t, s, ask("a", hold("a", 1)))
		take(t, s, ask("a", hold("a", 2)))
		want(t, store.Absent)(s.Release(ctx, store.Row{Key: "other"}, hold("a", 1)))
		want(t, store.Refused)(s.Release(ctx, leaseRow, hold("a", 3)))
		want(t, store.Done)(s.Release(ctx, leaseRow, hold("a", 1)))
		glance, err := s.Look(ctx, leaseRow)
		if must(t, err); glance.Left != ttl || glance.Owner != "a" {
			t.Fatalf("with one hold left: %+v", glance)
		}
		want(t, store.Done)(s.Release(ctx, leaseRow, hold("a", 2)))
		want(t, store.Refused)(s.Release(ctx, leaseRow, hold("a", 2)))
		want(t, store.Glance{Exists: true, Owner: "a", Token: now(), TTL: ttl})(s.Look(ctx, leaseRow))
		take(t, s, ask("b", hold("b", 1)))
		time.Sleep(ttl)
		want(t, store.Expired)(s.Release(ctx, leaseRow, hold("b", 1)))
		want(t, store.Stored{Exists: true, Token: now() - uint64(ttl.Microseconds()) + 1})(s.Stored(ctx, leaseRow))
	})
}

// TestClaims proves what is needed of a claim by what asks for one.
func TestClaims(t *testing.T) {
	for _, c := range []struct {
		name         string
		change       func(c *store.Claim)
		after        time.Duration
		claims, owns bool // with the token, without it
	}{
		{"as granted", func(*store.Claim) {}, time.Second, true, true},
		{"another owner", func(c *store.Claim) { c.Owner = "b" }, 0, false, false},
		{"another hold", func(c *store.Claim) { c.Hold = hold("a", 2) }, 0, false, false},
		{"another token", func(c *store.Claim) { c.Token++ }, 0, false, true},
		{"expired", func(*store.Claim) {}, ttl, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
				claim := take(t, s, ask("a", hold("a", 1)))
				c.change(&claim)
				time.Sleep(c.after)
				wanted, owned, standing, left := store.Refused, store.Refused, store.Gone, max(0, ttl-c.after)
				if c.claims {
					wanted, standing, left = store.Done, store.Renewed, ttl
				}
				if c.owns {
					owned = store.Done
				}
				want(t, wanted)(s.Guard(ctx, claim))
				all, _, err := s.RenewMany(ctx, []store.Claim{claim, {Row: store.Row{Key: "other"}}})
				if must(t, err); all[claim.Row] != standing || all[store.Row{Key: "other"}] != store.Gone {
					t.Fatalf("RenewMany: %v", all)
				}
				want(t, wanted)(s.Renew(ctx, claim))
				glance, err := s.Look(ctx, leaseRow)
				if must(t, err); glance.Left != left {
					t.Fatalf("after the renewal: %+v", glance)
				}
				claim.Token += 5
				a, err := s.Raise(ctx, claim)
				if must(t, err); a.Reply != owned || owned == store.Done && a.Token != claim.Token {
					t.Fatalf("Raise: %+v", a)
				}
				claim.Token -= 3 // it is that already
				a, err = s.Raise(ctx, claim)
				if must(t, err); a.Reply != owned || owned == store.Done && a.Token != claim.Token+3 {
					t.Fatalf("Raise: %+v", a)
				}
			})
		})
	}
}

func TestMakeAndUse(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		take(t, s, ask("a", hold("a", 1)))
		must(t, s.Make(ctx, leaseRow)) // which changes nothing
		glance, err := s.Look(ctx, leaseRow)
		if must(t, err); glance.Left != ttl {
			t.Fatalf("made again: %+v", glance)
		}
		want(t, store.Glance{})(s.Look(ctx, store.Row{Key: "other"}))
		want(t, store.Stored{})(s.Stored(ctx, store.Row{Key: "other"}))
		_, err = s.Use(ctx, "other", store.Shared)
		wantErr(t, err, store.ErrLocked)
		want(t, store.Exclusive)(s.Use(ctx, key, store.Exclusive))
		want(t, store.Shared)(s.Use(ctx, key, store.Shared))
		want(t, store.Shared)(s.Use(ctx, key, -3))
		want(t, store.Refused)(s.Resize(ctx, key, 3))
		want(t, store.Absent)(s.Resize(ctx, "other", 3))
		want(t, true)(sharedBy(s.Take(ctx, ask("a", hold("a", 2)))))
	})
}

func sharedBy(a store.Answer, err error) (bool, error) { return a.Shared, err }

func TestReaders(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		reader := func(slot int64, owner, hold string) store.Ask {
			return store.Ask{Row: store.Row{Key: key, Slot: slot}, Owner: owner, Hold: hold, TTL: ttl, NotAfter: store.Never}
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

func TestPermits(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		permit := func(n, of int) store.Ask {
			return store.Ask{Row: leaseRow, Permits: of, Owner: "a", Hold: hold("a", n), TTL: ttl, NotAfter: store.Never}
		}
		for slot := range int64(2) {
			must(t, s.Make(ctx, store.Row{Key: key, Slot: slot + 1}))
		}
		nothing, held := store.Answer{}, ask("x", hold("x", 1))
		want(t, nothing)(s.Take(ctx, permit(1, 2)))
		take(t, s, held)
		want(t, store.Exclusive)(s.Use(ctx, key, -2)) // somebody has the lease
		want(t, store.Done)(s.Release(ctx, leaseRow, held.Hold))
		want[store.Use](t, -2)(s.Use(ctx, key, -2))
		want(t, nothing)(s.Take(ctx, permit(1, 3)))
		late := permit(1, 2)
		late.NotAfter = s.Now() - 1e6
		if a, err := s.Take(ctx, late); err != nil || a.Reply != store.Absent {
			t.Fatalf("too late: %+v, %v", a, err)
		}
		one, two := take(t, s, permit(1, 2)), take(t, s, permit(2, 2))
		if one.Slot+two.Slot != 3 || one.Token != now() {
			t.Fatalf("the permits are %+v and %+v", one, two)
		}
		want(t, nothing)(s.Take(ctx, permit(3, 2)))
		want(t, store.Permits{Rows: 2, Held: 2, Left: ttl})(s.Permits(ctx, key, 1, 2))
		want(t, store.Permits{Rows: 1, Held: 1, Left: ttl})(s.Permits(ctx, key, 2, store.MaxPermits))
		want(t, store.Permits{Rows: 1, Held: 1, Left: ttl})(s.Permits(ctx, key, 1, 1))
		a, err := s.Take(ctx, ask("b", hold("b", 1)))
		if must(t, err); a.Reply != store.Other {
			t.Fatalf("a semaphore as a lease: %+v", a)
		}
		want(t, store.Done)(s.Release(ctx, one.Row, one.Hold))
		want(t, store.Refused)(s.Release(ctx, one.Row, one.Hold))
		if again := take(t, s, permit(3, 2)); again.Slot != one.Slot || again.Token != one.Token+1 {
			t.Fatalf("the permit that was released: %+v", again)
		}
		want(t, store.Done)(s.Resize(ctx, key, 1))
		want[store.Use](t, -1)(s.Use(ctx, key, -2))
	})
}

func TestListAndInspect(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		must(t, s.Make(ctx, store.Row{Key: "idle"}))
		take(t, s, ask("a", hold("a", 1)))
		take(t, s, ask("a", hold("a", 2)))
		want(t, store.Shared)(s.Use(ctx, key, store.Shared))
		claim := take(t, s, store.Ask{Row: store.Row{Key: key, Slot: 7000}, Owner: "a", Hold: hold("a", 3), TTL: 2 * ttl, NotAfter: store.Never})
		turn, err := s.Turn(ctx, key, "w", "", makes(s))
		must(t, err)
		waiter := store.Info{Row: store.Row{Key: key, Slot: store.QueueSlot}, Owner: "w", Since: time.UnixMicro(int64(now()))}
		holder := store.Info{Row: leaseRow, Owner: "a", Token: claim.Token, TTL: ttl, Left: ttl, Holders: 2, Use: store.Shared}
		reader := store.Info{Row: claim.Row, Owner: "a", Token: claim.Token, TTL: 2 * ttl, Left: 2 * ttl, Holders: 1}
		compare := func(all []store.Info, err error, wanted ...store.Info) {
			t.Helper()
			must(t, err)
			for i := range all {
				if (all[i].Session > 0) != (all[i].Slot == store.QueueSlot) {
					t.Fatalf("row %d has session %d", all[i].Slot, all[i].Session)
				}
				all[i].Session = 0
			}
			if !slices.Equal(all, wanted) {
				t.Fatalf("there are %+v", all)
			}
		}
		all, err := s.List(ctx)
		compare(all, err, waiter, holder, reader)
		all, err = s.Inspect(ctx, key)
		compare(all, err, waiter, holder, reader)
		all, err = s.Inspect(ctx, "other")
		compare(all, err)
		turn.Leave()
		time.Sleep(ttl)
		all, err = s.List(ctx)
		reader.Left = ttl
		compare(all, err, reader)
		all, err = s.Inspect(ctx, key)
		holder.Left = 0
		compare(all, err, holder, reader)
	})
}

func TestClean(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		const retention = time.Hour
		must(t, s.BeginEpoch(ctx, "e", 0))
		for _, shared := range []string{"shared", "read"} {
			must(t, s.Make(ctx, store.Row{Key: shared}))
			want(t, store.Shared)(s.Use(ctx, shared, store.Shared))
			take(t, s, store.Ask{Row: store.Row{Key: shared, Slot: 5000}, Owner: "a", Hold: hold("a", 1), TTL: ttl, NotAfter: store.Never})
		}
		want(t, 1)(s.Clean(ctx, retention)) // the row that was never used
		must(t, s.Make(ctx, leaseRow))
		take(t, s, ask("a", hold("a", 1)))
		must(t, s.Make(ctx, store.Row{Key: "ahead"}))
		db.SetClock(24 * time.Hour)
		ahead := store.Ask{Row: store.Row{Key: "ahead"}, Owner: "a", Hold: hold("a", 1), TTL: ttl, NotAfter: store.Never}
		take(t, s, ahead)
		db.SetClock(0)
		ahead.Owner = "b"
		want(t, store.Answer{Reply: store.Refused})(s.Take(ctx, ahead)) // which cuts its time, but not the token
		for range 3 {                                                   // an hour after all have expired, but for one, whose reader goes on
			time.Sleep(retention/3 + ttl)
			take(t, s, store.Ask{Row: store.Row{Key: "read", Slot: 5000}, Owner: "a", Hold: hold("a", 1), TTL: ttl, NotAfter: store.Never})
		}
		tx := s.Begin()
		must(t, include(tx, s, func(in *store.In) error { return in.Make(ctx, leaseRow) }))
		want(t, 2)(s.Clean(ctx, retention)) // the entry row and the reader of "shared"
		must(t, tx.Rollback())
		want(t, 1)(s.Clean(ctx, retention)) // the lease, which was locked
		for at, exists := range map[store.Row]bool{{Key: "shared"}: false, leaseRow: false, {Key: "read"}: true, {Key: "ahead"}: true} {
			glance, err := s.Look(ctx, at)
			if must(t, err); glance.Exists != exists {
				t.Errorf("row %v: %+v", at, glance)
			}
		}
		id, age, err := s.Epoch(ctx)
		if err != nil || id != "e" || age < retention {
			t.Fatalf("the epoch is %q, %v old, error %v", id, age, err)
		}
	})
}

func TestEpoch(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		for _, c := range []struct {
			begin, id string
			age       time.Duration
		}{{"", "", 0}, {"one", "one", time.Minute}, {"two", "one", time.Minute}} {
			if c.begin != "" {
				must(t, s.BeginEpoch(ctx, c.begin, c.age))
			}
			id, age, err := s.Epoch(ctx)
			if err != nil || id != c.id || age != c.age {
				t.Fatalf("the epoch is %q, %v old, error %v", id, age, err)
			}
		}
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
