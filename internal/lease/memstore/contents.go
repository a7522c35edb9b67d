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
	db.mu.Lock()
	defer db.mu.Unlock()
	committed, locked = make(map[store.Row]Contents, len(db.rows)), make(map[store.Row]Contents, len(db.locks))
	maps.Copy(committed, db.rows)
	for at, l := range db.locks {
		locked[at], _ = l.holder.current(at)
	}
	return committed, locked
}
