package sqlstore

import (
	"database/sql"
	"sync"
)

// budgets counts the connections that managers have taken of each pool, which they share.
var budgets = connBudgets{of: make(map[*sql.DB]connBudget)}

// connBudgets count the connections that are taken of pools. One connection of each pool is
// left to the program, which may hold the lease that others wait for.
type connBudgets struct {
	mu sync.Mutex
	of map[*sql.DB]connBudget
}

// connBudget is what is taken of one pool: at most half of it for each purpose.
type connBudget struct {
	kept   int // for renewals, and to wait for a row to renew
	places int // for the queue of Fair
}

// keep counts a connection that is kept, if that is allowed.
func (t *connBudgets) keep(db *sql.DB) bool {
	return t.take(db, func(most int, of *connBudget) bool {
		of.kept++
		return of.kept <= most/2 && of.kept+of.places < most
	})
}

// queue counts a place in the queue of Fair, if that is allowed beside the connections
// that are kept: at least the number given.
func (t *connBudgets) queue(db *sql.DB, kept int) bool {
	return t.take(db, func(most int, of *connBudget) bool {
		of.places++
		return of.places <= most/2 && max(of.kept, kept)+of.places < most
	})
}

// unkeep counts a connection that is not kept any more.
func (t *connBudgets) unkeep(db *sql.DB) {
	t.take(db, func(_ int, of *connBudget) bool { of.kept--; return true })
}

// unqueue counts a place that is not used any more.
func (t *connBudgets) unqueue(db *sql.DB) {
	t.take(db, func(_ int, of *connBudget) bool { of.places--; return true })
}

// take changes what is taken of a pool, if change allows it.
func (t *connBudgets) take(db *sql.DB, change func(most int, of *connBudget) bool) bool {
	most := db.Stats().MaxOpenConnections
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.of[db]
	if good := change(most, &of); !good && most > 0 {
		return false
	}
	if t.of[db] = of; of == (connBudget{}) {
		delete(t.of, db)
	}
	return true
}
