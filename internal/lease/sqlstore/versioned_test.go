package sqlstore

import (
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

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
				if err != nil {
					t.Fatal(err)
				}
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
