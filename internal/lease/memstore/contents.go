package memstore

import (
	"maps"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// Contents is what a row of the table of leases says: for tests to compare with a database.
type Contents = rules.Row

// Rows returns the rows as they are committed, and those that transactions have locked as
// these have them.
func (db *Server) Rows() (committed, locked map[store.Row]Contents) {
	db.Mu.Lock()
	defer db.Mu.Unlock()
	committed, locked = make(map[store.Row]Contents, len(db.Committed)), make(map[store.Row]Contents)
	maps.Copy(committed, db.Committed)
	for t := range db.Open {
		for at := range t.Locked {
			locked[at], _ = t.Current(at)
		}
	}
	return committed, locked
}
