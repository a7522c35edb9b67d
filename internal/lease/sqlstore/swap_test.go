package sqlstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestSwapComparesTheVersion proves that what was decided by a row is not written once that has
// changed: by whatever verb, in the moment before it expires, or because another row has taken
// its place. A contender that has read the row before a renewal commits would else take over a
// lease that was just renewed.
func TestSwapComparesTheVersion(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		const held = "owner = 'me', ttl_us = 60000000, version = 5, holders = "
		set := func(to string) func(ctx context.Context, c store.Claim) error {
			return func(ctx context.Context, c store.Claim) error {
				_, err := db.Admin().ExecContext(ctx, "UPDATE lockstep_leases SET "+to+" WHERE name = ?", c.Key)
				return err
			}
		}
		for what, change := range map[string]func(ctx context.Context, c store.Claim) error{
			"a renewal":    func(ctx context.Context, c store.Claim) error { _, err := s.Renew(ctx, c); return err },
			"a release":    func(ctx context.Context, c store.Claim) error { _, err := s.Release(ctx, c.Row, c.Hold); return err },
			"a forced one": func(ctx context.Context, c store.Claim) error { _, err := s.Force(ctx, c.Row); return err },
			"another use":  func(ctx context.Context, c store.Claim) error { _, err := s.Use(ctx, c.Key, store.Shared); return err },
			"a guard":      func(ctx context.Context, c store.Claim) error { _, err := s.Guard(ctx, c); return err },
			"a request": func(ctx context.Context, c store.Claim) error {
				_, err := s.AskHolders(ctx, c.Key, "why", rules.Latest)
				return err
			},
			"a restored row": set("token = 999"),
			"renewals": func(ctx context.Context, c store.Claim) error {
				_, _, err := s.RenewMany(ctx, []store.Claim{c})
				return err
			},
			"releases": func(ctx context.Context, c store.Claim) error {
				_, _, err := s.releases.send(ctx, []rawsql.Wanted{{Name: c.Key, Slot: c.Slot, Hold: c.Hold}})
				return err
			},
		} {
			c := store.Claim{Row: store.Row{Key: what}, Owner: "me", Hold: hold("m"), Token: 1000}
			makeRow(t, db, what, held+"'"+c.Hold+"', expires_us = "+future)
			seen, err := s.row(t.Context(), c.Row)
			must(t, err)
			next, reply := seen.Take(store.Ask{Owner: "you", Hold: hold("y"), TTL: time.Minute}, seen.Expires, seen.Expires)
			if reply != store.Done {
				t.Fatalf("%s: an expired row is not free: %v", what, reply)
			}
			if err := change(t.Context(), c); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if swapped, err := s.swap(t.Context(), seen, next, always); swapped || err != nil {
				t.Errorf("%s was overwritten: %t, %v", what, swapped, err)
			}
		}
	})
}

// TestGuardComparesTheToken proves that a claim with an older token guards nothing.
func TestGuardComparesTheToken(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		c := store.Claim{Row: store.Row{Key: "guarded"}, Owner: "me", Hold: hold("m"), Token: 999}
		makeRow(t, db, c.Key, "owner = 'me', ttl_us = 60000000, holders = '"+c.Hold+"', expires_us = "+future)
		for _, want := range []store.Reply{store.Refused, store.Done} {
			if reply, err := s.Guard(t.Context(), c); reply != want || err != nil {
				t.Errorf("by the token %d: %v, %v, want %v", c.Token, reply, err, want)
			}
			c.Token++
		}
	})
}

// TestChangeIsDecidedAnew proves that a change is decided anew by a row that has changed
// meanwhile, that a locked row is Absent and stays as it is, and that one that changes again
// and again is given up.
func TestChangeIsDecidedAnew(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s, at := newStore(t, db), store.Row{Key: "changed"}
		makeRow(t, db, at.Key, "owner = 'me'")
		tries, busy := 0, 1
		decide := func(r rules.Row, _ int64) (rules.Row, store.Reply) {
			if tries++; tries <= busy {
				db.Exec(t, "UPDATE lockstep_leases SET version = version + 1, guards = guards + 1 WHERE name = 'changed'")
			}
			r.Reason += "+"
			return r, store.Done
		}
		if r, reply, err := s.change(t.Context(), at, decide); err != nil || reply != store.Done || r.Reason != "+" || r.Guards != 8 || tries != 2 {
			t.Errorf("after one other change: %v, %v, %+v, %d tries", reply, err, r, tries)
		}
		tries, busy = 0, 1000
		if _, reply, err := s.change(t.Context(), at, decide); err != nil || reply != store.Absent || tries != mostSwaps {
			t.Errorf("always changed: %v, %v, %d tries", reply, err, tries)
		}
		tries, busy = 0, 0
		if _, reply, err := s.changeUntil(t.Context(), at, 1, true, decide); err != nil || reply != store.Absent || tries != 1 {
			t.Errorf("too late: %v, %v, %d tries", reply, err, tries)
		}
		if _, reply, err := s.change(t.Context(), store.Row{Key: "missing"}, decide); err != nil || reply != store.Absent || tries != 1 {
			t.Errorf("missing: %v, %v, %d tries", reply, err, tries)
		}
		tries = 0
		tx, err := db.Admin().Begin()
		must(t, err)
		if _, err := tx.Exec("SELECT token FROM lockstep_leases WHERE name = ? FOR UPDATE", at.Key); err != nil {
			t.Fatal(err)
		}
		_, reply, err := s.change(t.Context(), at, decide)
		must(t, tx.Rollback())
		seen, readErr := s.row(t.Context(), at)
		if err != nil || readErr != nil || reply != store.Absent || tries != 1 || seen.Reason != "+" {
			t.Errorf("locked: %v, %v, %v, %d tries, %+v", reply, err, readErr, tries, seen)
		}
	})
}

// TestSystemVersioning proves that statements for several leases mean the same in a table
// WITH SYSTEM VERSIONING, where MariaDB counts other rows as affected: what is renewed is
// known, of any number and with others that are lost or asked, and so is what is taken.
func TestSystemVersioning(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, found := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", engine, found), func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				if engine == testdb.MariaDB {
					db.Exec(t, "ALTER TABLE lockstep_leases ADD SYSTEM VERSIONING")
				}
				s := newStore(t, db, func(c *mysql.Config) { c.ClientFoundRows = found })
				testSeveral(t, db, s)
				testRenewals(t, db, s)
			})
		}
	}
}

func testRenewals(t *testing.T, db *testdb.DB, s *Store) {
	for _, n := range []int{1, 2, 3, 6, 40} {
		for lost := range min(n+1, 4) {
			var claims []store.Claim
			for i := range n {
				name := fmt.Sprintf("%d/%d/%d", n, lost, i)
				makeRow(t, db, name, "owner = 'me', holders = '"+hold("m")+"', ttl_us = 60000000, expires_us = "+future)
				c := store.Claim{Row: store.Row{Key: name}, Owner: "me", Hold: hold("m"), Token: 1000, Told: 9}
				if i < lost {
					c.Token++ // somebody else's
				}
				claims = append(claims, c)
			}
			if last := claims[n-1]; n > lost {
				if _, err := db.Admin().ExecContext(t.Context(), "UPDATE lockstep_leases SET asked_us = 10, release_reason = 'why' WHERE name = ?", last.Key); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // on the same connection
				renewed, questions, err := s.RenewMany(t.Context(), claims)
				must(t, err)
				if asked := n > lost; len(questions) > 1 || asked != (len(questions) == 1) {
					t.Errorf("%d with %d lost were asked %v", n, lost, questions)
				}
				for i, c := range claims {
					standing, ok := renewed[c.Row]
					if ok != (i >= lost) || ok && standing != store.Renewed {
						t.Errorf("%d with %d lost: number %d is %v %v", n, lost, i, standing, ok)
					}
				}
			}
		}
	}
}
