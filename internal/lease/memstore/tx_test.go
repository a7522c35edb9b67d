package memstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

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

// TestLockedRow proves that what writes passes over a row that a transaction has locked,
// what reads shows what was committed, and the end of the transaction frees it.
func TestLockedRow(t *testing.T) {
	for _, end := range []string{"commit", "roll back", "end"} {
		t.Run(end, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
				tx := s.Begin()
				want(t, store.Shared)(s.Use(ctx, key, store.Shared))
				var claim store.Claim
				must(t, include(tx, s, func(in *store.In) error {
					claim = take(t, in, ask("a", hold("a", 1)))
					return in.Make(ctx, store.Row{Key: key, Slot: 5000})
				}))
				want(t, store.Answer{})(s.Take(ctx, ask("b", hold("b", 1))))
				want(t, store.Answer{Slot: 5000})(s.Take(ctx, store.Ask{Row: store.Row{Key: key, Slot: 5000}, Owner: "b", Hold: hold("b", 1), TTL: ttl, NotAfter: store.Never}))
				want(t, store.Absent)(s.Release(ctx, leaseRow, claim.Hold))
				want(t, store.Absent)(s.Renew(ctx, claim))
				want(t, store.Absent)(s.Force(ctx, leaseRow))
				want(t, store.Absent)(s.Resize(ctx, key, 2))
				want(t, store.Answer{})(s.Raise(ctx, claim))
				wantErr(t, s.Make(ctx, leaseRow), store.ErrLocked)
				wantErr(t, s.Make(ctx, store.Row{Key: key, Slot: 5000}), store.ErrLocked)
				wantErr(t, s.UnchangedSinceSnapshot(ctx, key), store.ErrLocked)
				_, err := s.Use(ctx, key, store.Shared)
				wantErr(t, err, store.ErrLocked)
				want(t, store.Glance{Exists: true, Owner: "-", Use: store.Shared})(s.Look(ctx, leaseRow))
				want(t, store.Readers{})(s.Readers(ctx, key))
				exists := false
				switch end {
				case "commit":
					must(t, tx.Commit())
					exists = true
				case "roll back":
					must(t, tx.Rollback())
				case "end":
					blockers, err := s.Blockers(ctx, key)
					if must(t, err); len(blockers) != 1 {
						t.Fatalf("the blockers are %v", blockers)
					}
					must(t, s.End(ctx, key, blockers[0]))
					wantErr(t, tx.Commit(), txlock.ErrTxDoomed)
					must(t, tx.Rollback())
				}
				wantErr(t, tx.Rollback(), sql.ErrTxDone)
				wantErr(t, tx.Commit(), txlock.ErrNoTransaction)
				wantErr(t, guard(t, tx, s, claim), txlock.ErrNoTransaction)
				glance, err := s.Look(ctx, leaseRow)
				if must(t, err); glance.Held() != exists {
					t.Fatalf("the lease is %+v", glance)
				}
				glance, err = s.Look(ctx, store.Row{Key: key, Slot: 5000})
				if must(t, err); glance.Exists != exists {
					t.Fatalf("the row that was made is %+v", glance)
				}
				must(t, s.Make(ctx, leaseRow))
			})
		})
	}
}

// TestGuarded proves what becomes of a guarded lease, and that a transaction may guard
// again what it has locked.
func TestGuarded(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		want(t, store.Shared)(s.Use(ctx, key, store.Shared))
		reader := take(t, s, store.Ask{Row: store.Row{Key: key, Slot: 5000}, Owner: "a", Hold: hold("a", 2), TTL: ttl, NotAfter: store.Never})
		tx := s.Begin()
		must(t, guard(t, tx, s, claim))
		must(t, guard(t, tx, s, claim))
		must(t, guard(t, tx, s, reader))
		all, _, err := s.RenewMany(ctx, []store.Claim{claim, reader})
		if must(t, err); all[leaseRow] != store.Skipped || all[reader.Row] != store.Skipped {
			t.Fatalf("RenewMany: %v", all)
		}
		time.Sleep(ttl)
		must(t, s.Reap(ctx, key)) // unless somebody guards
		want(t, 1)(readersHeld(s.Readers(ctx, key)))
		must(t, tx.Commit())
		must(t, s.Reap(ctx, key))
		want(t, 0)(readersHeld(s.Readers(ctx, key)))
	})
}

func readersHeld(r store.Readers, err error) (int, error) { return r.Held, err }

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

		want(t, store.Done)(s.Force(ctx, leaseRow))
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
		want(t, store.Done)(s.Force(ctx, leaseRow))
		readers, swept := s.Begin(), s.Begin()
		readers.Read()
		place := take(t, s, store.Ask{Row: store.Row{Key: key, Slot: 5000}, Owner: "a", Hold: hold("a", 2), TTL: ttl, NotAfter: store.Never})
		must(t, include(readers, s, func(in *store.In) error {
			done, err := in.DoneInSnapshot(ctx, key, []int64{place.Slot})
			if len(done) > 0 {
				t.Errorf("the snapshot from before the reader shows %v", done)
			}
			return err
		}))
		unchanged(readers, nil) // the reader has a row of its own
		swept.Read()
		must(t, include(swept, s, func(in *store.In) error {
			done, err := in.DoneInSnapshot(ctx, key, []int64{place.Slot})
			if done[place.Slot] != int64(place.Token) {
				t.Errorf("the snapshot shows %v, want token %d", done, place.Token)
			}
			return err
		}))
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

// TestQueueOfARow proves that those who wait for a row get it in the order of arrival.
func TestQueueOfARow(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		holder := s.Begin()
		must(t, guard(t, holder, s, claim))
		var order []int
		for n := range 6 {
			go func() {
				if n%2 == 0 {
					err := s.Queued(ctx, leaseRow, time.Minute, func(x store.Session) error {
						order = append(order, n)
						time.Sleep(time.Millisecond) // it is ours meanwhile
						_, err := x.Renew(ctx, claim)
						return err
					})
					if err != nil {
						t.Error(err)
					}
					return
				}
				tx := s.Begin()
				if err := guard(t, tx, s, claim); err != nil {
					t.Error(err)
				}
				order = append(order, n)
				time.Sleep(time.Millisecond)
				if err := tx.Commit(); err != nil {
					t.Error(err)
				}
			}()
			must(t, db.AwaitWaiting(ctx, key, n+1))
		}
		must(t, holder.Commit())
		time.Sleep(time.Second)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5}) {
			t.Fatalf("the order is %v", order)
		}
	})
}

// TestEndOfAWait proves what becomes of a wait whose time, context or transaction ends.
func TestEndOfAWait(t *testing.T) {
	other := store.Row{Key: key, Slot: 5000}
	for _, c := range []struct {
		name   string
		end    func(s *memstore.Store, cancel func())
		took   time.Duration
		err    error
		lives  bool // the transaction that has waited
		queued error
	}{
		{"the limit", func(*memstore.Store, func()) {}, 50 * time.Second, txlock.ErrWaitTimeout, true, store.ErrLocked},
		{"the context", func(_ *memstore.Store, cancel func()) { cancel() }, time.Second, context.Canceled, false, context.Canceled},
		{"its session", func(s *memstore.Store, _ func()) {
			blockers, _ := s.Blockers(ctx, key)
			for _, b := range blockers {
				if b.Slot == other.Slot {
					_ = s.End(ctx, key, b)
				}
			}
		}, time.Second, txlock.ErrTxDoomed, false, store.ErrLocked},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
				a := ask("a", hold("a", 1))
				a.TTL = time.Hour
				claim := take(t, s, a)
				want(t, store.Shared)(s.Use(ctx, key, store.Shared))
				a.Row = other
				reader := take(t, s, a)
				holder, tx := s.Begin(), s.Begin()
				must(t, guard(t, holder, s, claim))
				must(t, guard(t, tx, s, reader))
				limited, cancel := context.WithCancel(ctx)
				defer cancel()
				time.AfterFunc(time.Second, func() { c.end(s, cancel) })
				done := make(chan error, 1)
				go func() { done <- s.Queued(limited, leaseRow, 5*time.Second, func(store.Session) error { return nil }) }()
				began := time.Now()
				err := include(tx, s, func(in *store.In) error {
					_, err := in.Guard(limited, claim)
					return err
				})
				if !errors.Is(err, c.err) || time.Since(began) != c.took {
					t.Fatalf("after %v: %v", time.Since(began), err)
				}
				wantErr(t, <-done, c.queued)
				if err := guard(t, tx, s, reader); (err == nil) != c.lives || err != nil && !errors.Is(err, txlock.ErrTxDoomed) {
					t.Fatalf("afterwards: %v", err)
				}
				want(t, c.lives)(absent(s.Release(ctx, other, reader.Hold)))
				_ = tx.Rollback()
				must(t, guard(t, holder, s, claim))
				must(t, holder.Commit())
				want(t, store.Done)(s.Release(ctx, leaseRow, claim.Hold)) // nobody is left in the queue
			})
		})
	}
}

func absent(r store.Reply, err error) (bool, error) { return r == store.Absent, err }

func TestDeadlock(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		one := take(t, s, ask("a", hold("a", 1)))
		must(t, s.Make(ctx, store.Row{Key: "other"}))
		two := take(t, s, store.Ask{Row: store.Row{Key: "other"}, Owner: "a", Hold: hold("a", 2), TTL: ttl, NotAfter: store.Never})
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

func TestQueued(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		must(t, s.Queued(ctx, leaseRow, time.Second, func(x store.Session) error {
			want(t, store.Absent)(s.Renew(ctx, claim)) // the row is ours
			want(t, store.Done)(x.Renew(ctx, claim))
			return nil
		}))
		failed := errors.New("failed")
		wantErr(t, s.Queued(ctx, leaseRow, time.Second, func(x store.Session) error {
			want(t, store.Done)(x.Force(ctx, leaseRow))
			return failed
		}), failed)
		want(t, store.Done)(s.Renew(ctx, claim)) // it was undone
		must(t, s.Queued(ctx, store.Row{Key: "missing"}, time.Second, func(x store.Session) error {
			want(t, store.Absent)(x.Force(ctx, store.Row{Key: "missing"}))
			return nil
		}))

		must(t, s.Wait(ctx, leaseRow, func(brief bool) (time.Duration, bool) { return time.Second, !brief }, func(x store.Session) error {
			want(t, store.Done)(x.Renew(ctx, claim))
			return nil
		}))
		must(t, s.Wait(ctx, leaseRow, func(bool) (time.Duration, bool) { return 0, false }, func(store.Session) error {
			t.Error("it has waited")
			return nil
		}))
		tx := s.Begin()
		must(t, guard(t, tx, s, claim))
		wantErr(t, s.Wait(ctx, leaseRow, func(bool) (time.Duration, bool) { return time.Second, true }, nil), store.ErrLocked)
		wantErr(t, s.Queued(ctx, leaseRow, 0, nil), store.ErrLocked)
		must(t, tx.Rollback())
	})
}

func TestTurns(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		var order []string
		var giveUp context.CancelFunc
		for n, owner := range []string{"a", "b", "c"} {
			own, cancel := context.WithCancel(ctx)
			defer cancel()
			if owner == "b" {
				giveUp = cancel
			}
			of := db.Store() // each of another process
			go func() {
				asked := false
				turn, err := of.Turn(own, key, owner, "", func() error { asked = true; return makes(of)() })
				if owner == "b" {
					if !asked || !errors.Is(err, context.Canceled) {
						t.Errorf("who gives up is told %v", err)
					}
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, owner)
				time.Sleep(time.Hour)
				want(t, store.Glance{Exists: true, Owner: "-"})(turn.Look(ctx, leaseRow))
				turn.Leave()
				_, err = turn.Look(ctx, leaseRow)
				wantErr(t, err, sql.ErrTxDone)
			}()
			must(t, db.AwaitWaiting(ctx, key, n))
			synctest.Wait()
		}
		giveUp()
		time.Sleep(2 * time.Minute)
		want(t, 1)(s.Clean(ctx, time.Minute)) // the lease, but not the queue row
		must(t, s.Make(ctx, leaseRow))
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if !slices.Equal(order, []string{"a", "c"}) {
			t.Fatalf("the order is %v", order)
		}
		infos, err := s.Inspect(ctx, key)
		if must(t, err); len(infos) != 1 {
			t.Fatalf("somebody waits: %v", infos)
		}
	})
}

func TestBlockers(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		reads := s.Begin()
		must(t, include(reads, s, func(in *store.In) error { return in.Make(ctx, leaseRow) }))
		blockers, err := s.Blockers(ctx, key)
		if must(t, err); len(blockers) != 0 {
			t.Fatalf("who has locked it only is a blocker: %v", blockers)
		}
		must(t, include(reads, s, func(in *store.In) error {
			a, err := in.Take(ctx, ask("b", hold("b", 1)))
			if a.Reply != store.Refused {
				t.Errorf("Take: %+v", a)
			}
			return err
		}))
		blockers, err = s.Blockers(ctx, key)
		if must(t, err); len(blockers) != 0 {
			t.Fatalf("who was refused is a blocker: %v", blockers)
		}
		must(t, include(reads, s, func(in *store.In) error {
			want(t, store.Done)(in.Guard(ctx, claim))
			want(t, store.Done)(in.Release(ctx, leaseRow, claim.Hold))
			return nil
		}))
		blockers, err = s.Blockers(ctx, key)
		if must(t, err); len(blockers) != 0 {
			t.Fatalf("who has released it is a blocker: %v", blockers)
		}
		must(t, reads.Rollback())
		tx := s.Begin()
		var session uint64
		must(t, include(tx, s, func(in *store.In) error {
			session = in.ID
			_, err := in.Guard(ctx, claim)
			return err
		}))
		time.Sleep(ttl + time.Second)
		blockers, err = s.Blockers(ctx, key)
		wanted := store.Blocker{Written: store.Written{Token: claim.Token, Guards: 1, Session: session}, Over: time.Second}
		if must(t, err); !slices.Equal(blockers, []store.Blocker{wanted}) {
			t.Fatalf("the blockers are %+v, want %+v", blockers, wanted)
		}
		blockers, err = s.Blockers(ctx, "other")
		if must(t, err); len(blockers) != 0 {
			t.Fatalf("the blockers of another key are %v", blockers)
		}
		stale := wanted
		stale.Guards = 2
		must(t, s.End(ctx, key, stale)) // which is not open
		must(t, s.End(ctx, "other", wanted))
		must(t, include(tx, s, func(*store.In) error { return nil }))
		must(t, s.End(ctx, key, wanted))
		err = include(tx, s, func(*store.In) error { return nil })
		if !errors.Is(err, driver.ErrBadConn) || !errors.Is(err, txlock.ErrTxDoomed) {
			t.Fatalf("a session that was ended says %v", err)
		}
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

// TestForeignTransaction proves that in a transaction of something else statements act
// at once.
func TestForeignTransaction(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		claim := take(t, s, ask("a", hold("a", 1)))
		for _, tx := range []txlock.Tx{new(sql.Tx), memstore.New().Store().Begin()} {
			must(t, guard(t, tx, s, claim))
			want(t, store.Done)(s.Renew(ctx, claim)) // nobody is kept out
		}
		before := s.Begin()
		before.Read()
		must(t, guard(t, new(sql.Tx), s, claim))
		wantErr(t, include(before, s, func(in *store.In) error { return in.UnchangedSinceSnapshot(ctx, key) }), txlock.ErrStaleSnapshot)
		must(t, before.Rollback())
	})
}

func TestNoSQL(t *testing.T) {
	tx := memstore.New().Store().Begin()
	_, exec := tx.ExecContext(ctx, "SELECT 1")
	_, prepare := tx.PrepareContext(ctx, "SELECT 1")
	_, query := tx.QueryContext(ctx, "SELECT 1")
	row := tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int))
	for _, err := range []error{exec, prepare, query, row} {
		if err == nil || !strings.Contains(err.Error(), "no SQL") {
			t.Errorf("the error is %v", err)
		}
	}
}

// TestDown proves that nothing gets through while a store is down, and that its error is
// one after which nobody knows what has become of a statement.
func TestDown(t *testing.T) {
	in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
		tx := s.Begin()
		other := db.Store()
		for _, wanted := range []error{mysql.ErrInvalidConn, driver.ErrBadConn} {
			s.Down(wanted)
			if wanted == mysql.ErrInvalidConn { //nolint:errorlint // it is that of the table
				s.Down(nil)
			}
			a, err := s.Take(ctx, ask("a", hold("a", 1)))
			if !errors.Is(err, wanted) || !fault.Unknown(err) || a != (store.Answer{}) {
				t.Fatalf("Take: %+v, error %v", a, err)
			}
			wantErr(t, s.Ready(ctx), wanted)
			_, err = s.Turn(ctx, key, "a", "", func() error { t.Error("it has asked for a place"); return nil })
			wantErr(t, err, wanted)
			wantErr(t, s.Queued(ctx, leaseRow, time.Second, nil), wanted)
			_, err = s.List(ctx)
			wantErr(t, err, wanted)
			wantErr(t, tx.Commit(), wanted)
			want(t, store.Glance{Exists: true, Owner: "-"})(other.Look(ctx, leaseRow))
		}
		s.Up()
		must(t, tx.Commit())
		take(t, s, ask("a", hold("a", 1)))
	})
}

// TestFaults proves that a fault is asked about each call, and has its way.
func TestFaults(t *testing.T) {
	lost := errors.New("lost")
	for _, c := range []struct {
		name  string
		fault func(ctx context.Context, call func() error) error
		took  time.Duration
		err   error
		taken bool
	}{
		{name: "none", fault: func(_ context.Context, call func() error) error { return call() }, taken: true},
		{name: "not sent", fault: func(context.Context, func() error) error { return lost }, err: lost},
		{name: "no answer", fault: func(_ context.Context, call func() error) error { return errors.Join(call(), lost) }, err: lost, taken: true},
		{name: "late", fault: func(_ context.Context, call func() error) error { time.Sleep(time.Second); return call() }, took: time.Second, taken: true},
		{name: "never sent", fault: func(ctx context.Context, _ func() error) error { <-ctx.Done(); return ctx.Err() }, took: time.Minute, err: context.DeadlineExceeded},
		{name: "too late", fault: func(ctx context.Context, call func() error) error { <-ctx.Done(); return call() }, took: time.Minute, err: context.DeadlineExceeded},
		{name: "never answered", fault: func(ctx context.Context, call func() error) error {
			err := call()
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		}, took: time.Minute, err: context.DeadlineExceeded, taken: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(t *testing.T, db *memstore.Server, s *memstore.Store) {
				limited, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				var asked []string
				s.SetFault(func(ctx context.Context, op string, at store.Row, call func() error) error {
					asked = append(asked, op)
					if at != leaseRow {
						t.Errorf("%s is about %v", op, at)
					}
					return c.fault(ctx, call)
				})
				began := time.Now()
				a, err := s.Take(limited, ask("a", hold("a", 1)))
				if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || time.Since(began) != c.took || (a.Reply == store.Done) != (err == nil) {
					t.Fatalf("after %v: %+v, error %v", time.Since(began), a, err)
				}
				if !slices.Equal(asked, []string{"Take"}) {
					t.Fatalf("asked about %v", asked)
				}
				glance, err := db.Store().Look(ctx, leaseRow)
				if must(t, err); (glance.Owner == "a") != c.taken {
					t.Fatalf("the row shows %+v", glance)
				}
			})
		})
	}
}

// lostAnswer lets every call take effect, and its answer be lost.
func lostAnswer(_ context.Context, _ string, _ store.Row, call func() error) error {
	return errors.Join(call(), mysql.ErrInvalidConn)
}

// TestLostPermit proves that a permit whose grant was not answered is found in the slot that was
// asked for.
func TestLostPermit(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		must(t, s.Make(ctx, store.Row{Key: key, Slot: 1}))
		want[store.Use](t, -1)(s.Use(ctx, key, -1))
		s.SetFault(func(ctx context.Context, op string, at store.Row, call func() error) error {
			if op == "FreePermits" {
				return call()
			}
			return lostAnswer(ctx, op, at, call)
		})
		a, err := s.Take(ctx, store.Ask{Row: leaseRow, Permits: 1, Owner: "a", Hold: hold("a", 1), TTL: ttl, NotAfter: store.Never})
		if !errors.Is(err, mysql.ErrInvalidConn) || a != (store.Answer{Slot: 1}) {
			t.Fatalf("%+v, error %v", a, err)
		}
		s.Up()
		want(t, store.Done)(s.Release(ctx, store.Row{Key: key, Slot: 1}, hold("a", 1)))
	})
}

// TestLockedPermit proves that a permit whose row is locked is passed over.
func TestLockedPermit(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		for slot := range int64(2) {
			must(t, s.Make(ctx, store.Row{Key: key, Slot: slot + 1}))
		}
		want[store.Use](t, -2)(s.Use(ctx, key, -2))
		tx := s.Begin()
		must(t, include(tx, s, func(in *store.In) error { return in.Make(ctx, store.Row{Key: key, Slot: 1}) }))
		claim := take(t, s, store.Ask{Row: leaseRow, Permits: 2, Owner: "a", Hold: hold("a", 1), TTL: ttl, NotAfter: store.Never})
		if claim.Slot != 2 {
			t.Fatalf("the permit is %+v", claim)
		}
		must(t, tx.Rollback())
	})
}

// TestLostCommit proves that a commit without an answer may have taken place.
func TestLostCommit(t *testing.T) {
	in(t, func(t *testing.T, _ *memstore.Server, s *memstore.Store) {
		tx := s.Begin()
		must(t, include(tx, s, func(in *store.In) error { take(t, in, ask("a", hold("a", 1))); return nil }))
		s.SetFault(lostAnswer)
		wantErr(t, tx.Commit(), mysql.ErrInvalidConn)
		s.Up()
		glance, err := s.Look(ctx, leaseRow)
		if must(t, err); glance.Owner != "a" {
			t.Fatalf("the row shows %+v", glance)
		}
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
